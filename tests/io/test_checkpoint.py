"""Checkpoints: states are restored bit by bit, old ones removed, damage noticed."""

from __future__ import annotations

import json
import math
import os
import threading
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.io.test_tensor_file import STORABLE, assert_same_bits, bits_of
from volta_fn import dtypes, io, nn, optim
from volta_fn.core.arrays.array import as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, CheckpointError, CorruptFileError, DTypeError, TracerError
from volta_fn.io.checkpoint import CHECKSUM, MANIFEST

KEY = vf.random.key(0)
RNG = np.random.default_rng(0)


@pytest.fixture
def checkpoints(tmp_path) -> io.Checkpointer:
    return io.Checkpointer(tmp_path / "run")


def round_trip(checkpoints: io.Checkpointer, state: object, template: object = None) -> object:
    checkpoints.save(0, state)
    return checkpoints.restore(state if template is None else template, 0)


def assert_same(a: object, b: object) -> None:
    """Equal trees, leaves equal in type and bits."""
    assert vf.tree.structure(a) == vf.tree.structure(b)
    for x, y in zip(vf.tree.leaves(a), vf.tree.leaves(b), strict=True):
        assert type(x) is type(y)
        if isinstance(x, (vf.Array, np.ndarray, np.generic)):
            assert_same_bits(x, y)
            assert getattr(x, "weak_type", None) == getattr(y, "weak_type", None)
        else:
            assert repr(x) == repr(y)


@pytest.mark.parametrize("dtype", sorted(dtypes.STORED, key=lambda dtype: dtype.name), ids=lambda dtype: dtype.name)
def test_arrays_of_every_dtype(dtype, checkpoints):
    random = bits_of if dtype in dtypes.ALL else lambda shape, dtype: RNG.integers(0, 2, shape).astype(dtype)
    arrays = [np.asarray(random(shape, dtype)) for shape in [(3, 2), (), (0, 2)]]
    assert_same(*[(state := [*map(vf.numpy.asarray, arrays), *arrays, arrays[0].flat[0]]), round_trip(checkpoints, state)])


@pytest.mark.parametrize("dtype", STORABLE, ids=lambda dtype: dtype.name)
def test_numpy_arrays_of_every_dtype(dtype, checkpoints):
    state = {"x": bits_of((2, 3), dtype)}
    restored = round_trip(checkpoints, state)
    assert_same(state, restored)
    assert restored["x"].flags.writeable


PYTHON = [0, -1, 2**200, -(10**5000), True, False, 1.5, -0.0, math.inf, math.nan, 5e-324, 1 - 2j, complex(-0.0, math.nan), "", "ä\n☃", "\0"]


def test_values_of_python(checkpoints):
    state = {str(i): value for i, value in enumerate(PYTHON)}
    restored = checkpoints.save(1, state) or checkpoints.restore(state)
    assert [type(value) for value in restored.values()] == [type(value) for value in state.values()]
    for i, value in enumerate(PYTHON):
        same = restored[str(i)]
        assert same == value or (same != same and value != value)
    assert [math.copysign(1, restored[str(i)]) for i in (7,)] == [-1]
    assert math.copysign(1, restored["12"].real) == -1


leaves = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text(st.characters(exclude_categories=["Cs"])), st.none(), st.just(np.int8(3))
)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a.'[] ", max_size=3), inner, max_size=3), max_leaves=6
)


@settings(max_examples=40)
@given(trees)
def test_any_tree(tmp_path_factory, state):
    assert_same(state, round_trip(io.Checkpointer(tmp_path_factory.getbasetemp() / "trees"), state))


def test_weak_types_keys_and_views(checkpoints):
    x = np.arange(12.0).reshape(3, 4)
    state = {"weak": as_value(2.5), "keys": vf.random.split(KEY, 3), "raw": vf.random.PRNGKey(1), "view": x.T[::2], "none": None}
    restored = round_trip(checkpoints, state)
    assert_same({**state, "view": np.ascontiguousarray(state["view"])}, restored)
    assert isinstance(restored["keys"], type(KEY))
    assert_same_bits(vf.random.normal(restored["keys"][1]), vf.random.normal(state["keys"][1]))


def test_a_bare_array(checkpoints):
    assert round_trip(checkpoints, vf.numpy.arange(3)).tolist() == [0, 1, 2]


@vf.tree.register_dataclass
@dataclass(frozen=True)
class TrainingState:
    model: nn.Module
    norms: object
    moments: object
    key: object
    step: object


def training_state() -> TrainingState:
    model, norms = nn.Sequential.init(nn.Linear.init(KEY, 3, 4), nn.BatchNorm1d.init(4), nn.relu, nn.Dropout.init(0.5))
    return TrainingState(model, norms, optim.adam(1e-2).init(model), KEY, 0)


