"""Random kernels in the compiler's IR: loop nests of every form that fusion gives a target, and products with prologues and epilogues."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.index import ZERO, Affine, Index, Range, along, combine
from volta_fn.compiler.ir.kernel import Apply, Buffer, Constant, Inside, Kernel, Load, Node, Position, Reduce, Store, check_kernel, levels
from volta_fn.errors import JaxprError

BOOL, INT32, FLOAT32 = np.dtype(np.bool_), np.dtype(np.int32), np.dtype(np.float32)
#: Sizes of axes: small ones, and those next to sizes of vectors, of groups and of blocks.
_SMALL = (1, 2, 3, 4, 5)
_EDGES = (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097)
_FLOAT_OPS = (
    "add", "sub", "mul", "max", "min", "neg", "abs", "add", "mul", "select_n", "compare", "div", "exp", "sqrt", "logistic", "floor",
)  # fmt: skip
_INT_OPS = ("add", "sub", "mul", "max", "min", "neg", "and", "or", "xor", "not", "select_n", "compare")
_BOOL_OPS = ("and", "or", "xor", "not", "select_n")
_COMPLEX_OPS = ("add", "sub", "mul", "neg", "conj", "select_n", "real")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")


class Drawing:
    """A kernel under construction."""

    def __init__(self, draw: random.Random, palette: Sequence[np.dtype], sizes: tuple[int, ...], parallel: int) -> None:
        self.draw, self.palette, self.sizes, self.parallel = draw, palette, sizes, parallel
        self.inputs: list[tuple[tuple[int, ...], np.dtype]] = []
        self.nodes: list[Node] = []
        self.stores: list[Store] = []

    def add(self, node: Node) -> int:
        """Append a node, and return its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def kernel(self) -> Kernel:
        """Return the kernel, with the nodes that its stores need."""
        inputs = tuple([Buffer(math.prod(shape), dtype) for shape, dtype in self.inputs])
        return pruned(Kernel(self.sizes, self.parallel, inputs, tuple(self.nodes), tuple(self.stores)))

    @property
    def inner(self) -> range:
        """The reduction axes."""
        return range(self.parallel, len(self.sizes))

    def depends(self, number: int) -> frozenset[int]:
        """Return the axes that a node depends on."""
        node = self.nodes[number]
        if isinstance(node, Reduce):
            return self.depends(node.operand) - frozenset(self.inner)
        if isinstance(node, Apply):
            return frozenset[int]().union(*map(self.depends, node.operands))
        ranges = node.mask if isinstance(node, Load) else node.ranges if isinstance(node, Inside) else ()
        affines = [*[r.value for r in ranges], *(node.index if isinstance(node, Load) else ())]
        affines += [node.value] if isinstance(node, Position) else []
        return frozenset[int]().union(*[a.axes for a in affines])

    # loads

    def load(self, axes: Sequence[int] | None = None, dtype: np.dtype | None = None, *, plain: bool = False) -> int:
        """Add a load: of a new array, whose dimensions are axes in any order, or of an earlier one in another view.

        A `plain` one has no conditions.
        """
        draw = self.draw
        if axes is None and self.inputs and draw.random() < 0.3:
            number = draw.randrange(len(self.inputs))
            return self._view(number, [self._any_affine() for _ in self.inputs[number][0]])
        if axes is None:
            axes = [a for a in range(len(self.sizes)) if draw.random() < 0.75]
            if draw.random() < 0.4:
                draw.shuffle(axes)
        shape, index = self._natural(axes, plain)
        dtype = dtype or draw.choice(self.palette)
        self.inputs.append((shape, dtype))
        return self._view(len(self.inputs) - 1, index, plain)

    def _natural(self, axes: Sequence[int], plain: bool) -> tuple[tuple[int, ...], list[Affine]]:
        """Return a shape and an index that visit all of it, or all but strides and ends."""
        draw, shape, index = self.draw, list[int](), list[Affine]()
        rest = list(axes)
        while rest:
            axis = rest.pop(0)
            size, affine = self.sizes[axis], along(axis)
            form = draw.random()
            if form < (0.02 if plain else 0.10):
                affine = combine([(-1, affine)]).plus(size - 1)
            elif form < (0.05 if plain else 0.17):
                step = draw.choice((2, 3, 4))
                ahead = draw.randrange(step)
                size, affine = size * step, affine.times(step).plus(ahead)
            elif form < 0.24:
                before, after = draw.randrange(3), draw.randrange(3)
                size, affine = size + before + after, affine.plus(before)
            elif form < 0.31 and size > 2 and not plain:
                before = draw.randint(1, min(3, size - 1))
                size, affine = max(1, size - before - draw.randrange(2)), affine.plus(-before)
            elif form < 0.37 and rest:
                other = rest.pop(0)
                step = draw.choice((1, 1, 2))
                size, affine = step * (size - 1) + self.sizes[other], combine([(step, affine), (1, along(other))])
            elif form < 0.43 and rest:
                other = rest.pop(0)
                size, affine = size * self.sizes[other], combine([(self.sizes[other], affine), (1, along(other))])
            shape.append(size)
            index.append(affine)
        if draw.random() < 0.08:
            place = draw.randrange(len(shape) + 1)
            extra = draw.randint(1, 3)
            shape.insert(place, extra)
            index.insert(place, ZERO.plus(draw.randrange(extra)))
        return tuple(shape), index

    def _any_affine(self) -> Affine:
        draw = self.draw
        axes = draw.sample(range(len(self.sizes)), min(len(self.sizes), draw.choice((0, 1, 1, 1, 2))))
        return combine([(draw.choice((1, 1, 1, -1, 2, -2, 3)), along(a)) for a in axes]).plus(draw.randint(-3, 5))

    def _view(self, number: int, index: Sequence[Affine], plain: bool = False) -> int:
        """Add a load of an input, masked where it may leave the array, and sometimes further."""
        shape, dtype = self.inputs[number]
        mask = []
        for affine, size in zip(index, shape, strict=True):
            inside = Range(affine, 0, size)
            if inside.holds(self.sizes) is not True:
                mask.append(inside.canonical())
        if self.draw.random() < 0.07 and not plain:
            mask += self._ranges()
        fill = self.draw.choice((0, 0, 1) if dtype.kind in "ub" else (0, 0, -1, 2)) if mask else 0
        return self.add(Load(dtype, number, shape, tuple(index), tuple(dict.fromkeys(mask)), Constant.of(fill, dtype)))

    def _ranges(self) -> list[Range]:
        ranges = []
        for _ in range(self.draw.choice((1, 1, 2))):
            affine = self._any_affine()
            low, high = affine.bounds(self.sizes)
            first = self.draw.randint(low, high)
            ranges.append(Range(affine, first, first + self.draw.randint(1, max(1, high - low))).canonical())
        return ranges

    # operations

    def convert(self, number: int, dtype: np.dtype) -> int:
        """Return a node's number in another dtype."""
        if self.nodes[number].dtype == dtype:
            return number
        return self.add(Apply(dtype, "convert_element_type", (number,), (("new_dtype", dtype), ("weak_type", False))))

    def apply(self, x: int, y: int) -> int:
        """Add an operation on nodes, the second converted if need be."""
        draw, dtype = self.draw, self.nodes[x].dtype
        y = self.convert(y, dtype)
        if draw.random() < 0.12:
            return self.convert(x, draw.choice(self.palette))
        kind = "float" if dtype in dtypes.FLOATS else dtype.kind
        op = draw.choice({"float": _FLOAT_OPS, "i": _INT_OPS, "u": _INT_OPS, "b": _BOOL_OPS, "c": _COMPLEX_OPS}[kind])
        if op == "compare":
            return self.add(Apply(BOOL, draw.choice(_COMPARED), (x, y)))
        if op == "select_n":
            return self.add(Apply(dtype, op, (self.condition(), x, y)))
        if op == "real":
            return self.add(Apply(np.dtype(np.float32 if dtype.itemsize == 8 else np.float64), op, (x,)))
        if op in ("neg", "abs", "not", "exp", "sqrt", "logistic", "floor", "conj"):
            if op == "exp":
                x = self.add(Apply(dtype, "min", (x, self.add(Constant.of(3, dtype)))))
            return self.add(Apply(dtype, op, (x,)))
        return self.add(Apply(dtype, op, (x, y)))

    def condition(self) -> int:
        """Return the number of a node that is a bool."""
        bools = [n for n, node in enumerate(self.nodes) if node.dtype == BOOL]
        if bools and self.draw.random() < 0.4:
            return self.draw.choice(bools)
        if self.draw.random() < 0.6:
            return self.add(Inside(tuple(self._ranges())))
        x = self.draw.randrange(len(self.nodes))
        if self.nodes[x].dtype.kind == "c":
            return self.add(Inside(tuple(self._ranges())))
        return self.convert(x, BOOL) if self.nodes[x].dtype == BOOL else self._against_zero(x)

    def _against_zero(self, x: int) -> int:
        dtype = self.nodes[x].dtype
        return self.add(Apply(BOOL, self.draw.choice(_COMPARED), (x, self.add(Constant.of(0, dtype)))))

    def any_node(self) -> int:
        """Return the number of a node, rather a late one."""
        count = len(self.nodes)
        return max(self.draw.randrange(count), self.draw.randrange(count))

    def some_operations(self, most: int) -> None:
        """Add up to so many operations, positions and conditions."""
        for _ in range(self.draw.randint(0, most)):
            if self.draw.random() < 0.1:
                self.add(Position(self.draw.choice([d for d in self.palette if d != BOOL] or [INT32]), self._any_affine()))
            else:
                self.apply(self.any_node(), self.any_node())

    def reduce(self, number: int) -> int:
        """Add a reduction of a node."""
        dtype = self.nodes[number].dtype
        row = math.prod(self.sizes[self.parallel :])
        ops = {"b": ["or", "and", "xor"], "c": ["sum"]}.get(dtype.kind, ["sum", "sum", "max", "min", "arg", "prod"])
        if dtype.kind in "iu":
            ops += ["and", "or", "xor"]
        if dtype in dtypes.FLOATS and row > 12:
            ops.remove("prod")
        op = self.draw.choice(ops)
        if op in ("sum", "prod") and dtype in dtypes.FLOATS and dtype.itemsize == 2:  # as lowering does
            return self.convert(self.add(Reduce(FLOAT32, f"reduce_{op}", self.convert(number, FLOAT32))), dtype)
        if op != "arg":
            return self.add(Reduce(dtype, f"reduce_{op}", number))
        index_dtypes = [np.int32, np.int64, *([np.uint8, np.int16] if row <= 200 else [])]
        return self.add(Reduce(np.dtype(self.draw.choice(index_dtypes)), self.draw.choice(("argmax", "argmin")), number))

    # stores

    def store(self, number: int) -> None:
        """Add a store of a node: per element, per row, or per group of rows."""
        draw, needed = self.draw, set(self.depends(number))
        single = {a for a, n in enumerate(self.sizes) if n == 1}
        per_element = bool(needed & (set(self.inner) - single)) or self._is_per_element(number) or (draw.random() < 0.15)
        axes = set(range(self.parallel)) if draw.random() < 0.75 else needed & set(range(self.parallel))
        if per_element:
            axes |= set(self.inner)
        order = sorted(axes)
        if draw.random() < 0.35:
            draw.shuffle(order)
        index: list[Affine] = []
        for axis in order:
            affine = along(axis)
            index.append(combine([(-1, affine)]).plus(self.sizes[axis] - 1) if draw.random() < 0.1 else affine)
        self.stores.append(Store(tuple([self.sizes[a] for a in order]), tuple(index), number))

    def update(self) -> None:
        """Add an operand that is read where a result is written, with results computed from both and from the operand alone.

        Their memory may be the operand's.
        """
        first = self.draw.choice(self.stores)
        self.inputs.append((first.shape, self.nodes[first.value].dtype))
        operand = self._view(len(self.inputs) - 1, first.index, plain=True)
        stored = {axis for affine in first.index for axis in affine.axes} | {axis for axis, size in enumerate(self.sizes) if size == 1}
        for value in self.draw.sample([self.apply(operand, first.value), self.apply(operand, operand)], 2):
            if self.depends(value) <= stored:  # a condition in it may be of other axes
                self.stores.append(Store(first.shape, first.index, value))

    def _is_per_element(self, number: int) -> bool:
        kernel = Kernel(self.sizes, self.parallel, (), tuple(self.nodes), ())
        return levels(kernel)[number]


