"""Plans on disk: a later process has the plan of an equal program, runs it with the same bits, and never has that of another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.targets.nvidia.planning import HOPPER
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.arrays.array import numbers_of, wrap
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr
from volta_fn.runtime import caches, entries
from volta_fn.settings import current as settings
from volta_fn.targets.gpu import program as program_module
from volta_fn.targets.gpu.program import Program, TimedProgram
from volta_fn.targets.nvidia.target import NvidiaTarget
from volta_fn.targets.wgsl import program_plan
from volta_fn.targets.wgsl.commands import For, Run, While
from volta_fn.targets.wgsl.matmul import contract, tiles
from volta_fn.targets.wgsl.program_plan import PlanEntry
from volta_fn.targets.wgsl.target import WgslTarget

GPU = vf.devices("gpu")[0]
X = np.random.default_rng(0).normal(size=(12, 9)).astype(np.float32)
LARGE = np.arange(5000, dtype=np.float32)
#: Its elements stay on the host, too.
SMALL = np.arange(5, dtype=np.float32)
TARGET = WgslTarget(TargetCapabilities(buffers=32, adapter="a GPU"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(program_plan, "cache_dir", lambda: tmp_path)
    with vf.default_device(GPU):
        yield tmp_path


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs of `compiled` that are planned; operations while they are traced aside."""
    results: list[Any] = []
    plan = program_module.plan_program

    def noted(closed: Any, *rest: Any, **options: Any) -> Any:
        if any(closed is own for own in _compiled):
            results.append(closed)
        return plan(closed, *rest, **options)

    monkeypatch.setattr(program_module, "plan_program", noted)
    return results


def traced(function: Callable[..., Any], *args: Any) -> ClosedJaxpr:
    """A program of a function, traced anew."""
    return vf.make_jaxpr(lambda *a: function(*a))(*args)  # type: ignore[no-any-return]


_compiled: list[ClosedJaxpr] = []


def compiled(function: Callable[..., Any], *args: Any, donated: tuple[bool, ...] = (), kind: type[Program] = Program) -> Program:
    """A program as another process has it: nothing but the disk tells of an earlier one."""
    _compiled.append(traced(function, *args))
    return kind(GPU.backend.gpu, _compiled[-1], donated or (False,) * len(args), pipeline)


def called(program: Program, *args: Any) -> list[np.ndarray]:
    return [GPU.backend.get(result) for result in program(False, *[GPU.backend.put(np.asarray(x)) for x in args])]


def name_of(closed: ClosedJaxpr, target: WgslTarget = TARGET, donated: tuple[bool, ...] = (False,)) -> str | None:
    entry = PlanEntry.of(closed, donated, target)
    return None if entry is None else entry.name


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: jnp.tanh(x @ x.T) @ x,
    "gradient": vf.grad(lambda x: jnp.mean(jnp.exp(jnp.sin(x) @ x.T) * 0.1)),
    "scan": lambda x: lax.scan(lambda carry, row: (carry * 0.5 + row, carry @ x.T), x[0], x),
    "scan of rows": lambda x: lax.scan(lambda carry, row: (carry + row[0], row[0] * 2), x[0, 0], x[:, :1]),
    "while": lambda x: lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 0.5 + 1), (jnp.sum(x) * 0, x))[1],
    "cond": lambda x: lax.cond(jnp.sum(x) > 0, lambda y: jnp.sort(y, axis=1), lambda y: jnp.cumsum(y, axis=1), x),
    "sort": lambda x: (jnp.sort(x.reshape(-1)), jnp.argsort(x, axis=0)),
    "constants": lambda x: (x[0, 0] + LARGE, jnp.asarray(LARGE), jnp.asarray(LARGE) * 2 + x[0, 1], x[:2, :2] + jnp.asarray([0.5, 1.5])),
    "argument": lambda x: (x, x.reshape(-1), x + 1, x + 1),
    "literal": lambda x: (x.sum(), jnp.float32(2)),
    "narrow": lambda x: ((x > 0).sum(axis=0), x.astype("bfloat16")[:, ::2], x.astype("int8")),
    "nothing": lambda x: (x[:0], x[:0].sum(axis=0)),
    "weak": lambda x: (x.sum() * 0 + 1.5, 2.0),
}


