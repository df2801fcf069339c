"""Public functions of formulas: with a signature, promotion and a docstring.

A distribution's signature is written once, as a function that does nothing, so that type checkers and `help` know the names and defaults
of its parameters; every function of the distribution has that signature, or another that is declared like it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from volta_fn import lax
from volta_fn.core.array import Array
from volta_fn.scipy.special.arguments import composite

P = ParamSpec("P")

SENTENCES = {
    "logpdf": "Return the log of the probability density at `x`.",
    "pdf": "Return the probability density at `x`.",
    "cdf": "Return the probability of at most `{0}`.",
    "sf": "Return the probability of more than `x`, precise where it is small.",
    "logcdf": "Return the log of the probability of at most `x`, precise in both tails.",
    "logsf": "Return the log of the probability of more than `x`, precise in both tails.",
    "ppf": "Return the value that is not exceeded with probability `{0}`.",
    "isf": "Return the value that is exceeded with probability `{0}`.",
    "logpmf": "Return the log of the probability of `k`.",
    "pmf": "Return the probability of `k`.",
}


def of_value(x: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a value, for distributions without shape parameters."""


def of_probability(q: Any, loc: Any = 0, scale: Any = 1) -> None:
    """Take a probability, for distributions without shape parameters."""


def parameters(signature: Callable[..., None]) -> list[str]:
    """Return the names of a signature's parameters."""
    return list(inspect.signature(signature).parameters)


def promoting(evaluate: Callable[..., Array], name: str) -> Callable[..., Array]:
    """Let a function of arrays of one dtype take any, like `composite`.

    Errors call it `name`. The result is weakly typed if and only if all arguments are: it may depend on some by comparisons alone.
    """

    def function(*values: Array) -> Array:
        out = evaluate(*values)
        return lax.convert_element_type(out, values[0].dtype, weak_type=all(v.weak_type for v in values))

    function.__name__ = name
    return composite(function)


def publish(name: str, evaluate: Callable[..., Array], signature: Callable[P, None], module: Mapping[str, Any]) -> Callable[P, Array]:
    """Return a public function of a distribution's module.

    Args:
        name: its name.
        evaluate: computes it, given arrays of one dtype, float32 or float64, by position.
        signature: has its parameters.
        module: the global variables of the distribution's module, whose docstring describes it.
    """
    declared = inspect.signature(signature)
    compute = promoting(evaluate, f"{module['__name__'].rpartition('.')[2]}.{name}")

    @functools.wraps(signature)
    def function(*args: P.args, **kwargs: P.kwargs) -> Array:
        given = declared.bind(*args, **kwargs)
        given.apply_defaults()
        return compute(*given.args)

    function.__name__ = function.__qualname__ = name
    function.__module__ = module["__name__"]
    function.__signature__ = declared.replace(return_annotation="Array")  # type: ignore[attr-defined]
    function.__doc__ = f"{SENTENCES[name].format(next(iter(declared.parameters)))}\n\n{module['__doc__'].partition('>>>')[0].rstrip()}\n"
    return function
