"""Damaged and malicious safetensors files raise typed errors.

Nothing is accepted that the reference library refuses.
"""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from volta_fn import io
from volta_fn.errors import CorruptFileError, DTypeError, VoltaError


def file_of(header: str | bytes, data: bytes = b"\0" * 8) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8), **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def header_of(**entries: object) -> str:
    return json.dumps(entries)


GOOD = header_of(a=entry())
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000

CORRUPT = {
    "nothing": b"",
    "short": b"\1\0\0",
    "only a length": (8).to_bytes(8, "little"),
    "longest length": b"\xff" * 8 + GOOD.encode(),
    "length over the limit": (10**8 + 1).to_bytes(8, "little") + b"{}",
    "length beyond the end": (1000).to_bytes(8, "little") + GOOD.encode(),
    "empty header": file_of(""),
    "a pickle": b"\x80\x04\x95\x1a\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "no JSON": file_of("{a:1}"),
    "no UTF-8": file_of(b'{"\xff":1}'),
    "an array": file_of("[]"),
    "space first": file_of(" " + GOOD),
    "deep nesting": file_of(DEEP),
    "rubbish after": file_of(GOOD + "\0\0"),
    "same name twice": file_of(GOOD[:-1] + "," + GOOD[1:]),
    "same key twice": file_of('{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
    "half a surrogate": file_of(header_of(a=entry(), **{"\ud800": entry(shape=[0], offsets=[8, 8])})),
    "half a surrogate in the notes": file_of(header_of(a=entry(), __metadata__={"note": "\ud800"})),
    "notes of numbers": file_of(header_of(a=entry(), __metadata__={"a": 1})),
    "notes in a list": file_of(header_of(a=entry(), __metadata__=["a"])),
    "no entry": file_of(header_of(a=1)),
    "entry of null": file_of(header_of(a=None)),
    "missing shape": file_of(header_of(a={"dtype": "F32", "data_offsets": [0, 8]})),
    "unknown key": file_of(header_of(a=entry(code="import os"))),
    "dtype no text": file_of(header_of(a=entry(dtype=7))),
    "negative size": file_of(header_of(a=entry(shape=[-2, -1]))),
    "minus zero": file_of(GOOD.replace("[0, 8]", "[-0, 8]")),
    "fraction": file_of(header_of(a=entry(shape=[2.0]))),
    "truth value": file_of(header_of(a=entry(shape=[True, 2]))),
    "NaN": file_of(header_of(a=entry(shape=[float("nan")]))),
    "shape no list": file_of(header_of(a=entry(shape=2))),
    "shape nested": file_of(header_of(a=entry(shape=[[2]]))),
    "number of ten thousand digits": file_of(GOOD.replace("[2]", f"[{'9' * 10_000}]")),
    "overflowing shape": file_of(header_of(a=entry(shape=[2**62, 2**62], offsets=[0, 8]))),
    "empty but overflowing shape": file_of(header_of(a=entry(), b=entry(shape=[0, 2**62, 2**62], offsets=[8, 8]))),
    "many axes": file_of(header_of(a=entry(shape=[1] * 70 + [2]))),
    "one offset": file_of(header_of(a=entry(offsets=[8]))),
    "three offsets": file_of(header_of(a=entry(offsets=[0, 4, 8]))),
    "offsets reversed": file_of(header_of(a=entry(offsets=[8, 0]))),
    "fewer bytes than the shape": file_of(header_of(a=entry(shape=[3]))),
    "more bytes than the shape": file_of(header_of(a=entry(shape=[1]))),
    "wrong size of dtype": file_of(header_of(a=entry(dtype="F64"))),
    "beyond the end": file_of(header_of(a=entry(offsets=[8, 16]))),
    "far beyond the end": file_of(header_of(a=entry(offsets=[2**63, 2**63 + 8]))),
    "gap before": file_of(header_of(a=entry(offsets=[4, 12])), bytes(12)),
    "gap after": file_of(GOOD, bytes(9)),
    "data cut": file_of(GOOD, bytes(7)),
    "data missing": file_of(GOOD, b""),
    "overlap": file_of(header_of(a=entry(), b=entry())),
    "partial overlap": file_of(header_of(a=entry(), b=entry(offsets=[4, 12])), bytes(12)),
    "empty tensor inside another": file_of(header_of(a=entry(), b=entry(shape=[0], offsets=[4, 4]))),
}


@pytest.mark.parametrize("fault", CORRUPT)
def test_faults_are_refused(fault, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(CORRUPT[fault])
    with pytest.raises(CorruptFileError, match="model.safetensors"):
        io.load_safetensors(path)


@pytest.mark.parametrize("name", ["F4", "F6_E2M3", "I4", "C128", "f32", "float32", "", "F" * 1000])
def test_unknown_dtypes_are_refused_and_not_taken_for_others(name, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_of(header_of(a=entry(dtype=name))))
    with pytest.raises(DTypeError, match="cannot be represented"):
        io.load_safetensors(path)


def test_odd_but_valid_files(tmp_path):
    """Accept odd but valid files: no tensors, no padding, empty tensors, any order."""
    path = tmp_path / "x.safetensors"
    empty = entry(shape=[0, 5], offsets=[8, 8])
    for content in [file_of("{}", b""), file_of("{} \n\t ", b""), file_of(GOOD), file_of(header_of(e=empty, a=entry()))]:
        path.write_bytes(content)
        assert io.load_safetensors(path).keys() == load_file(path).keys()


SAMPLE = save(
    {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(3, np.float16),
        "flag": np.array(True),
        "e": np.ones((0, 2), np.int64),
    },
    {"format": "np"},
)


def outcome(path: object) -> dict[str, np.ndarray] | None:
    """Return the arrays in a file, or None if it is refused with a typed error."""
    try:
        return {name: np.asarray(value) for name, value in io.load_safetensors(path).items()}
    except (CorruptFileError, DTypeError) as error:
        assert isinstance(error, VoltaError)
        return None


def library_outcome(path: object) -> dict[str, np.ndarray] | None:
    try:
        return load_file(path)
    except (SafetensorError, AttributeError):
        return None


def check(path, content: bytes) -> None:
    """Refused, or read as the library reads it."""
    path.write_bytes(content)
    ours = outcome(path)
    if ours is None:
        return
    theirs = library_outcome(path)
    assert theirs is not None, "accepted a file that the library refuses"
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        assert (ours[name].dtype, ours[name].shape, ours[name].tobytes()) == (values.dtype, values.shape, values.tobytes())


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    for length in range(len(SAMPLE)):
        path.write_bytes(SAMPLE[:length])
        assert outcome(path) is None
    check(path, SAMPLE)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_changed_bytes(tmp_path_factory, changes):
    content = bytearray(SAMPLE)
    for position, byte in changes:
        content[position] = byte
    check(tmp_path_factory.getbasetemp() / "changed.safetensors", bytes(content))


SNIPPETS = [
    '"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "0",
    "8",
    "24",
    "-1",
    "1e2",
    "null",
    "true",
    '"F64"',
    '"BOOL"',
    '"w"',
    '"__metadata__"',
    "\\u0000",
]


@settings(max_examples=300)
@given(st.data())
def test_headers_with_snippets_exchanged(tmp_path_factory, data):
    length = int.from_bytes(SAMPLE[:8], "little")
    text = SAMPLE[8 : 8 + length].decode()
    for _ in range(data.draw(st.integers(1, 2))):
        start = data.draw(st.integers(0, len(text)))
        stop = min(len(text), start + data.draw(st.integers(0, 4)))
        text = text[:start] + data.draw(st.sampled_from(SNIPPETS)) + text[stop:]
    check(tmp_path_factory.getbasetemp() / "pieces.safetensors", file_of(text, SAMPLE[8 + length :]))


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_rubbish(tmp_path_factory, content):
    check(tmp_path_factory.getbasetemp() / "rubbish.safetensors", content)
    check(tmp_path_factory.getbasetemp() / "rubbish.safetensors", file_of(content))


@pytest.mark.parametrize("load", [io.load_state_dict, io.diff_state_dict, lambda template, state: io.from_torch(template)(state)])
def test_names_of_many_dots_take_little_memory(load: Callable[..., object]) -> None:
    """A name of 20,000 dots has prefixes of 200 million characters."""
    array = np.ones(2, np.float32)
    tracemalloc.start()
    try:
        with contextlib.suppress(VoltaError):
            load({"w": array}, {"w": array, "." * 20_000: array})
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
