"""The rule for hyperparameters: each is a number, a scalar array or a schedule.

It holds for all functions that make transformations or schedules, and is read off their annotations: a parameter of type `ScalarOrSchedule`
may be a schedule, one of type int, float or `Any` a number. The public functions are wrapped when the packages are imported; those that
call each other inside are not.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from volta_fn.advice import explained
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError

_MAKERS = re.compile(r"(Callable\[\.\.\., )?(GradientTransformation(ExtraArgs)?|Schedule)\b")
_NUMERIC = re.compile(r"(ScalarOrSchedule|Any|int|float)( \| None)?")
#: Parameters of type `Any` that are no numbers.
_OTHER = re.compile(r"dtype|key|labels|coeffs|seed|dimension_numbers|consistent_rms")


def check_all(namespace: dict[str, Any]) -> None:
    """Wrap those functions of a package that make transformations or schedules."""
    for name, value in list(namespace.items()):
        if isinstance(value, FunctionType) and _MAKERS.match(str(value.__annotations__.get("return"))):
            namespace[name] = _checked(value)


@functools.cache
def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    called = explained(function)

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        positional, by_name = _numeric(function)
        for parameter, value in zip(positional, args, strict=False):
            _check(function.__name__, parameter, value)
        for name, value in kwargs.items():
            _check(function.__name__, by_name.get(name), value)
        return called(*args, **kwargs)

    return make


@functools.cache
def _numeric(function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the parameters that are numbers (None for others): by position, by name."""
    parameters = inspect.signature(function).parameters.values()
    found = {p.name: p if _NUMERIC.fullmatch(str(p.annotation)) and not _OTHER.search(p.name) else None for p in parameters}
    positional = [found[p.name] for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional, found


def _check(function: str, parameter: inspect.Parameter | None, value: Any) -> None:
    """Raise `ArgumentTypeError` or `ArgumentError` for what is no hyperparameter."""
    if parameter is None or (value is None and (parameter.default is None or "None" in parameter.annotation)):
        return
    schedule = parameter.annotation.startswith("ScalarOrSchedule")
    if schedule and callable(value):
        return
    kinds = "a number, a scalar array or a schedule" if schedule else "a number or a scalar array"
    if not isinstance(value, (numbers.Number, np.generic, np.ndarray, Array)):
        raise ArgumentTypeError(f"{function}: {parameter.name} is {kinds}, got {value!r:.80} of type {type(value).__name__}")
    if isinstance(value, float) and value != value:
        raise ArgumentError(f"{function}: {parameter.name} is {kinds}, got NaN")
