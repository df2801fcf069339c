"""Speed on the small end, beside NumPy, JAX and PyTorch in one run: where a call's overhead is all that counts.

    python benchmarks/small.py [--json PATH] [--rounds N]

Four things are measured: eager `x + y` on 8 floats, a jitted call of one addition, the eager value and gradient of a two-layer
network (batch 32, 64 → 64 → 10, tanh, cross-entropy with one-hot labels), and the time of `import`. All share two cores and two threads.
They take turns, a few milliseconds each, so that a drift of the machine's clock hits all alike, and the median turn counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

THREADS = 2
TURN = 3e-3  # seconds that one contestant runs before the next takes its turn


class Contest(NamedTuple):
    """One thing to measure: a statement per library, and how ours must compare with a peer's."""

    name: str
    statements: dict[str, str]
    peer: str
    limit: float


CONTESTS = [
    Contest("eager x + y, 8 floats", {"numpy": "nx + ny", "volta_fn": "vx + vy", "jax": "jx + jy", "torch": "tx + ty"}, "torch", 1.2),
    Contest("jitted call of one add", {"volta_fn": "vadd(vx, vy)", "jax": "jadd(jx, jy)"}, "jax", 0.5),
    Contest(
        "eager value and gradient, two layers",
        {"volta_fn": "vgrad(vparams, vdata, vlabels)", "jax": "jgrad(jparams, jdata, jlabels)", "torch": "tgrad()"},
        "torch",
        2.0,
    ),
]


def use_two_threads() -> None:
    """Keep this process to two cores, and every library's thread pool to two threads; to be called before they are imported."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"):
        os.environ[variable] = str(THREADS)


def installed(library: str) -> bool:
    """Whether a library can be imported."""
    return importlib.util.find_spec(library) is not None


def network(lib: Any, nn: Any) -> Callable[..., Any]:
    """The loss of the two-layer network, for the array library `lib`, which is JAX's or ours."""

    def loss(params: Any, data: Any, labels: Any) -> Any:
        hidden = lib.tanh(data @ params["w1"] + params["b1"])
        log_probabilities = nn.log_softmax(hidden @ params["w2"] + params["b2"])
        return -lib.mean(lib.sum(labels * log_probabilities, axis=1))

    return loss