def drawn(seed: int, supports: Callable[[np.dtype], bool], most: int = 20_000) -> Kernel:
    """Return the kernel of a seed, of at most so many iterations, with dtypes that a target supports."""
    draw = random.Random(seed)
    while True:
        if seed % 13 == 12:
            kernel = _short_rows(draw, supports)
        else:
            kernel = _product(draw, supports, most) if draw.random() < 0.12 else _loops(draw, supports, most)
        try:
            check_kernel(kernel)
        except JaxprError:
            continue
        if kernel.stores and len(kernel.inputs) + len(kernel.stores) <= 8:
            return kernel


def _palette(draw: random.Random, supports: Callable[[np.dtype], bool]) -> list[np.dtype]:
    """Return some dtypes, float32 more often than others."""
    every = sorted([d for d in dtypes.ALL if supports(d)], key=lambda d: d.name)
    palette = [np.dtype(np.float32)] if draw.random() < 0.3 else []
    return palette + draw.choices(every, k=draw.choice((1, 1, 2, 3)))


def _sizes(draw: random.Random, count: int, most: int) -> tuple[int, ...]:
    sizes = [draw.choice(_SMALL) for _ in range(count)]
    for _ in range(draw.choice((0, 1, 1, 2))):
        axis = draw.randrange(count)
        room = most // (math.prod(sizes) // sizes[axis])
        fitting = [size for size in _EDGES if size <= room]
        if fitting:
            sizes[axis] = draw.choice(fitting)
    return tuple(sizes)


