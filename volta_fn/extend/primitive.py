"""Primitives that users define, with rules in JAX's form.

Eagerly, one is the Python function of `def_impl`. In a compiled program, the compiler inlines what its lowering rule gives, or else that
function, traced. So rules for lowering are functions of other primitives (`lowering.lower_fun`), and no target has code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core import primitive as core
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import trace_to_jaxpr
from volta_fn.errors import GradientError

Rule = Callable[..., Any]


class _OfAnyKind(type):
    """Lets the primitives of this package pass as instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, core.Primitive)


class Primitive(core.Primitive, metaclass=_OfAnyKind):
    """A primitive of a user, whose rules are given after it is made.

    >>> import volta_fn as vf
    >>> from volta_fn.extend import ad
    >>> from volta_fn.extend.primitive import Primitive
    >>> twice_p = Primitive("twice")
    >>> impl = twice_p.def_impl(lambda x: 2 * x)
    >>> abstract = twice_p.def_abstract_eval(lambda x: x)
    >>> ad.deflinear(twice_p, lambda ct: [twice_p.bind(ct)])
    >>> float(vf.jit(vf.grad(lambda x: twice_p.bind(x) * x))(3.0))
    12.0
    """

    __slots__ = ("call_primitive", "lowering", "map_primitive")
    #: The rule for compiled programs: `lowering(context, *operands, **params)` returns the results.
    lowering: Rule | None

    def __init__(self, name: str) -> None:
        super().__init__(name, self._no_rule, listed=False)
        self.call_primitive = self.map_primitive = False
        self.lowering = None
        self.impl, self.expand = self._no_rule, self._expanded

    def __reduce__(self) -> Any:
        return self.name  # the variable that holds it

    def _no_rule(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"the primitive {self.name} has no such rule: give one by def_impl or def_abstract_eval")

    def def_impl(self, impl: Rule) -> Rule:
        """Set the function of arrays that the primitive is; return it."""
        self.impl = lambda *args, **params: self._as_results(impl(*args, **params))
        return impl

    def def_abstract_eval(self, abstract_eval: Rule) -> Rule:
        """Set the rule from the operands' types to the result's; return it."""
        self.abstract = lambda *avals, **params: self._as_types(abstract_eval(*avals, **params))
        return abstract_eval

    def def_effectful_abstract_eval(self, abstract_eval: Rule) -> Rule:
        """Set a rule that also returns effects; such a primitive always runs."""
        self.effectful = True
        self.abstract = lambda *avals, **params: self._as_types(abstract_eval(*avals, **params)[0])
        return abstract_eval

    def result_avals(self, avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Any:
        """Return the types of results; parameters may be of any kind, so none are kept."""
        return self.abstract(*avals, **params)

    def _as_types(self, result: Any) -> Any:
        return tuple(result) if self.multiple_results else result

    def _as_results(self, result: Any) -> Any:
        return tuple(as_value(x) for x in result) if self.multiple_results else as_value(result)

    def _expanded(self, avals: Sequence[ShapedArray], params: dict[str, Any]) -> ClosedJaxpr:
        """Return the program that stands for a call in a compiled one."""

        def function(*operands: Array) -> list[Array]:
            result = self.impl(*operands, **params) if self.lowering is None else self._lowered(operands, avals, params)  # type: ignore[misc]
            return list(result) if isinstance(result, (tuple, list)) else [result]

        return trace_to_jaxpr(function, avals, self.name)

    def _lowered(self, operands: Sequence[Array], avals: Sequence[ShapedArray], params: dict[str, Any]) -> list[Array]:
        found = self.result_avals(tuple(avals), params)
        context = LoweringContext(self, avals, found if self.multiple_results else (found,))
        result = self.lowering(context, *operands, **params)  # type: ignore[misc]  # it is given
        results = result if isinstance(result, (tuple, list)) else [result]
        return [as_value(x) for x in results]


class LoweringContext:
    """What a lowering rule is told: primitive, types of operands and of results."""

    def __init__(self, primitive: core.Primitive, avals_in: Sequence[ShapedArray], avals_out: Sequence[ShapedArray]) -> None:
        self.primitive, self.avals_in, self.avals_out = primitive, list(avals_in), list(avals_out)

    @property
    def module_context(self) -> LoweringContext:
        """The module's context, which is this one: there are no modules here."""
        return self

    def add_keepalive(self, value: Any) -> None:
        """Accept an object that must live as long as the program: the program holds it."""


class Rules(dict[core.Primitive, Rule]):
    """A mapping from primitives to rules of one kind, in JAX's form.

    `adapt` makes of a rule in JAX's form the one of `core.primitive`, which is stored in `attribute`.
    """

    def __init__(self, attribute: str, adapt: Callable[[Rule], Rule]) -> None:
        super().__init__()
        self.attribute, self.adapt = attribute, adapt

    def __setitem__(self, primitive: core.Primitive, rule: Rule) -> None:
        super().__setitem__(primitive, rule)
        setattr(primitive, self.attribute, self.adapt(rule))

    def __missing__(self, primitive: core.Primitive) -> Rule:
        found: Rule | None = getattr(primitive, self.attribute)
        if found is None:
            raise KeyError(primitive)
        return found

    def __contains__(self, primitive: object) -> bool:
        return super().__contains__(primitive) or getattr(primitive, self.attribute, None) is not None

    def get(self, primitive: core.Primitive, default: Any = None) -> Any:
        """Return a primitive's rule, or `default` if it has none."""
        return self[primitive] if primitive in self else default  # noqa: SIM401  # dict.get does not look at attributes


def no_rule(primitive: core.Primitive, kind: str) -> GradientError:
    """Return the error for a primitive that lacks a rule."""
    return GradientError(f"the primitive {primitive} has no {kind} rule")
