"""Products of one small array with several matrices, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.passes.common import names, same_bits
from volta_fn.compiler.passes.dce import with_products_together
from volta_fn.core.staging import eval_jaxpr

ROW = np.linspace(-1, 1, 32, dtype=np.float32)[None]
MATRICES = [np.random.default_rng(k).normal(size=(32, 32)).astype(np.float32) for k in range(3)]


def reordered(function: Any, *arguments: Any) -> list[str]:
    """Return the names of the equations afterwards, which give the same bits."""
    closed = vf.make_jaxpr(function)(*arguments)
    after = with_products_together(closed)
    flat = [jnp.asarray(x) for x in vf.tree.leaves(arguments)]
    for first, second in zip(eval_jaxpr(closed, *flat), eval_jaxpr(after, *flat), strict=True):
        same_bits(first, second)
    assert sorted(names(after)) == sorted(names(closed))
    return names(after)


def test_a_product_moves_before_the_function_of_another() -> None:
    gated = lambda x, gate, up: jnp.tanh(x @ gate) * (x @ up)
    assert reordered(gated, ROW, *MATRICES[:2]) == ["dot_general", "dot_general", "tanh", "mul"]


def test_it_stays_behind_what_it_reads() -> None:
    scaled = lambda x, a, b: (x @ a, x @ (b * 2.0))
    assert reordered(scaled, ROW, *MATRICES[:2]) == ["dot_general", "mul", "dot_general"]
    chained = lambda x, a, b, c: ((x @ a) @ b) + x @ c
    assert reordered(chained, ROW, *MATRICES) == ["dot_general", "dot_general", "dot_general", "add"]
    assert with_products_together(vf.make_jaxpr(chained)(ROW, *MATRICES)).jaxpr.eqns[1].invars[0].aval.shape == (1, 32)


def test_quantized_products_move_as_well() -> None:
    layers = [vf.nn.quantize(vf.nn.Linear.init(vf.random.key(k), 128, 128), "int8") for k in range(2)]
    after = reordered(lambda x, first, second: jnp.tanh(first(x)) * second(x), np.tile(ROW, (1, 4)), *layers)
    places = [number for number, name in enumerate(after) if name == "quantized_dot"]
    assert len(places) == 2
    assert after.index("tanh") > places[1]


def test_products_of_large_arrays_stay_where_they_are() -> None:
    rows = np.tile(ROW, (32, 1))
    gated = lambda x, gate, up: jnp.tanh(x @ gate) * (x @ up)
    closed = vf.make_jaxpr(gated)(rows, *MATRICES[:2])
    assert with_products_together(closed) is closed
