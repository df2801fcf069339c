"""Nodes of lowered programs: kernel calls, contractions, and attention.

`KernelCall` and equations are the items of a program; the module tells which produce and which use a value. `contraction_of` recognises
kernels that sum products. Attention and its gradient are primitives that only the attention pass introduces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.contractions import Operand, Problem, Walk, merged
from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.index import Affine, along, row_major
from volta_fn.compiler.ir.kernel import Apply, Constant, Kernel, Load, Reduce, affines, remainder
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.core.primitive import Primitive
from volta_fn.dtypes import can_cast
from volta_fn.primitives.attention import Axes as AttentionAxes
from volta_fn.primitives.attention import Form

# Nodes of a fused program, kernel calls and equations, with their uses.


class KernelCall(NamedTuple):
    """A kernel in a program: the variables that it reads and those that it computes."""

    kernel: Kernel
    operands: tuple[Var, ...]
    results: tuple[Var, ...]
    #: Multiplications of all matrix products that are to run in one dispatch with this one; 0 if it runs by itself.
    deferred_work: int = 0


#: A node of a fused program; `ir.kernel.Node` is one of a kernel.
ProgramNode = KernelCall | Equation


def reads(node: ProgramNode) -> Sequence[Var]:
    """Return the variables that a node reads, without literals."""
    return node.operands if isinstance(node, KernelCall) else [v for v in node.invars if isinstance(v, Var)]


def writes(node: ProgramNode) -> Sequence[Var]:
    """Return the variables that a node computes."""
    return node.results if isinstance(node, KernelCall) else node.outvars


class FusedProgram(NamedTuple):
    """A program as kernel calls and remaining equations, in an order that can run."""

    closed: ClosedJaxpr
    nodes: tuple[ProgramNode, ...]
    #: Aliases (reshapes of values in memory), each with the variable whose memory it shares.
    roots: Mapping[Var, Var] = {}
    #: Whether it is the body or a branch of control flow.
    nested: bool = False

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels, equal ones included."""
        return [node.kernel for node in self.nodes if isinstance(node, KernelCall)]

    @property
    def outputs(self) -> list[Atom]:
        """The program's outputs."""
        return self.closed.jaxpr.outvars

    def root(self, var: Var) -> Var:
        """Return the variable whose memory a variable has."""
        return self.roots.get(var, var)

    def reads(self, node: ProgramNode) -> list[Var]:
        """Return the roots of the variables that a node reads."""
        return [self.roots.get(v, v) for v in reads(node)]


def with_each_replaced(closed: ClosedJaxpr, replace: Callable[[Equation], Sequence[Equation]]) -> ClosedJaxpr:
    """Replace each equation of a program by those that `replace` gives for it."""
    eqns = [new for eqn in closed.eqns for new in replace(eqn)]
    same = len(eqns) == len(closed.eqns) and all(map(is_, eqns, closed.eqns))
    return closed if same else closed.replace(eqns=eqns)


def equations_between(producers: Mapping[Var, Equation], operands: Iterable[Var | object], results: Iterable[Var]) -> list[Equation]:
    """Return the equations on all paths from operands to results."""
    ends, pending = set(operands), [*results]
    equations: dict[int, Equation] = {}
    while pending:
        var = pending.pop()
        eqn = producers.get(var)
        if eqn is None or var in ends or id(eqn) in equations:
            continue
        equations[id(eqn)] = eqn
        pending += [v for v in eqn.invars if isinstance(v, Var)]
    return list(equations.values())


class DefUse:
    """The producer and the consumers of each variable, as numbers of nodes."""

    def __init__(self, nodes: Iterable[ProgramNode] = (), roots: Mapping[Var, Var] = {}) -> None:
        self.nodes: list[ProgramNode] = []
        self.roots = roots
        self.producers: dict[Var, int] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: ProgramNode) -> None:
        """Append a node; only before anything is asked about consumers."""
        for var in writes(node):
            self.producers[var] = len(self.nodes)
        self.nodes.append(node)

    @cached_property
    def consumers(self) -> dict[Var, list[int]]:
        """The numbers of the nodes that read each root."""
        consumers: dict[Var, list[int]] = {}
        for number, node in enumerate(self.nodes):
            for var in dict.fromkeys([self.roots.get(v, v) for v in reads(node)]):
                consumers.setdefault(var, []).append(number)
        return consumers

    def position(self, atom: Atom) -> int:
        """Return the number of an atom's producer; -1 for literals, inputs and constants."""
        return self.producers.get(atom, -1) if type(atom) is Var else -1

    def producer(self, atom: Atom, *names: str) -> Equation | None:
        """Return the equation that computes an atom; with names, only one of these."""
        number = self.producers.get(atom) if type(atom) is Var else None
        node = None if number is None else self.nodes[number]
        return node if isinstance(node, Equation) and (not names or node.primitive.name in names) else None

    def users(self, var: Var) -> list[Equation]:
        """Return the equations that read a variable."""
        return [node for n in self.consumers.get(var, ()) if isinstance(node := self.nodes[n], Equation)]


