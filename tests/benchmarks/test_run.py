"""A run of the benchmarks measures, judges and writes what it promises."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import volta_fn as vf
from benchmarks import __main__ as program
from benchmarks import cost, fresh, language, report, targets, transforms
from benchmarks.gpu import __main__ as gpu_program
from benchmarks.harness import QUICK, measure
from benchmarks.machine import ROOT
from benchmarks.worker import Bench, FrameworkError, Worker
from benchmarks.workloads import WORKLOADS, named
from volta_fn import lax

README = (ROOT / "benchmarks" / "README.md").read_text()


def made_up(ours: float, jax: float, torch: float) -> dict[str, Any]:
    """Results in which every time and every peak is the same."""
    seconds = {"volta_fn": ours, "jax": jax, "torch": torch}
    peer = min(("jax", "torch"), key=seconds.__getitem__)
    row = {"seconds": seconds, "first_call": seconds, "peer": peer, "ratio": ours / seconds[peer]}
    return {
        "machine": {"machine_code": True, "processor": "a processor", "threads": 2},
        "quick": False,
        "times": [row | {"name": workload.name} for workload in WORKLOADS],
        "plans": [{"name": name, "bytes": {"volta_fn": 2**20, "jax": 2**21}} for name in program.PLANS],
        "peaks": [{"name": "train/mlp", "steps": seconds, "with_compilation": seconds, "ratio": ours / jax}],
        "imports": {"numpy": 0.05} | seconds,
        "first_steps": seconds | {"warm cache": ours / 10},
        "convolution_memory": {"threads": 2, "results": [{"bytes_beyond": 2**20}]},
        "geometric_mean": ours / seconds[peer],
    }


def without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run measure volta_fn alone, without its compiler, and leave this process's threads as they are."""
    monkeypatch.setattr(program, "installed", lambda: ("volta_fn",))
    monkeypatch.setattr(program, "limit_threads", lambda threads: None)
    monkeypatch.setenv("VOLTA_CACHE_DIR", "restored after the test")
    monkeypatch.setenv("VOLTA_NATIVE", "0")


def test_a_quick_run_writes_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    without_peers(monkeypatch)
    path = tmp_path / "folder" / "numbers.json"
    wanted = "op/sum|start/import|start/first|peak/train/mlp|llm/memory of attention 4096"
    assert program.main(["--quick", "--threads", "1", "--only", wanted, "--json", str(path), "--chart", str(tmp_path / "x.png")]) == 0
    results = json.loads(path.read_text())
    assert [row["name"] for row in results["times"]] == [w.name for w in WORKLOADS if w.name.startswith("op/sum")]
    assert all(row["seconds"]["volta_fn"] > 0 and row["first_call"]["volta_fn"] > 0 and row["ratio"] is None for row in results["times"])
    assert results["imports"].keys() == {"numpy", "volta_fn"} and results["first_steps"].keys() == {"volta_fn", "warm cache"}
    assert [row["name"] for row in results["peaks"]] == ["train/mlp"] and results["peaks"][0]["steps"]["volta_fn"] > 0
    assert [row["name"] for row in results["plans"]] == ["llm/memory of attention 4096"] and results["plans"][0]["bytes"]["volta_fn"] >= 0
    assert results["failures"] == [] and results["machine"]["threads"] == 1
    assert "op/sum of rows" in capsys.readouterr().out


def test_a_failure_is_told_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_peers(monkeypatch)

    def fail_once(workload: Any, *args: Any) -> Any:
        if workload.name == "call/jitted add":
            raise RuntimeError("planted")
        return measure(workload, *args)

    monkeypatch.setattr(program, "measure", fail_once)
    arguments = ["--quick", "--only", "^call/(eager|jitted) add", "--json", str(tmp_path / "x.json"), "--chart", str(tmp_path / "x.png")]
    assert program.main(arguments) == 1
    results = json.loads((tmp_path / "x.json").read_text())
    assert [row["name"] for row in results["times"]] == ["call/eager add"]
    assert results["failures"] == [{"name": "call/jitted add", "error": "RuntimeError: planted"}]


