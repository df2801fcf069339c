"""What `export_web` writes and refuses; none of it needs a browser or a GPU."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError, ExportError, SerializationError
from volta_fn.web.export import _RUNTIME, required_limits, runtime_source

S = vf.ShapeDtypeStruct
F = vf.web.Function
ROOT = Path(__file__).resolve().parents[2]


def manifest_of(page: Path) -> Any:
    """Return the manifest in a page."""
    matches = re.search(r'id="manifest">([^<]*)<', page.read_text())
    assert matches is not None
    return json.loads(gzip.decompress(base64.b64decode(matches[1])))


def export(path: Path, function: Any, arguments: Any, results: Any, state: Any = None, **options: Any) -> Any:
    return vf.export_web(path / "page.html", state=state or {}, functions={"f": F(function, arguments, results)}, **options)


def test_a_step_updates_its_state_in_place(tmp_path: Path) -> None:
    def step(state: Any, x: Any) -> Any:
        grads = vf.grad(lambda p: vnp.sum(vnp.tanh(p["w"] + p["b"]) * x))(state["params"])
        mu = vf.tree.map(lambda m, g: 0.9 * m + g, state["mu"], grads)
        nu = vf.tree.map(lambda m, g: 0.9 * m + g * g, state["nu"], grads)
        params = vf.tree.map(lambda p, m, n: p - m / (n + 1.0), state["params"], mu, nu)
        return vnp.sum(x), {"params": params, "mu": mu, "nu": nu}

    params = {"w": vnp.ones(8), "b": vnp.zeros(8)}
    state = {"params": params, "mu": params, "nu": params}
    exported = export(tmp_path, step, ["state", S((8,), "float32")], ["total", "state"], {"state": state})
    function = manifest_of(exported.files[0])["functions"]["f"]
    arrays = [array["name"] for array in manifest_of(exported.files[0])["arrays"]]
    in_place = [result for result in function["results"] if result["from"][0] == "argument"]
    assert len(in_place) >= 4
    for result in in_place:
        assert arrays[function["arguments"][result["from"][1]]] == arrays[result["state"]] == result["name"]
    assert function["results"][0]["state"] == -1
    assert exported.bytes == exported.files[0].stat().st_size


def test_the_same_page_is_the_same_file(tmp_path: Path) -> None:
    first = export(tmp_path, lambda x: vnp.sort(x), [vnp.arange(5.0)], "sorted").files[0].read_bytes()
    assert export(tmp_path, lambda x: vnp.sort(x), [vnp.arange(5.0)], "sorted").files[0].read_bytes() == first


def test_modules_come_with_their_data(tmp_path: Path) -> None:
    functions = {"f": F(lambda w, x: x @ w, ["w", S((3,), "float32")], "y")}
    exported = vf.export_web(tmp_path / "model.js", state={"w": vnp.ones((3, 2))}, functions=functions, format="module")
    assert [file.name for file in exported.files] == ["model.js", "model.bin"]
    assert np.frombuffer(exported.files[1].read_bytes(), np.float32).tolist() == [1.0] * 6
    assert "export async function load(" in exported.files[0].read_text()
    assert "import " not in re.sub(r"import\.meta|//.*", "", exported.files[0].read_text())


def test_a_page_of_ones_own(tmp_path: Path) -> None:
    page_file = tmp_path / "own.html"
    page_file.write_text("<p>mine</p><!-- volta_fn --><script>volta.load</script>")
    text = export(tmp_path, lambda x: x + 1.0, [S((2,), "float32")], "y", page=page_file).files[0].read_text()
    assert text.startswith("<p>mine</p><script") and "return {load, " in text
    page_file.write_text("<p>mine</p>")
    with pytest.raises(ArgumentError, match=r"has the comment <!-- volta_fn --> 0 times, not once"):
        export(tmp_path, lambda x: x + 1.0, [S((2,), "float32")], "y", page=page_file)
    with pytest.raises(SerializationError, match=r"cannot be read"):
        export(tmp_path, lambda x: x + 1.0, [S((2,), "float32")], "y", page=tmp_path / "none.html")


@pytest.mark.parametrize("text", ["<!--<script>", "</script>", "<!-- volta_fn -->", "<SCRIPT", "a < b"])
def test_no_text_ends_or_begins_an_element(text: str, tmp_path: Path) -> None:
    page = export(tmp_path, lambda x: x + 1.0, [S((2,), "float32")], "y", page=vf.web.Plain(file=text)).files[0].read_text()
    matches = re.search(r'id="settings">([^<]*)</script>', page)
    assert matches is not None
    assert json.loads(matches[1])["file"] == text


def test_a_full_disk_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    for format in ("html", "module"):
        with pytest.raises(SerializationError, match=r"page.html cannot be written: No space left on device|page.bin cannot be written"):
            export(tmp_path, lambda x: x + 1.0, [S((2,), "float32")], "y", format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("function", "way_out"),
    [
        (lambda x: vnp.linalg.eigvals(x), "use eigh if the matrices are Hermitian"),
        (lambda x: vf.pure_callback(np.abs, x, x), "write the function in volta_fn"),
    ],
)
def test_steps_of_the_host_are_refused_with_the_line_and_the_way_out(function: Any, way_out: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=rf"in 'f', \w+ runs on the host.*test_export.py:\d+.*a page has no Python: {way_out}"):
        export(tmp_path, function, [S((3, 3), "float32")], "y")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("function", "arguments", "results", "message"),
    [
        (lambda w: w, ["v"], ["w"], r"takes 'v', but the state has \['w'\]"),
        (lambda w: (w, w), ["w"], ["w"], r"should return 'w' as it is in the state, but w is"),
        (lambda w: (w, w), ["w"], ["a", "b", "c"], r"returns 2 values, but 3 names"),
        (lambda w: w.astype("bfloat16"), ["w"], ["w"], r"w is \(\(3,\), 'float32'\) in the state and \(\(3,\), 'bfloat16'\)"),
        (lambda w, x: x, ["w", S((2,), "float64")], ["x"], r"f/x has dtype float64, which WebGPU has not"),
        (lambda w: w.astype("float64").sum(), ["w"], ["x"], r"convert_element_type gives f64\[3\], at .*test_export.py:\d+.*no float64"),
        (lambda w, x: x, ["w", object()], ["x"], r"which is no array and no ShapeDtypeStruct"),
    ],
)
def test_what_a_page_cannot_do_is_refused(function: Any, arguments: Any, results: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        export(tmp_path, function, arguments, results, {"w": vnp.ones(3)})


def test_programs_beyond_the_limits_are_refused_and_larger_limits_asked_for(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        return vnp.cumsum(x, axis=1)

    big = S((10, 9_000_000), "float32")
    huge = S((300, 9_000_000), "float32")
    with pytest.raises(ExportError, match=r"'f' does not fit webgpu: cumsum -> f32\[300,9000000\], at .*test_export.py"):
        export(tmp_path, f, [huge], "y")
    exported = export(tmp_path, f, [big], "y", limits={"maxBufferSize": 1 << 30})
    assert manifest_of(exported.files[0])["limits"] == {"maxBufferSize": big.size * 4}


@pytest.mark.parametrize("where", ["state", "constants"])
def test_quantised_weights_stay_quantised(where: str, tmp_path: Path) -> None:
    """A page stores int8 weights in a byte each, and widens them on the GPU."""
    numbers = np.random.default_rng(0).integers(-127, 128, (128, 128)).astype(np.int8)
    weight, scale = vnp.asarray(numbers), vnp.full(128, 0.01)
    state = {"model": {"weight": weight, "scale": scale} if where == "state" else {"scale": scale}}

    def predict(model: Any, x: Any) -> Any:
        return x @ (model.get("weight", weight).astype("float32") * model["scale"])

    function = vf.web.Function(predict, ["model", vf.ShapeDtypeStruct((4, 128), "float32")], ["y"])
    vf.export_web(tmp_path / "page.mjs", state=state, functions={"predict": function}, format="module")
    (data,) = tmp_path.glob("*.bin")
    stored = data.read_bytes()
    assert numbers.tobytes() in (gzip.decompress(stored) if stored[:2] == b"\x1f\x8b" else stored)


def test_small_programs_ask_for_no_limits() -> None:
    assert required_limits([], 100) == {}


def test_mistakes_in_options(tmp_path: Path) -> None:
    operands = [S((2,), "float32")]
    with pytest.raises(ArgumentError, match=r"the formats are 'html' and 'module', got 'pdf'"):
        export(tmp_path, lambda x: x, operands, "y", format="pdf")
    with pytest.raises(ArgumentError, match=r"storage is one of .* got 'int8'"):
        export(tmp_path, lambda x: x, operands, "y", storage="int8")
    with pytest.raises(ArgumentError, match=r"70000\.0 is beyond float16; store such parameters as"):
        export(tmp_path, lambda w: w + 1.0, ["w"], "y", {"w": vnp.array([7e4])}, storage="float16")
    with pytest.raises(ArgumentError, match=r"needs a function 'predict', but there are \['f'\]"):
        export(tmp_path, lambda x: x, operands, "y", page=vf.web.Digits(train=None))
    with pytest.raises(ArgumentError, match=r"needs the result 'loss' of 'f', which has \['y'\]"):
        export(tmp_path, lambda x: x, operands, "y", page=vf.web.Plain(train="f"))
    with pytest.raises(ArgumentError, match=r"the filler '\\n' is not among the symbols"):
        export(tmp_path, lambda x: x, operands, "y", page=vf.web.Text(symbols="ab"))


def test_parts_of_other_types_are_named(tmp_path: Path) -> None:
    layer = nn.Linear.init(vf.random.key(0), 2, 1)
    call = lambda model, x: model(x)
    x = S((3, 2), "float32")
    function = vf.web.Function(call, ["model", x], ["y"])
    for state, functions, message in (
        (layer, {"f": function}, r"the state is a dictionary of its parts, as \{'model': model\}, got Linear"),
        ({"model": layer}, function, r"the functions are a dictionary, .* got Function"),
        ({"model": layer}, {"f": call}, r"'f' is a web.Function, .* got function"),
    ):
        with pytest.raises(ArgumentTypeError, match=message):
            vf.export_web(tmp_path / "page.html", state=state, functions=functions)
    for arguments, message in (
        (["model"], r"'f' is called with 1 arguments: missing a required argument: 'x'"),
        (["model", x, x], r"'f' is called with 3 arguments: too many positional arguments"),
        (["model", (3, 2)], r"the input x of 'f' has no dtype: give a ShapeDtypeStruct\(\(3, 2\), 'float32'\)"),
    ):
        with pytest.raises(ExportError, match=message):
            vf.export_web(tmp_path / "page.html", state={"model": layer}, functions={"f": vf.web.Function(call, arguments, ["y"])})
    with pytest.raises(ArgumentTypeError, match=r"Its arguments are path, \*, state, functions"):
        vf.export_web(tmp_path / "page.html", layer)  # type: ignore[misc,call-arg]


def test_two_arrays_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"two arrays have the name 's.a.b'"):
        export(tmp_path, lambda s: s["a"]["b"], ["s"], "y", {"s": {"a": {"b": 1.0}, "a.b": 2.0}})


def test_the_runtime_has_all_its_modules() -> None:
    folder = ROOT / "volta_fn/web/runtime"
    assert sorted(_RUNTIME) == sorted(path.stem for path in folder.glob("*.js"))
    names = re.findall(
        r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", "".join(p.read_text() for p in folder.glob("*.js")), re.M
    )
    assert len(names) == len(set(names)), "the modules are joined, so their names must differ"
    assert not re.search(r"^(import|export) ", runtime_source(), re.M)
    for path in folder.glob("*.js"):
        for line in re.findall(r"^import \{.*\} from '\./(\w+)\.js';", path.read_text(), re.M):
            assert _RUNTIME.index(line) < _RUNTIME.index(path.stem)


def test_no_gpu_is_needed() -> None:
    script = (
        "import sys; sys.modules['wgpu'] = None\n"
        "import volta_fn as vf, tempfile, os\n"
        "S = vf.ShapeDtypeStruct\n"
        "f = vf.web.Function(lambda x: vf.numpy.sort(x @ x), [S((4, 4), 'float32')], 'y')\n"
        "path = os.path.join(tempfile.mkdtemp(), 'page.html')\n"
        "print(vf.export_web(path, state={}, functions={'f': f}).shaders)"
    )
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "2"