def rows(commands: Any) -> list[Any]:
    """What commands are, without the identity of slots."""
    result: list[Any] = []
    for command in commands:
        if isinstance(command, Run):
            region = command.region and (command.region.grids.number, command.region.grid_offset(command.entry))
            better = command.faster and command.faster().text
            ranges = [(span.slot.number, *span[1:]) for span in command.ranges]
            result.append((command.key, ranges, command.workgroups, region, command.is_checked, better))
        elif isinstance(command, For):
            result.append((command.number, command.iterations, rows(command.body)))
        elif isinstance(command, While):
            result.append((command.flag.slot.number, command.flag.offset, rows(command.body)))
        else:
            result.append(type(command))
    return result


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_whose_plan_is_on_disk_is_not_planned_and_gives_the_same(name: str, planned: list[Any]) -> None:
    first = called(compiled(PROGRAMS[name], X), X)
    second = called(compiled(PROGRAMS[name], X), X)
    assert len(planned) == 1
    expected = vf.tree.leaves(vf.jit(PROGRAMS[name])(jnp.asarray(X)))
    for one, other, jitted in zip(first, second, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.tobytes() == other.tobytes() == np.asarray(jitted).tobytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_plan_is_what_it_was(name: str) -> None:
    closed = traced(PROGRAMS[name], X)
    entry = PlanEntry.of(closed, (True,), TARGET)
    assert entry is not None
    plan = program_module.plan_program(closed, (True,), pipeline, TARGET, lambda key: key.make())
    entry.write(plan)
    other = entry.read(closed)
    assert other is not None
    assert rows(other.commands) == rows(plan.commands)
    assert other._replace(commands=(), constants=(), outputs=()) == plan._replace(
        commands=(), constants=(), outputs=(), lowered=None, on_host=()
    )
    for one, same in zip(plan.constants, other.constants, strict=True):
        first, second = [GPU.backend.gpu.get(GPU.backend.gpu.constant(constant)) for constant in (one, same)]
        np.testing.assert_array_equal(first, second, strict=True)
    for output, again in zip(plan.outputs, other.outputs, strict=True):
        assert output._replace(constant=None) == again._replace(constant=None)
        assert (output.constant is None) == (again.constant is None)
        if output.constant is not None:
            np.testing.assert_array_equal(np.asarray(output.constant), np.asarray(again.constant))


def test_a_plan_for_matrix_units_is_what_it_was() -> None:
    """Its kernels are no WGSL, with tensor maps, and its dispatches are for machines that are not here."""
    target = NvidiaTarget(HOPPER)
    half = vf.ShapeDtypeStruct((256, 256), "bfloat16")
    closed = vf.jit(vf.grad(lambda w, x: jnp.mean(vf.nn.relu(x @ w) @ w).astype("float32"))).lower(half, half).jaxpr
    entry = PlanEntry.of(closed, (False, False), target)
    assert entry is not None
    plan = program_module.plan_program(closed, (False, False), pipeline, target, lambda key: key.make())
    assert any(not command.shader.is_rewritable for command in plan.commands if isinstance(command, Run))
    entry.write(plan)
    other = entry.read(closed)
    assert other is not None and rows(other.commands) == rows(plan.commands)


# What has another plan, and what has none.


def test_everything_that_plans_depend_on_is_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(x: Any) -> Any:
        return x @ x.T

    names = [name_of(traced(product, X)), name_of(traced(product, X[:4])), name_of(traced(lambda x: x @ x.T * 2, X))]
    names += [name_of(traced(lambda x: x[0, 0] + constant, X)) for constant in (SMALL, SMALL + 1, SMALL[1:], SMALL.astype("int32"))]
    names += [name_of(traced(lambda x, c=jnp.asarray(value): x[0, 0] + c, X)) for value in (SMALL * 2, SMALL * 3)]
    names += [name_of(traced(lambda x: x[0, 0] + constant, X)) for constant in (on_device(LARGE), on_device(LARGE[1:]))]
    names.append(name_of(traced(product, X), donated=(True,)))
    for change in ({"buffers": 16}, {"adapter": "another GPU"}, {"float16": True}, {"alignment": 32}, {"fma": True}, {"processors": 7}):
        names.append(name_of(traced(product, X), WgslTarget(TARGET.capabilities._replace(**change))))  # type: ignore[arg-type]
    names.append(name_of(traced(product, X), NvidiaTarget(TARGET.capabilities)))
    with monkeypatch.context() as patch:
        patch.setattr(settings, "verify", not settings.verify)
        names.append(name_of(traced(product, X)))
    for circumstance in (("other sources",), ("other sources", "another version")):
        with monkeypatch.context() as patch:
            patch.setattr(entries, "circumstances", lambda: circumstance)
            names.append(name_of(traced(product, X)))
    for choices in ({}, {TARGET.capabilities.adapter: {"a product": tiles.Schedule()}}):
        with monkeypatch.context() as patch:
            patch.setattr(tiles, "_users", lambda: choices)
            names.append(name_of(traced(product, X)))
            patch.setattr(tiles, "_learnt", {TARGET.capabilities.adapter: {"a product": tiles.Schedule(depth=8)}})
            names.append(name_of(traced(product, X)))
    names.remove(name_of(traced(product, X)))  # schedules of other devices make no difference, nor does tracing again
    assert None not in names
    assert len({*names}) == len(names)


def test_limits_that_the_user_sets_are_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    from volta_fn.targets.nvidia.driver import describe
    from volta_fn.targets.nvidia.library import GpuModel

    model = GpuModel(0, 0, "a GPU", (9, 0), 1 << 37, False, 132, 227 << 10)
    names = []
    for limits in ("", "webgpu"):
        monkeypatch.setenv("VOLTA_GPU_LIMITS", limits)
        names.append(name_of(traced(jnp.sin, X), NvidiaTarget(describe(model).capabilities)))
    assert names[0] != names[1]


def test_programs_that_communicate_have_no_entry() -> None:
    with vf.default_device("cpu"):
        axes = {"axis_env": [("i", 1)]}
        for function in (
            lambda x: lax.axis_index("i") + x,
            lambda x: lax.psum(x, "i"),
            lambda x: lax.scan(lambda c, r: (lax.psum(c + r, "i"), r), x[0], x),
        ):
            closed = vf.make_jaxpr(function, **axes)(X)
            assert program_plan._communicates(closed, set())
            assert name_of(closed) is None
    assert name_of(traced(lambda x: x + 1, X)) is not None


def test_functions_of_python_have_no_entry(planned: list[Any], folder: Path) -> None:
    for _ in range(2):
        compiled(lambda x: vf.pure_callback(np.sin, x, x), X)
        compiled(lambda x: vf.numpy.linalg.eigvals(x[:3, :3]), X)
    assert len(planned) == 4
    assert not [*folder.glob("?/*")]


def on_device(values: Any) -> Any:
    """An array whose elements are on the device alone."""
    array = jnp.asarray(values) + 0
    assert numbers_of(array) is None
    return array


def test_a_constant_on_the_device_is_not_read(planned: list[Any]) -> None:
    """A plan has its buffer, and depends on nothing but its type."""
    for factor in (1, 2):
        constant = on_device(LARGE * factor)
        reads = GPU.backend.counters.reads
        program = compiled(lambda x: x[0, 0] * constant, X)
        assert GPU.backend.counters.reads == reads
        np.testing.assert_allclose(called(program, X)[0], X[0, 0] * LARGE * factor, rtol=1e-6)
    assert len(planned) == 1


def test_constants_in_one_buffer_have_a_name_of_their_own(planned: list[Any]) -> None:
    """A plan that knows that two constants are the same does not serve where they differ."""
    first = on_device(LARGE)
    for second in (wrap(first.buffer(), first._spec), on_device(LARGE * 2), first):
        program = compiled(lambda x: x[0, 0] * first - second, X)
        expected = X[0, 0] * LARGE - np.asarray(second)
        np.testing.assert_allclose(called(program, X)[0], expected, rtol=1e-6, atol=1e-6 * LARGE[-1])
    assert len(planned) >= 2


def test_what_was_read_meanwhile_is_not_kept(folder: Path) -> None:
    """The compiler may have folded a constant that another thread has read after the program was named."""
    constant = on_device(LARGE[:4])
    entry = PlanEntry.of(traced(lambda x: x[0, 0] * constant, X), (False,), TARGET)
    assert entry is not None and entry.unread
    before = {*folder.glob("?/*")}
    plan = program_module.plan_program(traced(lambda x: x[0, 0] * constant, X), (False,), pipeline, TARGET, lambda key: key.make())
    np.asarray(constant)
    entry.write(plan)
    assert {*folder.glob("?/*")} == before
    again = PlanEntry.of(traced(lambda x: x[0, 0] * constant, X), (False,), TARGET)
    assert again is not None and again.name != entry.name and not again.unread


def test_constants_of_the_traced_program_are_not_written(planned: list[Any], folder: Path) -> None:
    constant = jnp.asarray(LARGE) + 0
    results = [called(compiled(lambda x: (x[0, 0] + constant, constant), X), X) for _ in range(2)]
    assert len(planned) == 1
    assert sum(path.stat().st_size for path in folder.glob("?/*")) < LARGE.nbytes
    for first, second in results:
        np.testing.assert_array_equal(first, X[0, 0] + LARGE)
        np.testing.assert_array_equal(second, LARGE)


def test_while_products_are_measured_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_finders", {TARGET.capabilities.adapter: lambda *args: tiles.Schedule()})
    assert name_of(traced(lambda x: x @ x.T, X)) is None


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, planned: list[Any]) -> None:
    monkeypatch.setattr(program_plan, "cache_dir", lambda: None)
    for _ in range(2):
        np.testing.assert_array_equal(called(compiled(lambda x: x + 1, X), X)[0], X + 1)
    assert len(planned) == 2


