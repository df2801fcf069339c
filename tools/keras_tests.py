"""Run Keras's own tests of its JAX back end, on volta_fn or on JAX.

    python tools/keras_tests.py FOLDER [GROUP ...] [--jax] [--only FILE] [--save FILE] [--seconds N]

FOLDER is where a released wheel of Keras is installed (``pip install --target FOLDER keras``, its dependencies there or in PYTHONPATH); the
wheel holds the tests. Each GROUP is a folder or a file of `keras/src`, such as losses, layers/rnn or ops/core_test (without any: `GROUPS`).
A group runs in a process of its own, each test within N seconds; a process that dies goes on after the test that ended it. A line per
group has its passed, failed and skipped tests and its seconds. With --save all outcomes go to a file, a line of JSON for each test; with
--only just the failed tests of such a file run, which is how the failures here are tried under JAX (--jax).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
GROUPS = """
callbacks saving metrics quantizers trainers losses optimizers models ops/core_test ops/math_test ops/linalg_test ops/einops_test
ops/function_test ops/node_test ops/operation_test ops/operation_utils_test ops/ops_test ops/symbolic_arguments_test ops/nn_test
ops/numpy_test ops/image_test random initializers activations regularizers constraints dtype_policies distillation tree
layers/layer_test layers/core layers/attention layers/activations layers/merging layers/normalization layers/pooling
layers/regularization layers/reshaping layers/convolutional layers/rnn layers/preprocessing backend/common backend/tests backend/jax
distribution legacy utils wrappers testing datasets
""".split()
#: Files whose subject is another framework, or which need a network.
_FOREIGN = ("jax_multi_process_distribution_test",)
#: The error of a file whose subject needs a package that is not installed.
_FOREIGN_IMPORT = re.compile(r"No module named '(?:tensorflow|grain|torch|openvino|orbax|sklearn|tensorboard)")


class TooLong(BaseException):
    """A test took longer than its limit."""


class Recorder:
    """A plug-in of pytest that writes each test's outcome to a file."""

    def __init__(self, path: Path, seconds: int, chosen: frozenset[str]) -> None:
        self._path, self._seconds, self._chosen = path, seconds, chosen
        self._row: dict[str, Any] = {}

    def pytest_configure(self, config: Any) -> None:
        for marker in ("requires_trainable_backend", "multi_device"):
            config.addinivalue_line("markers", f"{marker}: as in Keras's repository")

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        import jax  # noqa: PLC0415  # JAX, or volta_fn by its name

        alone = pytest.mark.skip(reason="requires several devices")
        finished = {row["test"] for row in read_outcomes(self._path)}
        items[:] = [i for i in items if name_of(i) not in finished and (not self._chosen or name_of(i) in self._chosen)]
        for item in items:
            if "multi_device" in item.keywords and jax.device_count() == 1:
                item.add_marker(alone)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        started = time.perf_counter()
        self._row = {"test": name_of(item), "outcome": "died"}
        self._write("started")
        signal.signal(signal.SIGALRM, _stop)
        signal.alarm(self._seconds)
        try:
            return (yield)
        finally:
            signal.alarm(0)
            self._row["seconds"] = round(time.perf_counter() - started, 2)
            self._write("ended")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._row |= {"outcome": "failed", "message": (crash.message if crash else str(report.longrepr))[:2000]}
            self._row["trace"] = str(report.longrepr)[-6000:]
        elif report.skipped:
            self._row["outcome"] = "skipped"
        elif report.when == "call":
            self._row["outcome"] = "passed"

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            text = str(report.longrepr)
            outcome = "missing" if _FOREIGN_IMPORT.search(text) else "failed"
            self._row = {"test": report.nodeid.split("keras/src/")[-1], "outcome": outcome, "message": text[-2000:]}
            self._write("ended")

    def _write(self, event: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(self._row | {"event": event}) + "\n")


def _stop(*_: Any) -> None:
    raise TooLong("the test took too long")


def _skip_if_backend(backend: str, reason: str) -> Any:
    """Mark tests that a backend skips, as the `conftest.py` of Keras does."""
    return pytest.mark.skipif(backend == "jax", reason=reason)


def name_of(item: Any) -> str:
    """Name a test by its file in `keras/src`, class and function."""
    return "::".join([str(item.path).split("keras/src/")[-1], *item.nodeid.split("::")[1:]])


def read_outcomes(path: Path) -> list[dict[str, Any]]:
    """Return the outcomes in a file; a test that began and did not end has died."""
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        rows[row["test"]] = row
    return [*rows.values()]


def run_group(folder: Path, group: str, path: Path, seconds: int, with_jax: bool, chosen: Path | None) -> None:
    """Run a group's tests, in as many processes as die, and write their outcomes."""
    source = folder / "keras" / "src" / group
    target = source if source.is_dir() else source.with_suffix(".py")
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(folder), environment.get("PYTHONPATH", "")])
    start = [] if with_jax else ["-m", "volta_fn.jax"]
    options = ["--inside", str(target), "--save", str(path), "--seconds", str(seconds)]
    command = [sys.executable, *start, str(HERE / "keras_tests.py"), *options]
    command += ["--only", str(chosen)] if chosen else []
    for _ in range(20):
        with tempfile.TemporaryDirectory() as empty:
            code = subprocess.run(
                command, env=environment, cwd=empty, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            ).returncode
        if code >= 0 and code < 128:
            return


def run_inside(target: str, path: Path, seconds: int, chosen: frozenset[str]) -> int:
    """Run the tests of a folder or file in this process."""
    conftest = types.ModuleType("conftest")
    conftest.skip_if_backend = _skip_if_backend  # type: ignore[attr-defined]  # a module's name
    sys.modules["conftest"] = conftest
    ignored = [f"--ignore-glob=*/{name}.py" for name in _FOREIGN]
    options = [
        "-q",
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "python_files=*_test.py",
        "-c",
        os.devnull,
    ]
    return int(pytest.main([*options, *ignored, "--rootdir", str(Path(target).parent), target], plugins=[Recorder(path, seconds, chosen)]))


def main() -> None:
    """Run the groups of the command line."""
    parser = argparse.ArgumentParser(description="Run Keras's own tests of its JAX back end.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("groups", nargs="*")
    parser.add_argument("--jax", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_intermixed_args()
    failures = [row["test"] for row in read_outcomes(options.only) if row["outcome"] in ("failed", "died")] if options.only else []
    if options.inside:
        sys.exit(run_inside(str(options.folder), options.save, options.seconds, frozenset(failures)))
    groups = options.groups or [g for g in GROUPS if not options.only or any(name.startswith(g) for name in failures)]
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.save or Path(scratch) / "outcomes.jsonl").resolve()
        counted = {row["test"] for row in read_outcomes(path)}
        for group in groups:
            started = time.perf_counter()
            run_group(options.folder.resolve(), group, path, options.seconds, options.jax, options.only and options.only.resolve())
            rows = [row for row in read_outcomes(path) if row["test"] not in counted]
            counted |= {row["test"] for row in rows}
            counts = collections.Counter(row["outcome"] for row in rows)
            print(f"{group}: {dict(counts)} in {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
