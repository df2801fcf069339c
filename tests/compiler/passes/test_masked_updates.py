"""Selections between an array and its update, as updates under a mask: the same bits, and nothing of the array's size is selected."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.compiler.passes.common import names, passed, special, untouched
from tests.targets.index_cases import COMBINED, gathers
from volta_fn import lax
from volta_fn.compiler.passes import updates
from volta_fn.compiler.passes.updates import UPDATES, mask_updates, read_before_updates
from volta_fn.compiler.pipeline import simplify
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.core.trace import bind
from volta_fn.primitives.data_movement.gather import GatherScatterMode, ScatterDimensionNumbers
from volta_fn.transforms.differentiation import eliminate_dead_code

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64, np.int8, np.int32, np.uint8, np.uint32, np.int64, np.bool_]
X = np.random.default_rng(0).standard_normal((4, 30)).astype(np.float32)
DROP = GatherScatterMode.FILL_OR_DROP
P = np.array([True, False, False, True])
AT = np.array([3, 29, -1, 40], np.int32)
V = np.array([np.nan, -0.0, np.inf, 5], np.float32)


def masked(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The pass, and what it leaves dead taken away."""
    return eliminate_dead_code(mask_updates(closed))


def selections(program: ClosedJaxpr) -> list[tuple[int, ...]]:
    """The shapes of what a program selects."""
    return [e.outvars[0].aval.shape for e in program.eqns if e.primitive.name == "select_n"]