def test_training_states_into_templates_without_numbers(checkpoints):
    state = training_state()
    checkpoints.save(7, state)
    restored = checkpoints.restore(vf.eval_shape(training_state))
    assert vf.tree.structure(restored) == vf.tree.structure(state)
    assert restored.step == 0
    for a, b in zip(vf.tree.leaves(restored), vf.tree.leaves(state), strict=True):
        assert_same_bits(a, b)


def test_restored_arrays_do_not_depend_on_the_file(checkpoints):
    checkpoints.save(0, {"x": vf.numpy.ones(1000)})
    restored = checkpoints.restore({"x": vf.ShapeDtypeStruct((1000,), "float32")})
    path = checkpoints.directory / "step_0000000000.safetensors"
    os.truncate(path, 100)
    assert vf.jit(lambda x: x + 1, donate_argnums=0)(restored["x"]).sum().item() == 2000


def test_the_newest_are_kept(checkpoints):
    for step in (1, 5, 3, 20, 10**12):
        checkpoints.save(step, {"x": step})
    assert checkpoints.all_steps() == [5, 20, 10**12]
    assert checkpoints.latest_step() == 10**12
    assert checkpoints.restore({"x": 0})["x"] == 10**12
    assert checkpoints.restore({"x": 0}, 20)["x"] == 20
    everything = io.Checkpointer(checkpoints.directory, keep=None)
    for step in range(10):
        everything.save(step, {"x": step})
    assert len(everything.all_steps()) == 12


def test_a_step_back_in_time_is_not_removed_at_once(checkpoints):
    """Keep the newest step's checkpoint although older ones have higher numbers."""
    for step in (10, 20, 30):
        checkpoints.save(step, {"x": step})
    checkpoints.save(11, {"x": 11})
    assert checkpoints.all_steps() == [11, 20, 30]


def test_saving_a_step_again_replaces_it(checkpoints):
    checkpoints.save(np.int64(3), {"x": 1})
    checkpoints.save(vf.numpy.array(3), {"x": 2})
    assert (checkpoints.all_steps(), checkpoints.restore({"x": 0})) == ([3], {"x": 2})


def test_other_files_are_left_alone(checkpoints):
    checkpoints.directory.mkdir()
    for name in ("step_1.safetensors", "step_000000000x.safetensors", "notes.txt", "model.safetensors"):
        (checkpoints.directory / name).write_text("x")
    (checkpoints.directory / ".step_0000000001.safetensors.0123abcd.tmp").write_text("half written when it was killed")
    assert checkpoints.all_steps() == []
    checkpoints.save(2, {"x": 1})
    assert sorted(os.listdir(checkpoints.directory)) == [
        "model.safetensors",
        "notes.txt",
        "step_0000000002.safetensors",
        "step_000000000x.safetensors",
        "step_1.safetensors",
    ]


def test_nothing_to_restore(checkpoints):
    assert (checkpoints.all_steps(), checkpoints.latest_step()) == ([], None)
    with pytest.raises(CheckpointError, match="no checkpoints in"):
        checkpoints.restore({})
    checkpoints.save(1, {})
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 2 .* only of \[1\]"):
        checkpoints.restore({}, 2)


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "3"])
def test_keep_is_a_number_of_at_least_one(keep, tmp_path):
    with pytest.raises(ArgumentError, match="keep"):
        io.Checkpointer(tmp_path, keep=keep)


def test_steps_are_integers(checkpoints):
    for step in (1.5, "1", None):
        with pytest.raises(ArgumentTypeError, match="step"):
            checkpoints.save(step, {})
    with pytest.raises(ArgumentError, match="from 0"):
        checkpoints.save(-1, {})
    with pytest.raises(TracerError):
        vf.jit(lambda x: checkpoints.save(0, {"x": x}))(1.0)


class Text(str):
    pass


@pytest.mark.parametrize(
    "leaf", [len, object(), b"bytes", {1}, Text("x"), "\ud800", vf.ShapeDtypeStruct((), "float32")], ids=lambda leaf: type(leaf).__name__
)
def test_leaves_that_cannot_be_saved(leaf, checkpoints):
    with pytest.raises(ArgumentTypeError, match=r"\['a'\]"):
        checkpoints.save(0, {"a": leaf})
    assert checkpoints.all_steps() == []


@pytest.mark.parametrize("dtype", [object, "datetime64[s]", "S3", ">f4"])
def test_dtypes_that_cannot_be_saved(dtype, checkpoints):
    with pytest.raises(DTypeError, match=r"\['a'\]"):
        checkpoints.save(0, {"a": np.zeros(2, dtype)})


