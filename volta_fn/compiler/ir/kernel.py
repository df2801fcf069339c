"""The kernel IR: loop nests over scalar operations, their text and their meaning.

Kernels are well formed or not, and compute something, by the rules of the last two sections, whatever code a target makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.index import Affine, Index, Range
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.core.primitive import PRIMITIVES, Reduction, evaluation_of, reduction_of
from volta_fn.errors import JaxprError, VoltaError

# A kernel is a loop over *rows*. Its *parallel* axes number the rows, which are independent; its *reduction* axes number the elements
# of a row. The body is a list of *nodes*, each a scalar: loads from input buffers, constants, indices, scalar operations (named as the
# elementwise primitives that they are), and *reductions*, which combine an element-wise value over a row into one value per row. A
# later node may use that value along the same row again, so that softmax or layer norm, which visit each row several times, are one
# kernel and one pass over memory. Stores write nodes to output buffers.
#
# A value has a *level*: it is per element of a row if it depends on a reduction axis, else per row. It has a *stage*: how many earlier
# passes over the row it waits for. Both follow from the nodes (`levels`, `stages`).
#
# Kernels are values: equal ones are equal and hash alike, whatever program they come from. Sizes are part of them.


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, stored as its bits: NaN equals itself, and 0.0 is not -0.0."""

    dtype: np.dtype
    bits: bytes

    @staticmethod
    def of(value: Any, dtype: np.dtype) -> Constant:
        """Return the constant of a Python or NumPy number."""
        return Constant(dtype, np.asarray(value, dtype).tobytes())

    @property
    def value(self) -> np.ndarray:
        """The number as a zero-dimensional array."""
        return np.frombuffer(self.bits, self.dtype).reshape(())


@dataclass(frozen=True, slots=True)
class Load:
    """An element of an input, seen as a contiguous array of `shape`.

    Where a condition of `mask` fails, it is `fill`, and memory is not accessed.
    """

    dtype: np.dtype
    input: int
    shape: Shape
    index: Index
    mask: tuple[Range, ...]
    fill: Constant


@dataclass(frozen=True, slots=True)
class Position:
    """An affine function of the axes as a number (`iota`)."""

    dtype: np.dtype
    value: Affine


@dataclass(frozen=True, slots=True)
class Inside:
    """Whether all of the conditions hold, as bool."""

    ranges: tuple[Range, ...]

    @property
    def dtype(self) -> np.dtype:
        """The dtype bool."""
        return np.dtype(np.bool_)


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar operation on earlier nodes: an elementwise primitive, by name."""

    dtype: np.dtype
    op: str
    operands: tuple[int, ...]
    params: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """An earlier node combined over the row by a reduction primitive.

    ``argmax`` and ``argmin`` give the row-major number in the row.
    """

    dtype: np.dtype
    op: str
    operand: int
    #: Of a sum of products, the precision to which targets may round the factors, such as "tensorfloat32".
    precision: str = ""

    @property
    def reduction(self) -> Reduction:
        """The reduction that the primitive is."""
        return reduction_of(self.op)

    @property
    def is_index(self) -> bool:
        """Whether the result is an element's number (``argmax``, ``argmin``)."""
        return self.reduction.index_of is not None


Node = Constant | Load | Position | Inside | Apply | Reduce


@dataclass(frozen=True, slots=True)
class Buffer:
    """An input: a contiguous array of `size` elements."""

    size: int
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class Store:
    """A node written to the output with the store's number.

    The output is a contiguous array of `shape`; each element is written once.
    """

    shape: Shape
    index: Index
    value: int


