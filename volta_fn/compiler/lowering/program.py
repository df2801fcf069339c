"""Partitions made ready to be written: what each item is to the runtime, when each value is last read, and what may overwrite what.

Code generators that run whole programs by themselves (*lanes*) share this; they differ in what they compute, and by which routines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.attention import Judge, with_attention
from volta_fn.compiler.fusion.deferral import Deferral, defer_products, defer_small_kernels
from volta_fn.compiler.fusion.duplicate_outputs import stored_again
from volta_fn.compiler.fusion.emit_kernels import Fused
from volta_fn.compiler.fusion.fuse import Partition, fuse
from volta_fn.compiler.fusion.limits import Limits
from volta_fn.compiler.fusion.split_k_consumer import added_behind
from volta_fn.compiler.ir.contraction import contraction_of
from volta_fn.compiler.ir.index import NotAffine
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.ir.views import is_alias, reduces
from volta_fn.compiler.lowering.equations import lower_equation
from volta_fn.compiler.lowering.onehot_indexing import write_out_one_of_each
from volta_fn.compiler.lowering.op_kinds import is_elementwise, is_lowered, is_product
from volta_fn.compiler.lowering.random_bits import write_out_random_bits
from volta_fn.compiler.passes.fourier import write_out_transforms
from volta_fn.compiler.passes.loop_fission.delay_stacks import delays_out
from volta_fn.compiler.passes.loop_fission.fission import prepared
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Var

CONTROL_FLOW = frozenset({"scan", "while", "cond"})

#: How an equation becomes a routine: (operands' types, parameters) -> routine, or None if it has none.
RoutineMaker = Callable[[tuple[ShapedArray, ...], dict[str, Any]], Any]


@dataclass(frozen=True, eq=False)
class Lane:
    """A way to run programs: what kernels may be, and what writes the routines of kernels and equations."""

    #: Inputs and outputs of a kernel.
    buffers: int
    #: Whether kernels can do a scalar operation: (name, operands' dtypes, parameters).
    supports: Callable[[str, list[Any], dict[str, Any]], bool]
    #: A kernel's routine, or None.
    kernel: Callable[[Kernel], Any]
    #: What writes the routines of equations, by their primitives' names.
    equations: Mapping[str, RoutineMaker]
    #: Primitives whose routines let the first result be the memory of the operand at a position.
    in_place: Mapping[str, int]
    #: The inputs of a kernel whose memory an output may be, if nobody needs them later.
    overwrites: Callable[[Kernel, int], list[int]]
    #: Whether a product as a kernel is as good as one of arrays in memory (see `Limits`).
    contracts: Callable[[Kernel], bool] = lambda kernel: False
    #: Whether kernels can add up, and multiply, complex numbers.
    adds_complex: bool = False
    #: Whether Fourier transforms are to be written as products; NumPy computes them otherwise.
    transforms: bool = False
    #: Whether attention is better by a routine of its own than written out (see `attention`); None: it never is.
    attends: Judge | None = None
    #: Buffers of a kernel up to which it had better store a value several times than have it copied, however small; 0: copies are cheap.
    stores_again: int = 0
    #: Whether a kernel is so small that it is better done together with others that stand beside it; None: none is.
    together: Callable[[Kernel], bool] | None = None
    #: In how many parts a product's sum is best made, by a stack of products; 1: whole. None: that is no matter of whole programs.
    parts: Callable[[Kernel], int] | None = None
    #: Which products are put off if no other waits for them; None: none is.
    deferral: Deferral | None = None
    #: The routine of a product in a program that has others, if that is another one.
    kernel_among: Callable[[Kernel], Any] | None = None
    #: The routine of a product that is put off, given how many multiplications there are in all those that are done together.
    deferred_kernel: Callable[[Kernel, int], Any] = lambda kernel, company: None

    def computes(self, eqn: Equation) -> bool:
        """Whether a kernel may do the equation's operation for its dtypes."""
        dtypes = [v.aval.dtype for v in eqn.invars]
        if is_elementwise(eqn):
            return self.supports(eqn.primitive.name, dtypes, eqn.params)
        reduction = eqn.primitive.reduction
        if reduction is None or not reduces(eqn):
            return True
        return (dtypes[0].kind != "c" or self.adds_complex) and self.supports(reduction.step, [reduction.accumulator(dtypes[0])] * 2, {})

    def overwritable(self, item: Item, result: int) -> list[int]:
        """The operands of an item whose memory may hold a result, if they are read there for the last time."""
        if isinstance(item.what, Fused):
            return self.overwrites(item.what.kernel, result)
        name = item.what.primitive.name
        return [self.in_place[name]] if item.source is not None and name in self.in_place and result == 0 else []