def test_a_run_for_the_gpu_writes_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On the CPU here: what differs is only where the frameworks compute."""
    monkeypatch.setattr(gpu_program, "installed", lambda: ("volta_fn",))
    monkeypatch.setattr(gpu_program, "use_gpu", lambda: None)
    path = tmp_path / "gpu.json"
    assert gpu_program.main(["--quick", "--first", "--only", "product/512|train/mlp$", "--json", str(path)]) == 0
    results = json.loads(path.read_text())
    assert [row["name"] for row in results["times"]] == ["gpu train/mlp", "gpu product/512×512×512"]
    assert results["first_steps"]["gpu train/mlp"]["volta_fn"] > 0 and results["failures"] == []
    assert results["ceilings"]["moved"] > 0 < results["ceilings"]["operations"]
    product = results["times"][1]
    assert (product["operations"], product["moved"]) == (2 * 3 * 8 * 5, 4 * (3 * 8 + 8 * 5 + 3 * 5))
    assert product["rate"].endswith(("TFLOP/s", "GB/s")) and product["of_ceiling"] > 0 and product["dispatches"] == 0  # NumPy has none
    printed = capsys.readouterr().out
    assert "ceilings, measured" in printed and "longest first training step, over JAX's" in printed


def test_a_failing_ceiling_or_first_step_is_told_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU: what is sought is the program's conduct."""
    monkeypatch.setattr(gpu_program, "installed", lambda: ("volta_fn",))
    monkeypatch.setattr(gpu_program, "use_gpu", lambda: None)

    def fail(workload: Any, *args: Any, **options: Any) -> Any:
        if workload is gpu_program.SQUARE:
            raise RuntimeError("planted")
        return measure(workload, *args, **options)

    def no_first_step(*args: Any) -> Any:
        raise RuntimeError("no first step")

    monkeypatch.setattr(gpu_program, "measure", fail)
    monkeypatch.setattr(gpu_program, "first_seconds", no_first_step)
    square = re.escape(gpu_program.SQUARE.name)
    assert gpu_program.main(["--quick", "--first", "--only", f"product/512|{square}|train/mlp$", "--json", str(tmp_path / "x.json")]) == 1
    results = json.loads((tmp_path / "x.json").read_text())
    assert [(row["name"], row["rate"], row["of_ceiling"]) for row in results["times"]] == [
        ("gpu train/mlp", "-", None),
        ("gpu product/512×512×512", "-", None),
    ]
    assert results["failures"] == [
        {"name": gpu_program.SQUARE.name, "error": "RuntimeError: planted"},
        {"name": "first step of gpu train/mlp", "error": "RuntimeError: no first step"},
    ]
    assert results["ceilings"] is None and results["first_steps"] == {}


