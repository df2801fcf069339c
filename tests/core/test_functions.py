"""Names of functions, and what transforms copy of callable objects."""

from typing import Any

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.core.staging import function_name, wraps


class Callable:
    """A callable object whose name is a placeholder, as modules of other libraries have."""

    def __init__(self) -> None:
        self.__dict__.update({"__name__": None, "__qualname__": object(), "__annotations__": 3})

    def __call__(self, x: Any) -> Any:
        return (x * x).sum()


def named(x: Any) -> Any:
    """Return x."""
    return x


def test_wraps_copies_what_a_function_can_have() -> None:
    assert wraps(named)(lambda x: x).__name__ == "named"
    copy = wraps(Callable())(lambda x: x)
    assert copy.__doc__ == Callable.__doc__ and copy.__name__ == "<lambda>" and isinstance(copy.__wrapped__, Callable)  # type: ignore[attr-defined]


def test_the_name_is_text() -> None:
    assert (function_name(named), function_name(Callable())) == ("named", "Callable")


@pytest.mark.parametrize(
    "transform", [vf.grad, vf.value_and_grad, vf.jit, vf.vmap, vf.jacrev, vf.jacfwd, vf.hessian, vf.checkpoint, vf.make_jaxpr]
)
def test_transforms_take_objects_with_other_names(transform: Any) -> None:
    x = jnp.ones((2, 2))
    assert str(transform(Callable())(x)) == str(transform(lambda x: (x * x).sum())(x))


def test_loops_and_conditionals_take_objects_with_other_names() -> None:
    function = Callable()
    ref = vf.new_ref(jnp.zeros(()))

    def reads(carry: Any, x: Any) -> Any:
        ref[...] = ref[...] + x
        return carry, function(x)

    reads.__dict__["__name__"] = None
    assert vf.lax.scan(reads, 0.0, jnp.arange(3.0))[1].tolist() == [0.0, 1.0, 4.0] and float(ref[...]) == 3.0
    assert float(vf.lax.cond(True, function, function, jnp.ones(3))) == 3.0
