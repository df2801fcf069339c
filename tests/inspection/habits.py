"""Planted faults that are no NaN: indices out of range, overflow, leaks, keys, recompilation; each in a line marked FAULT.

A fault is a function of one array, as in `faults`; the second of four examples is the bad one. `found` runs it and returns the message of
what finds it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.inspection.faults import Fault
from volta_fn import errors, lax, nn, random
from volta_fn.source import SourceLocation

#: A message, and the line that it names.
Found = tuple[str, SourceLocation]
#: Runs a fault in a mode of `test_faults`, which gives the batch of examples to the function of one.
Finder = Callable[[Fault, Callable[[Any, Any], Any]], Found]
HABITS: dict[str, tuple[Fault, Finder]] = {}


def habit(finder: Finder, bad: Any, good: Any = 1, dtype: str = "int32") -> Callable[[Any], Any]:
    """Register a function as a fault that `finder` finds."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        HABITS[function.__name__] = Fault(function, bad, good, dtype), finder
        return function

    return register


def raised(kind: type[errors.VoltaError], block: Callable[[], Any]) -> Finder:
    """Return what finds a fault by an error in a block."""

    def find(fault: Fault, mode: Callable[[Any, Any], Any]) -> Found:
        with block(), pytest.raises(kind) as caught:
            vf.block_until_ready(mode(fault.function, vnp.asarray(fault.examples())))
        assert caught.value.location is not None
        return str(caught.value), caught.value.location

    return find


indices = raised(errors.OutOfBoundsError, vf.debug.indices)
overflow = raised(errors.NonFiniteError, lambda: vf.debug.nans(infs=True))


def linted(fault: Fault, mode: Callable[[Any, Any], Any]) -> Found:
    """Find a fault by `lint`, which may find others, too."""
    findings = vf.lint(vf.jit(lambda xs: mode(fault.function, xs)))(vnp.asarray(fault.examples())).findings
    finding = next(result for result in findings if result.rule == "key reuse")
    assert finding.location is not None
    return f"{finding.rule}: {finding.message}\n  {finding.remedy}\n  at {finding.location}", finding.location


def warned(fault: Fault, mode: Callable[[Any, Any], Any]) -> Found:
    """Find a fault by the first warning."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        mode(fault.function, vnp.asarray(fault.examples()))
    result = next(w for w in records if issubclass(w.category, errors.RecompilationWarning))
    return str(result.message), SourceLocation(result.filename, result.lineno, "")


@habit(indices, 7)
def gather_out_of_range(i: Any) -> Any:
    x = vnp.arange(5.0)
    return x[i]  # FAULT


@habit(indices, -9)
def gather_below(i: Any) -> Any:
    return vnp.take(vnp.arange(5.0), i) * 2  # FAULT


@habit(indices, 7)
def update_out_of_range(i: Any) -> Any:
    x = vnp.zeros(5)
    return x.at[i].set(1.0)  # FAULT


@habit(indices, 7)
def add_out_of_range(i: Any) -> Any:
    x = vnp.zeros((2, 5))
    return x.at[:, i].add(1.0)  # FAULT


@habit(indices, 5)
def index_in_the_third_layer(i: Any) -> Any:
    first, second = (nn.Linear.init(random.key(n), 2, 2) for n in range(2))
    table = nn.Embedding.init(random.key(2), 5, 2)
    return second(first(vnp.ones(2))) + table(i)  # FAULT


@habit(indices, 4)
def label_out_of_range(i: Any) -> Any:
    logits = vnp.ones(3)
    return -vnp.take_along_axis(nn.log_softmax(logits), i[None], 0)  # FAULT


@habit(overflow, 300.0, 1.0, "float16")
def square_overflows_float16(x: Any) -> Any:
    return x * x  # FAULT


@habit(overflow, [60000.0, 60000.0], [1.0, 2.0], "float16")
def sum_overflows_float16(x: Any) -> Any:
    y = x + 1
    return y.sum()  # FAULT


@habit(overflow, 0.0, 1.0, "float32")
def division_by_zero(x: Any) -> Any:
    return 1 / x  # FAULT


@habit(overflow, 70000.0, 1.0, "float32")
def cast_overflows_float16(x: Any) -> Any:
    return x.astype("float16") - 1  # FAULT


@habit(overflow, 0.0, 1.0, "float32")
def log_of_zero_in_a_loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, total: total + vnp.log(x), 0.0)  # FAULT


@habit(linted, 1)
def key_used_twice(seed: Any) -> Any:
    key = random.key(seed)
    noise = random.normal(key)
    return noise + random.uniform(key)  # FAULT


@habit(linted, 1)
def key_drawn_from_and_split(seed: Any) -> Any:
    key = random.key(seed)
    noise = random.normal(key)
    return noise + random.normal(random.split(key)[0])  # FAULT


@habit(warned, 1.0, 1.0, "float32")
def recompilation_in_a_loop(x: Any) -> Any:
    scale = vf.jit(lambda x, n: x * n, static_argnums=1)
    for n in range(33):
        x = scale(x, n)  # FAULT
    return x


@habit(raised(errors.LeakedTracerError, nullcontext), 1.0, 1.0, "float32")
def leaked_tracer(x: Any) -> Any:
    retained: list[Any] = []
    vf.jit(lambda x: (retained.append(x * 2), x)[1])(x)
    return retained[0] + 1  # FAULT


@habit(raised(errors.TracerBoolError, nullcontext), 1.0, 1.0, "float32")
def decision_in_a_jitted_function(x: Any) -> Any:
    @vf.jit
    def sign(x: Any) -> Any:
        return 1.0 if x > 0 else -1.0  # FAULT

    return sign(x)


@habit(raised(errors.TracerArrayError, nullcontext), 1.0, 1.0, "float32")
def numpy_in_a_jitted_function(x: Any) -> Any:
    return vf.jit(lambda x: np.tanh(np.asarray(x)))(x)  # FAULT
