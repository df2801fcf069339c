"""Attention on matrix units, run by an emulator, against its definition and gradients in float64."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tests.targets.nvidia.emulation import Emulator
from volta_fn.compiler.attention import attention_of
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import CAUSAL, Axes, Form, Window
from volta_fn.targets.nvidia.attention.groups import GroupSchedule, has_tensor_maps
from volta_fn.targets.nvidia.attention.joint import JointSchedule, gradient_dispatches, gradient_workspace
from volta_fn.targets.nvidia.attention.kernels import forward_dispatch
from volta_fn.targets.nvidia.attention.tiles import AttentionSchedule
from volta_fn.targets.wgsl.routine import Dispatch

LEAST = -0.7 * float(np.finfo(np.float32).max)
BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)

#: Arrays (batch, heads, rows, features), and (batch, rows, heads, features).
HEADS_FIRST, ROWS_FIRST = Axes((0, 1), 2, 3), Axes((0, 2), 1, 3)


class Case(NamedTuple):
    """A problem, and how it is divided."""

    name: str
    batch: int = 1
    heads: int = 1
    groups: int = 1
    queries: int = 64
    keys: int = 64
    width: int = 64
    causal: bool = False
    dtype: np.dtype = BFLOAT16
    scale: float = 0.125
    schedule: AttentionSchedule = AttentionSchedule(warps=2, fragments=1, tile=16, step=16)


CASES = [
    Case("all", batch=2, queries=32, keys=32),
    Case("causal", causal=True),
    Case("ragged", queries=37, keys=43),
    Case("ragged causal", queries=51, keys=51, causal=True),
    Case("fewer keys", queries=51, keys=20, causal=True),
    Case("fewer queries", queries=20, keys=70, causal=True),
    Case("shared heads", heads=4, groups=2, queries=33, keys=40, causal=True),
    Case("float16", queries=32, keys=32, dtype=FLOAT16),
    Case("wide", width=128, queries=70, keys=40, causal=True, schedule=AttentionSchedule(warps=4, fragments=1, tile=16, step=16)),
    Case("the least scale", queries=51, keys=51, causal=True, scale=1.5e-38),
    Case("two fragments", causal=True, schedule=AttentionSchedule(warps=2, fragments=2, tile=32, step=16, stages=3, retained=False)),
]


class Problem(NamedTuple):
    """Operands, and results in float64. Keys and cotangents have their rows first."""

    form: Form
    operands: list[np.ndarray]
    cotangent: np.ndarray
    out: np.ndarray
    statistics: np.ndarray
    gradients: list[np.ndarray]

    def avals(self, *others: np.ndarray) -> tuple[ShapedArray, ...]:
        """Return the types of the operands and others."""
        return tuple([ShapedArray(x.shape, x.dtype) for x in (*self.operands, *others)])


def problem_of(case: Case) -> Problem:
    """Return random operands and the results by their definition."""
    rng = np.random.default_rng(0)
    shapes = (case.batch, case.heads, case.queries, case.width), (case.batch, case.groups, case.keys, case.width)
    q, k, v, d = (rng.standard_normal(shape).astype(case.dtype) for shape in (shapes[0], shapes[1], shapes[1], shapes[0]))
    wide_q, wide_k, wide_v, wide_d = (x.astype(np.float64) for x in (q, k, v, d))
    each = case.heads // case.groups
    keys, values = np.repeat(wide_k, each, 1), np.repeat(wide_v, each, 1)
    logits = wide_q @ keys.swapaxes(2, 3) * case.scale
    if case.causal:
        logits = np.where(np.arange(case.keys) <= np.arange(case.queries)[:, None], logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    out = weights @ values
    slopes = weights * (wide_d @ values.swapaxes(2, 3) - (wide_d * out).sum(-1, keepdims=True)) * case.scale
    by_head = slopes.swapaxes(2, 3) @ wide_q, weights.swapaxes(2, 3) @ wide_d
    to_k, to_v = [x.reshape(case.batch, case.groups, each, *x.shape[2:]).sum(2) for x in by_head]
    form = Form(HEADS_FIRST, ROWS_FIRST, HEADS_FIRST, ROWS_FIRST, case.scale, LEAST, CAUSAL if case.causal else Window())
    operands = [q, np.ascontiguousarray(k.swapaxes(1, 2)), v]
    statistics = np.concatenate([top, total], -1).reshape(-1, case.queries, 2)
    gradients = [slopes @ keys, to_k.swapaxes(1, 2), to_v]
    return Problem(form, operands, np.ascontiguousarray(d.swapaxes(1, 2)), out, statistics, gradients)


def run(dispatch: Dispatch, buffers: list[np.ndarray]) -> None:
    """Run a dispatch on its buffers, by their numbers."""
    Emulator(dispatch.source).run([buffers[number] for number in dispatch.buffers], dispatch.workgroups[0])


def check(name: str, actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Compare, relative to the largest number."""
    error = np.abs(actual.astype(np.float64) - expected).max()
    assert error <= tolerance * np.abs(expected).max(), (name, error)


