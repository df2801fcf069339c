"""Run a package's own tests, on volta_fn or on JAX.

    python tools/package_tests.py FOLDER [GROUP ...] [--jax] [--sample N [--seed N]] [--passed FILE] [--failed FILE] [--save FILE]
        [--seconds N]

FOLDER has the tests: a clone's, or an installed wheel's where that holds them. The package itself is installed, or in PYTHONPATH. Each
GROUP is a folder or a file of FOLDER, such as losses or ops/core_test (without any: all of FOLDER). A group runs in a process of its own,
each test within N seconds; a process that dies goes on after the test that ended it. A line per group has its passed, failed and skipped
tests and its seconds. With --sample N tests are drawn from each group, by the same seed the same. With --save all outcomes go to a file, a
line of JSON for each test; --passed and --failed run just the tests that passed or failed in such a file. So this compares with JAX:

    python tools/package_tests.py FOLDER --jax --sample 200 --save jax.jsonl
    python tools/package_tests.py FOLDER --passed jax.jsonl --save here.jsonl

FOLDER of Keras is `keras/src`; its groups are KERAS_GROUPS.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import os
import random
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
KERAS_GROUPS = """
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

    def __init__(self, options: argparse.Namespace, chosen: frozenset[str] | None) -> None:
        self._folder, self._path, self._seconds, self._chosen = options.folder, options.save, options.seconds, chosen
        self._sample, self._random = options.sample, random.Random(options.seed)
        self._row: dict[str, Any] = {}

    def pytest_configure(self, config: Any) -> None:
        for marker in ("requires_trainable_backend", "multi_device"):
            config.addinivalue_line("markers", f"{marker}: as in Keras's repository")

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        import jax  # noqa: PLC0415  # JAX, or volta_fn by its name

        alone = pytest.mark.skip(reason="requires several devices")
        finished = {row["test"] for row in read_outcomes(self._path)}
        names = {self._name(item): item for item in items}
        drawn = sorted(names if self._chosen is None else self._chosen & names.keys())
        if self._sample:
            drawn = self._random.sample(drawn, min(self._sample, len(drawn)))
        items[:] = [item for name, item in names.items() if name in {*drawn} - finished]
        for item in items:
            if "multi_device" in item.keywords and jax.device_count() == 1:
                item.add_marker(alone)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        started = time.perf_counter()
        self._row = {"test": self._name(item), "outcome": "died"}
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
            self._row = {"test": report.nodeid, "outcome": outcome, "message": text[-2000:]}
            self._write("ended")

    def _name(self, item: Any) -> str:
        """Name a test by its file in the folder, class and function."""
        return "::".join([item.path.relative_to(self._folder).as_posix(), *item.nodeid.split("::")[1:]])

    def _write(self, event: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(self._row | {"event": event}) + "\n")


def _stop(*_: Any) -> None:
    raise TooLong("the test took too long")


def _skip_if_backend(backend: str, reason: str) -> Any:
    """Mark tests that a backend skips, as the `conftest.py` of Keras does."""
    return pytest.mark.skipif(backend == "jax", reason=reason)


def read_outcomes(path: Path) -> list[dict[str, Any]]:
    """Return the outcomes in a file; a test that began and did not end has died."""
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        rows[row["test"]] = row
    return [*rows.values()]


def run_group(options: argparse.Namespace, group: str, path: Path) -> None:
    """Run a group's tests, in as many processes as die, and write their outcomes."""
    environment = os.environ | {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), environment.get("PYTHONPATH", "")])
    start = [] if options.jax else ["-m", "volta_fn.jax"]
    command = [sys.executable, *start, str(HERE / "package_tests.py"), str(options.folder), group, "--inside", "--save", str(path)]
    command += ["--seconds", str(options.seconds), "--sample", str(options.sample), "--seed", str(options.seed)]
    for kind in ("passed", "failed"):
        command += [f"--{kind}", str(getattr(options, kind).resolve())] if getattr(options, kind) else []
    for _ in range(20):
        with tempfile.TemporaryDirectory() as empty:
            code = subprocess.run(
                command, env=environment, cwd=empty, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            ).returncode
        if code >= 0 and code < 128:
            return


def chosen_tests(options: argparse.Namespace) -> frozenset[str] | None:
    """Return the tests that --passed and --failed choose; None if all run."""
    if not (options.passed or options.failed):
        return None
    rows = read_outcomes(options.passed) if options.passed else []
    failed = read_outcomes(options.failed) if options.failed else []
    names = [row["test"] for row in rows if row["outcome"] == "passed"]
    return frozenset(names + [row["test"] for row in failed if row["outcome"] in ("failed", "died")])


def run_inside(options: argparse.Namespace) -> int:
    """Run the tests of a group in this process."""
    (group,) = options.groups
    target = options.folder / group
    target = target if target.is_dir() else target.with_suffix(".py")
    chosen = chosen_tests(options)
    targets = [str(target)]
    if chosen is not None:
        files = {options.folder / name.split("::")[0] for name in chosen}
        targets = sorted(str(file) for file in files if file.is_relative_to(target))
    if not targets:
        return 0
    if options.folder.match("keras/src"):
        conftest = types.ModuleType("conftest")
        conftest.skip_if_backend = _skip_if_backend  # type: ignore[attr-defined]  # a module's name
        sys.modules["conftest"] = conftest
    if importlib.util.find_spec("absl"):
        from absl import flags  # noqa: PLC0415  # not a dependency of this project

        flags.FLAGS(sys.argv[:1])
    ignored = [f"--ignore-glob=*/{name}.py" for name in _FOREIGN]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    files_of_tests = ["-o", "python_files=*_test.py test_*.py", "-c", os.devnull]
    arguments = ["-q", "--continue-on-collection-errors", *plugins, *files_of_tests, *ignored, "--rootdir", str(options.folder), *targets]
    return int(pytest.main(arguments, plugins=[Recorder(options, chosen)]))


def main() -> None:
    """Run the groups of the command line."""
    parser = argparse.ArgumentParser(description="Run a package's own tests.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("groups", nargs="*")
    parser.add_argument("--jax", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=39)
    parser.add_argument("--passed", type=Path)
    parser.add_argument("--failed", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_intermixed_args()
    options.folder = options.folder.resolve()
    if options.inside:
        sys.exit(run_inside(options))
    chosen = chosen_tests(options)
    groups = options.groups or (KERAS_GROUPS if options.folder.match("keras/src") else ["."])
    groups = [group for group in groups if chosen is None or group == "." or any(name.startswith(group) for name in chosen)]
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.save or Path(scratch) / "outcomes.jsonl").resolve()
        counted = {row["test"] for row in read_outcomes(path)}
        for group in groups:
            started = time.perf_counter()
            run_group(options, group, path)
            rows = [row for row in read_outcomes(path) if row["test"] not in counted]
            counted |= {row["test"] for row in rows}
            counts = collections.Counter(row["outcome"] for row in rows)
            print(f"{group}: {dict(counts)} in {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
