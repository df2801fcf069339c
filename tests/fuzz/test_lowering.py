"""A sample of the programs of `lowering.py`, what was once wrong, and the faults that the evaluation in float64 tells from rounding."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz import lowered, lowering
from tests.fuzz.array_blocks import ARRAY_BLOCKS
from tests.fuzz.evaluation import Difference, Reference
from tests.fuzz.numeric_blocks import NUMERIC_BLOCKS
from tests.stress.amount import rounds
from volta_fn import nn

CORPUS = [block for block in (Path(__file__).parent / "lowering.txt").read_text().split("\n\n") if block.strip()]
TARGETS = (lowering.SLOPES, "native", lowering.DONATED, lowering.EAGER, "numpy", *lowered.TARGETS)
PARTS = 16


def first_seed() -> int:
    """Return a seed that follows from the commit, so that each one tries other programs."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    try:
        commit = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # a source archive, or a machine without git
        return 0
    return int(commit.strip()[:7], 16)


@pytest.mark.parametrize("part", range(PARTS))
def test_programs_agree_with_float64(part: int) -> None:
    count = rounds(5)
    first = first_seed() + part * count
    done, reports = lowering.check(range(first, first + count), TARGETS)
    assert done > 2 * count  # of four ways each, but for derivatives that do not exist
    assert reports == []


@pytest.mark.parametrize("block", CORPUS, ids=[block.strip().split("\n")[0].removeprefix("# ") for block in CORPUS])
@pytest.mark.parametrize("target", TARGETS)
def test_what_was_once_wrong_is_right(block: str, target: str) -> None:
    assert lowering.Case(lowering.Program.parse(block)).fault(target) is None


@pytest.mark.parametrize("block", [*ARRAY_BLOCKS, *NUMERIC_BLOCKS], ids=lambda block: block.__name__)
def test_every_block_is_drawn_and_right(block: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_BLOCKS", {block: 1})
    program = next(p for p in lowering.drawn(0, 4, 9) if len(p.lines) > 0)
    assert lowering.Case(replace(program, way="plain", names=())).fault("native") is None


def test_drafts_are_of_every_kind() -> None:
    """Large ones, such with axes without elements, and such with inputs of each dtype."""
    texts = [str(program) for seed in range(300) for program in lowering.drawn(seed, 1)]
    sizes = [max([x.size for x in lowering.Program.parse(text).arguments()], default=0) for text in texts]
    assert max(sizes) > 100_000 and 0 in sizes
    for name in ("float64", "bfloat16", "float16", "complex64", "int8", "uint8", "bool"):
        assert any(name in text for text in texts), name


def test_fourier_transforms_are_as_exact_as_their_terms() -> None:
    x = lowering.normal(0, (3, 40))
    low_pass = lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * (jnp.arange(21) < 9), 40)
    assert difference(low_pass, low_pass, x) is None
    assert difference(low_pass, lambda x: low_pass(x).at[1, 3].add(1e-4), x) is not None
    turned = vf.grad(lambda x: jnp.real(jnp.fft.rfft(x) * jnp.exp(1j * x[:, :21])).sum())  # converts complex cotangents to real ones
    assert difference(turned, turned, x) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_factors_are_those_of_a_matrix_nearby(dtype: str) -> None:
    """Small elements of eigenvectors are as exact as large ones, and no more."""
    x = lowering.normal(143501, (8, 8), 0.3).astype(dtype) + np.diag(2 * np.arange(8)).astype(dtype)
    squares = lambda x: jnp.square(jnp.linalg.eigh(x + x.T)[1])
    nearby = np.asarray(x, np.float64) * (1 + np.finfo(dtype).eps)
    assert difference(squares, lambda x: jnp.asarray(squares(nearby), dtype), x) is None
    assert difference(squares, lambda x: squares(x).at[0, 7].add(1e-5), x) is not None
    assert difference(squares, lambda x: squares(x * (1 + 1e-3 * np.eye(8, dtype=dtype))), x) is not None


