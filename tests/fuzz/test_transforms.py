"""The fuzzer of transformations: samples of its programs, and that it finds mistakes in the rules that its blocks are about."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz import transform_blocks as blocks
from tests.fuzz import transform_calls as calls
from tests.fuzz import transform_kinds as kinds
from tests.fuzz import transforms
from tests.fuzz.test_lowering import first_seed
from tests.stress.amount import rounds
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.transforms.differentiation import transpose_rules
from volta_fn.transforms.vmap import batching_rules

PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_agree_with_plain_python(part: int) -> None:
    count = rounds(6)
    first = first_seed() + part * count
    done, reports = transforms.check(range(first, first + count), transforms.WAYS)
    assert done > count  # of three chains each, but for derivatives that do not exist
    assert reports == []


def test_programs_agree_with_jax() -> None:
    pytest.importorskip("jax")
    first = first_seed()
    _, reports = transforms.check(range(first, first + rounds(6)), transforms.WAYS[:1], with_jax=True)
    assert reports == []


def test_programs_are_read_as_they_are_written() -> None:
    for program in transforms.drawn(3, 4):
        assert str(transforms.Program.parse(str(program))) == str(program)


@pytest.mark.parametrize(
    "block, chain, table, name",
    [
        (blocks.nested, "grad", transpose_rules, "scan"),
        (blocks.nested, "grad", transpose_rules, "cond"),
        (blocks.nested, "vmap", batching_rules, "scan"),
        (blocks.nested, "vmap", batching_rules, "cond"),
        (blocks.nested, "vmap", batching_rules, "while"),
        (blocks.indices, "grad", transpose_rules, "gather"),
        (blocks.indices, "vmap_first_input", batching_rules, "scatter_add"),
        (blocks.orders, "vjp", transpose_rules, "cumsum"),
        (blocks.orders, "vmap", batching_rules, "sort"),
        (blocks.convolution, "jacrev", transpose_rules, "conv_general_dilated"),
        (blocks.convolution, "vmap_others", batching_rules, "conv_general_dilated"),
        (blocks.windows, "grad", transpose_rules, "pad"),
        (blocks.algebra, "grad", transpose_rules, "dot_general"),
        (blocks.algebra, "vmap_last", batching_rules, "cholesky"),
        (blocks.functions, "grad", transpose_rules, "mul"),
        (blocks.attention, "vmap", batching_rules, "attention"),
        (blocks.updates, "grad", transpose_rules, "dynamic_update_slice"),
        (calls.called, "vmap", batching_rules, "pure_callback"),
        (calls.recomputed, "grad", transpose_rules, "mul"),
        (calls.compiled, "vmap", batching_rules, "scan"),
        (kinds.complexes, "grad", transpose_rules, "mul"),
        (kinds.complexes, "vmap", batching_rules, "cumsum"),
        (kinds.raw, "grad", transpose_rules, "gather"),
        (kinds.raw, "vmap", batching_rules, "scatter_add"),
        (kinds.pairs, "grad", transpose_rules, "reduce_window_sum"),
        (kinds.pairs, "vmap", batching_rules, "sort"),
    ],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else "batch" if value is batching_rules else "transpose"),
)
def test_planted_mistakes_are_found(
    block: Callable[[Any], str], chain: str, table: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule whose results are one percent too large."""
    primitive = PRIMITIVES[name]
    rule = table.get(primitive, primitive.transpose if table is transpose_rules else primitive.batch)
    enlarged = lambda x: x * 1.01 if isinstance(x, vf.Array) and x.dtype in ("float64", "complex128") else x

    def wrong(*arguments: Any, **params: Any) -> Any:
        result = rule(*arguments, **params)
        if table is transpose_rules:
            return [enlarged(x) for x in result]
        values, dims = result
        return (enlarged(values) if isinstance(values, vf.Array) else [enlarged(x) for x in values]), dims

    way = transforms.WAYS[0]
    for seed in range(200):
        program = next((replace(p, chain=(chain,)) for p in transforms.drawn(seed, 1, block.__name__) if p.lines), None)
        if program is None:
            continue
        with monkeypatch.context() as planted:
            planted.setitem(table, primitive, wrong)
            text = transforms.fault(program, way)
        vf.clear_caches()
        if text is not None and text.startswith("result"):
            assert transforms.fault(program, way) is None
            return
    raise AssertionError("no program shows the mistake")


@pytest.mark.parametrize("dtype, error", [("bfloat16", 0.1), ("float16", 0.02), ("float32", 1e-5), ("float64", 1e-13)])
def test_errors_of_more_than_last_digits_are_found(dtype: str, error: float) -> None:
    program = transforms.Program.parse(f"x0 = normal(0, (3,), '{dtype}')\nv0 = jnp.sin(x0)\nreturn v0\nthen vmap")
    (right,) = transforms.run(program, transforms.WAYS[0])
    reference = transforms.Reference(program)
    assert reference.difference([right]) is None
    wrong = right + np.asarray(error, right.dtype)
    assert (reference.difference([wrong]) or "").startswith("result 0")


def test_a_refusal_is_a_difference_unless_jax_refuses() -> None:
    pytest.importorskip("jax")
    program = transforms.Program.parse("x0 = normal(0, (3,))\nv0 = T.power(x0, 3)\nreturn v0\nthen jacrev")
    way = transforms.WAYS[0]
    assert transforms.fault(program, way) is None
    refuses = lambda *_: jnp.zeros(2).reshape(3)
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(transforms.OURS["T"], "power", refuses)
        assert "ShapeError" in (transforms.fault(program, way) or "")
    wrong = transforms.Program.parse("x0 = normal(0, (3,))\nv0 = x0.reshape(2)\nreturn v0\nthen")
    assert transforms.fault(wrong, way) is None


def test_programs_give_the_same_from_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = first_seed()
    programs = [program for seed in range(first, first + rounds(8)) for program in transforms.drawn(seed, 1)]
    programs = [program for program in programs if _runs(program)]
    assert programs
    assert transforms.concurrent(programs) == []
    program = transforms.Program.parse("x0 = normal(0, (3,))\nv0 = jnp.sin(x0)\nreturn v0\nthen")
    others = lambda x: x + (threading.current_thread() is not threading.main_thread())
    monkeypatch.setitem(transforms.OURS, "jnp", SimpleNamespace(sin=others))
    assert len(transforms.concurrent([program], threads=2)) == 2


def _runs(program: transforms.Program) -> bool:
    """Return True if a program runs, here and by its reference."""
    try:
        transforms.run(program, transforms.WAYS[1])
        transforms.Reference(program)
    except Exception:  # whether it is refused rightly is for the tests above
        return False
    return True
