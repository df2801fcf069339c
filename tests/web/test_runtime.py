"""The JavaScript runtime in Chromium: numbers, files, messages, the order of calls."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.web.chromium import FAST, Chromium
from tests.web.pages import load_runtime, open_application
from volta_fn.web.export import Function


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """One browser for all tests."""
    with Chromium(FAST) as opened:
        yield opened


S = vf.ShapeDtypeStruct


def message(browser: Chromium, script: str) -> str:
    """Return the message with which a promise is rejected."""
    return browser.evaluate(f"({script}).then(() => 'no error', error => error.message)")


@pytest.mark.parametrize(("name", "dtype"), [("Float16", np.float16), ("Bfloat16", ml_dtypes.bfloat16)])
def test_sixteen_bit_floats_are_rounded_as_numpy_rounds_them(browser: Chromium, name: str, dtype: Any) -> None:
    load_runtime(browser)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4000, dtype=np.uint32)
    edges = [
        0x477FEFFF,
        0x477FF000,
        0x477FE000,
        0x33000000,
        0x33000001,
        0x32FFFFFF,
        0x387FFFFF,
        0x38800000,
        0x7F800000,
        0xFF800000,
        0x80000000,
    ]
    numbers = np.concatenate([bits, np.array(edges, np.uint32), (bits & 0x0FFFFFFF) | 0x30000000]).view(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    words = numbers.view(np.uint32).tolist()
    encode = f"x => volta.encoded([x], {{name: 'x', dtype: '{name.lower()}', shape: []}})"
    script = f"words => Array.from(new Float32Array(Uint32Array.from(words).buffer), {encode})"
    results = [row["0"] | row["1"] << 8 for row in browser.run(script, words)]
    with np.errstate(over="ignore"):
        wanted = numbers.astype(dtype).view(np.uint16)
    np.testing.assert_array_equal(results, wanted)
    every = np.arange(1 << 16, dtype=np.uint16)
    bytes_ = "new Uint8Array(Uint16Array.from({length: 65536}, (_, k) => k).buffer)"
    decode = f"toText(new Uint8Array(volta.decoded({bytes_}, '{name.lower()}', [65536]).buffer))"
    back = np.frombuffer(base64.b64decode(browser.evaluate(decode)), np.float32)
    np.testing.assert_array_equal(back, every.view(dtype).astype(np.float32))


def test_state_is_kept_on_the_gpu_swapped_reset_saved_and_loaded(browser: Chromium, tmp_path: Any) -> None:
    state = {"a": vnp.arange(3.0), "b": {"x": vnp.ones(3), "h": vnp.array([1.5, -2], "float16"), "n": vnp.array([True, False, True])}}
    swap = Function(lambda a, b: (b["x"], {**b, "x": a}), ["a", "b"], ["a", "b"])
    double = Function(lambda a, by: (a * by, vnp.sum(a)), ["a", S((), "float32")], ["a", "total"])
    open_application(browser, state, {"swap": swap, "double": double})
    read = "async name => Array.from(await app.read(name))"
    browser.evaluate("app.run('swap')")
    assert browser.run(read, "a") == [1, 1, 1]
    assert browser.run(read, "b.x") == [0, 1, 2]
    assert browser.run(read, "b.h") == [1.5, -2]
    assert browser.evaluate("app.run('double', {by: 3}, ['total']).then(found => found.total[0])") == 3
    assert browser.evaluate("app.run('double', {}, ['total']).then(found => found.total[0])") == 9  # inputs keep their values
    saved = base64.b64decode(browser.evaluate("app.save().then(toText)"))
    (tmp_path / "state.safetensors").write_bytes(saved)
    loaded = vf.io.load_state_dict(state, vf.io.load_safetensors(tmp_path / "state.safetensors"))
    assert loaded["a"].tolist() == [9, 9, 9]
    assert loaded["b"]["n"].tolist() == [True, False, True]
    browser.evaluate("app.reset()")
    assert browser.run(read, "a") == [0, 1, 2]
    vf.io.save_safetensors(tmp_path / "mine.safetensors", {**state, "a": vnp.array([7.0, 8.0, 9.0])})
    text = base64.b64encode((tmp_path / "mine.safetensors").read_bytes()).decode()
    browser.run("text => app.load(toBytes(text))", text)
    assert browser.run(read, "a") == [7, 8, 9]


def test_files_that_do_not_fit_are_told_in_words(browser: Chromium, tmp_path: Any) -> None:
    open_application(browser, {"a": vnp.ones(2)}, {"f": Function(lambda a: vnp.sum(a), ["a"], ["s"])})
    assert message(browser, "app.load(new Uint8Array(4))") == "This is no safetensors file: it is too short."
    long = base64.b64encode(struct.pack("<Q", 1 << 40) + b"{}").decode()
    assert message(browser, f"app.load(toBytes('{long}'))") == "This is no safetensors file: its header is longer than the file."
    for array, expected in (
        ({"b": vnp.ones(2)}, "The file has no a, so its weights are not this page's."),
        ({"a": vnp.ones(3)}, "In the file a is F32 of shape [3], and in this page F32 of shape [2]."),
    ):
        vf.io.save_safetensors(tmp_path / "x.safetensors", array)
        text = base64.b64encode((tmp_path / "x.safetensors").read_bytes()).decode()
        assert message(browser, f"app.load(toBytes('{text}'))") == expected
    assert browser.evaluate("app.read('a').then(a => [...a])") == [1, 1]


def test_mistakes_of_a_page_are_told_in_words(browser: Chromium) -> None:
    open_application(browser, {"a": vnp.ones(2)}, {"f": Function(lambda a, x: vnp.sum(a * x), ["a", S((2,), "float32")], ["s"])})
    assert message(browser, "app.run('g')") == "The page has no function g; it has f."
    assert message(browser, "app.run('f', {y: 1})") == "The page has no array f/y; it has a, f/x."
    assert message(browser, "app.run('f', {x: [1, 2, 3]})") == "f/x has 2 numbers, of shape [2], but 3 are given."
    assert message(browser, "app.run('f', {}, ['t'])") == "f has no result t; it has s."
    assert browser.evaluate("app.run('f', {x: [[1], [2]]}, ['s']).then(({s}) => s[0])") == 3  # after mistakes it goes on


def test_whole_numbers_are_neither_cut_nor_wrapped(browser: Chromium) -> None:
    arguments = [S((2,), "int32"), S((2,), "uint8"), S((2,), "bool")]
    open_application(browser, {}, {"f": Function(lambda x, y, z: (x, y + 0, z), arguments, ["x", "y", "z"])})
    assert message(browser, "app.run('f', {x: [1, 2.5]})") == "f/x has int32 numbers, and 2.5 is not one."
    assert message(browser, "app.run('f', {x: [1, 3e9]})") == "f/x has int32 numbers, and 3000000000 is not one."
    assert message(browser, "app.run('f', {y: [1, -1]})") == "f/y has uint8 numbers, and -1 is not one."
    script = (
        "app.run('f', {x: [-1, 7], y: new Float32Array([255, 0]), z: [true, 3]}, ['x', 'y', 'z']).then(({x, y, z}) => [...x, ...y, ...z])"
    )
    assert browser.evaluate(script) == [-1, 7, 255, 0, 1, 1]


def test_missing_webgpu_and_small_gpus_are_told_in_words(browser: Chromium) -> None:
    load_runtime(browser)
    opened = "volta.open({version: 1, limits: LIMITS, arrays: [], functions: {}, shaders: []}, new Uint8Array(), GPU)"
    assert "This browser has no WebGPU." in message(browser, opened.replace("LIMITS", "{}").replace("GPU)", "null)"))
    none = "{requestAdapter: async () => null})"
    assert "found no GPU that it can use" in message(browser, opened.replace("LIMITS", "{}").replace("GPU)", none))
    large = opened.replace("LIMITS", "{maxBufferSize: 1e15}").replace(", GPU)", ")")
    assert "too small for the page: maxBufferSize is" in message(browser, large)
    assert message(browser, opened.replace("version: 1", "version: 2").replace("LIMITS", "{}").replace(", GPU)", ")")).startswith(
        "The page has format 2"
    )
    limits = f"""async () => {{
      const {{device}} = await {opened.replace("LIMITS", "{maxBufferSize: 300000000}").replace(", GPU)", ")")};
      return [device.limits.maxBufferSize, device.limits.maxStorageBufferBindingSize];
    }}"""
    assert browser.run(limits) == [300000000, 1 << 27]  # no more than the page needs


def test_a_lost_device_is_told_in_words(browser: Chromium) -> None:
    open_application(browser, {"a": vnp.ones(2)}, {"f": Function(lambda a: vnp.sum(a), ["a"], ["s"])})
    browser.evaluate("app.run('f'); globalThis.said = []; app.onfailure = text => said.push(text)")
    browser.evaluate("app.fail('The GPU was reset'); undefined")
    assert message(browser, "app.run('f', {}, ['s'])") == "The GPU was reset"
    assert browser.evaluate("said") == ["The GPU was reset"]
    load_runtime(browser)
    script = """async () => {
      let said = null, lose;
      const device = {lost: new Promise(resolve => { lose = resolve; })};
      const gpu = {requestAdapter: async () => ({limits: {}, info: {}, requestDevice: async () => device})};
      await volta.openDevice({}, text => { said = text; }, gpu);
      lose({reason: 'unknown', message: 'driver gone'});
      await Promise.resolve();
      await Promise.resolve();
      const lost = said;
      device.onuncapturederror({error: new GPUOutOfMemoryError('too much')});
      return [lost, said];
    }"""
    lost, memory = browser.run(script)
    assert "The GPU was reset or taken away" in lost
    assert "driver gone" in lost
    assert "not enough memory" in memory


def test_calls_wait_for_each_other(browser: Chromium) -> None:
    count = lambda n, by: vf.lax.while_loop(lambda x: x < 1000.0, lambda x: x + by, n)
    loop = Function(count, ["n", S((), "float32")], ["n"])
    reset = Function(lambda n: n * 0.0, ["n"], ["n"])
    open_application(browser, {"n": vnp.float32(0)}, {"loop": loop, "reset": reset})
    script = """async () => {
      const calls = [app.run('loop', {by: 1}), app.read('n'), app.run('reset'), app.read('n'), app.run('loop', {by: 700}), app.read('n')];
      const found = await Promise.all(calls);
      return [found[1][0], found[3][0], found[5][0]];
    }"""
    assert browser.run(script) == [1000, 0, 1400]


def test_control_flow_and_random_bits(browser: Chromium) -> None:
    def f(key: Any, x: Any, flag: Any) -> Any:
        total, ys = vf.lax.scan(lambda c, row: (c + vnp.sum(row), c * row), vnp.float32(0), x)
        chosen = vf.lax.cond(flag > 0, lambda a: vnp.sort(a), lambda a: a - 1.0, x[0])
        return total, ys, chosen, vf.random.bits(key, (1000,)), vf.random.normal(key, (500,))

    key, x = vf.random.key(7), vf.random.normal(vf.random.key(1), (9, 64))
    names = ["total", "ys", "chosen", "bits", "normal"]
    open_application(browser, {}, {"f": Function(f, [key, x, S((), "int32")], names)})
    for flag in (0, 1):
        script = (
            "async (flag, names) => { const found = await app.run('f', {flag}, names); return names.map(name => Array.from(found[name])); }"
        )
        result = browser.run(script, flag, names)
        for ours, theirs in zip(result, f(key, x, np.int32(flag)), strict=True):
            exact = theirs.dtype == np.uint32
            np.testing.assert_allclose(np.reshape(ours, theirs.shape), theirs, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)


def test_parameters_stored_in_sixteen_bits(browser: Chromium) -> None:
    w = np.linspace(-2, 2, 1000, dtype=np.float32)
    for storage, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        manifest = open_application(browser, {"w": vnp.asarray(w)}, {"f": Function(lambda w: vnp.sum(w), ["w"], ["s"])}, storage)
        assert manifest["arrays"][0]["initial"]["bytes"] == 2000
        np.testing.assert_array_equal(browser.evaluate("app.read('w').then(w => Array.from(w))"), w.astype(dtype).astype(np.float32))