@pytest.mark.parametrize("schedule", [Case("").schedule, GroupSchedule(1, 64, residents=2)], ids=["warps", "warp groups"])
def test_infinite_logits_have_no_weight(schedule: AttentionSchedule | GroupSchedule) -> None:
    """The first tile's logits may be minus infinity, and products the exponents of more than one power of two."""
    q, k, v = problem_of(Case("", keys=128)).operands
    q, k[:, :64] = np.abs(q), -np.inf
    logits = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 3, 1)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    form = Form(HEADS_FIRST, ROWS_FIRST, HEADS_FIRST, None, 1.0, LEAST)
    a = attention_of([ShapedArray(x.shape, x.dtype) for x in (q, k, v)], form)
    out, statistics = np.full(q.shape, np.nan, q.dtype), np.full((1, 64, 2), np.nan, np.float32)
    dispatch = forward_dispatch(a, schedule)
    run(dispatch, [q, k, v, out, statistics])
    check("out", out, expected, 1e-2)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_forward(case: Case) -> None:
    problem = problem_of(case)
    a = attention_of(problem.avals(), problem.form._replace(cotangent=None))
    out = np.full(problem.out.shape, np.nan, case.dtype)
    statistics = np.full(problem.statistics.shape, np.nan, np.float32)
    run(forward_dispatch(a, case.schedule), [*problem.operands, out, statistics])
    check("statistics", statistics, problem.statistics, 1e-5)
    check("result", out, problem.out, 1e-2 if case.dtype == BFLOAT16 else 2e-3)


GROUPS = GroupSchedule(2, 64)


@pytest.mark.parametrize(
    ("case", "schedule"),
    [
        pytest.param(Case("", queries=140, keys=100), GROUPS, id="ragged"),
        pytest.param(Case("", heads=2, queries=200, keys=200, causal=True), GROUPS, id="causal"),
        pytest.param(Case("", batch=2, heads=4, groups=2, queries=70, keys=90, causal=True, dtype=FLOAT16), GROUPS, id="shared heads"),
        pytest.param(Case("", queries=130, keys=150, width=128, causal=True), GROUPS, id="wide"),
        pytest.param(Case("", queries=80, keys=70, causal=True, scale=1.5e-38), GROUPS, id="the least scale"),
        pytest.param(Case("", queries=193, keys=260, causal=True), GroupSchedule(3, 128), id="three groups"),
        pytest.param(Case("", queries=140, keys=100, causal=True), GroupSchedule(1, 128, residents=2), id="one group"),
        pytest.param(Case("", queries=140, keys=230, causal=True), GroupSchedule(2, 64, turns=True), id="turns"),
        pytest.param(Case("", queries=70, keys=50), GroupSchedule(2, 64, turns=True), id="turns, one tile"),
        pytest.param(Case("", queries=140, keys=100, width=128), GroupSchedule(2, 64, retained=True), id="rows in registers"),
    ],
)
def test_forward_by_warp_groups(case: Case, schedule: GroupSchedule) -> None:
    problem = problem_of(case)
    a = attention_of(problem.avals(), problem.form._replace(cotangent=None))
    assert has_tensor_maps(a.q, a.k, a.v)
    out = np.full(problem.out.shape, np.nan, case.dtype)
    statistics = np.full(problem.statistics.shape, np.nan, np.float32)
    run(forward_dispatch(a, schedule), [*problem.operands, out, statistics])
    check("statistics", statistics, problem.statistics, 1e-5)
    check("result", out, problem.out, 1e-2 if case.dtype == BFLOAT16 else 2e-3)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_gradients(case: Case) -> None:
    check_gradients(case, case.schedule)


def check_gradients(case: Case, schedule: AttentionSchedule | GroupSchedule) -> None:
    """Compare gradients with those in float64."""
    problem = problem_of(case)
    out, statistics = problem.out.astype(case.dtype), problem.statistics.astype(np.float32)
    a = attention_of(problem.avals(out, statistics, problem.cotangent), problem.form)
    assert a.cotangent is not None
    gradients = [np.full(x.shape, np.nan, case.dtype) for x in problem.gradients]
    work = np.full(gradient_workspace(a, schedule) // 4, np.nan, np.float32)
    buffers = [*problem.operands, out, statistics, problem.cotangent, *gradients, work]
    for dispatch in gradient_dispatches(a, a.cotangent, schedule, schedule):
        run(dispatch, buffers)
    for name, actual, expected in zip("qkv", gradients, problem.gradients, strict=True):
        check(name, actual, expected, 2e-2 if case.dtype == BFLOAT16 else 3e-3)


WIDE = JointSchedule(stages=2, adders=2, retained=False, late=True)


@pytest.mark.parametrize(
    ("case", "schedule"),
    [
        pytest.param(Case("", queries=140, keys=100), GroupSchedule(2, 64), id="ragged"),
        pytest.param(Case("", heads=2, queries=150, keys=150, causal=True), GroupSchedule(2, 64), id="causal"),
        pytest.param(
            Case("", batch=2, heads=4, groups=2, queries=70, keys=90, causal=True, dtype=FLOAT16),
            GroupSchedule(1, 64, residents=2),
            id="shared heads",
        ),
        pytest.param(Case("", queries=80, keys=70, causal=True, scale=1.5e-38), GroupSchedule(2, 64), id="the least scale"),
        pytest.param(Case("", queries=70, keys=150, width=128, causal=True), GroupSchedule(2, 64, turns=True), id="wide, turns"),
        pytest.param(Case("", queries=150, keys=20, causal=True), GroupSchedule(3, 32), id="three groups"),
        pytest.param(Case("", queries=140, keys=100, width=128, causal=True), GroupSchedule(2, 64, retained=True), id="rows in registers"),
        pytest.param(Case("", heads=2, queries=260, keys=270), JointSchedule(), id="joint"),
        pytest.param(Case("", queries=200, keys=330, causal=True), JointSchedule(), id="joint, causal"),
        pytest.param(Case("", heads=4, groups=2, queries=150, keys=140, causal=True, dtype=FLOAT16), JointSchedule(), id="joint, shared"),
        pytest.param(Case("", queries=140, keys=150, width=128, causal=True), WIDE, id="joint, wide"),
    ],
)
def test_gradients_by_warp_groups(case: Case, schedule: GroupSchedule) -> None:
    check_gradients(case, schedule)
