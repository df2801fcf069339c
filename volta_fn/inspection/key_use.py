"""Random keys that a program uses twice."""

from __future__ import annotations

from collections.abc import Iterator

from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, sub_jaxprs

#: Primitives that only show a key in another shape.
_VIEWS = frozenset(
    {"reshape", "broadcast_in_dim", "convert_element_type", "squeeze", "expand_dims", "random_wrap", "random_unwrap", "copy"}
)
#: The words of a key.
_WORDS = 2


def reused_keys(program: ClosedJaxpr) -> Iterator[tuple[Equation, Equation]]:
    """Yield each equation that uses a key once more, with the one that used it before.

    Drawing numbers uses a key, and so does splitting it; `fold_in` does not, as long as it gets other numbers.
    """
    yield from _Walk().program(program, {})


class _Walk:
    """Follows keys by their `roots`, the values that others are views of."""

    def __init__(self) -> None:
        self.used: dict[object, Equation] = {}
        #: Results of iota, which are the counters of a split.
        self.counters: set[Var] = set()

    def program(self, program: ClosedJaxpr, roots: dict[Var, object]) -> Iterator[tuple[Equation, Equation]]:
        """Walk through a program whose inputs have these roots."""
        for eqn in program.eqns:
            operands = [v for v in eqn.invars if isinstance(v, Var)]
            name = eqn.primitive.name
            if name == "iota":
                self.counters.update(eqn.outvars)
            elif operands and (name in _VIEWS or name == "slice"):
                roots.update(dict.fromkeys(eqn.outvars, _shown(eqn, roots.get(operands[0], operands[0]))))
            elif operands and self._uses_key(eqn):
                yield from self._used_again(roots.get(operands[0], operands[0]), eqn)
            yield from self._inner(eqn, roots)

    def _uses_key(self, eqn: Equation) -> bool:
        if eqn.primitive.name == "random_bits":
            return True
        return eqn.primitive.name == "threefry2x32" and any(v in self.counters for v in eqn.invars if isinstance(v, Var))

    def _used_again(self, key: object, eqn: Equation) -> Iterator[tuple[Equation, Equation]]:
        before = self.used.setdefault(key, eqn)
        if before is not eqn:
            yield eqn, before

    def _inner(self, eqn: Equation, roots: dict[Var, object]) -> Iterator[tuple[Equation, Equation]]:
        inner = sub_jaxprs(eqn.params)
        if eqn.primitive.call_param is not None and len(inner) == 1 and len(inner[0].invars) == len(eqn.invars):
            called = {v: roots.get(a, a) for v, a in zip(inner[0].invars, eqn.invars, strict=True) if isinstance(a, Var)}
            yield from self.program(inner[0], called)
            outer = zip(eqn.outvars, inner[0].outvars, strict=True)
            roots.update({v: called.get(o, o) for v, o in outer if isinstance(o, Var)})
            return
        for program in inner:
            yield from _Walk().program(program, {})


def _shown(eqn: Equation, base: object) -> object:
    """Return the root of a view.

    A word of a key counts as the key, and so do the words of keys that `vmap` maps; a row of several keys is one of its own.
    """
    if eqn.primitive.name != "slice" or _is_a_word(eqn):
        return base
    return base, str(sorted(eqn.params.items()))


def _is_a_word(eqn: Equation) -> bool:
    """Return True for a slice of keys along their words alone."""
    keys, words = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return keys[-1:] == (_WORDS,) and words == (*keys[:-1], 1)
