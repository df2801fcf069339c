"""Attention, recognised from a softmax and the products around it."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.passes.attention.patterns import (
    Logits,
    Lookup,
    Matrix,
    Result,
    Side,
    derivative,
    logits_of,
    matrix_of,
    number,
    product_of,
    sides,
    softmax_operand,
    unscaled,
)
from volta_fn.core.jaxpr import Atom, Equation, Var
from volta_fn.primitives.attention import Axes

#: Equations that weights, and their cotangents, may pass on the way to a product.
_CHANGES = ("reshape", "convert_element_type")


class Match(NamedTuple):
    """The variables of a program that play the roles of attention."""

    logits: Logits
    q: Matrix
    k: Matrix
    v: Matrix
    cotangent: Matrix | None
    out: Result | None
    to_q: Result | None
    to_k: Result | None
    to_v: Result | None

    @property
    def operands(self) -> list[Atom]:
        """The operands of the attention equation."""
        return [self.q.atom, self.k.atom, self.v.atom, *([] if self.logits.mask is None else [self.logits.mask])]

    @property
    def gradients(self) -> list[Result]:
        """The gradients that the program has."""
        return [r for r in (self.to_q, self.to_k, self.to_v) if r is not None]


def match(program: Lookup, division: Equation) -> Match | None:
    """Return the attention of a division, all of whose consumers of weights are known."""
    x = softmax_operand(program, division)
    logits = None if x is None else logits_of(program, x)
    if logits is None:
        return None
    return _Matcher(program, division.outvars[0], logits).match()


class _Matcher:
    def __init__(self, program: Lookup, weights: Var, logits: Logits) -> None:
        self.program = program
        self.weights = weights
        self.logits = logits
        self.shape = weights.aval.shape
        found = product_of(program, logits.product)
        #: The operands of the product of queries and keys, and its shape, with rows first.
        self.pair = None if found is None else found[1]
        self.made = self.shape if found is None else _rows_first(*found)
        #: Whether heads of queries that share one of keys are one long head in products.
        self.grouped = self.made != self.shape
        self.out: Result | None = None
        self.to_q: Result | None = None
        self.to_k: Result | None = None
        self.to_v: Result | None = None
        self.cotangents: list[Matrix] = []
        self.values: list[Matrix] = []
        #: Products of weights with something else, and those that belong to the derivative.
        self.others: list[Equation] = []
        self.by_sum: list[Equation] = []

    def match(self) -> Match | None:
        pair = self.pair
        if pair is None or not self.fits():
            return None
        self.q, self.k = self.of_queries(pair[0], True), matrix_of(self.program, pair[1].atom, pair[1].by_rows(True))
        ok = self.q is not None and all(self.consumer(found) for found in self.program.final_consumers(self.weights, *_CHANGES))
        if not ok or self.q is None or self.others != self.by_sum or len(set(self.values)) != 1 or len(set(self.cotangents)) > 1:
            return None
        cotangent = self.cotangents[0] if self.cotangents else None
        return Match(self.logits, self.q, self.k, self.values[0], cotangent, self.out, self.to_q, self.to_k, self.to_v)

    def fits(self) -> bool:
        """Return True if the product has the shape of weights, or joins their last heads."""
        if len(self.made) != len(self.shape) or len(self.made) < 3:
            return False
        if not self.grouped:
            return True
        (*lead, groups, long, s), (*same, heads, t, keys) = self.made, self.shape
        return lead == same and s == keys and groups > 0 and heads % groups == 0 and long == heads // groups * t

    def of_queries(self, side: Side, rows_are_free: bool) -> Matrix | None:
        """Return an operand whose rows are queries, of heads as weights have them."""
        atom, axes = side.atom, side.by_rows(rows_are_free)
        if self.grouped:
            plain = Axes(tuple(range(len(self.shape) - 2)), len(self.shape) - 2, len(self.shape) - 1)
            eqn = self.program.producer(atom, "reshape")
            if axes != plain or eqn is None or eqn.invars[0].aval.shape[:-1] != self.shape[:-1]:
                return None
            atom = eqn.invars[0]
        return matrix_of(self.program, atom, axes)

    def is_weights(self, side: Side) -> bool:
        """Return True if an operand has an element for each query and key, as weights."""
        return side.atom.aval.shape == self.made and side.batch == tuple(range(len(self.made) - 2))

    # consumers of the weights

    def consumer(self, found: tuple[Equation, Var] | None) -> bool:
        """Note the role of a consumer of weights; return False if it is unknown."""
        if found is None:
            return False
        eqn, weights = found
        if eqn.primitive.name == "dot_general":
            return self.product(eqn, weights)
        if eqn.primitive.name != "mul":
            return False
        other = eqn.invars[1 if eqn.invars[0] is weights else 0]
        cotangents = product_of(self.program, other)
        if cotangents is None:
            self.others.append(eqn)
            return True
        return self.slopes(eqn, *cotangents)

    def product(self, eqn: Equation, weights: Var) -> bool:
        """Note a product of weights: the result, or the gradient of values."""
        pair = sides(eqn)
        if pair is None:
            return False
        transposed = pair[1].atom is weights
        own, other = pair[::-1] if transposed else pair
        if not self.is_weights(own):
            return False
        if own.contracted == len(self.made) - 1:
            self.values.append(matrix_of(self.program, other.atom, other.by_rows(False)))
            first, self.out = self.out is None, Result(eqn, transposed)
            return first
        cotangent = self.of_queries(other, False)
        if cotangent is None:
            return False
        self.cotangents.append(cotangent)
        first, self.to_v = self.to_v is None, Result(eqn, transposed)
        return first

    def slopes(self, times_weights: Equation, product: Equation, pair: tuple[Side, Side]) -> bool:
        """Note the gradients of queries and keys.

        They come from the weights' cotangents times the weights.
        """
        found = derivative(self.program, self.weights, times_weights)
        if found is None or _rows_first(product, pair) != self.made:
            return False
        cotangent = self.of_queries(pair[0], True)
        if cotangent is None:
            return False
        self.cotangents.append(cotangent)
        self.values.append(matrix_of(self.program, pair[1].atom, pair[1].by_rows(True)))
        self.by_sum.append(found.by_sum)
        before = self.before_scaling(found.slopes)
        consumers = [] if before is None else [*self.program.final_consumers(before, *_CHANGES)]
        return bool(consumers) and all(self.gradient(consumer) for consumer in consumers)

    def before_scaling(self, slopes: Var) -> Var | None:
        """Return the cotangents of the product of queries and keys.

        They come from those of softmax's operand.
        """
        if self.logits.seen is not None:
            chosen = [r for r in self.program.users(slopes) if r.primitive.name == "select_n"]
            if len(chosen) != 1 or chosen[0].invars[0] is not self.logits.seen or chosen[0].invars[2] is not slopes:
                return None
            if number(chosen[0].invars[1]) != 0:
                return None
            slopes = chosen[0].outvars[0]
        if self.logits.scale != 1:
            scaled = [r.outvars[0] for r in self.program.users(slopes) if r.primitive.name in ("mul", "div")]
            if len(scaled) != 1 or unscaled(self.program, scaled[0]) != (slopes, self.logits.scale):
                return None
            slopes = scaled[0]
        return slopes

    def gradient(self, found: tuple[Equation, Var] | None) -> bool:
        """Note a product with the logits' cotangents."""
        pair = sides(found[0]) if found is not None and found[0].primitive.name == "dot_general" else None
        if pair is None or found is None:
            return False
        transposed = pair[1].atom is found[1]
        own, other = pair[::-1] if transposed else pair
        if not self.is_weights(own):
            return False
        if own.contracted == len(self.made) - 1:
            first, self.to_q = self.to_q is None, Result(found[0], transposed)
            return first and matrix_of(self.program, other.atom, other.by_rows(False)) == self.k
        first, self.to_k = self.to_k is None, Result(found[0], transposed)
        return first and self.of_queries(other, False) == self.q


def _rows_first(product: Equation, pair: tuple[Side, Side]) -> tuple[int, ...]:
    """Return the shape of a product whose rows are those of the first of a pair."""
    *lead, rows, columns = product.outvars[0].aval.shape
    return (*lead, rows, columns) if pair[0].atom is product.invars[0] else (*lead, columns, rows)


def attends(found: Match) -> bool:
    """Return True for floats of one dtype, which routines for attention exist for."""
    matrices = [found.q, found.k, found.v, *([] if found.cotangent is None else [found.cotangent])]
    kinds = {m.atom.aval.dtype for m in matrices}
    narrow = found.logits.product.aval.dtype.itemsize <= 4 and kinds.pop().name in ("float32", "float16", "bfloat16")
    return narrow and not kinds and all(m.atom.aval.size for m in matrices)