# Contractions: kernels that sum products of elements of two arrays.
#
# Every target has schedules of its own for them. A contraction is a kernel like any other. Its parallel axes number the elements of a
# result C[b, m, n], a stack of matrices; its reduction axes are k, along which an element sums the products A(b, m, k) · B(b, k, n). The
# operands are loads: views of arrays are other indices. What is done with a sum is the *epilogue*: elementwise operations on further
# loads, and stores through indices of their own. `contraction_of` finds these in a kernel, so that a code generator may use its best
# loops for the sum, and print the epilogue as the elementwise kernel that it is. *Rows* and *columns* are those of the matrices C here.

#: Sums, and the products that they are of.
_PRODUCTS = {"reduce_sum": "mul", "reduce_or": "and"}

Axes = tuple[int, ...]


class Contraction(NamedTuple):
    """A kernel in as few axes as possible, with its operands, sum and axes."""

    kernel: Kernel
    lhs: Load
    rhs: Load
    #: The node that is the sum.
    total: int
    #: The parallel axes b of stacked products, m of the rows of C (which only the left operand has), and n of its columns (only the right).
    batch: Axes
    rows: Axes
    columns: Axes

    @property
    def summed(self) -> Axes:
        """The axes of the sum."""
        return self.kernel.reduction_axes

    def swapped(self) -> Contraction:
        """Return the contraction with operands, and rows and columns, swapped."""
        return self._replace(lhs=self.rhs, rhs=self.lhs, rows=self.columns, columns=self.rows)

    def oriented(self, swapped: bool | None = None) -> Contraction:
        """Make the axis along which the first result is contiguous one of the columns.

        `swapped` forces or forbids an exchange of the operands.
        """
        if swapped is None:
            store = self.kernel.stores[0]
            side_by_side = [axis for axis, c in row_major(store.index, store.shape).terms if c == 1]
            swapped = bool(side_by_side) and side_by_side[0] in self.rows
        return self.swapped() if swapped else self

    def size(self, axes: Axes) -> int:
        """Return the number of iterations along some axes."""
        return math.prod(self.kernel.sizes[a] for a in axes)

    def problem(self) -> Problem:
        """Return the sums as a stack of matrix products, in the dtype of the sums."""
        sizes, offsets = self.kernel.sizes, [row_major(x.index, x.shape) for x in (self.lhs, self.rhs)]
        strides = [dict(offset.terms) for offset in offsets]

        def walks(axes: Sequence[int], *sides: dict[int, int]) -> list[Walk]:
            return merged([sizes[a] for a in axes], [[side.get(a, 0) for a in axes] for side in sides])

        orders = [sorted(self.summed, key=lambda a: (-side.get(a, 0), a)) for side in strides]
        stack = walks(self.batch, *strides)
        # The order of terms is free: of the operands' orders in memory, take the one whose axes merge into the fewest.
        inner = min([walks(o, *strides) for o in orders], key=lambda pair: len(pair[0].sizes))
        outer = [walks(axes, side)[0] for axes, side in zip((self.rows, self.columns), strides, strict=True)]
        lhs, rhs = [
            Operand(x.dtype, stack[n], outer[n], inner[n], offset.offset)
            for n, (x, offset) in enumerate(zip((self.lhs, self.rhs), offsets, strict=True))
        ]
        return Problem(lhs, rhs, self.kernel.nodes[self.total].dtype)

    def epilogue(self, width: int | None = None) -> tuple[Kernel, Axes]:
        """Return the epilogue, the elementwise kernel over the sums.

        Also return which inputs of the kernel are its inputs from the second on. The first is a matrix of sums, whose rows are numbered by
        batch and rows, and which has room for `width` columns (by default for all): it may hold some of them.
        """
        epilogue = self._remainder(width)
        assert epilogue is not None, "contraction_of refuses such kernels"
        return epilogue

    @property
    def is_complete(self) -> bool:
        """Whether the kernel computes nothing but the sums and an epilogue."""
        return self._remainder(None) is not None

    def _remainder(self, width: int | None) -> tuple[Kernel, Axes] | None:
        row, dtype = (*self.batch, *self.rows), self.kernel.nodes[self.total].dtype
        shape = self.size(row), width or self.size(self.columns)
        sums = Load(dtype, 0, shape, (self._number(row), self._number(self.columns)), (), Constant.of(0, dtype))
        return remainder(self.kernel, {self.total: sums})

    def _number(self, axes: Axes) -> Affine:
        """Return the row-major number of an iteration along some axes."""
        return row_major(tuple(map(along, axes)), tuple([self.kernel.sizes[a] for a in axes]))


@lru_cache(maxsize=1024)
def contraction_of(kernel: Kernel) -> Contraction | None:
    """Return a kernel as a contraction with rows and columns; None for other kernels."""
    sums = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce)]
    if len(sums) != 1 or 0 in kernel.sizes:
        return None
    kernel = simplified(kernel)
    sums = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce)]
    product = _product(kernel, sums[0]) if sums else None
    if product is None:
        return None
    lhs, rhs = product
    left, right = _axes(lhs), _axes(rhs)
    outer = range(kernel.parallel)
    rows, columns = tuple([a for a in outer if a in left - right]), tuple([a for a in outer if a in right - left])
    batch = tuple([a for a in outer if a not in (*rows, *columns)])
    contraction = Contraction(kernel, lhs, rhs, sums[0], batch, rows, columns)
    return contraction if rows and columns and contraction.is_complete else None