SAVED = {"w": vf.numpy.ones((2, 3)), "n": 3, "name": "adam", "rate": 0.5}
OTHERS = {
    "missing": ({k: v for k, v in SAVED.items() if k != "w"}, r"1 unexpected:\n  \['w'\]"),
    "unexpected": ({**SAVED, "v": 1}, r"1 missing:\n  \['v'\]"),
    "shape": ({**SAVED, "w": vf.numpy.ones((3, 2))}, r"\['w'\]: expected f32\[3,2\], found f32\[2,3\]"),
    "dtype": ({**SAVED, "w": vf.numpy.ones((2, 3), "float16")}, r"expected f16\[2,3\], found f32\[2,3\]"),
    "text for number": ({**SAVED, "n": "3"}, r"\['n'\]: expected str, found int"),
    "number for text": ({**SAVED, "name": 3}, r"\['name'\]: expected int, found str"),
    "array for number": ({**SAVED, "rate": vf.numpy.ones(2)}, r"\['rate'\]: expected f32\[2\], found float"),
    "number for array": ({**SAVED, "w": 1.0}, r"\['w'\]: expected float, found f32\[2,3\]"),
    "function": ({**SAVED, "w": len}, r"\['w'\]: expected nothing like builtin_function_or_method"),
    "list": ([1, 2, 3, 4], r"4 missing:\n  \[0\]"),
}


@pytest.mark.parametrize("fault", OTHERS)
def test_templates_that_do_not_fit(fault, checkpoints):
    template, message = OTHERS[fault]
    checkpoints.save(0, SAVED)
    with pytest.raises(CheckpointError, match=message):
        checkpoints.restore(template)


def test_numbers_may_have_become_arrays(checkpoints):
    """Restore a step that was an array when saved, though the template says 0."""
    restored = round_trip(checkpoints, {"step": vf.numpy.array(5), "rate": 0.5}, {"step": 0, "rate": vf.numpy.array(1.0)})
    assert (restored["step"].dtype.name, restored["rate"]) == ("int32", 0.5)


# damage


def path_of(checkpoints: io.Checkpointer) -> os.PathLike[str]:
    checkpoints.save(0, SAVED)
    return checkpoints.directory / "step_0000000000.safetensors"


def test_every_damaged_byte_is_noticed(checkpoints):
    """Refuse a file with any byte changed, in a number, a name or a space."""
    path = path_of(checkpoints)
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises((CorruptFileError, CheckpointError, DTypeError)):
            checkpoints.restore(SAVED)


def test_every_truncation_is_noticed(checkpoints):
    path = path_of(checkpoints)
    content = path.read_bytes()
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(CorruptFileError):
            checkpoints.restore(SAVED)


def tensor(**changes: object) -> dict[str, object]:
    return {"kind": "array", "dtype": "float32", "shape": [2], "weak": False, "checksum": 0, **changes}


def notes(manifest: str) -> dict[str, str]:
    return {MANIFEST: manifest, CHECKSUM: f"{zlib.crc32(manifest.encode()):08x}"}


MANIFESTS = {
    "no JSON": "{",
    "a list": "[]",
    "no entry": {"['x']": 1},
    "empty entry": {"['x']": {}},
    "unknown kind": {"['x']": tensor(kind="object")},
    "kind of pickles": {"['x']": tensor(kind="pickle", dtype="object")},
    "unknown dtype": {"['x']": tensor(dtype="object")},
    "dtype of other size": {"['x']": tensor(dtype="float64")},
    "dtype of the same size": {"['x']": tensor(dtype="int32")},
    "other shape": {"['x']": tensor(shape=[1, 2])},
    "shape of texts": {"['x']": tensor(shape=["2"])},
    "truth value as size": {"['x']": tensor(shape=[True])},
    "shape no list": {"['x']": tensor(shape=2)},
    "weak no truth value": {"['x']": tensor(weak="no")},
    "sum no number": {"['x']": tensor(checksum="0")},
    "more": {"['x']": tensor(more=1)},
    "a tensor that is not there": {"['x']": tensor(), "['y']": tensor()},
    "a tensor without entry": {"['y']": {"kind": "int", "text": "0x1"}},
    "tensor said to be text": {"['x']": {"kind": "str", "text": "x"}},
    "array said to be a number": {"['x']": tensor(kind="float")},
    "array said to be a scalar": {"['x']": tensor(kind="numpy scalar")},
    "text for tensors": {"['x']": {"kind": "array", "text": "x"}},
    "wrong sum": {"['x']": tensor(checksum=1)},
}


@pytest.mark.parametrize("fault", MANIFESTS)
def test_manifests_that_lie_are_refused(fault, checkpoints):
    manifest = MANIFESTS[fault]
    path = path_of(checkpoints)
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    io.save_safetensors(path, {"['x']": np.ones(2, np.float32)}, notes(text))
    with pytest.raises(CorruptFileError):
        checkpoints.restore({"x": vf.numpy.ones(2)})