def _loops(draw: random.Random, supports: Callable[[np.dtype], bool], most: int) -> Kernel:
    parallel, inner = draw.choice((1, 1, 2, 2, 2, 3, 4)), draw.choice((0, 0, 0, 1, 1, 1, 2, 3))
    parallel = draw.choice((0, parallel)) if inner else parallel
    sizes = _sizes(draw, parallel + inner, most)
    d = Drawing(draw, _palette(draw, supports), sizes, parallel)
    for _ in range(draw.randint(1, 3)):
        d.load(sorted(range(len(sizes))) if draw.random() < 0.3 else None)
    d.some_operations(3)
    if inner:
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            d.reduce(d.any_node())
            d.some_operations(2)
    for _ in range(draw.choice((1, 1, 2, 3))):
        d.store(d.any_node())
    if inner and not any(isinstance(node, Reduce) for node in d.kernel().nodes) and draw.random() < 0.9:
        d.store(max(n for n, node in enumerate(d.nodes) if isinstance(node, Reduce)))
    if draw.random() < 0.15:
        d.update()
    return d.kernel()


def _short_rows(draw: random.Random, supports: Callable[[np.dtype], bool]) -> Kernel:
    """Return a kernel of rows of a few elements, whose results lie as their operand does, with the axes in any order.

    The results may lie in the operand's memory.
    """
    parallel = draw.choice((1, 2, 2, 2))
    sizes = [draw.randint(2, 4) for _ in range(parallel + draw.choice((1, 1, 2)))]
    sizes[draw.randrange(parallel)] = draw.choice([size for size in _EDGES if size < 200])
    d = Drawing(draw, _palette(draw, supports), tuple(sizes), parallel)
    order = list(range(len(sizes)))
    draw.shuffle(order)
    shape, index = tuple([sizes[axis] for axis in order]), tuple([along(axis) for axis in order])
    d.inputs.append((shape, draw.choice(d.palette)))
    operand = d._view(0, index, plain=True)
    other = d.load(draw.sample(range(parallel), 1), d.nodes[operand].dtype, plain=True)
    total = d.convert(d.reduce(d.apply(operand, draw.choice((operand, other)))), d.nodes[operand].dtype)
    value = d.convert(d.apply(draw.choice((total, d.apply(total, operand))), other), d.nodes[operand].dtype)
    d.stores.append(Store(shape, index, value))
    return d.kernel()