def _product(kernel: Kernel, total: int) -> tuple[Load, Load] | None:
    """Return the operands of a summed product; None if the node sums something else.

    An operand may be converted to a dtype that represents all of its numbers: such a conversion changes no product.
    """
    reduce = kernel.nodes[total]
    assert isinstance(reduce, Reduce)
    product = kernel.nodes[reduce.operand]
    if not isinstance(product, Apply) or product.op != _PRODUCTS.get(reduce.op):
        return None
    operands = []
    for n in product.operands:
        node = kernel.nodes[n]
        if isinstance(node, Apply) and node.op == "convert_element_type" and can_cast(kernel.nodes[node.operands[0]].dtype, node.dtype):
            node = kernel.nodes[node.operands[0]]
        if not isinstance(node, Load) or node.mask:
            return None
        operands.append(node)
    return operands[0], operands[1]


def _axes(load: Load) -> frozenset[int]:
    return frozenset([axis for affine in affines(load) for axis in affine.axes])


# Attention and its gradient as primitives, which only the attention pass uses.
#
# ``attention(q, k, v[, mask])`` gives the result and, for each query, its largest logit and the sum of its weights relative to that, as
# float32 of the shape (heads, queries, 2). ``attention_gradient(q, k, v[, mask], result, statistics, cotangent)`` gives the cotangents
# of q, k and v. Results have the layout of the operand they belong to: the first that of q, gradients that of their primal.

_FLOAT = np.dtype(np.float32)


def result_avals(form: Form, q: ShapedArray, v: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
    """Return the types of the results of `attention`."""
    shape = list(q.shape)
    shape[form.q.features] = v.shape[form.v.features]
    rows = [math.prod(q.shape[a] for a in form.q.heads), q.shape[form.q.rows]]
    return ShapedArray(tuple(shape), q.dtype), ShapedArray((*rows, 2), _FLOAT)


def _abstract(q: ShapedArray, k: ShapedArray, v: ShapedArray, *others: ShapedArray, form: Form) -> tuple[ShapedArray, ...]:
    return result_avals(form, q, v)


def _rows(x: np.ndarray, axes: AttentionAxes, heads: int = 0) -> np.ndarray:
    """Return float32 matrices (…, heads, rows, features), heads repeated to a number."""
    matrices = np.asarray(x, _FLOAT).transpose(axes.order)
    return np.repeat(matrices, heads // matrices.shape[-3], -3) if heads else matrices


def _weights(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, form: Form) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the weights, the statistics, and the mask of visible keys."""
    logits = q @ k.swapaxes(-1, -2) * np.float32(form.scale)
    t, s = logits.shape[-2:]
    visible = np.ones((t, s), np.bool_) if mask is None else mask
    if form.causal:
        visible = visible & np.tri(t, s, dtype=np.bool_)
    logits = np.where(visible, logits, np.float32(form.unseen))
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    return weights / total, np.concatenate([top, total], -1).reshape(-1, t, 2), visible


def _evaluate(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray]:
    queries = _rows(q, form.q)
    heads = queries.shape[-3]
    weights, statistics, _ = _weights(queries, _rows(k, form.k, heads), others[0] if form.masked else None, form)
    return (weights @ _rows(v, form.v, heads)).transpose(form.q.inverse).astype(q.dtype), statistics


def _gradient(q: np.ndarray, k: np.ndarray, v: np.ndarray, *others: np.ndarray, form: Form) -> tuple[np.ndarray, ...]:
    assert form.cotangent is not None
    queries, cotangent = _rows(q, form.q), _rows(others[-1], form.cotangent)
    heads = queries.shape[-3]
    keys, values = _rows(k, form.k, heads), _rows(v, form.v, heads)
    weights, _, visible = _weights(queries, keys, others[0] if form.masked else None, form)
    slopes = cotangent @ values.swapaxes(-1, -2)
    slopes = weights * (slopes - (slopes * weights).sum(-1, keepdims=True))
    slopes = np.where(visible, slopes, 0) * np.float32(form.scale)

    def summed(x: np.ndarray, like: np.ndarray, axes: AttentionAxes) -> np.ndarray:
        """Sum over the heads that share a key or value."""
        groups = like.shape[axes.heads[-1]]
        total = x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:]).sum(-3)
        return total.transpose(axes.inverse).astype(like.dtype)

    to_k, to_v = slopes.swapaxes(-1, -2) @ queries, weights.swapaxes(-1, -2) @ cotangent
    return summed(slopes @ keys, q, form.q), summed(to_k, k, form.k), summed(to_v, v, form.v)


attention_routine_p = Primitive("attention_routine", _abstract, evaluate=_evaluate, multiple_results=True, listed=False)
attention_gradient_routine_p = Primitive(
    "attention_gradient_routine", lambda q, k, v, *others, form: (q, k, v), evaluate=_gradient, multiple_results=True, listed=False
)