def test_programs_are_read_as_they_are_written() -> None:
    for program in lowering.drawn(3, 4):
        assert str(lowering.Program.parse(str(program))) == str(program)


def difference(function: Callable[..., Any], wrong: Callable[..., Any], *arguments: Any) -> Difference | None:
    """Return how what one function gives differs from what another should."""
    reference = Reference(vf.make_jaxpr(function)(*arguments), [np.asarray(x) for x in arguments])
    return reference.difference([np.asarray(x) for x in vf.tree.leaves(wrong(*arguments))])


def softmax(x: Any) -> Any:
    """Return the softmax of rows."""
    weights = jnp.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_rounding_is_no_fault(dtype: Any) -> None:
    x = jnp.asarray(lowering.normal(0, (5, 33)), dtype)
    for function in (softmax, lambda x: x @ x.T, lambda x: jnp.var(x, -1), lambda x: jnp.cumsum(x, 1), lambda x: x.sum(1)):
        assert difference(function, function, x) is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: softmax(x).at[3, 7].multiply(1 + 1e-4),  # one element
        lambda x: softmax(x.at[0, 0].add(1e-4)),  # one row
        lambda x: softmax(x[:, ::-1])[:, ::-1].at[:, -1].set(0),  # a tail
        lambda x: softmax(x.astype(jnp.bfloat16).astype(jnp.float32)),  # too narrow a dtype
        lambda x: softmax(x).at[1, 1].set(jnp.nan),
    ],
)
def test_small_faults_are_told_from_rounding(wrong: Callable[..., Any]) -> None:
    assert difference(softmax, wrong, jnp.asarray(lowering.normal(0, (5, 33)))) is not None


def test_sums_are_as_exact_as_their_accumulators() -> None:
    """A sum of bfloat16 numbers accumulates in float32, so that one rounded after each term is off."""
    x = jnp.ones((4, 600), jnp.bfloat16)

    def rounded_terms(x: Any) -> Any:
        return vf.lax.scan(lambda total, term: (total + term, None), jnp.zeros(4, jnp.bfloat16), x.T)[0]

    assert difference(lambda x: x.sum(1), rounded_terms, x) is not None


def test_equal_terms_one_after_another_are_no_fault() -> None:
    """Their roundings have one sign; a term that is missing or counted twice is more than they are."""
    terms = np.full(2000, 1 / 3, np.float32)
    scattered = lambda t: jnp.zeros(3).at[jnp.ones(t.shape, int)].add(t)
    product = lambda t: t[None] @ jnp.ones((t.size, 3))
    for function in (scattered, product):
        in_order = lambda t, f=function: f(t) * 0 + np.add.accumulate(np.asarray(t))[-1] * (f(np.ones(1, np.float32)) > 0)
        assert difference(lambda t, f=function: f(t) * 1, in_order, terms) is None
        for wrong in (terms[1:], np.append(terms, terms[:1])):
            assert difference(lambda t, f=function: f(t) * 1, lambda _, f=function, w=wrong: f(w) * 1, terms) is not None


def test_reductions_of_equal_terms_are_blocked() -> None:
    terms = np.full(2000, 1 / 3, np.float32)
    assert difference(lambda t: t.sum(), lambda t: np.add.reduce(np.float64(t)).astype(np.float32), terms) is None
    assert difference(lambda t: t.sum(), lambda t: np.add.accumulate(t)[-1], terms) is not None


def test_near_ties_may_go_either_way_and_others_not() -> None:
    near = np.float32([[1.0, 1.0 + 1e-7, 0.0]])
    for values, accepted in ((near, True), (np.float32([[1.0, 1.1, 0.0]]), False)):
        result = difference(lambda x: jnp.argmax(x * 3, -1), lambda x: jnp.argmax(x * 3, -1) - 1, values)
        assert (result is None) is accepted