def _product(draw: random.Random, supports: Callable[[np.dtype], bool], most: int) -> Kernel:
    """Return a kernel whose sum is that of products of two loads, with what fusion puts around it."""
    counts = [draw.choice(choice) for choice in ((0, 0, 1), (1, 1, 1, 2), (1, 1, 1, 2), (1, 1, 1, 2))]
    batch, rows, columns = [list(range(sum(counts[:n]), sum(counts[: n + 1]))) for n in range(3)]
    parallel = sum(counts[:3])
    order = list(range(parallel))
    draw.shuffle(order)
    batch, rows, columns = [[order[a] for a in axes] for axes in (batch, rows, columns)]
    sizes = tuple([size + (size == 1 and draw.random() < 0.8) for size in _sizes(draw, sum(counts), most // 2)])
    every = [np.dtype(d) for d in (np.float32, np.float32, np.float64, np.float16, dtypes.bfloat16, np.int32, np.int8, np.uint8, np.bool_)]
    dtype = draw.choice([d for d in every if supports(d)])
    palette = [dtype, *_palette(draw, supports)]
    d = Drawing(draw, palette, sizes, parallel)
    inner = list(range(parallel, len(sizes)))
    sides = []
    for outer in (rows, columns):
        axes = [*batch, *outer, *inner] if draw.random() < 0.5 else [*batch, *inner, *outer]
        sides.append(d.load(axes, dtype, plain=draw.random() < 0.9))
    total_dtype = draw.choice([t for t in (np.float32, np.float64, np.int32) if supports(np.dtype(t))]) if draw.random() < 0.3 else dtype
    if dtype in (np.int8, np.uint8) and draw.random() < 0.5:
        total_dtype = np.int32
    total_dtype = dtype if dtype == BOOL else FLOAT32 if total_dtype in (np.float16, dtypes.bfloat16) else np.dtype(total_dtype)
    left, right = [d.convert(side, total_dtype) for side in sides]
    if draw.random() < 0.1:
        d.some_operations(1)
        left = d.convert(d.any_node(), total_dtype)
    product = d.add(Apply(total_dtype, "and" if dtype == BOOL else "mul", (left, right)))
    total = d.add(Reduce(total_dtype, "reduce_or" if dtype == BOOL else "reduce_sum", product))
    value = d.convert(total, draw.choice(palette)) if draw.random() < 0.4 else total
    for _ in range(draw.choice((0, 0, 1, 2))):
        other = d.load(draw.choice((columns, rows, [*batch, *rows, *columns])))
        value = d.apply(value, other)
    d.store(value)
    if draw.random() < 0.3:
        d.store(draw.choice((total, value, d.any_node())))
    if draw.random() < 0.1:
        d.store(product)
    if draw.random() < 0.3:
        d.update()
    return d.kernel()


def pruned(kernel: Kernel) -> Kernel:
    """Return the kernel without nodes that no store needs, and without inputs that no node reads."""
    needed: set[int] = set()
    waiting = [store.value for store in kernel.stores]
    while waiting:
        n = waiting.pop()
        if n not in needed:
            needed.add(n)
            node = kernel.nodes[n]
            waiting += node.operands if isinstance(node, Apply) else (node.operand,) if isinstance(node, Reduce) else ()
    order = sorted(needed)
    new = {n: k for k, n in enumerate(order)}
    read = sorted({node.input for n in order if isinstance(node := kernel.nodes[n], Load)})
    nodes = [moved(kernel.nodes[n], new, {i: k for k, i in enumerate(read)}) for n in order]
    stores = tuple([Store(s.shape, s.index, new[s.value]) for s in kernel.stores])
    return Kernel(kernel.sizes, kernel.parallel, tuple([kernel.inputs[i] for i in read]), tuple(nodes), stores)


def moved(node: Node, numbers: dict[int, int], inputs: dict[int, int]) -> Node:
    """Return a node with other numbers of nodes and of inputs."""
    if isinstance(node, Apply):
        return Apply(node.dtype, node.op, tuple([numbers[i] for i in node.operands]), node.params)
    if isinstance(node, Reduce):
        return Reduce(node.dtype, node.op, numbers[node.operand])
    return Load(node.dtype, inputs[node.input], node.shape, node.index, node.mask, node.fill) if isinstance(node, Load) else node


def data_for(kernel: Kernel, seed: int) -> list[np.ndarray]:
    """Return inputs: multiples of a half between -4 and 4, whose sums and products are exact, and sometimes what is not finite."""
    numbers = np.random.default_rng(seed)
    inputs = []
    for buffer in kernel.inputs:
        if buffer.dtype == BOOL:
            x = numbers.random(buffer.size) < 0.5
        elif buffer.dtype.kind in "iu":
            x = numbers.integers(0 if buffer.dtype.kind == "u" else -9, 10, buffer.size)
        else:
            x = numbers.integers(-8, 9, buffer.size) / 2 if seed % 3 else numbers.normal(size=buffer.size)
            x = np.array(x, np.float64)
            if seed % 4 == 0 and buffer.size:
                x[numbers.integers(0, buffer.size, 1 + buffer.size // 20)] = numbers.choice([np.nan, np.inf, -np.inf, -0.0])
            x = x + 1j * numbers.integers(-4, 5, buffer.size) if buffer.dtype.kind == "c" else x
        inputs.append(np.asarray(x).astype(buffer.dtype))
    return inputs


def place_of(index: Index, shape: Sequence[int]) -> Affine:
    """Return the row-major number of an index."""
    return combine([(math.prod(shape[d + 1 :]), affine) for d, affine in enumerate(index)])
