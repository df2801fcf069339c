"""The laws are worth something: each fails for a primitive with the mistake that it is there to find."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn
from tests.laws import laws_for, missing
from tests.laws.batching import vmap_is_a_loop, vmap_of_derivatives_is_a_loop
from tests.laws.derivatives import derivatives_keep_dtypes, first_derivatives_hold, second_derivatives_hold
from tests.laws.staging import gradient_under_jit_is_eager, jaxpr_is_true, jit_is_eager
from tests.laws.transposition import transpose_is_adjoint
from tests.laws.values import values_agree
from tests.samples.elementwise import samples_of
from tests.samples.sample import Arg, Sample
from volta_fn import dtypes, lax
from volta_fn.core.arrays.array import Array, ConcreteArray
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, AxisData, Primitive
from volta_fn.core.trace import bind
from volta_fn.primitives.data_movement.movement import linear_primitive, moveaxis
from volta_fn.primitives.declare import elementwise
from volta_fn.transforms.differentiation import jvp_rules


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Primitives declared in a test are gone after it."""
    before = dict(PRIMITIVES)
    yield
    for name in PRIMITIVES.keys() - before.keys():
        jvp_rules.pop(PRIMITIVES.pop(name), None)


def sample_of(evaluate: Callable[..., Any], *derivatives: Callable[..., Any], oracle: Callable[..., Any] | None = None) -> Sample:
    """Return the first sample of an elementwise primitive declared for the occasion, against what it should have been."""
    function = elementwise("planted", evaluate, operands=dtypes.FLOATS, derivatives=derivatives)
    sample = next(iter(samples_of(function.primitive)))
    return Sample(sample.primitive, sample.function, sample.args, oracle or evaluate, dtypes=sample.dtypes)


# A map of vectors that shows every mistake in where things go: the elements reversed, each times its place.


def _reverse_times_place(x: np.ndarray) -> np.ndarray:
    return x[..., ::-1] * np.arange(1, x.shape[-1] + 1).astype(x.dtype)


def _abstract(x: ShapedArray) -> ShapedArray:
    return x


def _transpose(ct: Array, x: Any) -> list[Array]:
    places = lax.convert_element_type(lax.iota("int32", ct.shape[-1]), ct.dtype) + 1
    return [lax.rev(ct * places, (ct.ndim - 1,))]


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[Array, int]:
    return bind(PRIMITIVES["vectors"], moveaxis(args[0], dims[0] or 0, 0)), 0


def vectors(**rules: Any) -> Sample:
    """Return a sample of a linear primitive of vectors, with some rules exchanged for wrong ones."""
    chosen = {"abstract": _abstract, "evaluate": _reverse_times_place, "batch": _batch, "transpose": _transpose, "views": False, **rules}
    linear_primitive("vectors", **chosen)
    return Sample(
        "vectors",
        lambda x: bind(PRIMITIVES["vectors"], x),
        (Arg((2, 3)),),
        _reverse_times_place,
        dtypes=("float32", "float64", "complex128"),
        linear=(0,),
    )


def test_without_a_mistake_every_law_holds() -> None:
    for sample in (sample_of(np.sin, lambda g, out, x: g * lax.cos(x)), vectors()):
        for law in laws_for(sample):
            law(sample)


def wrong_slope() -> Sample:
    return sample_of(lambda x: x + x, lambda g, out, x: g * 2.001)


def ignored_cotangent() -> Sample:
    return sample_of(np.sin, lambda g, out, x: lax.cos(x))


def ignored_operand() -> Sample:
    return sample_of(np.multiply, lambda g, out, x, y: g * y, lambda g, out, x, y: g * 0.0)


def wrong_second_derivative() -> Sample:
    slope = elementwise("slope", lambda x: x + x, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * 2.001])
    return sample_of(lambda x: x * x, lambda g, out, x: g * slope(x))


def imprecise_in_float16() -> Sample:
    return sample_of(np.sin, lambda g, out, x: g * lax.cos(x) * (1.2 if x.dtype == np.float16 else 1.0))


def slope_differs_in_programs() -> Sample:
    """Return a sample whose derivative rule does something else in programs than eagerly."""
    sample = sample_of(lambda x: x + x, lambda g, out, x: g + g)
    slope = lambda x: 2.0 if isinstance(x, ConcreteArray) else 2.02
    jvp_rules[PRIMITIVES["planted"]] = lambda primals, tangents: (primals[0] + primals[0], tangents[0] * slope(primals[0]))
    return sample


def differs_when_traced() -> Sample:
    return Sample("sin", lambda x: lax.sin(x) if isinstance(x, ConcreteArray) else lax.sin(x) * 1.0000001, (Arg((2,)),), np.sin)


def wrong_in_bfloat16() -> Sample:
    return sample_of(lambda x: np.sin(x) * x.dtype.type(1.05 if x.dtype.name == "bfloat16" else 1.0), lambda g, out, x: g, oracle=np.sin)


