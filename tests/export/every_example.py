"""Save each jitted function of the examples; load and compare it elsewhere.

``python -m tests.export.every_example`` runs every example in its quick form, keeps each program that `jit` compiles with the arguments
of its first call, and calls the saved functions in one fresh process that has not imported the examples. With names, it runs these alone;
with ``--device gpu`` that process calls them on the GPU, whose results may differ in rounding (which a long Markov chain amplifies).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import volta_fn as vf
from volta_fn import export
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ExportError
from volta_fn.jit.function import PjitFunction

ROOT = Path(__file__).parents[2]
#: Modules of examples without jitted functions of their own.
_OTHERS = frozenset({"common", "miniature", "web_digits"})
EXAMPLES = tuple(sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem not in _OTHERS))

#: Loads files NAME.export with NAME.npz, calls the function, and compares its results with those in the file: to the bit, or tells the
#: largest difference, relative to the largest number of its array.
CALLER = """
import sys, numpy as np, volta_fn as vf
from pathlib import Path
from volta_fn.export import deserialize
from volta_fn.export.values import unflatten
for path in sorted(Path(sys.argv[1]).glob("*.export")):
    exported = deserialize(path.read_bytes())
    with np.load(path.with_suffix(".npz")) as file:
        given = [file[f"in{i}"] for i in range(len(exported.in_avals))]
        wanted = [file[f"out{i}"] for i in range(len(exported.out_avals))]
    leaves = [vf.numpy.asarray(x.view(a.dtype).reshape(a.shape)) for x, a in zip(given, exported.in_avals)]
    args, kwargs = unflatten(exported._manifest["in_tree"], iter(leaves))
    found = []
    results = exported._call_flat(leaves)
    vf.tree.leaves(exported.call(*args, **kwargs))
    off = 0.0
    for result, bits in zip(results, wanted, strict=True):
        found = np.asarray(result)
        if found.tobytes() == bits.tobytes():
            continue
        other = bits.view(found.dtype).reshape(found.shape)
        low, high = [x if x.dtype.kind == "c" else x.astype(np.float64) for x in (found, other)]
        off = max(off, float(np.abs(low - high).max() / max(np.abs(high).max(), 1e-30)))
    print(path.stem, f"off by {off:.1e}" if off else "equal")
"""


class Recorder:
    """Saves the first call of each jitted function of an example."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.refused = folder, dict[int, Any](), list[str]()
        self.example = ""

    def save(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Write the exported function, its arguments and its results."""
        name = f"{self.example}-{len(self.seen)}-{function.__name__.strip('<>')}"
        try:
            exported = export.export(function)(*args, **kwargs)
        except ExportError as error:
            self.refused.append(f"{name}: {error.message}")
            return
        dynamic = [a for i, a in enumerate(args) if i not in function._options.argnums]
        inputs, outputs = vf.tree.leaves((tuple(dynamic), kwargs)), vf.tree.leaves(result)
        arrays = {f"in{i}": raw(x) for i, x in enumerate(inputs)} | {f"out{i}": raw(x) for i, x in enumerate(outputs)}
        np.savez(self.folder / f"{name}.npz", **arrays)
        (self.folder / f"{name}.export").write_bytes(exported.serialize())

    @contextlib.contextmanager
    def recording(self, example: str) -> Iterator[None]:
        """Record the calls of the functions of a module of examples."""
        self.example, original = example, PjitFunction.__call__

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            is_own = "examples" in str(getattr(sys.modules.get(function.__module__), "__file__", ""))
            if current_trace() is not EVAL or id(function) in self.seen or not is_own:
                return original(function, *args, **kwargs)
            self.seen[id(function)] = function  # kept, so that no other one gets its number
            retained = [np.array(x) for x in vf.tree.leaves((args, kwargs)) if isinstance(x, vf.Array | np.ndarray)]  # before donation
            copies = iter(retained)
            arguments, keywords = vf.tree.map(
                lambda x: vf.numpy.asarray(next(copies)) if isinstance(x, vf.Array | np.ndarray) else x, (args, kwargs)
            )
            result = original(function, *args, **kwargs)
            self.save(function, arguments, keywords, result)
            return result

        with mock.patch.object(PjitFunction, "__call__", call):
            yield


def raw(value: Any) -> np.ndarray:
    """Return an array's bytes."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def compared(names: Sequence[str], folder: Path, device: str | None = None) -> tuple[list[str], list[str]]:
    """Run examples; return what a fresh process says of their functions, and those that could not be saved."""
    sys.path.insert(0, str(ROOT / "examples"))
    recorder = Recorder(folder)
    for name in names:
        with recorder.recording(name), contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as out:
            module = importlib.import_module(name)
            if name == "digits":  # which reads the command text
                with mock.patch.object(sys, "argv", ["digits.py", "--epochs", "1"]):
                    module.main()
            else:
                module.main(["--quick"] if name == "data_parallel" else ["--quick", "--out", out])
    done = subprocess.run([sys.executable, "-c", CALLER, str(folder)], cwd=folder, env=environment(device), capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout.splitlines(), recorder.refused


def environment(device: str | None) -> dict[str, str]:
    """Return an environment in which the package is found, and the examples are not."""
    return os.environ | {"PYTHONPATH": str(ROOT)} | ({"VOLTA_DEVICE": device} if device else {})


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("examples", nargs="*", default=EXAMPLES)
    parser.add_argument("--device", help="where the fresh process runs the functions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        told, refused = compared(options.examples, Path(scratch), options.device)
    print("\n".join([*told, *[f"not exported: {text}" for text in refused]]))
    print(f"{sum(text.endswith(' equal') for text in told)} of {len(told)} functions of {len(options.examples)} examples equal to the bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
