"""Partitions made ready to be written: what each item is to the runtime, when each value is last read, and what may overwrite what."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from volta_fn.backends.native.loops import routine as loop_routine
from volta_fn.backends.native.routines import IN_PLACE, ROUTINES
from volta_fn.backends.native.runtime.code import Source
from volta_fn.backends.native.scalars import supports
from volta_fn.compiler.kernels.emit import Fused
from volta_fn.compiler.kernels.fuse import Partition, fuse
from volta_fn.compiler.kernels.index import NotAffine
from volta_fn.compiler.kernels.limits import Limits
from volta_fn.compiler.kernels.lower import is_elementwise, is_lowered, lower_equation
from volta_fn.compiler.kernels.overwrite import overwritable
from volta_fn.compiler.kernels.views import is_alias, reduces
from volta_fn.compiler.passes.driver import simplify
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var


def _computes(eqn: Equation) -> bool:
    """Whether machine code has the equation's operation for its dtypes."""
    dtypes = [v.aval.dtype for v in eqn.invars]
    if is_elementwise(eqn):
        return supports(eqn.primitive.name, dtypes, eqn.params)
    return not reduces(eqn) or dtypes[0].kind != "c"


_LIMITS = Limits(buffers=48, computes=_computes)
_READY = "native body"
CONTROL_FLOW = frozenset({"scan", "while", "cond"})


class Item(NamedTuple):
    """A kernel or an equation: what it reads and makes, and its routine's source (None: NumPy computes it, or it is control flow)."""

    what: Fused | Equation
    operands: tuple[Atom, ...]
    results: tuple[Var, ...]
    source: Source | None

    def overwritable(self, result: int) -> list[int]:
        """The operands whose memory may hold a result, if they are read here for the last time."""
        if isinstance(self.what, Fused):
            return overwritable(self.what.kernel, result)
        name = self.what.primitive.name
        return [IN_PLACE[name]] if self.source is not None and name in IN_PLACE and result == 0 else []


class Body(NamedTuple):
    """A program, or the body of control flow, ready to be written."""

    program: ClosedJaxpr
    items: tuple[Item, ...]
    #: The variable whose memory a variable is: reshapes share their operand's.
    roots: dict[Var, Var]
    #: The number of the item that reads a root last; of outputs, the number of items.
    last: dict[Var, int]
    #: The number of the item that makes a root.
    makers: dict[Var, int]

    def root(self, var: Var) -> Var:
        """Whose memory a variable is."""
        return self.roots.get(var, var)

    def may_share(self, source: Var, output: Atom) -> bool:
        """Whether an output may be made in the memory of an input."""
        if not isinstance(output, Var):
            return False
        made = self.root(output)
        maker = self.makers.get(made)
        if maker is None or (source.aval.size, source.aval.dtype) != (made.aval.size, made.aval.dtype):
            return False
        last = self.last.get(source, -1)
        return last < maker or (last == maker and self.overwrites(maker, source, made))

    def overwrites(self, number: int, source: Var, result: Var) -> bool:
        """Whether an item may make a result in an operand's memory."""
        item = self.items[number]
        places = [i for i, v in enumerate(item.operands) if isinstance(v, Var) and self.root(v) is source]
        return len(places) == 1 and places[0] in item.overwritable(item.results.index(result))


def body_of(closed: ClosedJaxpr) -> Body:
    """A program made ready, which is kept on it."""
    body = closed.cache.get(_READY)
    if body is None:
        body = closed.cache[_READY] = _ready(closed)
    return body


def partition_of(closed: ClosedJaxpr) -> Partition:
    """A program as kernels that have machine code, and equations."""
    return fuse(simplify(closed), _LIMITS)


def _ready(closed: ClosedJaxpr) -> Body:
    partition = partition_of(closed)
    roots: dict[Var, Var] = {}
    items: list[Item] = []
    for item in partition.items:
        if isinstance(item, Equation) and is_alias(item) and isinstance(item.invars[0], Var):
            operand = item.invars[0]
            roots[item.outvars[0]] = roots.get(operand, operand)
        else:
            items.append(_item(item))
    last: dict[Var, int] = {}
    makers: dict[Var, int] = {}
    for number, ready in enumerate(items):
        last.update({roots.get(v, v): number for v in ready.operands if isinstance(v, Var)})
        makers.update(dict.fromkeys(ready.results, number))
    last.update({roots.get(v, v): len(items) for v in partition.program.jaxpr.outvars if isinstance(v, Var)})
    return Body(partition.program, tuple(items), roots, last, makers)


def _item(what: Fused | Equation) -> Item:
    if isinstance(what, Fused):
        return Item(what, what.operands, what.results, _loop_source(what))
    name = what.primitive.name
    avals = tuple([v.aval for v in what.invars])
    if name in ROUTINES:
        key = (name, tuple([(a.shape, a.dtype) for a in avals]), tuple(sorted(what.params.items())))
        return Item(what, tuple(what.invars), tuple(what.outvars), Source(key, partial(ROUTINES[name], avals, what.params)))
    if is_lowered(what) and _computes(what):
        try:
            kernel, operands = lower_equation(what)
        except NotAffine:
            pass
        else:
            fused = Fused(kernel, operands, tuple(what.outvars))
            return Item(fused, operands, fused.results, _loop_source(fused))
    return Item(what, tuple(what.invars), tuple(what.outvars), None)


def _loop_source(fused: Fused) -> Source:
    return Source(("loop", fused.kernel), partial(loop_routine, fused.kernel))


def sources_in(body: Body) -> list[Source]:
    """The sources of all routines of a body, and of the bodies in it."""
    found = [item.source for item in body.items if item.source is not None]
    for item in body.items:
        for inner in inner_programs(item):
            found += sources_in(body_of(inner))
    return found


def inner_programs(item: Item) -> list[ClosedJaxpr]:
    """The programs in a piece of control flow."""
    if not isinstance(item.what, Equation) or item.what.primitive.name not in CONTROL_FLOW:
        return []
    params = item.what.params
    if "branches" in params:
        return list(params["branches"])
    return [params["jaxpr"]] if "jaxpr" in params else [params["cond_jaxpr"], params["body_jaxpr"]]