def test_a_part_of_a_program_has_no_entry() -> None:
    """As `crosscheck` compiles them: its equations are not there, but what they give is returned."""
    closed = traced(lambda x: jnp.sin(x) + 1, X)
    assert name_of(closed.replace(eqns=closed.eqns[1:])) is None
    assert name_of(ClosedJaxpr(Jaxpr([], closed.jaxpr.invars, closed.jaxpr.outvars, []))) is None


def test_programs_that_note_times_are_planned(planned: list[Any]) -> None:
    compiled(lambda x: x + 1, X)
    timed = compiled(lambda x: x + 1, X, kind=TimedProgram)
    assert isinstance(timed, TimedProgram) and len(planned) == 2
    called(timed, X)
    assert [numbers for numbers, *_ in timed.times()] == [(1,)]


def test_donation_is_kept(planned: list[Any]) -> None:
    for _ in range(2):
        program = compiled(lambda x: x * 2 + 1, X, donated=(True,))
        assert program.reuse == {0: 0}
        (result,) = program(True, GPU.backend.put(X))
        np.testing.assert_allclose(GPU.backend.get(result), X * 2 + 1, rtol=1e-6)
    assert len(planned) == 1


# Faster shaders.


def test_faster_shaders_are_kept_once_they_are_compiled(monkeypatch: pytest.MonkeyPatch, planned: list[Any], folder: Path) -> None:
    monkeypatch.setattr(contract, "LITTLE", 0)
    monkeypatch.setattr(tiles, "_LONG", 1)
    x = np.random.default_rng(1).normal(size=(46, 40)).astype(np.float32)

    def product(x: Any) -> Any:
        return x @ x.T + 1

    first = compiled(product, x)
    results = [called(first, x)]
    assert first.faster and not [*folder.glob("?/*")]
    results.append(called(first, x))
    GPU.backend.gpu.pipelines.upgrades.settle()
    assert [*folder.glob("?/*")]
    second = compiled(product, x)
    assert len(planned) == 1
    assert [better().text for better in second.faster.values()] == [better().text for better in compiled(product, x).faster.values()]
    results += [called(second, x), called(second, x)]
    GPU.backend.gpu.pipelines.upgrades.settle()
    results.append(called(second, x))
    assert len({result[0].tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0][0], x @ x.T + 1, atol=1e-4)