def wider_than_promised() -> Sample:
    return sample_of(lambda x: np.sin(x.astype(np.float64)), lambda g, out, x: g, oracle=np.sin)


def weak_result() -> Sample:
    return vectors(abstract=lambda x: x.update(weak_type=True))


def wrong_shape() -> Sample:
    return vectors(abstract=lambda x: x.update(shape=x.shape[::-1]))


def operand_overwritten() -> Sample:
    def evaluate(x: np.ndarray) -> np.ndarray:
        out = _reverse_times_place(x)
        x.fill(0)
        return out

    return vectors(evaluate=evaluate)


def hidden_view() -> Sample:
    """Declared to make a new array, but returns its operand, which a plan will then overwrite."""
    planted = Primitive("planted", _abstract, evaluate=lambda x: x, views=False, batch=_batch)
    return Sample("planted", lambda x: bind(planted, x), (Arg((2, 3)),), lambda x: x, differentiable=())


def wrong_transpose() -> Sample:
    return vectors(transpose=lambda ct, x: [lax.rev(ct, (ct.ndim - 1,))])


def zero_transpose() -> Sample:
    return vectors(transpose=lambda ct, x: [None])


def transpose_conjugates() -> Sample:
    return vectors(transpose=lambda ct, x: _transpose(lax.conj(ct), x))


def batched_at_wrong_axis() -> Sample:
    """Right for axis 0, and only for that."""
    return vectors(batch=lambda axis, args, dims: (bind(PRIMITIVES["vectors"], *args), 0))


def batched_result_misplaced() -> Sample:
    return vectors(batch=lambda axis, args, dims: (moveaxis(_batch(axis, args, dims)[0], 0, 1), 0))


def derivative_batched_wrongly() -> Sample:
    """Return a sample that is batched right, but whose derivative is not."""
    vectors(batch=lambda axis, args, dims: (moveaxis(_batch(axis, args, dims)[0], 0, 1), 0))
    inner = PRIMITIVES["vectors"]
    outer = linear_primitive("outer", _abstract, _reverse_times_place, _outer_batch, None, False)
    jvp_rules[outer] = lambda primals, tangents: (bind(outer, *primals), bind(inner, *tangents))
    return Sample("outer", lambda x: bind(outer, x), (Arg((2, 3)),), _reverse_times_place)


def _outer_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[Array, int]:
    return bind(PRIMITIVES["outer"], moveaxis(args[0], dims[0] or 0, 0)), 0


MISTAKES: list[tuple[Callable[[], Sample], Callable[[Sample], None]]] = [
    (wrong_slope, first_derivatives_hold),
    (ignored_cotangent, first_derivatives_hold),
    (ignored_operand, first_derivatives_hold),
    (wrong_transpose, first_derivatives_hold),
    (zero_transpose, first_derivatives_hold),
    (transpose_conjugates, first_derivatives_hold),
    (wrong_second_derivative, second_derivatives_hold),
    (imprecise_in_float16, derivatives_keep_dtypes),
    (slope_differs_in_programs, gradient_under_jit_is_eager),
    (wrong_in_bfloat16, values_agree),
    (wider_than_promised, values_agree),
    (weak_result, values_agree),
    (wrong_shape, values_agree),
    (differs_when_traced, jaxpr_is_true),
    (differs_when_traced, jit_is_eager),
    (operand_overwritten, jit_is_eager),
    (hidden_view, jit_is_eager),
    (wrong_transpose, transpose_is_adjoint),
    (zero_transpose, transpose_is_adjoint),
    (transpose_conjugates, transpose_is_adjoint),
    (batched_at_wrong_axis, vmap_is_a_loop),
    (batched_result_misplaced, vmap_is_a_loop),
    (derivative_batched_wrongly, vmap_of_derivatives_is_a_loop),
]


@pytest.mark.parametrize(("mistake", "law"), MISTAKES, ids=[f"{m.__name__}-{law.__name__}" for m, law in MISTAKES])
def test_mistake_is_found(mistake: Callable[[], Sample], law: Callable[[Sample], None]) -> None:
    with pytest.raises(AssertionError):
        law(mistake())


def test_mistake_is_described() -> None:
    """The message says which sample fails, in which dtype, and by how much."""
    with pytest.raises(AssertionError, match=r"(?s)planted in bfloat16.*too far"):
        values_agree(wrong_in_bfloat16())


def test_missing_rules_are_named() -> None:
    bare = Primitive("bare", _abstract)
    rules = ["an evaluation rule", "a derivative rule (jvp)", "a batching rule (batch)", "samples in tests/samples"]
    assert missing(bare, set()) == rules


def test_examples_of_several_modules_have_one_copy_of_each() -> None:
    """A module that pytest loads by its file is the one that its package has loaded, whose classes are the same."""
    folder = Path(volta_fn.__file__).parent / "experimental" / "sparse"
    files = [str(folder / f"{name}.py") for name in ("bcoo", "shapes", "products")]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
