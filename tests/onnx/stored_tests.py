"""The tests on disk of the package onnx: 140 small models, nine networks.

``python -m tests.onnx.stored_tests`` runs them all; networks are compared with onnxruntime.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import volta_fn as vf
import volta_fn.onnx
from tests.onnx.node_tests import compare
from volta_fn import numpy as vnp

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


def small_tests() -> list[Path]:
    """Return the folders of the small tests."""
    return sorted([*DATA.glob("pytorch-*/*"), *DATA.glob("simple/*")])


def networks() -> list[Path]:
    """Return the files of the networks."""
    return sorted((DATA / "light").glob("light_*.onnx"))


def run_small(folder: Path) -> None:
    """Run a small test."""
    function, params = volta_fn.onnx.load(folder / "model.onnx")
    data = folder / "test_data_set_0"
    arguments, wanted = [_tensors(data, kind) for kind in ("input", "output")]
    names = [i.name for i in onnx.load(folder / "model.onnx").graph.input]
    if len(arguments) < len(names):
        names = list(function.input_names)
    compare(function(params, **dict(zip(names, arguments, strict=False))), wanted, 1e-3, 1e-5)


def _tensors(folder: Path, kind: str) -> list[np.ndarray]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.load_tensor(str(file))) for file in files]


def run_network(path: Path) -> float:
    """Run a network in both, and return the relative difference."""
    import onnxruntime

    function, params = volta_fn.onnx.load(path)
    session = onnxruntime.InferenceSession(str(path))
    (wanted_input,) = session.get_inputs()
    x = np.linspace(0, 1, int(np.prod(wanted_input.shape)), dtype=np.float32).reshape(wanted_input.shape)
    (want,) = session.run(None, {wanted_input.name: x})
    result = np.asarray(vf.jit(function)(params, vnp.asarray(x)))
    slope = vf.jit(vf.grad(lambda x: vnp.sum(function(params, x) ** 2)))(vnp.asarray(x))
    assert np.isfinite(np.asarray(slope)).all()
    return float(np.abs(result - want).max() / max(1e-9, np.abs(want).max()))


def main() -> None:
    """Run everything, and say what fails."""
    failed = 0
    for folder in small_tests():
        try:
            run_small(folder)
        except Exception as error:  # whatever a test raises is its result
            failed += 1
            print(f"{folder.name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:150]}")
    print(f"{len(small_tests()) - failed} of {len(small_tests())} small tests pass")
    for path in networks():
        print(f"{path.stem}: relative difference from onnxruntime {run_network(path):.1e}", flush=True)


if __name__ == "__main__":
    main()
