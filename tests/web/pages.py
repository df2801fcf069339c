"""Run exported functions in Chromium, without a page: the runtime, a manifest and its data are all that it takes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.web.chromium import Chromium
from volta_fn import dtypes
from volta_fn.jit.stages import WEBGPU
from volta_fn.web.export import _PUBLIC, Function, make_manifest, runtime_source

#: What is called in the browser: values as [kind of typed array, numbers], results as bytes in base64.
_HELPERS = """
globalThis.volta = (() => { RUNTIME; return {PUBLIC}; })();
globalThis.toBytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
globalThis.toText = bytes => {
  let text = '';
  for (let start = 0; start < bytes.length; start += 8192) text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return btoa(text);
};
"""

_RUN = """async (names, inputs) => {
  const found = {};
  for (const name of names) {
    try {
      const outputs = app.program(name).results;
      for (const [key, [kind, values]] of Object.entries(inputs)) await app.put(app.array(`${name}/${key}`), new globalThis[kind](values));
      await app.run(name);
      found[name] = await Promise.all(outputs.map(async ({buffer, shape, dtype}) => {
        const items = {float32: 4, int32: 4, uint32: 4, complex64: 8, float16: 2, bfloat16: 2, int16: 2, uint16: 2}[dtype] ?? 1;
        return toText(await app.memory.read(buffer, items * volta.sizeOf(shape)));
      }));
    } catch (error) {
      found[name] = String(error);
    }
  }
  return found;
}"""


def load_runtime(browser: Chromium) -> None:
    """Define the runtime on an empty page."""
    browser.open("file:///")
    script = _HELPERS.replace("RUNTIME", runtime_source()).replace("PUBLIC", f"{{{', '.join(_PUBLIC)}}}".strip("{}"))
    browser.evaluate(f"{script}; undefined")


def open_application(
    browser: Chromium, state: Mapping[str, Any], functions: Mapping[str, Function], storage: str = "float32", wasm: bool = False
) -> Any:
    """Open functions in the browser as `app`, on the GPU or as WebAssembly; return their manifest."""
    manifest = make_manifest(state, functions, WEBGPU, storage, wasm)
    load_runtime(browser)
    data = base64.b64encode(manifest.data).decode()
    gpu = "{requestAdapter: async () => null}" if wasm else "undefined"
    browser.run(f"async (manifest, data) => {{ globalThis.app = await volta.open(manifest, toBytes(data), {gpu}); }}", manifest.json, data)
    return manifest.json


def results_of(browser: Chromium, manifest: Any, names: Sequence[str]) -> dict[str, list[np.ndarray] | str]:
    """Run functions with the inputs that they hold; return their results, or what went wrong."""
    result = browser.run(_RUN, list(names), {})
    return {name: _arrays(manifest["functions"][name]["results"], result[name]) for name in names}


def _arrays(results: Any, output: list[str] | str) -> list[np.ndarray] | str:
    if isinstance(output, str):
        return output
    raw = [base64.b64decode(text) for text in output]
    return [np.frombuffer(b, dtypes.as_dtype(r["dtype"])).reshape(r["shape"]) for b, r in zip(raw, results, strict=True)]