@pytest.mark.parametrize("shape", [[0, 2**70], [1] * 70])
def test_shapes_that_no_array_has_are_refused(shape, checkpoints):
    text = json.dumps({"['x']": tensor(kind="numpy", dtype="uint4", shape=shape)})
    io.save_safetensors(path_of(checkpoints), {"['x']": np.zeros(math.prod(shape), np.uint8)}, notes(text))
    with pytest.raises(CorruptFileError, match="cannot have the shape"):
        checkpoints.restore({"x": np.zeros(0, np.uint8)})


@pytest.mark.parametrize("text", ["x", "", "0x", "1.5", "__import__('os')"])
def test_texts_that_are_no_numbers_are_refused(text, checkpoints):
    io.save_safetensors(path_of(checkpoints), {}, notes(json.dumps({"['x']": {"kind": "int", "text": text}})))
    with pytest.raises(CorruptFileError, match="integer"):
        checkpoints.restore({"x": 0})


@pytest.mark.wide
def test_ordinary_files_are_no_checkpoints(checkpoints):
    io.save_safetensors(path_of(checkpoints), {"x": np.ones(2)})
    with pytest.raises(CheckpointError, match="not a checkpoint but another safetensors file"):
        checkpoints.restore({"x": np.ones(2)})


def test_a_failing_save_leaves_the_older_ones(checkpoints, monkeypatch):
    checkpoints.save(1, SAVED)
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        checkpoints.save(2, SAVED)
    assert os.listdir(checkpoints.directory) == ["step_0000000001.safetensors"]


def test_threads_may_save_and_read_at_once(checkpoints):
    checkpoints.save(0, {"x": vf.numpy.zeros(1000)})
    faults: list[object] = []

    def read() -> None:
        for _ in range(20):
            try:
                x = np.asarray(checkpoints.restore({"x": vf.ShapeDtypeStruct((1000,), "float32")})["x"])
                faults.extend([] if (x == x[0]).all() else [x])
            except CheckpointError as error:  # it was the oldest and went between the look and the reading
                faults.extend([] if "no checkpoint of step" in error.message else [error])

    readers = [threading.Thread(target=read) for _ in range(3)]
    writers = [threading.Thread(target=checkpoints.save, args=(i, {"x": vf.numpy.full(1000, i, "float32")})) for i in range(1, 9)]
    for thread in [*readers, *writers]:
        thread.start()
    for thread in [*readers, *writers]:
        thread.join()
    assert not faults
    assert len(checkpoints.all_steps()) == 3


@pytest.mark.parametrize(
    "stray",
    [
        "step_00000000003.safetensors",
        "step_\u0660\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668\u0669.safetensors",
        "step_9999999999.safetensors/",
        "step_99999999999999999999999.safetensors",
        f"step_{2**63}.safetensors",
    ],
)
def test_files_of_similar_names_are_no_checkpoints(stray, checkpoints):
    checkpoints.save(1, {"x": 1})
    path = checkpoints.directory / stray
    path.mkdir() if stray.endswith("/") else path.write_bytes(b"other")
    assert checkpoints.all_steps() == [1]
    assert checkpoints.restore({"x": 0}) == {"x": 1}
    checkpoints.save(2, {"x": 2})
    assert checkpoints.latest_step() == 2
    assert path.exists()


def test_what_is_no_checkpoint_does_not_count_for_those_that_are_kept(tmp_path):
    checkpoints = io.Checkpointer(tmp_path, keep=2)
    strays = [
        tmp_path / f"step_{name}.safetensors" for name in ("99999999999999999999999", "9223372036854775807", "0000000099", "0000000098")
    ]
    for stray, content in zip(strays, (b"", b"rubbish", bytes(100), None), strict=True):
        stray.write_bytes(content) if content is not None else io.save_safetensors(stray, {"x": np.ones(2)})
    for step in range(4):
        checkpoints.save(step, {"x": step})
    assert all(checkpoints.restore({"x": 0}, step) == {"x": step} for step in (2, 3))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [*[s.name for s in strays], "step_0000000002.safetensors", "step_0000000003.safetensors"]
    )
    with pytest.raises(ArgumentError, match=f"a step is an integer from 0 to {2**63 - 1}"):
        checkpoints.save(2**63, {"x": 1})


def test_temporaries_of_others_stay(checkpoints):
    checkpoints.directory.mkdir()
    mine, folder = checkpoints.directory / ".mine.tmp", checkpoints.directory / ".x.tmp"
    mine.write_text("mine")
    folder.mkdir()
    left = checkpoints.directory / ".step_0000000001.safetensors.0123abcd.tmp"
    left.write_text("half")
    checkpoints.save(2, {"x": 2})
    assert (mine.exists(), folder.exists(), left.exists()) == (True, True, False)
