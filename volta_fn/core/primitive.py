"""Primitives: the instructions of programs with all their rules, and a registry.

A rule is a plain function. Arrays are positional, parameters are keywords (and hashable), in every rule:

- ``abstract(*avals, **params)``: the result's aval (a tuple of avals if the primitive has several results).
- ``evaluate(*buffers, **params)``: what the primitive means, as a NumPy function of NumPy arrays.
- ``jvp(primals, tangents, **params) -> (out, out_tangent)``: forward derivative; tangents may be `Zero`.
- ``transpose(cotangents, *args, **params) -> cotangent or None per argument``: for primitives that are linear in the
  arguments given as `Linear` placeholders; the other arguments hold values.
- ``batch(axis, args, dims, **params) -> (out, out_dim)``: one call on stacked arguments; ``dims`` holds each argument's
  stacked dimension, or None where an argument is the same for every example; ``axis`` is an `AxisData`, whose name collectives ask for.
- ``partial_eval(trace, args, params)``: only for primitives that hold sub-programs, which may split in two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from volta_fn.core.aval import ShapedArray, Typed
from volta_fn.core.caches import CallCache
from volta_fn.dtypes import INEXACT, accumulator
from volta_fn.errors import GradientError, VoltaError
from volta_fn.lazy_imports import load
from volta_fn.settings import current as settings

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)


class Reduction(NamedTuple):
    """How a reduction combines elements: all that compilers know of it.

    A reduction of one element is that element, and the order of elements does not matter.
    """

    #: The name of the elementwise primitive that combines two elements; it is associative and commutative.
    step: str
    #: From a dtype to the value that the step leaves every other value by.
    identity: Callable[[np.dtype], Any]
    #: Whether steps round inexact numbers: then long reductions go pairwise, and those of 16-bit floats accumulate in float32.
    rounds: bool = False
    #: Whether combining a value with itself gives that value, so that repeated elements count once.
    idempotent: bool = False
    #: For `argmax` and `argmin`: the reduction to whose result the winning element is equal. The result is that element's index.
    index_of: str | None = None

    def start(self, dtype: np.dtype) -> np.ndarray:
        """Return the identity as a zero-dimensional array."""
        return np.asarray(self.identity(dtype)).astype(dtype)

    def accumulator(self, dtype: np.dtype) -> np.dtype:
        """Return the dtype in which elements of `dtype` are accumulated."""
        return accumulator(dtype) if self.rounds else dtype

    def is_pairwise(self, dtype: np.dtype) -> bool:
        """Return True if long reductions of `dtype` add partial results pairwise."""
        return self.rounds and dtype in INEXACT


class RuleOf(NamedTuple):
    """A rule that applies its own primitive: `make(primitive)` returns it."""

    make: Callable[[Primitive], Rule]


class Primitive:
    """An instruction and its rules.

    Rules are of five kinds: shape, evaluation, derivatives, batching and lowering. All are arguments of the constructor; attributes cannot
    be assigned later. Layers above the primitives' register rules in tables of their own (`RuleTable`), where transforms look first.

    `PRIMITIVES` has all primitives by name but those that are not `listed`. Compilers insert these after all transforms, so they need no
    derivative or batching rules.
    """

    __slots__ = (
        "_results", "abstract", "accumulate", "arity", "batch", "bilinear", "cache", "call_param", "combines", "derivatives", "domain",
        "dtypes", "eager_kernels", "effectful", "evaluate", "expand", "formula", "holds_programs", "impl", "inplace", "jvp", "linear",
        "maps_tangent", "module", "multiple_results", "name", "overwrites", "partial_eval", "reduction", "transpose", "ufunc_for", "views",
    )  # fmt: skip

    #: As in JAX of all primitives but some of `pmap` that it had: calls are equations with a program among their parameters.
    call_primitive = map_primitive = False

    name: str
    #: The module that declares it, which programs that were pickled load.
    module: str

    # Shape: types of operands and results, and what parameters hold.

    abstract: Rule
    multiple_results: bool
    #: Parameters hold programs that it runs: it is control flow, or a call.
    holds_programs: bool
    #: For calls: the parameter that holds the called program, which compilers inline. It has the call's operands and results.
    call_param: str | None
    #: It must run even if its results are unused (callbacks).
    effectful: bool
    #: Number of operands of an elementwise primitive; 0 for any other.
    arity: int
    #: The dtypes of an elementwise primitive's operands, and where it may be sampled (see `volta_fn.primitives.declare`).
    dtypes: frozenset[Any] | None
    domain: Any

    # Evaluation. What NumPy's target evaluates stands in `evaluation_rules`.

    evaluate: Rule | None
    #: `evaluate` is a NumPy ufunc that may write into a dead operand of the result's shape and dtype (``out=``).
    inplace: bool
    #: The ufunc for operands of a dtype (of a primitive that is `inplace`).
    ufunc_for: Callable[[Any], Any]
    #: Position of the operand whose memory `evaluate` may reuse for the result if it is dead; it is passed as ``out=`` then.
    overwrites: int | None
    #: The result may share memory with an operand.
    views: bool
    #: Of one that users define (`extend.Primitive`): the function of arrays that it is, eagerly, and the program that compilers inline,
    #: from the operands' types and the parameters.
    impl: Rule | None
    expand: Rule | None

    # Derivatives.

    jvp: Rule | None
    transpose: Rule | None
    #: For one that reads some elements of its first operand: a sum of cotangents of that operand, with its own added to those elements:
    #: ``accumulate(sum, cotangent, *operands, **params)``. The transpose adds it to zeros.
    accumulate: Rule | None
    partial_eval: Rule | None
    #: For each operand of an elementwise primitive: a tangent or cotangent times the partial derivative.
    derivatives: tuple[Rule | None, ...]
    #: Operands in which an elementwise primitive is linear.
    linear: tuple[int, ...]
    #: It has one operand and is linear: its tangent is the primitive of the operand's tangent.
    maps_tangent: bool
    #: It has two operands, and is linear in each.
    bilinear: bool

    # Batching.

    batch: Rule | None

    # Lowering: what all targets make code from.

    #: The formula of an elementwise primitive over `volta_fn.primitives.formulas.values.Values`, of real floats.
    formula: Rule | None
    #: How a reduction along the axes of its parameter `axes` combines elements.
    reduction: Reduction | None
    #: How a cumulative operation, a reduction of windows or a scatter combines elements.
    combines: Reduction | None

    #: Eager kernels (of `jit.eager`) and result types, both by parameters and operands' types.
    cache: CallCache
    eager_kernels: dict[Any, Any]
    _results: dict[Any, Any]

    def __init__(
        self,
        name: str,
        abstract: Rule,
        *,
        multiple_results: bool = False,
        holds_programs: bool = False,
        call_param: str | None = None,
        effectful: bool = False,
        arity: int = 0,
        dtypes: frozenset[Any] | None = None,
        domain: Any = None,
        evaluate: Rule | None = None,
        inplace: bool = False,
        ufunc_for: Callable[[Any], Any] | None = None,
        overwrites: int | None = None,
        views: bool = False,
        impl: Rule | None = None,
        expand: Rule | None = None,
        jvp: Rule | RuleOf | None = None,
        transpose: Rule | RuleOf | None = None,
        accumulate: Rule | None = None,
        partial_eval: Rule | None = None,
        derivatives: tuple[Rule | None, ...] = (),
        linear: tuple[int, ...] = (),
        maps_tangent: bool = False,
        bilinear: bool = False,
        batch: Rule | RuleOf | None = None,
        formula: Rule | None = None,
        reduction: Reduction | None = None,
        combines: Reduction | None = None,
        listed: bool = True,
    ) -> None:
        if name in PRIMITIVES:
            raise VoltaError(f"a primitive named {name!r} exists already")
        cache = CallCache("operations", ("kernels", "results"))
        attributes = {
            "name": name, "module": _module_being_imported(),
            "abstract": abstract, "multiple_results": multiple_results, "holds_programs": holds_programs, "call_param": call_param,
            "effectful": effectful, "arity": arity, "dtypes": dtypes, "domain": domain,
            "evaluate": evaluate, "inplace": inplace, "ufunc_for": ufunc_for or (lambda dtype: evaluate), "overwrites": overwrites,
            "views": views, "impl": impl, "expand": expand,
            "jvp": self._rule(jvp), "transpose": self._rule(transpose), "accumulate": accumulate, "partial_eval": partial_eval,
            "derivatives": derivatives,
            "linear": linear, "maps_tangent": maps_tangent, "bilinear": bilinear,
            "batch": self._rule(batch),
            "formula": formula, "reduction": reduction, "combines": combines,
            "cache": cache, "eager_kernels": cache.table("kernels"), "_results": cache.table("results"),
        }  # fmt: skip
        for attribute, value in attributes.items():
            _ASSIGN[attribute](self, value)
        if listed:
            PRIMITIVES[name] = self

    def _rule(self, rule: Rule | RuleOf | None) -> Rule | None:
        return rule.make(self) if isinstance(rule, RuleOf) else rule

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"the primitive {self.name} is complete, so its {name} cannot be assigned: give it where the primitive is made, or register "
            "the rule in its layer's table"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"the primitive {self.name} is complete, so its {name} cannot be deleted")

    if TYPE_CHECKING:

        def bind(self, *args: Any, **params: Any) -> Any:
            """Apply the primitive to values, under the current trace (`core/trace.py`)."""

        def bind_with_trace(self, trace: Any, args: Any, avals: Any, params: dict[str, Any], /) -> Any:
            """Apply the primitive under a trace (`core/trace.py`)."""

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters for `bind`, as interpreters of jaxprs ask."""
        return params

    def result_avals(self, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Any:
        """Return what `abstract` does, cached: tracing repeats the same questions."""
        if self.multiple_results:  # parameters may hold programs, which the cache would keep alive
            return self.abstract(*avals, **params)
        key = (avals, *parameter_key(params)) if params else avals
        results = self._results.get(key)
        if results is None:
            results = self.abstract(*avals, **params)
            if settings.rank_promotion == "allow":  # otherwise it depends on who asks
                self.cache.add("results", key, results)
        return results

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return declared, (self.name, self.module)


#: What assigns an attribute of a primitive that is being made: `object.__setattr__` would take three times as long.
_ASSIGN: dict[str, Callable[[Primitive, Any], None]] = {name: getattr(Primitive, name).__set__ for name in Primitive.__slots__}
#: Every primitive by its name, in the order of declaration.
PRIMITIVES: dict[str, Primitive] = {}


class RuleTable(dict[Primitive, Rule]):
    """Rules of one kind, of layers above the primitives', which precede their own."""

    def register(self, *primitives: Primitive) -> Callable[[R], R]:
        """Return a decorator that registers a rule of primitives."""

        def registered(rule: R) -> R:
            self.update(dict.fromkeys(primitives, rule))
            return rule

        return registered


#: Evaluation rules that NumPy's target has, of primitives that are more than one NumPy function.
evaluation_rules = RuleTable()


def evaluation_of(primitive: Primitive) -> Rule | None:
    """Return a primitive as a function of NumPy arrays, or None if it runs programs."""
    return evaluation_rules.get(primitive, primitive.evaluate)


def _module_being_imported() -> str:
    """Return the name of the module whose import declares a primitive."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def declared(name: str, module: str) -> Primitive:
    """Return a primitive by its name; load the module that declares it if needed."""
    if name not in PRIMITIVES:
        load(module)
    return PRIMITIVES[name]


def reduction_of(name: str) -> Reduction:
    """Return how the primitive of that name combines elements, which it has to."""
    reduction = PRIMITIVES[name].reduction or PRIMITIVES[name].combines
    assert reduction is not None, f"{name} does not combine elements"
    return reduction


class SharedParams(dict[str, Any]):
    """Parameters that their owner shares: compared by identity, for fast lookups."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]  # dicts have none
    __eq__ = object.__eq__
    __ne__ = object.__ne__


def parameter_key(params: dict[str, Any]) -> Any:
    """Return the entries that parameters contribute to a cache key."""
    return (params,) if type(params) is SharedParams else params.items()


class AxisData(NamedTuple):
    """The axis that a `vmap` maps over."""

    name: Any
    size: int
    #: Whether the examples are shards: calls of Python functions are one for each, in their order.
    of_shards: bool = False


class Zero(Typed):
    """A tangent or cotangent that is zero by construction and costs no work."""

    __slots__ = ("aval",)
    aval: ShapedArray

    def __init__(self, aval: ShapedArray) -> None:
        self.aval = aval

    @classmethod
    def from_primal_value(cls, val: Any) -> Zero:
        """Return the zero tangent of a value."""
        return cls(val.aval.tangent_aval())

    def __repr__(self) -> str:
        return f"Zero({self.aval!r})"


class Linear(Typed):
    """A placeholder, without value, for an argument that needs a cotangent.

    A rule that asks it for anything but its type computes with its value: its `equation` is not linear in it.
    """

    __slots__ = ("aval", "equation")
    aval: ShapedArray

    def __init__(self, aval: ShapedArray, equation: Any = None) -> None:
        self.aval = aval
        self.equation = equation  # None: a rule made it to call another one

    def refuse(self) -> NoReturn:
        """Raise `GradientError`: the program is not linear."""
        primitive, source = getattr(self.equation, "primitive", "the program"), getattr(self.equation, "source", None)
        where = "" if source is None else f" (from {source})"
        raise GradientError(
            f"{primitive}{where} is not linear in an array of type {self.aval}, so it cannot be transposed. The array comes from "
            "a tangent in a derivative rule, or from an argument of linear_transpose: such arrays may be added, scaled and moved, but not "
            "compared, used as indices or conditions, or multiplied with each other. Compute what depends on values from the primals."
        )

    def __jax_array__(self) -> NoReturn:
        self.refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # which protocols look for
            raise AttributeError(name)
        self.refuse()

    def __repr__(self) -> str:
        return f"Linear({self.aval!r})"