@dataclass(frozen=True)
class Kernel:
    """A loop nest; the first `parallel` axes number rows, the others their elements."""

    sizes: tuple[int, ...]
    parallel: int
    inputs: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.sizes, self.parallel, self.inputs, self.nodes, self.stores))

    def __hash__(self) -> int:
        return self._hash

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The buffers that the kernel writes."""
        return tuple([Buffer(math.prod(s.shape), self.nodes[s.value].dtype) for s in self.stores])

    @property
    def reduction_axes(self) -> tuple[int, ...]:
        """The axes of a row."""
        return tuple(range(self.parallel, len(self.sizes)))


class PendingStores(set[int]):
    """The stores of a kernel that have no code yet: whoever emits one removes it."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(range(len(kernel.stores)))

    def check(self, later: Collection[int] = ()) -> None:
        """Raise `JaxprError` if stores have no code, other than those that come later."""
        if missing := self.difference(later):
            raise JaxprError(f"no code was generated for stores {sorted(missing)} of a kernel")


def operands(node: Node) -> tuple[int, ...]:
    """Return the numbers of the nodes that a node reads."""
    if isinstance(node, Apply):
        return node.operands
    return (node.operand,) if isinstance(node, Reduce) else ()


def affines(node: Node) -> tuple[Affine, ...]:
    """Return the affine functions of the axes in a node."""
    if isinstance(node, Load):
        return (*node.index, *[r.value for r in node.mask])
    if isinstance(node, Position):
        return (node.value,)
    return tuple([r.value for r in node.ranges]) if isinstance(node, Inside) else ()


def levels(kernel: Kernel) -> tuple[bool, ...]:
    """Return for every node whether it is per element of a row (else it is per row)."""
    result: list[bool] = []
    for node in kernel.nodes:
        is_per_element = any(axis >= kernel.parallel for affine in affines(node) for axis in affine.axes)
        result.append(not isinstance(node, Reduce) and (is_per_element or any(result[i] for i in operands(node))))
    return tuple(result)


@lru_cache(maxsize=1024)
def stages(kernel: Kernel) -> tuple[int, ...]:
    """Return for every node the passes over the row that must precede it."""
    result: list[int] = []
    for node in kernel.nodes:
        before = max([result[i] for i in operands(node)], default=0)
        result.append(before + isinstance(node, Reduce))
    return tuple(result)


# Kernels made of nodes of other kernels.


class NodeBuilder:
    """The nodes of a kernel under construction, mostly another kernel's."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.nodes: list[Node] = []
        #: The numbers of nodes here, by their numbers in the other kernel.
        self.numbers: dict[int, int] = {}

    def add(self, node: Node) -> int:
        """Add a node, and return its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def copy(self, targets: Iterable[int]) -> None:
        """Copy nodes and their operands, except those that have a counterpart here."""
        for n in closure(self.kernel.nodes, targets, self.numbers):
            self.numbers[n] = self.add(renumbered(self.kernel.nodes[n], self.numbers))


def closure(nodes: Sequence[Node], targets: Iterable[int], excluded: Iterable[int] = ()) -> list[int]:
    """Return the nodes that some nodes depend on, in order, without excluded ones."""
    excluded = set(excluded)
    needed = set(targets) - excluded
    for n in range(len(nodes) - 1, -1, -1):
        if n in needed:
            needed.update(set(operands(nodes[n])) - excluded)
    return sorted(needed)


def restricted(kernel: Kernel, stores: Sequence[int]) -> Kernel:
    """Restrict a kernel to some stores and their dependencies; inputs stay."""
    selected = [kernel.stores[s] for s in stores]
    if [*stores] == [*range(len(kernel.stores))] and len(closure(kernel.nodes, [store.value for store in selected])) == len(kernel.nodes):
        return kernel
    nodes = NodeBuilder(kernel)
    nodes.copy([store.value for store in selected])
    return replace(kernel, nodes=tuple(nodes.nodes), stores=tuple([replace(store, value=nodes.numbers[store.value]) for store in selected]))


def loaded_inputs(nodes: Iterable[Node]) -> tuple[int, ...]:
    """Return the numbers of the inputs that nodes load, in order."""
    return tuple(sorted({node.input for node in nodes if isinstance(node, Load)}))


