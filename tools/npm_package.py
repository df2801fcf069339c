"""Write the runtime of exported pages as a package for npm.

`python tools/npm_package.py FOLDER`, then `npm pack FOLDER`.

Pages hold the runtime themselves. The package is for pages that a bundler builds, which load a model that `vf.export_web` wrote as a
module:

    import {open} from 'volta-fn-web';
    import {manifest} from './model.js';

    const data = new Uint8Array(await (await fetch('model.bin')).arrayBuffer());
    const app = await open(manifest, data);
    const {prediction} = await app.run('predict', {x: [1, 2, 3]}, ['prediction']);
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ROOT / "volta_fn" / "web" / "runtime"

#: What the package exports, by the modules that have it.
EXPORTS = {
    "application": ("Application", "open", "openPacked", "unpack"),
    "arrays": ("decoded", "encoded", "sizeOf"),
    "device": ("openDevice",),
    "errors": ("PageError",),
    "wasm": ("openWasm",),
}


def write_package(folder: Path) -> None:
    """Write the package into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for module in RUNTIME.glob("*.js"):
        shutil.copy(module, folder)
    lines = [f"export {{{', '.join(names)}}} from './{module}.js';" for module, names in EXPORTS.items()]
    (folder / "index.js").write_text("\n".join(lines) + "\n", encoding="utf-8")
    description = {
        "name": "volta-fn-web",
        "version": version("volta-fn"),
        "description": "Runs models that volta_fn exported: on the GPU through WebGPU, or as WebAssembly.",
        "type": "module",
        "exports": "./index.js",
        "files": ["*.js"],
        "sideEffects": False,
        "license": "Apache-2.0",
        "keywords": ["webgpu", "webassembly", "machine-learning", "jax"],
    }
    (folder / "package.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    usage = re.search(r"\n    import.*?\n\n.*?(?=\n\"\"\"|\Z)", __doc__ or "", re.DOTALL)
    assert usage, "the docstring above has the example"
    example = re.sub(r"^    ", "", usage[0].strip("\n"), flags=re.MULTILINE)
    (folder / "README.md").write_text(f"# volta-fn-web\n\n{description['description']}\n\n```js\n{example}\n```\n", encoding="utf-8")
    shutil.copy(ROOT / "LICENSE", folder)


if __name__ == "__main__":
    write_package(Path(sys.argv[1]))