class Source(NamedTuple):
    """What a routine is of: a key that says all about it, and how to write it (None: it cannot be)."""

    key: Any
    make: Callable[[], Any]


class Item(NamedTuple):
    """A kernel or an equation: what it reads and makes, and its routine's source (None: NumPy computes it, or it is control flow)."""

    what: Fused | Equation
    operands: tuple[Atom, ...]
    results: tuple[Var, ...]
    source: Source | None
    #: Whether it is a product that was put off to be done together with others (see `deferral.defer_products`).
    deferred: bool = False


def kind_of(var: Var) -> tuple[int, np.dtype]:
    """The size and the dtype of a value: where they are the same, one may take the other's memory."""
    return var.aval.size, var.aval.dtype


def fits(old: Var, new: Var) -> bool:
    """Whether a value has the size of another and its dtype."""
    return kind_of(old) == kind_of(new)


class Body(NamedTuple):
    """A program, or the body of control flow, ready to be written."""

    lane: Lane
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
        maker, last = self.makers.get(made), self.last.get(source, -1)
        if maker is None or last > maker or not fits(source, made):
            return False
        return last < maker or self.overwrites(maker, source, made)

    def before(self, output: Var) -> list[Var]:
        """What an output's memory may hold before the output: a value that it is made over, what that is made over, and so on.

        An input that may be in the same memory is not overwritten too early.
        """
        found: list[Var] = []
        inputs: list[Var] | None = None
        made = self.root(output)
        while True:
            number = self.makers[made]
            operands = [self.root(v) for v in self.items[number].operands if isinstance(v, Var)]
            dying = [v for v in operands if v in self.makers and self.last[v] == number and fits(v, made)]
            over = next((v for v in dying if self.overwrites(number, v, made)), None)
            if over is None:
                return found
            if inputs is None:
                inputs = [v for v in self.program.jaxpr.invars if self.may_share(v, output)]
            if any(self.last.get(v, -1) >= self.makers[over] for v in inputs):
                return found
            found.append(over)
            made = over

    def overwrites(self, number: int, source: Var, result: Var) -> bool:
        """Whether an item may make a result in an operand's memory."""
        item = self.items[number]
        places = [i for i, v in enumerate(item.operands) if isinstance(v, Var) and self.root(v) is source]
        return len(places) == 1 and places[0] in self.lane.overwritable(item, item.results.index(result))


def body_of(closed: ClosedJaxpr, lane: Lane, *, inner: bool = False) -> Body:
    """A program made ready for a lane, which is kept on it. Outputs of one that is `inner`, in control flow, are places of their own."""
    body = closed.cache.get((lane, inner))
    if body is None:
        body = closed.cache[lane, inner] = _ready(closed, lane, inner)
    return body


def partition_of(closed: ClosedJaxpr, lane: Lane) -> Partition:
    """A program as kernels that a lane has routines for, and equations."""
    program = prepared(closed)
    if lane.transforms:
        program = write_out_transforms(program)
    if lane.attends is not None:
        program = with_attention(program, lane.attends)
    if lane.stores_again:
        program = delays_out(program)
    program = write_out_one_of_each(write_out_random_bits(program))
    return fuse(program, Limits(buffers=lane.buffers, computes=lane.computes, contracts=lane.contracts))


def _ready(closed: ClosedJaxpr, lane: Lane, inner: bool) -> Body:
    partition = partition_of(closed, lane)
    program, roots = partition.program, dict[Var, Var]()
    parts: list[Fused | Equation] = []
    for item in [part for what in partition.items for part in _narrowed(what, lane.buffers)]:
        if isinstance(item, Equation) and is_alias(item) and isinstance(item.invars[0], Var):
            operand = item.invars[0]
            roots[item.outvars[0]] = roots.get(operand, operand)
        else:
            parts.append(item)
    if inner and lane.stores_again:
        parts, outputs = stored_again(parts, program.jaxpr.outvars, roots, lane.stores_again)
        program = ClosedJaxpr(Jaxpr(program.jaxpr.constvars, program.jaxpr.invars, outputs, program.eqns), program.consts)
    if lane.parts is not None:
        parts = added_behind(parts, program.jaxpr.outvars, roots, lane.parts, lane.buffers)
    if lane.together is not None:
        parts = defer_small_kernels(parts, roots, lane.together)
    deferred: frozenset[int] = frozenset()
    if lane.deferral is not None and not inner:
        parts, deferred = defer_products(parts, roots, lane.deferral)
    items = [*_with_deferred(_among([_item(part, lane) for part in parts], lane), deferred, lane)]
    last: dict[Var, int] = {}
    makers: dict[Var, int] = {}
    for number, ready in enumerate(items):
        last.update({roots.get(v, v): number for v in ready.operands if isinstance(v, Var)})
        makers.update(dict.fromkeys(ready.results, number))
    last.update({roots.get(v, v): len(items) for v in program.jaxpr.outvars if isinstance(v, Var)})
    return Body(lane, program, tuple(items), roots, last, makers)