# Entries that are damaged or foreign.


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:20], lambda d: b"", lambda d: d[:-9] + bytes([d[-9] ^ 1]) + d[-8:]])
def test_a_damaged_entry_is_planned_again(damage: Callable[[bytes], bytes], planned: list[Any], folder: Path) -> None:
    expected = called(compiled(PROGRAMS["product"], X), X)
    (path,) = folder.glob("?/*")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert called(compiled(PROGRAMS["product"], X), X)[0].tobytes() == expected[0].tobytes()
    assert len(planned) == 2
    assert path.read_bytes() == whole


def test_an_entry_of_something_else_is_planned_again(planned: list[Any], folder: Path) -> None:
    compiled(PROGRAMS["product"], X)
    (path,) = folder.glob("?/*")
    _, header = json.loads((caches.read(folder, path.name) or b"").partition(b"\n")[0])
    for purpose, other in (("plan", {}), ("plan", []), ("plan", {**header, "texts": [1]}), ("another CPU", header)):
        entries.write(folder, path.name, purpose, other, [b"foreign"])
        compiled(PROGRAMS["product"], X)
    assert len(planned) == 5


SCRIPT = """
import json, sys
import numpy as np
import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.targets.gpu import program
plan, planned = program.plan_program, []
program.plan_program = lambda *args, **options: planned.append(1) or plan(*args, **options)
x = np.arange(12, dtype=np.float32).reshape(3, 4)
scale = jnp.asarray(np.float32(sys.argv[1]))
step = vf.jit(vf.value_and_grad(lambda w, x: jnp.tanh(x @ w * scale).sum()))
value, gradient = step(x.T * 0.1, x)
print(json.dumps([len(planned), np.asarray(value).tobytes().hex() + np.asarray(gradient).tobytes().hex()]))
"""


def test_a_second_process_plans_nothing(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]

    def run(cache: str, scale: str) -> list[Any]:
        environment = os.environ | {"PYTHONPATH": str(root), "VOLTA_CACHE_DIR": cache, "VOLTA_DEVICE": "gpu"}
        done = subprocess.run([sys.executable, "-c", SCRIPT, scale], env=environment, capture_output=True, text=True, check=True)
        result: list[Any] = json.loads(done.stdout)
        return result

    first, second, other = run(str(tmp_path), "2"), run(str(tmp_path), "2"), run(str(tmp_path), "3")
    assert first[0] and other[0] and not second[0]
    assert first[1] == second[1] != other[1]