def drawn(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers at the edges of a dtype."""
    return rng.choice(special(dtype), shape)


def cases_in_order(first: bool, update: Any, array: Any) -> tuple[Any, Any]:
    return (update, array) if first else (array, update)


@st.composite
def scatters(draw: st.DrawFn) -> tuple[str, list[np.ndarray], dict[str, Any], np.ndarray, bool]:
    """A scatter, its operands and parameters, a predicate that may mask it, and which of its values chooses the update."""
    name = draw(st.sampled_from(COMBINED))
    x, indices, how = draw(gathers())
    numbers = ScatterDimensionNumbers(*how["dimension_numbers"])
    sizes = how["slice_sizes"]
    windows = iter([n for d, n in enumerate(sizes) if d not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)])
    batch = iter(indices.shape)
    rank = len(numbers.update_window_dims) + indices.ndim - 1
    shape = tuple(next(windows if d in numbers.update_window_dims else batch) for d in range(rank))
    dtypes = [d for d in DTYPES if np.dtype(d).kind != "c" or name in ("scatter", "scatter_add", "scatter_mul")]
    dtype, rng = draw(st.sampled_from(dtypes)), np.random.default_rng(draw(st.integers(0, 99)))
    fixed = (*numbers.inserted_window_dims, *numbers.scatter_dims_to_operand_dims)
    eligible = [d for d, n in enumerate(x.shape) if d in numbers.operand_batching_dims or (d not in fixed and sizes[d] == n)]
    axes = [d for d in eligible if draw(st.booleans())]
    first = min(axes, default=x.ndim) if draw(st.booleans()) else 0
    predicate = tuple(n if d in axes else 1 for d, n in enumerate(x.shape))[first:]
    p = rng.random(predicate) < 0.5 if draw(st.booleans()) else rng.integers(-1, 3, predicate).astype(np.int32)
    operands = [drawn(rng, dtype, x.shape), indices, drawn(rng, dtype, shape)]
    return name, operands, {"dimension_numbers": numbers, "mode": how["mode"], "unique_indices": False}, p, draw(st.booleans())


@given(scatters())
def test_scatters_of_every_kind(drawn: Any) -> None:
    name, operands, params, p, first = drawn
    x, indices, new = operands
    function = lambda p, x, i, v: lax.select_n(p, *cases_in_order(first, bind(PRIMITIVES[name], x, i, v, **params), x))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updates, "_WORTHWHILE", 0)
        after = passed(masked, function, p, vnp.array(x), indices, vnp.array(new))
    if x.size and new.size and indices.shape[-1]:
        assert names(after)[-1] == name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (5, 1, 1), (5, 1, 3), (3,)])
@pytest.mark.parametrize("starts", [(0, 0, 0), (2, -1, 0), (-3, 9, 1), (0, 127, -128)])
def test_dynamic_update_slices(dtype: Any, first: bool, shape: tuple[int, ...], starts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, v, p = drawn(rng, dtype, (5, 8, 3)), drawn(rng, dtype, (5, 2, 3)), rng.random(shape) < 0.5
    function = lambda p, x, v, i: lax.select_n(p, *cases_in_order(first, lax.dynamic_update_slice(x, v, list(i)), x))
    i = np.array(starts, np.int8)
    after = passed(lambda closed: masked(simplify(closed)), function, p, vnp.array(x), vnp.array(v), i)
    assert (5, 8, 3) not in selections(after)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
def test_indices_of_every_dtype(dtype: Any, mode: str) -> None:
    numbers = ScatterDimensionNumbers((), (0,), (0,))
    info = np.iinfo(dtype)
    i = np.array([[0], [5], [info.max], [info.min], [255 if info.max > 255 else 100], [5]], dtype)
    x, v = np.arange(300, dtype=np.float32), np.arange(6, dtype=np.float32) - 9
    for p in (True, False):
        function = lambda p, x, i, v: lax.select(p, lax.scatter_add(x, i, v, numbers, mode=mode), x)
        assert names(passed(masked, function, np.bool_(p), x, i, v))[-1] == "scatter_add"


def written(x: Any, i: Any, v: Any) -> Any:
    return x.at[i].set(v)


def test_vmapped_conditionals_masks_and_loops() -> None:
    x = vnp.array(X)
    by_cond = vf.vmap(lambda p, x, i, v: lax.cond(p, written, lambda x, i, v: x, x, i, v))
    by_where = vf.vmap(lambda p, x, i, v: vnp.where(p, x.at[i].add(v), x))
    shared = vf.vmap(lambda p, x, v: vnp.where(p, x.at[7].set(v), x))
    otherwise = vf.vmap(lambda p, x, i, v: vnp.where(p, x, x.at[i].max(v)))
    for function in (by_cond, by_where, otherwise):
        assert (4, 30) not in selections(passed(simplify, function, P, x, AT, V))
    assert (4, 30) not in selections(passed(simplify, shared, P, x, V))


def test_masks_of_several_axes() -> None:
    rng = np.random.default_rng(0)
    x, v = vnp.array(drawn(rng, np.float32, (3, 4, 30))), drawn(rng, np.float32, (3, 4))
    p, i = rng.random((3, 4)) < 0.5, rng.integers(-3, 33, (3, 4)).astype(np.int32)
    add = lambda p, x, i, v: vnp.where(p, x.at[i].add(v), x)
    both = vf.vmap(vf.vmap(add))
    outer_alone, inner_alone = vf.vmap(vf.vmap(add, (0, 0, None, 0))), vf.vmap(vf.vmap(add), (0, 0, None, 0))
    for function, index in ((both, i), (outer_alone, i[:, 0]), (inner_alone, i[0])):
        assert (3, 4, 30) not in selections(passed(simplify, function, p, x, index, v))
    crossed = {"dimension_numbers": ScatterDimensionNumbers((), (2,), (2,), (0, 1), (1, 0)), "mode": DROP, "unique_indices": False}
    swapped = lambda p, x, i, v: lax.select_n(p[:, :, None], x, bind(PRIMITIVES["scatter_add"], x, i, v, **crossed))
    assert (3, 4, 30) not in selections(passed(simplify, swapped, p, x, i.T[:, :, None], v.T))


def test_several_cases() -> None:
    branches = [lambda x, i, v: x, written, lambda x, i, v: x.at[i].add(v).at[0].mul(2), lambda x, i, v: x]
    function = vf.vmap(lambda k, x, i, v: lax.switch(k, branches, x, i, v))
    for k in ([0, 1, 2, 3], [2, 2, 1, 0], [-4, 9, 2, 1]):
        after = passed(simplify, function, np.array(k, np.int32), vnp.array(X), AT, V)
        assert (4, 30) not in selections(after) and names(after)[-1].startswith("scatter")


def test_chains() -> None:
    x = vnp.array(X)
    two = vf.vmap(lambda p, x, i, v: vnp.where(p, x.at[i].add(v).at[i].mul(3), x))
    around = vf.vmap(lambda p, x, i, v: vnp.where(p, vnp.where(v > 0, x.at[i].set(v), x).at[2].set(1), x))
    above = vf.vmap(lambda p, x, i, v: vnp.where(p, (y := x.at[0].set(v)).at[i].set(v), y))
    for function in (two, around, above):
        assert (4, 30) not in selections(passed(simplify, function, P, x, AT, V))


def test_what_stays() -> None:
    x = vnp.array(X)
    used = lambda p, x, v: (vnp.where(p, (y := x.at[3].set(v)), x), y[0])
    along = lambda p, x, v: vnp.where(p, x.at[3].set(v), x)
    other = lambda p, x, y, v: vnp.where(p, x.at[3].set(v), y)
    most = lambda p, x, v: vnp.where(p, x.at[vnp.arange(30)].set(v), x)
    row = x[0]
    mask = np.arange(30) % 2 == 0
    assert (30,) in selections(passed(simplify, used, True, row, 2.0))
    assert (30,) in selections(passed(simplify, along, mask, row, 2.0))
    assert (30,) in selections(passed(simplify, other, True, row, row + 1, 2.0))
    assert (30,) in selections(passed(simplify, most, True, row, 2.0))
    untouched(mask_updates, lambda p, x: vnp.where(p, x, 2 * x), True, row)


def test_empty_arrays() -> None:
    function = lambda p, x, v: vnp.where(p, x.at[vnp.zeros(0, int)].set(v), x)
    passed(simplify, function, True, vnp.zeros((0,)), vnp.zeros((0,)))
    passed(simplify, function, True, vnp.zeros((9,)), vnp.zeros((0,)))


# Reads of an array before its update.


def reads_late(program: ClosedJaxpr) -> bool:
    """Whether an equation reads what an earlier one updates."""
    updated = [(n, e.invars[0]) for n, e in enumerate(program.eqns) if e.primitive in UPDATES]
    return any(array in e.invars for n, array in updated for e in program.eqns[n + 1 :])


def prints_after_its_update(x: Any, v: Any, element: Any = ...) -> Any:
    updated = x.at[3].set(v)
    vf.debug.print("{}", x[element])
    return updated


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i, v: (x.at[i].set(v), 2 * x[i + 1] + v),
        lambda x, i, v: (x.at[i].set(v).at[2].add(v), vnp.sin(x).sum()),
        lambda x, i, v: prints_after_its_update(x, v, i),
    ],
)
def test_reads_come_before_updates(function: Any) -> None:
    args = vnp.array(X[0]), 3, 2.0
    assert reads_late(vf.make_jaxpr(function)(*args)) and not reads_late(passed(read_before_updates, function, *args))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, v: x[3] + x.at[3].set(v),
        lambda x, v: (y := x.at[3].set(v), x * y),
        prints_after_its_update,
        lambda x, v: (x.at[3].set(v), x.at[4].set((x.at[3].set(v))[3])),
    ],
)
def test_reads_that_stay(function: Any) -> None:
    untouched(read_before_updates, function, vnp.array(X[0]), 2.0)