def _narrowed(what: Fused | Equation, most: int) -> list[Fused | Equation]:
    """Arrays that are put together are put together in groups first, if they are more than a kernel may read."""
    if isinstance(what, Fused) or what.primitive.name != "concatenate" or len(what.invars) < most:
        return [what]
    groups = [what.invars[i : i + most - 1] for i in range(0, len(what.invars), most - 1)]
    parts = [Var(what.primitive.abstract(*[v.aval for v in group], **what.params)) for group in groups]
    first: list[Fused | Equation] = [what.replace(invars=group, outvars=[part]) for group, part in zip(groups, parts, strict=True)]
    return [*first, *_narrowed(what.replace(invars=[*parts]), most)]


def _item(what: Fused | Equation, lane: Lane) -> Item:
    if isinstance(what, Fused):
        return Item(what, what.operands, what.results, _kernel_source(what, lane))
    source = _equation_source(what, lane)
    if source is not None:
        return Item(what, tuple(what.invars), tuple(what.outvars), source)
    if is_lowered(what) and lane.computes(what):
        try:
            kernel, operands = lower_equation(what)
        except NotAffine:
            pass
        else:
            fused = Fused(kernel, operands, tuple(what.outvars))
            return Item(fused, operands, fused.results, _kernel_source(fused, lane))
    return Item(what, tuple(what.invars), tuple(what.outvars), None)


def _among(items: Sequence[Item], lane: Lane) -> list[Item]:
    """The items, of which products have the routines of products among others if there are several."""
    kernels = {n: item.what.kernel for n, item in enumerate(items) if isinstance(item.what, Fused)}
    products = {n: kernel for n, kernel in kernels.items() if contraction_of(kernel) is not None}
    found = [*items]
    if lane.kernel_among is not None and len(products) > 1:
        for number, kernel in products.items():
            found[number] = items[number]._replace(source=Source(("among", kernel), partial(lane.kernel_among, kernel)))
    return found


def _with_deferred(items: Sequence[Item], deferred: frozenset[int], lane: Lane) -> Iterator[Item]:
    """The items, of which those of some numbers are done together."""
    company = sum(math.prod(what.kernel.sizes) for n in deferred if isinstance(what := items[n].what, Fused))
    for number, item in enumerate(items):
        if number in deferred and isinstance(item.what, Fused):
            kernel = item.what.kernel
            yield item._replace(source=Source(("deferred", kernel, company), partial(lane.deferred_kernel, kernel, company)), deferred=True)
        else:
            yield item


def _equation_source(eqn: Equation, lane: Lane) -> Source | None:
    name, avals = eqn.primitive.name, tuple([v.aval for v in eqn.invars])
    if name not in lane.equations:
        return None
    key = (name, tuple([(a.shape, a.dtype) for a in avals]), tuple(sorted(eqn.params.items())))
    return Source(key, partial(lane.equations[name], avals, eqn.params))


def _kernel_source(fused: Fused, lane: Lane) -> Source:
    return Source(("loop", fused.kernel), partial(lane.kernel, fused.kernel))


def sources_apart(closed: ClosedJaxpr, lane: Lane) -> Iterator[Source]:
    """The sources of equations that become no part of a kernel: they are known before kernels are, which takes long to find."""
    for eqn in prepared(closed).eqns:
        source = None if is_product(eqn) or is_lowered(eqn) else _equation_source(eqn, lane)
        if source is not None:
            yield source


def sources_in(body: Body) -> list[Source]:
    """The sources of all routines of a body, and of the bodies in it."""
    found = [item.source for item in body.items if item.source is not None]
    for item in body.items:
        for inner in inner_programs(item):
            found += sources_in(body_of(inner, body.lane, inner=True))
    return found


def inner_programs(item: Item) -> list[ClosedJaxpr]:
    """The programs in a piece of control flow."""
    if not isinstance(item.what, Equation) or item.what.primitive.name not in CONTROL_FLOW:
        return []
    params = item.what.params
    if "branches" in params:
        return list(params["branches"])
    return [params["jaxpr"]] if "jaxpr" in params else [params["cond_jaxpr"], params["body_jaxpr"]]