def contestants() -> dict[str, Any]:
    """The names that the statements use, for the libraries that are installed."""
    import numpy as np

    import volta_fn as vf

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 8)).astype(np.float32)
    shapes = {"w1": (64, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}
    params = {name: rng.normal(size=shape, scale=0.1).astype(np.float32) for name, shape in shapes.items()}
    data, labels = rng.normal(size=(32, 64)).astype(np.float32), np.eye(10, dtype=np.float32)[rng.integers(0, 10, size=32)]
    names = {"nx": x, "ny": y} | functional("v", vf, vf.numpy, vf.nn, x, y, params, data, labels)
    if installed("jax"):
        import jax

        names |= functional("j", jax, jax.numpy, jax.nn, x, y, params, data, labels)
    if installed("torch"):
        names |= imperative(x, y, params, data, labels)
    return names


def functional(letter: str, lib: Any, jnp: Any, nn: Any, x: Any, y: Any, params: Any, data: Any, labels: Any) -> dict[str, Any]:
    """The statements' names for a library of JAX's kind, each starting with `letter`."""
    names = {
        "x": jnp.asarray(x),
        "y": jnp.asarray(y),
        "add": lib.jit(lambda a, b: a + b),
        "params": {name: jnp.asarray(value) for name, value in params.items()},
        "data": jnp.asarray(data),
        "labels": jnp.asarray(labels),
        "grad": lib.value_and_grad(network(jnp, nn)),
    }
    return {letter + name: value for name, value in names.items()}


def imperative(x: Any, y: Any, params: Any, data: Any, labels: Any) -> dict[str, Any]:
    """The statements' names for PyTorch: the same network, its loss and its gradients by one forward and one backward pass."""
    import torch

    torch.set_num_threads(THREADS)
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    inputs, targets = torch.tensor(data), torch.tensor(labels)

    def value_and_gradient() -> Any:
        hidden = torch.tanh(inputs @ leaves["w1"] + leaves["b1"])
        loss = torch.nn.functional.cross_entropy(hidden @ leaves["w2"] + leaves["b2"], targets)
        return loss, torch.autograd.grad(loss, list(leaves.values()))

    return {"tx": torch.tensor(x), "ty": torch.tensor(y), "tgrad": value_and_gradient}


def check_agreement(names: dict[str, Any]) -> None:
    """All libraries compute the same numbers: otherwise their times could not be compared."""
    import numpy as np

    value, grads = names["vgrad"](names["vparams"], names["vdata"], names["vlabels"])
    ours = [value, *[grads[name] for name in ("w1", "b1", "w2", "b2")]]
    others = []
    if "jgrad" in names:
        value, grads = names["jgrad"](names["jparams"], names["jdata"], names["jlabels"])
        others.append([value, *[grads[name] for name in ("w1", "b1", "w2", "b2")]])
    if "tgrad" in names:
        value, gradients = names["tgrad"]()
        others.append([value.detach(), *gradients])
    for theirs in others:
        for our, their in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(our, np.asarray(their), rtol=1e-4, atol=1e-6)


def take_turns(statements: dict[str, str], names: dict[str, Any], rounds: int) -> dict[str, float]:
    """The median time of each statement in seconds."""
    timers = {library: timeit.Timer(statement, globals=names) for library, statement in statements.items()}
    counts = {library: max(1, int(TURN / (timer.timeit(20) / 20))) for library, timer in timers.items()}
    turns: dict[str, list[float]] = {library: [] for library in timers}
    for _ in range(rounds):
        for library, timer in timers.items():
            turns[library].append(timer.timeit(counts[library]) / counts[library])
    return {library: statistics.median(times) for library, times in turns.items()}


def import_times(modules: list[str], rounds: int) -> dict[str, float]:
    """The median time of `import` in a fresh interpreter, byte code being cached; and what must not come along does not."""
    program = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
    turns: dict[str, list[float]] = {module: [] for module in modules}
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": cache}
        run = lambda code: subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        for number in range(rounds + 1):
            for module in modules:
                seconds = float(run(program.format(module)))
                if number:  # the first turn fills the cache
                    turns[module].append(seconds)
        heavy = run("import sys, volta_fn; print(*sorted({'wgpu', 'llvmlite', 'safetensors'} & set(sys.modules)))").split()
    if heavy:
        raise SystemExit(f"import volta_fn loads {', '.join(heavy)}, which it must not")
    return {module: statistics.median(times) for module, times in turns.items()}


def report(name: str, times: dict[str, float], peer: str, ratio: float | None, target: str, met: bool | None) -> dict[str, Any]:
    """Print one line of the table, and return it as data."""
    shown = "  ".join(f"{library} {seconds * 1e6:9.2f} µs" for library, seconds in times.items())
    verdict = {True: "met", False: "MISSED", None: f"no {peer} here"}[met]
    print(f"{name:38s} {shown}\n{'':38s} {'' if ratio is None else f'{ratio:.2f}, '}target {target}: {verdict}")
    return {"name": name, "seconds": times, "peer": peer, "ratio": ratio, "target": target, "met": met}


def compare(contest: Contest, names: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Measure one contest among the libraries that are here, and report it."""
    times = take_turns({library: s for library, s in contest.statements.items() if installed(library)}, names, rounds)
    ratio = times["volta_fn"] / times[contest.peer] if contest.peer in times else None
    target = f"at most {contest.limit} of {contest.peer}'s time"
    return report(contest.name, times, contest.peer, ratio, target, None if ratio is None else ratio <= contest.limit)


def compare_imports(rounds: int) -> dict[str, Any]:
    """Measure how much longer `import volta_fn` takes than `import numpy`, and report it."""
    times = import_times(["numpy", "volta_fn"], rounds)
    extra = times["volta_fn"] - times["numpy"]
    return report("import", times, "numpy", times["volta_fn"] / times["numpy"], "at most numpy's time + 100 ms", extra <= 0.1)


def main() -> None:
    """Run all contests, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(description="Small operations beside NumPy, JAX and PyTorch.")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--rounds", type=int, default=101, help="turns per contestant (default 101)")
    options = parser.parse_args()
    use_two_threads()
    for peer in ("jax", "torch"):
        if not installed(peer):
            print(f"{peer} is not installed: its columns are missing (pip install '.[benchmarks]')")
    names = contestants()
    check_agreement(names)
    results = [compare(contest, names, options.rounds) for contest in CONTESTS]
    results.append(compare_imports(min(options.rounds, 15)))
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": THREADS}
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