@pytest.mark.parametrize("cancelled, accepted", [(1.0 + 2.0**-10, True), (1.125, False)])
def test_near_ties_may_be_ties(cancelled: float, accepted: bool) -> None:
    """Rounding to bfloat16 makes near numbers equal, whose sign and order are none."""
    x = np.float32([[1.0, cancelled, 3.0]])
    rounded = lambda x: jnp.asarray(x, jnp.float32).astype(jnp.bfloat16).astype(jnp.float32)
    exact = lambda x: (jnp.sign(x[:, 0] - x[:, 1]), vf.grad(lambda x: jnp.maximum(x[:, 0], x[:, 1]).sum())(x), x[:, 0] == x[:, 1])
    tied = lambda x: exact(jnp.asarray(x).at[:, 1].set(x[:, 0]))
    for number in range(3):
        result = difference(lambda x, n=number: exact(rounded(x))[n], lambda x, n=number: tied(rounded(x))[n], x)
        assert (result is None) is accepted, (number, result)


def test_values_beyond_a_dtype_are_infinite() -> None:
    x = jnp.asarray([300.0], jnp.float16)
    assert difference(lambda x: x * x, lambda x: x * x, x) is None
    assert difference(lambda x: x * x, lambda x: jnp.full(1, 6e4, jnp.float16), x) is not None


def test_control_flow_is_evaluated() -> None:
    def loop(x: Any) -> Any:
        last, stacked = vf.lax.scan(lambda c, y: (jnp.tanh(c + y), c * y), x[0], x, reverse=True)
        chosen = vf.lax.cond(last.sum() > 0, lambda v: v * 2, lambda v: v - 1, last)
        return stacked, vf.lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, chosen))

    x = lowering.normal(0, (4, 3))
    assert difference(loop, loop, x) is None
    assert difference(loop, lambda x: vf.tree.map(lambda v: v + 1, loop(x)), x) is not None


def test_slopes_tell_wrong_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowering.Program.parse("x0 = normal(0, (4, 5))\nv0 = jnp.sin(x0) * x0\nreturn v0\ngrad squares x0")
    assert lowering.Case(program).fault(lowering.SLOPES) is None
    monkeypatch.setitem(lowering._WAYS, "grad", lambda program: lambda x: vf.grad(program.loss(), (0,))(x * 1.001))
    assert lowering.fault(program, lowering.SLOPES) is not None


def test_losses_whose_terms_cancel_have_no_slope_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowering.Program.parse("x0 = normal(772797, (7, 8))\nv0 = x0[:, None, :] - x0[None, :, :]\nreturn v0\ngrad sum x0")
    assert lowering.Case(program).fault(lowering.SLOPES) is None
    monkeypatch.setitem(lowering._WAYS, "grad", lambda program: lambda x: vf.grad(program.loss(), (0,))(x)[0] + 1e-5)
    assert lowering.fault(program, lowering.SLOPES) is not None