def without_unused_inputs(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """Drop the inputs that no node loads; return the numbers of the others, too."""
    inputs = loaded_inputs(kernel.nodes)
    unchanged, new_inputs = {n: n for n in range(len(kernel.nodes))}, {i: k for k, i in enumerate(inputs)}
    nodes = tuple([renumbered(node, unchanged, new_inputs) for node in kernel.nodes])
    return replace(kernel, inputs=tuple([kernel.inputs[i] for i in inputs]), nodes=nodes), inputs


def without_empty_axes(kernel: Kernel) -> Kernel:
    """Return a kernel without axes of size 0; reductions over them are identities."""
    empty = 0 in kernel.sizes[kernel.parallel :]

    def without_empty_reduction(node: Node) -> Node:
        if not (empty and isinstance(node, Reduce)):
            return node
        return Constant.of(0 if node.is_index else node.reduction.start(node.dtype), node.dtype)

    return replace(kernel, sizes=tuple([n or 1 for n in kernel.sizes]), nodes=tuple(map(without_empty_reduction, kernel.nodes)))


def renumbered(node: Node, nodes: Mapping[int, int], inputs: Mapping[int, int] | None = None) -> Node:
    """Return a kernel's node with new numbers for its operands, and for its input."""
    # `replace` takes several times as long as a constructor.
    if isinstance(node, Load):
        return node if inputs is None else Load(node.dtype, inputs[node.input], node.shape, node.index, node.mask, node.fill)
    if isinstance(node, Apply):
        return Apply(node.dtype, node.op, tuple([nodes[n] for n in node.operands]), node.params)
    return replace(node, operand=nodes[node.operand]) if isinstance(node, Reduce) else node


def remainder(kernel: Kernel, computed: Mapping[int, Load]) -> tuple[Kernel, tuple[int, ...]] | None:
    """Return a kernel's remainder without some nodes, over its outer axes.

    A recogniser computes the nodes `computed` itself, such as the sums of a matrix product, and generates all other code from the
    remainder, which has every store of the kernel. There loads replace those nodes; their inputs come first, and the numbers of the
    kernel's inputs that follow are returned, too. None if a store, or a node that a store needs, depends on inner axes or is another
    reduction.
    """
    needed = closure(kernel.nodes, [store.value for store in kernel.stores], computed)
    nodes = {n: computed.get(n, kernel.nodes[n]) for n in sorted({*needed, *computed})}
    indices = [a for node in nodes.values() for a in affines(node)] + [a for store in kernel.stores for a in store.index]
    if any(isinstance(node, Reduce) for node in nodes.values()) or any(axis >= kernel.parallel for a in indices for axis in a.axes):
        return None
    inputs = loaded_inputs([kernel.nodes[n] for n in needed])
    new = {n: k for k, n in enumerate(nodes)}
    new_inputs = {i: len(computed) + k for k, i in enumerate(inputs)}
    buffers = tuple([Buffer(math.prod(load.shape), load.dtype) for load in sorted(computed.values(), key=lambda load: load.input)])
    return (
        Kernel(
            kernel.sizes[: kernel.parallel],
            kernel.parallel,
            (*buffers, *[kernel.inputs[i] for i in inputs]),
            tuple([node if n in computed else renumbered(node, new, new_inputs) for n, node in nodes.items()]),
            tuple([replace(store, value=new[store.value]) for store in kernel.stores]),
        ),
        inputs,
    )


# Kernels as readable text.
#
# Rows are named by the letters i, j, …; each pass over a row is a loop in it; ``v <- op:dtype w`` combines w over the row into v, which the
# lines after that pass may use. Inputs are x0, x1, …, outputs y0, y1, …, each with the shape under which it is seen.

_AXES = "ijklmnpqrstuvw"


def _axis(axis: int) -> str:
    return _AXES[axis] if axis < len(_AXES) else f"i{axis}"


def format_affine(affine: Affine) -> str:
    """Format an affine number, as in ``2*i - j + 3``."""
    terms: list[str] = []
    for axis, c in affine.terms:
        name = _axis(axis) if abs(c) == 1 else f"{abs(c)}*{_axis(axis)}"
        terms.append(("-" if c < 0 else "") + name if not terms else (" - " if c < 0 else " + ") + name)
    if affine.offset or not terms:
        sign = " - " if affine.offset < 0 else " + "
        terms.append(sign + str(abs(affine.offset)) if terms else str(affine.offset))
    return "".join(terms)


def _index(index: Index) -> str:
    return ", ".join(map(format_affine, index))


def _ranges(ranges: Sequence[Range]) -> str:
    return " and ".join(f"{r.low} <= {format_affine(r.value)} < {r.high}" for r in ranges)


def _shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _constant(constant: Constant) -> str:
    value = constant.value.item()
    return f"{value:.6g}" if isinstance(value, float) and not value.is_integer() else str(value)


def format_kernel(kernel: Kernel) -> str:
    """Format a kernel as loops over rows and passes, a line per node."""
    names = _names(kernel)
    per_element, stage = levels(kernel), stages(kernel)
    rows = " ".join(f"{_axis(a)}<{kernel.sizes[a]}>" for a in range(kernel.parallel))
    row = " ".join(f"{_axis(a)}<{kernel.sizes[a]}>" for a in kernel.reduction_axes)
    text_lines = [f"for each row {rows}".rstrip() + ":"]
    for passes in range(max(stage, default=0) + 1):
        numbers = [n for n, s in enumerate(stage) if s == passes]
        text_lines += _section(kernel, names, [n for n in numbers if not per_element[n]], numbers, inner=False)
        body = _section(kernel, names, [n for n in numbers if per_element[n]], numbers, inner=True)
        ready = [n for n, node in enumerate(kernel.nodes) if isinstance(node, Reduce) and stage[n] == passes + 1]
        body += [f"    {names[n]} {_node(kernel.nodes[n], names)}" for n in ready]
        if body:
            text_lines += [f"  for each {row}:" if row else "  once:", *body]
    return "\n".join(text_lines)


def _names(kernel: Kernel) -> list[str]:
    """Name nodes v0, v1, …; constants name themselves."""
    names: list[str] = []
    count = 0
    for node in kernel.nodes:
        if isinstance(node, Constant):
            names.append(_constant(node))
        else:
            names.append(f"v{count}")
            count += 1
    return names


def _section(kernel: Kernel, names: Sequence[str], nodes: Sequence[int], stored: Sequence[int], inner: bool) -> list[str]:
    """Format nodes, and the stores at the same level of the nodes in `stored`."""
    pad = "    " if inner else "  "
    text_lines = []
    for n in nodes:
        node = kernel.nodes[n]
        if not isinstance(node, Constant | Reduce):
            text_lines.append(f"{pad}{names[n]}:{dtypes.short_name(node.dtype)} = {_node(node, names)}")
    for out, store in enumerate(kernel.stores):
        if store.value in stored and any(axis >= kernel.parallel for a in store.index for axis in a.axes) == inner:
            text_lines.append(f"{pad}y{out}{_shape(store.shape)} at ({_index(store.index)}) = {names[store.value]}")
    return text_lines


def _node(node: Node, names: Sequence[str]) -> str:
    if isinstance(node, Load):
        mask = f" if {_ranges(node.mask)} else {_constant(node.fill)}" if node.mask else ""
        return f"x{node.input}{_shape(node.shape)} at ({_index(node.index)}){mask}"
    if isinstance(node, Position):
        return format_affine(node.value)
    if isinstance(node, Inside):
        return _ranges(node.ranges)
    if isinstance(node, Reduce):
        precision = f" in {node.precision}" if node.precision else ""
        return f"<- {node.op}:{dtypes.short_name(node.dtype)} {names[node.operand]}{precision}"
    if isinstance(node, Apply):
        params = "[" + ", ".join(f"{k}={v}" for k, v in node.params if k != "weak_type") + "]" if node.params else ""
        return f"{node.op}{params} {' '.join(names[i] for i in node.operands)}".rstrip()
    return _constant(node)


# Programs of kernel calls and equations.


class KernelCall(NamedTuple):
    """A kernel in a program: the variables that it reads and those that it computes."""

    kernel: Kernel
    operands: tuple[Var, ...]
    results: tuple[Var, ...]
    #: Multiplications of all matrix products that are to run in one dispatch with this one; 0 if it runs by itself.
    deferred_work: int = 0


#: A node of a fused program; `Node` is one of a kernel.
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


def simplify_nested(closed: ClosedJaxpr, simplify: Callable[[ClosedJaxpr], ClosedJaxpr]) -> ClosedJaxpr:
    """Apply `simplify` to the programs that a program's equations hold."""
    return with_each_replaced(closed, lambda eqn: [_with_simplified_programs(eqn, simplify) if eqn.primitive.holds_programs else eqn])


def _with_simplified_programs(eqn: Equation, simplify: Callable[[ClosedJaxpr], ClosedJaxpr]) -> Equation:
    def apply(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return simplify(value)
        return tuple(map(apply, value)) if type(value) is tuple else value

    params = {k: apply(v) for k, v in eqn.params.items()}
    return eqn if params == eqn.params else eqn.replace(params=params)


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


# The rules of well-formed kernels.


def check_kernel(kernel: Kernel) -> None:
    """Raise `JaxprError` unless the kernel is well formed.

    Nodes read earlier nodes, and have the dtypes that their primitives give; axes exist; loads stay inside their buffers wherever their
    masks let them through; a value per element of a row is stored at an index of its own, and every element of an output is written.
    """
    _require(0 <= kernel.parallel <= len(kernel.sizes), f"{kernel.parallel} of {len(kernel.sizes)} axes number the rows")
    # Outputs outside of an axis without iterations are computed: what they read and write is checked as if it had one.
    kernel = replace(kernel, sizes=tuple([size or 1 for size in kernel.sizes]))
    for number, node in enumerate(kernel.nodes):
        _require(all(0 <= i < number for i in operands(node)), f"node {number} reads a later node")
        _check_dtype(kernel, node, number)
        _require(all(axis < len(kernel.sizes) for a in affines(node) for axis in a.axes), f"node {number} uses an axis that does not exist")
        if isinstance(node, Load):
            _check_load(kernel, node, number)
        if isinstance(node, Inside):
            _require(bool(node.ranges), f"node {number} asks for no condition")
    per_element = levels(kernel)
    for number, store in enumerate(kernel.stores):
        _require(0 <= store.value < len(kernel.nodes), f"store {number} keeps a node that does not exist")
        _require(len(store.index) == len(store.shape), f"store {number} has an index of another rank than its output")
        _require(all(axis < len(kernel.sizes) for a in store.index for axis in a.axes), f"store {number} uses an axis that does not exist")
        _check_store(kernel, store.shape, store.index, number)
        depends = {axis for a in store.index for axis in a.axes}
        varies = per_element[store.value]
        row_axes = {axis for axis in kernel.reduction_axes if kernel.sizes[axis] != 1}
        _require(not varies or depends >= row_axes, f"store {number} keeps one of a row's many values")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise JaxprError(f"malformed kernel: {message}")


def _check_dtype(kernel: Kernel, node: Node, number: int) -> None:
    read = [kernel.nodes[i].dtype for i in operands(node)]
    if isinstance(node, Apply):
        gives = _scalar_result(node.op, tuple(read), node.params)
        _require(gives == node.dtype, f"node {number} is {node.dtype}, but {node.op} of {', '.join(map(str, read))} gives {gives}")
    elif isinstance(node, Reduce):
        gives = node.dtype if node.is_index else read[0]
        _require(gives == node.dtype, f"node {number} is {node.dtype}, but {node.op} of {read[0]} gives {gives}")


@lru_cache(maxsize=4096)
def _scalar_result(op: str, dtypes: tuple[np.dtype, ...], params: tuple[tuple[str, Any], ...]) -> np.dtype | str:
    """Return the dtype of an operation on scalars, or the reason for none."""
    try:
        result: ShapedArray = PRIMITIVES[op].abstract(*[ShapedArray((), dtype) for dtype in dtypes], **dict(params))
    except (VoltaError, TypeError) as error:
        return f"no result: {error.args[0]}"
    return result.dtype


def _check_load(kernel: Kernel, node: Load, number: int) -> None:
    _require(0 <= node.input < len(kernel.inputs), f"node {number} reads a buffer that does not exist")
    buffer = kernel.inputs[node.input]
    _require(math.prod(node.shape) == buffer.size and node.dtype == buffer.dtype, f"node {number} sees another array than its buffer is")
    _require(len(node.index) == len(node.shape), f"node {number} has an index of another rank than its buffer")
    for affine, size in zip(node.index, node.shape, strict=True):
        inside = Range(affine, 0, size)
        _require(bool(inside.holds(kernel.sizes)) or _is_guarded(kernel, node, inside), f"node {number} may read outside of its buffer")


def _is_guarded(kernel: Kernel, node: Load, inside: Range) -> bool:
    """Return True if a condition holds wherever the load's mask lets it through."""
    condition = inside.canonical()
    if any(r.value == condition.value and r.low >= condition.low and r.high <= condition.high for r in node.mask):
        return True
    intervals = _narrowed(node.mask, kernel.sizes)
    if intervals is None:
        return True  # it never lets it through
    least = inside.value.offset + sum(min(c * intervals[axis][0], c * intervals[axis][1]) for axis, c in inside.value.terms)
    greatest = inside.value.offset + sum(max(c * intervals[axis][0], c * intervals[axis][1]) for axis, c in inside.value.terms)
    return inside.low <= least and greatest < inside.high


def _narrowed(mask: Sequence[Range], sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return each axis's bounds where all conditions hold; None if they never do."""
    intervals = [(0, size - 1) for size in sizes]
    for _ in range(2):  # what one condition narrows may let another narrow more
        for condition in mask:
            ends = {axis: sorted((c * intervals[axis][0], c * intervals[axis][1])) for axis, c in condition.value.terms}
            for axis, c in condition.value.terms:
                others = [end for other, end in ends.items() if other != axis]
                low = condition.low - condition.value.offset - sum(end[1] for end in others)
                high = condition.high - 1 - condition.value.offset - sum(end[0] for end in others)
                first, last = (-(-low // c), high // c) if c > 0 else (-(high // -c), -low // -c)
                intervals[axis] = (max(intervals[axis][0], first), min(intervals[axis][1], last))
                if intervals[axis][0] > intervals[axis][1]:
                    return None
    return intervals


def _check_store(kernel: Kernel, shape: Shape, index: Index, number: int) -> None:
    """Check that an index is a bijection."""
    # It is one if, as a row-major number, its terms are the strides of a mixed-radix system that fills the shape.
    if 0 in shape:
        return
    flat: dict[int, int] = {}
    offset = 0
    for d, affine in enumerate(index):
        stride = math.prod(shape[d + 1 :])
        offset += stride * affine.offset
        for axis, c in affine.terms:
            flat[axis] = flat.get(axis, 0) + stride * c
    filled = 1
    for axis, c in sorted(flat.items(), key=lambda item: (abs(item[1]), kernel.sizes[item[0]])):
        _require(abs(c) == filled, f"store {number} writes an element twice, or leaves one out")
        filled *= kernel.sizes[axis]
    lowest = Affine(tuple(flat.items()), offset).bounds(kernel.sizes)[0]
    _require(filled == math.prod(shape) and lowest == 0, f"store {number} does not fill its output")


# An interpreter in NumPy: the oracle of every code generator.
#
# Each node is one array over all axes at once; nothing here is fast. Scalar operations and reductions mean what the evaluation rules of
# the primitives of those names mean.


def interpret(kernel: Kernel, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the outputs of a kernel for inputs of its sizes and dtypes."""
    if [(x.size, x.dtype) for x in inputs] != [(b.size, b.dtype) for b in kernel.inputs]:
        raise VoltaError(f"the kernel takes {list(kernel.inputs)}, got {[(x.size, x.dtype) for x in inputs]}")
    run = _Interpreter(kernel, inputs)
    with np.errstate(all="ignore"):
        values: list[np.ndarray] = []
        for node in kernel.nodes:
            values.append(run.node(node, values))
        return tuple([run.stored(store, values[store.value]) for store in kernel.stores])


def _evaluation(op: str) -> Callable[..., Any]:
    evaluate = evaluation_of(PRIMITIVES[op])
    if evaluate is None:
        raise VoltaError(f"the primitive {op} has no evaluation rule")
    return evaluate


class _Interpreter:
    """Evaluates nodes as arrays of the kernel's rank, of size 1 along unused axes."""

    def __init__(self, kernel: Kernel, inputs: Sequence[np.ndarray]) -> None:
        self.kernel = kernel
        self.inputs = inputs

    def affine(self, affine: Affine) -> np.ndarray:
        rank = len(self.kernel.sizes)
        result = np.full((1,) * rank, affine.offset, np.int64)
        for axis, c in affine.terms:
            shape = [1] * rank
            shape[axis] = self.kernel.sizes[axis]
            result = result + c * np.arange(self.kernel.sizes[axis]).reshape(shape)
        return result

    def inside(self, ranges: Sequence[Range]) -> np.ndarray:
        """Return a mask of the iterations in which all conditions hold."""
        result = np.ones((1,) * len(self.kernel.sizes), np.bool_)
        for condition in ranges:
            value = self.affine(condition.value)
            result = result & (condition.low <= value) & (value < condition.high)
        return result

    def node(self, node: Node, values: Sequence[np.ndarray]) -> np.ndarray:
        if isinstance(node, Constant):
            return node.value.reshape((1,) * len(self.kernel.sizes))
        if isinstance(node, Load):
            return self.load(node)
        if isinstance(node, Position):
            return self.affine(node.value).astype(node.dtype)
        if isinstance(node, Inside):
            return self.inside(node.ranges)
        if isinstance(node, Apply):
            return self.apply(node, values)
        return self.reduce(node, values[node.operand])

    def load(self, node: Load) -> np.ndarray:
        """Return the elements that a load reads, and its fill value where it is masked."""
        buffer = self.inputs[node.input].reshape(node.shape)
        where = self.inside(node.mask)
        index = [self.affine(affine) for affine in node.index]
        if not node.mask:
            return buffer[tuple(index)] if index else buffer.reshape(where.shape)
        if not buffer.size:
            return np.broadcast_to(node.fill.value, where.shape)
        safe = [np.where(where, i, 0) for i in index]
        return np.where(where, buffer[tuple(safe)] if safe else buffer, node.fill.value)

    def apply(self, node: Apply, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(_evaluation(node.op)(*[values[i] for i in node.operands], **dict(node.params)))

    def reduce(self, node: Reduce, operand: np.ndarray) -> np.ndarray:
        sizes, parallel = self.kernel.sizes, self.kernel.parallel
        rows = operand.shape[:parallel]
        row = math.prod(sizes[parallel:])
        flat = np.ascontiguousarray(np.broadcast_to(operand, (*rows, *sizes[parallel:]))).reshape((*rows, row))
        params = {"index_dtype": node.dtype} if node.is_index else {}
        reduced = np.asarray(_evaluation(node.op)(flat, axes=(parallel,), **params))
        return reduced.reshape((*rows, *(1,) * (len(sizes) - parallel)))

    def stored(self, store: Store, value: np.ndarray) -> np.ndarray:
        out = np.empty(store.shape, value.dtype)
        index = [self.affine(affine) for affine in store.index]
        if not store.shape:
            out[()] = value.reshape(-1)[0] if value.size else 0
        elif out.size:
            position = np.broadcast_arrays(*index)
            out[tuple(position)] = np.broadcast_to(value, np.broadcast_shapes(value.shape, position[0].shape))
        return out
