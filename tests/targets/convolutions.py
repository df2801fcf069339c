"""Convolutions of any form, for every backend that has its own."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from volta_fn.primitives.convolution import window_counts

#: The order of dimensions: batch, feature and space; batch, space and feature; another.
ORDERS = [((0, 1, 2, 3),) * 3, ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)), ((3, 0, 1, 2), (0, 3, 2, 1), (1, 2, 0, 3))]


def params_of(rank: int, **changed: Any) -> dict[str, Any]:
    """Parameters of the primitive."""
    order = tuple(range(rank + 2))
    plain = {"window_strides": (1,) * rank, "padding": ((0, 0),) * rank, "lhs_dilation": (1,) * rank, "rhs_dilation": (1,) * rank}
    groups = {"feature_group_count": 1, "batch_group_count": 1, "preferred_element_type": None}
    return {**plain, **groups, "dimension_numbers": (order, order, order), **changed}


def placed(sizes: tuple[int, ...], spec: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape whose dimension ``spec[i]`` has size ``sizes[i]``."""
    return tuple([size for _, size in sorted(zip(spec, sizes, strict=True))])


@st.composite
def configurations(draw: st.DrawFn, largest: int, features: int) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of both operands, and parameters: any rank, order of dimensions, stride, dilation, padding, groups."""
    rank = draw(st.integers(0, 3))

    def each(of: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(of, min_size=rank, max_size=rank)))

    grouped = draw(st.sampled_from(["feature_group_count", "batch_group_count", None]))
    groups = draw(st.integers(2, 4)) if grouped else 1
    channels, outputs, images = draw(st.integers(1, features)), draw(st.integers(1, features)) * groups, draw(st.integers(1, 3))
    sizes, taps = each(st.integers(1, largest)), each(st.integers(1, 4))
    rarely = st.sampled_from([1, 1, 1, 2, 3])
    strides, bases, dilations = each(rarely), each(rarely), each(rarely)
    padding = each(st.tuples(st.integers(-1, 3), st.integers(-1, 3)))
    assume(all((n - 1) * b + 1 + min(p[0], 0) + min(p[1], 0) >= 0 for n, b, p in zip(sizes, bases, padding, strict=True)))
    assume(0 not in window_counts(sizes, taps, strides, padding, bases, dilations))
    orders = st.sampled_from([tuple(range(rank + 2)), (0, rank + 1, *range(1, rank + 1))]) | st.permutations(range(rank + 2)).map(tuple)
    numbers = (draw(orders), draw(orders), draw(orders))
    batch = images * (groups if grouped == "batch_group_count" else 1)
    inputs = channels * (groups if grouped == "feature_group_count" else 1)
    params = params_of(
        rank, window_strides=strides, padding=padding, lhs_dilation=bases, rhs_dilation=dilations, dimension_numbers=numbers,
        **({grouped: groups} if grouped else {}),
    )  # fmt: skip
    return placed((batch, inputs, *sizes), numbers[0]), placed((outputs, channels, *taps), numbers[1]), params