@pytest.mark.parametrize("way", ["weighted", "sum"])
def test_gradients_whose_terms_cancel_are_no_slopes_but_rounding(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowering.Program.parse(
        "x1 = normal(632375, (1, 2), 1)\nx2 = np.zeros(4, np.int32)\nv0 = (x1[x2] - x1[x2 * 0]) + 0 * x1\nreturn v0\n" + f"grad {way} x1"
    )
    assert lowering.Case(program).fault(lowering.SLOPES) is None
    monkeypatch.setitem(lowering._WAYS, "grad", lambda program: lambda *x: vf.grad(program.loss(), (0,))(*x)[0] + 1e-10)
    assert lowering.fault(program, lowering.SLOPES) is not None


def test_clamped_numbers_equal_to_a_bound_have_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the bound moves with them; a bound that stays is a kink that no step meets."""
    moving = lowering.Program.parse(
        "x0 = normal(0, (4, 5))\nv0 = lax.clamp(-jnp.abs(x0), nn.relu(x0), jnp.abs(x0))\nreturn v0\ngrad sum x0"
    )
    assert lowering.Case(moving).fault(lowering.SLOPES) is None
    fixed = lowering.Program.parse("x0 = normal(0, (4, 5))\nv0 = lax.clamp(0.0, nn.relu(x0), 1.0) * x0\nreturn v0\ngrad sum x0")
    assert lowering.Case(fixed).fault(lowering.SLOPES) is None
    monkeypatch.setitem(lowering._WAYS, "grad", lambda program: lambda x: vf.grad(program.loss(), (0,))(x)[0] * 1.01)
    assert lowering.fault(fixed, lowering.SLOPES) is not None


def test_jumps_have_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many rounded numbers, some change by any step."""
    program = lowering.Program.parse("x0 = normal(851235, (3, 128, 63))\nv0 = jnp.round(x0 * 1000) + x0\nreturn v0\ngrad sum x0")
    assert lowering.Case(program).fault(lowering.SLOPES) is None
    few = lowering.Program.parse(str(program).replace("(3, 128, 63)", "(4, 5)"))
    monkeypatch.setitem(lowering._WAYS, "grad", lambda program: lambda x: vf.grad(program.loss(), (0,))(x)[0] * 1.5)
    assert lowering.fault(few, lowering.SLOPES) is not None


def test_values_that_rounding_makes_equal_are_no_fault() -> None:
    """Their weights are halves, where without rounding, or with other rounding, one is zero."""
    x = np.asarray([1.00010e8, 1.00011e8], np.float32)
    steep = lambda x: softmax(x.astype(jnp.bfloat16).astype(jnp.float32))[0] * 1e4
    assert difference(vf.grad(steep), vf.grad(steep), x) is None
    assert difference(vf.grad(steep), lambda x: vf.grad(steep)(x) + 1e6, x) is not None


def test_gradients_of_attention_from_its_rounded_result_are_no_fault() -> None:
    """GPUs compute them so; keys with much in common show the difference."""
    k, q = (256 + lowering.normal(0, (65, 2))).astype(np.float16), lowering.normal(1, (65, 2), 0.01).astype(np.float16)
    v, w = np.sin(k), np.full_like(k, 0.5)
    attention = lambda q: nn.dot_product_attention(q[None, :, None], k[None, :, None], v[None, :, None], scale=1.0)
    gradient = vf.grad(lambda q: (attention(q) * w[None, :, None]).astype(jnp.float32).sum())
    keys, values, cotangents = [x.astype(np.float64) for x in (k, v, w)]
    logits = q.astype(np.float64) @ keys.T
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    rounded = (weights @ values).astype(np.float16)
    result = (weights * (cotangents @ values.T - (cotangents * rounded).sum(-1, keepdims=True)) @ keys).astype(np.float16)
    assert difference(gradient, lambda q: result, q) is None
    assert difference(gradient, lambda q: result + np.float16(8), q) is not None


def test_what_overflows_within_attention_need_not() -> None:
    """Products of cotangents and values, which machine code has in float16 and GPUs in float32."""
    q, v, w = np.ones((3, 4), np.float16), np.full((3, 4), 40, np.float16), np.full((3, 4), 500, np.float16)
    attention = lambda q: nn.dot_product_attention(q[None, :, None], q[None, :, None], v[None, :, None], scale=0.1)
    gradient = vf.grad(lambda q: (attention(q) * w[None, :, None]).astype(jnp.float32).sum())
    assert np.isnan(Reference(vf.make_jaxpr(gradient)(q), [q]).values[0]).any()
    assert difference(gradient, lambda q: jnp.zeros_like(q), q) is None


def test_what_differs_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the program, its other result and its derivative go."""
    program = lowering.Program.parse(
        """
x0 = normal(0, (4, 5))
x1 = normal(1, (5,))
v0 = x0 * x1
v1 = jnp.sin(v0)
v2 = v1.sum(0)
v3 = v2 + x1
return v1, v2, v3
grad squares x0 x1
"""
    )
    fault = lowering.Case.fault
    monkeypatch.setattr(lowering.Case, "fault", lambda case, target: "wrong" if "sin" in str(case.program) else fault(case, target))
    assert str(lowering.minimised(program, "numpy")) == "x2 = normal(0, (4, 5))\nv1 = jnp.sin(x2)\nreturn v1\nplain sum"