def test_frameworks_without_a_gpu_take_no_part(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """JAX, told that there is no other device, would compute on the CPU, which says nothing of a GPU; ours says itself what is missing."""
    monkeypatch.setattr(gpu_program, "installed", lambda: ("volta_fn", "jax"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    workers = gpu_program.workers_with_gpu()
    assert list(workers) == ["volta_fn"] and capsys.readouterr().out == "jax finds no GPU: its column is empty\n"
    workers["volta_fn"].stop()


def test_a_peer_that_fails_is_left_out_and_has_a_new_process_for_the_next_workload(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = {"volta_fn": Worker("volta_fn"), "torch": Worker("torch")}
    broken = iter([FrameworkError("torch", "torch failed:\nno solver")])

    def fail(workload: Any, able: dict[str, Worker], *args: Any, **options: Any) -> Any:
        if "torch" in able and (error := next(broken, None)):
            raise error
        return measure(workload, able, *args, **options)

    monkeypatch.setattr(gpu_program, "measure", fail)
    addition = next(w for w in gpu_program.WORKLOADS if w.name == "gpu op/add 64M")
    rows = [gpu_program.costed(addition, workers, QUICK, quick=True)[0] for _ in range(2)]
    assert [list(row["seconds"]) for row in rows] == [["volta_fn"], ["volta_fn", "torch"]]
    assert capsys.readouterr().out == "gpu op/add 64M: without torch: no solver\n"
    for worker in workers.values():
        worker.stop()


def test_what_a_step_costs() -> None:
    """Products in loops, in branches and in functions that are called, convolutions and their gradients."""

    def step(x: Any, w: Any, images: Any, taps: Any) -> Any:
        y = lax.scan(lambda c, _: (vf.jit(lambda c: c @ w)(c), None), x, None, length=3)[0]
        z = lax.cond(y[0, 0] > 0, lambda y: y @ w @ w, lambda y: y, y)
        return z, lax.conv_general_dilated(images, taps, (2, 2), "VALID")

    shapes = [vf.ShapeDtypeStruct(shape, "float32") for shape in ((5, 4), (4, 4), (2, 3, 9, 9), (6, 3, 3, 3))]
    product, convolution = 2 * 5 * 4 * 4, 2 * (2 * 6 * 4 * 4) * 3 * 3 * 3
    assert cost.operations(vf.make_jaxpr(step)(*shapes).jaxpr) == 5 * product + convolution
    gradient = vf.make_jaxpr(vf.grad(lambda *inputs: step(*inputs)[1].sum(), (2, 3)))
    assert 2 * convolution <= cost.operations(gradient(*shapes).jaxpr) <= 6 * convolution
    result = cost.cost(step, tuple(shapes), lambda: vf.numpy.ones(3))
    assert cost.rate(result._replace(operations=10**12, moved=10**6), 0.1, cost.Ceilings(2e13, 1e12)) == ("10 TFLOP/s", 0.5)
    assert cost.rate(result._replace(operations=10, moved=10**9), 0.01, cost.Ceilings(2e13, 1e12)) == ("100 GB/s", 0.1)
    assert cost.rate(result, 0.01, None) == ("-", None)


def test_targets_of_the_gpu() -> None:
    times = [
        {"name": f"gpu train/{name}", "seconds": {"volta_fn": 1.0, "jax": 2.0}, "peer": "jax", "first_call": {"volta_fn": 1.0, "jax": 5.0}}
        for name in ("mlp", "lenet", "lstm", "gpt small")
    ]
    steps, first = targets.judge({"times": times, "first_steps": {}}, targets.GPU)
    assert (steps["value"], first["value"]) == (0.5, 0.2) and steps["met"] and first["met"]
    first = targets.judge({"times": times, "first_steps": {"gpu train/mlp": {"volta_fn": 2.0, "jax": 5.0}}}, targets.GPU)[1]
    assert first["value"] == 0.4 and not first["met"]


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--list"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert {workload.name for workload in WORKLOADS} < set(names) and {"start/import", "peak/train/gpt"} < set(names)


def test_measuring_leaves_slow_workloads_fewer_rounds() -> None:
    worker = Worker("volta_fn")
    row = measure(named("op/sum 2048×2048"), {"volta_fn": worker}, QUICK._replace(rounds=9, budget=0.0, fewest=4), quick=True)
    worker.stop()
    assert row["rounds"] == 4 and row["least"]["volta_fn"] <= row["seconds"]["volta_fn"]


@pytest.mark.parametrize(("busy", "pauses"), [([0.0], 1), ([0.02, 0.018, 0.001], 3), ([0.02] * 99, 10)])
def test_a_framework_rests_until_its_threads_have_stopped_spinning(monkeypatch: pytest.MonkeyPatch, busy: list[float], pauses: int) -> None:
    spent, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        spent[0] += busy[len(slept)]
        slept.append(seconds)

    monkeypatch.setattr("benchmarks.worker.time", SimpleNamespace(sleep=sleep, process_time=lambda: spent[0]))
    Bench("volta_fn").rest(0.02)
    assert slept == [0.02] * pauses


def test_a_worker_that_fails_or_dies_is_heard_of_and_goes_on() -> None:
    worker = Worker("volta_fn")
    with pytest.raises(RuntimeError, match="no workload is called"):
        worker.ask("prepare", "no such workload", True)
    worker.process.kill()
    worker.process.wait()
    seconds, results = worker.ask("prepare", "op/sum 2048×2048", True)
    assert seconds > 0 and len(results) == 1
    worker.stop()


@pytest.mark.parametrize("machine_code", [True, False])
def test_every_target_is_measured_by_a_full_run(machine_code: bool) -> None:
    results = made_up(1e-7, 1e-6, 2e-6)
    results["machine"]["machine_code"] = machine_code
    judged = targets.judge(results)
    assert len(judged) >= 7 and all(row["met"] for row in judged)


def test_targets_that_are_missed_or_not_measured_are_named_so() -> None:
    judged = {row["text"]: row for row in targets.judge(made_up(1.0, 1.0, 2.0))}
    assert not judged["geometric mean over all workloads"]["met"] and not judged["gelu of 4M floats, over the faster peer's"]["met"]
    assert judged["3×3 convolution forward, over PyTorch's"]["met"]  # half of PyTorch's time
    assert judged["peak memory of any training step, over JAX's"]["met"]  # just so
    empty = made_up(1.0, 1.0, 1.0) | {"times": [], "plans": [], "peaks": []}
    empty |= {"imports": None, "first_steps": None, "convolution_memory": None}
    assert all(row["met"] is None for row in targets.judge(empty))
    assert "not measured" in report.target_row(targets.judge(empty)[0])


def test_a_jitted_add_may_be_fast_or_faster_than_jax() -> None:
    target = next(target for target in targets.NATIVE if "3 µs" in target.text)
    assert target.measure(made_up(2.9e-6, 1e-6, 1.0)) < 1 and target.measure(made_up(29e-6, 1e-4, 1.0)) < 1
    assert target.measure(made_up(5e-6, 1e-5, 1.0)) > 1


def test_the_chart_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert report.draw(made_up(1.0, 3.0, 2.0), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (2.5, "2.5 s"), (1234, "1234 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 µs")])
def test_durations_have_units(seconds: float | None, text: str) -> None:
    assert report.duration(seconds) == text


def test_a_failing_process_says_why() -> None:
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        fresh.run_fresh("import_time", "no_such_module")


def test_what_the_readme_names_exists() -> None:
    sources = "".join([path.read_text() for path in (ROOT / "benchmarks").rglob("*.py")])
    assert {*re.findall(r"--[a-z]+", README)} <= {*re.findall(r'add_argument\("(--[a-z]+)"', sources)}
    for path in re.findall(r"\]\(([\w./]+)\)|`python (benchmarks/\w+\.py)`", README):
        assert any((folder / "".join(path)).exists() for folder in (ROOT, ROOT / "benchmarks")), path
    groups = re.findall(r"^\| `([a-z ]+)/` \|", README, re.MULTILINE)
    assert groups == list(dict.fromkeys(name.split("/")[0] for name in program.NAMES))
    assert "benchmarks.__main__" in sys.modules


def test_language_models_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    options = ["--model", "tiny", "--dtype", "float32", "--prompt", "9", "--steps", "2", "--turns", "1", "--stacked"]
    times = language.main(options)
    assert set(times) == {"volta_fn", "stacked", "PyTorch"}
    differences = [float(line.split()[5]) for line in capsys.readouterr().out.splitlines() if "largest difference" in line]
    assert len(differences) == 2
    assert max(differences) < 1e-4


def test_transforms_of_jitted_functions_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert transforms.main(["--quick"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {row[0] for row in rows} == set(transforms.pairs())
    assert all(float(row[1]) > 0 and float(row[3]) > 0 for row in rows)


def test_large_workloads_are_measured_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    without_peers(monkeypatch)
    names: list[str] = []
    monkeypatch.setattr(program, "Worker", lambda framework: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(program, "measure", lambda workload, *args: names.append(workload.name))
    for flags in ([], ["--large"]):
        program.Run(program.parse(["--only", "^llm/attention gradient", *flags])).times()
    short, long = (f"llm/attention gradient {tokens}" for tokens in (4096, 16384))
    assert names == [short, short, long]


def test_every_row_of_language_models_has_a_target() -> None:
    rows = {workload.name for workload in WORKLOADS if workload.name.startswith("llm/")}
    assert rows == set(targets.LANGUAGE_TIMES)
    assert set(targets.LANGUAGE_MEMORY) == set(program.PLANS)
