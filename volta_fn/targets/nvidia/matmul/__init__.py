"""Products of matrices on the matrix units of NVIDIA GPUs.

In the order in which to read: `problem` (which products, how their operands lie in memory, and tiles), `results` (what is done with sums),
`kernels` (by `mma.sync` and by `wgmma`). Here follow the choice for a kernel of a program, and pairs of products that are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.contractions import Contraction, ResultMap, contraction_of, paired_contraction
from volta_fn.compiler.ir.index import row_major
from volta_fn.compiler.ir.kernel import (
    Apply,
    Constant,
    DefUse,
    FusedProgram,
    Inside,
    Kernel,
    KernelCall,
    Load,
    Node,
    Position,
    ProgramNode,
    Reduce,
    renumbered,
)
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Var
from volta_fn.primitives.contraction import BFLOAT16_3X, TENSORFLOAT32
from volta_fn.primitives.quantized import QuantizedLayout
from volta_fn.targets.nvidia.kernel import kernel_dispatch
from volta_fn.targets.nvidia.matmul.kernels import WarpGroupKernel, WarpKernel
from volta_fn.targets.nvidia.matmul.problem import (
    HALVES,
    AnySchedule,
    MatrixOperand,
    MatrixProduct,
    Schedule,
    choose,
    copy_kernel,
    faster_transposed,
    matrix_product,
)
from volta_fn.targets.nvidia.matmul.results import Epilogue, Results, Rounded, partial_sums
from volta_fn.targets.wgsl import loops
from volta_fn.targets.wgsl.matmul.contract import KernelEpilogue, finishing
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Workspaces

#: The fewest multiplications, and the fewest rows, columns and terms, with which matrix units are faster than shaders.
_FEWEST, _NARROWEST = 1 << 25, 16

#: The fewest multiplications by `wgmma` where sums are of few terms, and how many these are: 32×1024×256 in bfloat16 took 2.2 µs on an
#: H200, by shaders 3.6. A training step of an LSTM was not faster when its products of four times as many terms used `wgmma`, too.
_FEWEST_OF_SHORT, _SHORT = 1 << 22, 512

#: How many times as many there must be with each copy of an operand, and the fewest multiplications per element of a copy.
_FEWEST_PER_COPY, _FEWEST_PER_ELEMENT = 4, 128

#: The dtypes and operations of epilogues that are computed in registers; others are a second dispatch.
DTYPES = frozenset(map(np.dtype, (dtypes.bfloat16, np.float16, np.float32, np.int32, np.uint32, np.bool_)))
OPERATIONS = frozenset(
    "abs acos acosh add and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp convert_element_type cos cosh div eq exp exp2 "
    "expm1 floor ge gt integer_pow is_finite le log log1p log2 logaddexp logistic lt max min mul ne neg not or pow rem round "
    "round_half_even rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt sub tan tanh xor".split()
)


class ProductOptions(NamedTuple):
    """Choices of a product's routine that are forced; None: the routine's own."""

    schedule: AnySchedule | None = None
    #: Whether the epilogue is computed in registers.
    inside: bool | None = None


CHOSEN = ProductOptions()


def computes_product(kernel: Kernel, capabilities: TargetCapabilities) -> bool:
    """Return whether a kernel is a product that is worth matrix units."""
    return _matrices(kernel, capabilities) is not None


def contraction(kernel: Kernel, capabilities: TargetCapabilities, options: ProductOptions = CHOSEN) -> Routine | None:
    """Return the routine of a kernel that is such a product; None for others."""
    matrices = _matrices(kernel, capabilities)
    if matrices is None:
        return None
    contraction, product = matrices
    schedule = options.schedule or choose(product, capabilities)
    inside = _can_be_inside(contraction) if options.inside is None else options.inside
    first = len(kernel.inputs) + len(kernel.stores)
    if inside and schedule.splits == 1:
        copies = _Copies(contraction, product, first, capabilities)
        whole = _whole(contraction, product, copies.numbers, schedule, capabilities)
        return Routine((*copies.dispatches, whole), tuple(copies.sizes))
    last = finishing(contraction, schedule.splits, capabilities) if contraction.second is None else None
    if last is None:
        return None
    copies = _Copies(contraction, product, first + 1, capabilities)
    buffers = tuple(dict.fromkeys([*copies.numbers, first]))
    partial = dispatch_of(product, schedule, partial_sums(product, schedule, len(buffers) - 1), buffers, 1, capabilities)
    size = 4 * schedule.splits * product.batch * product.m * product.n
    return Routine((*copies.dispatches, partial, last), (size, *copies.sizes))


class _Copies(Workspaces):
    """The copies of operands that matrix units cannot read in place."""

    def __init__(self, contraction: Contraction, product: MatrixProduct, first: int, device: TargetCapabilities) -> None:
        super().__init__(first)
        #: The numbers of the operands' buffers, and the dispatches that copy.
        self.numbers: list[int] = []
        self.dispatches: list[Dispatch] = []
        problem = contraction.problem()
        sides = [(contraction.lhs, problem.lhs, product.lhs, 2), (contraction.rhs, problem.rhs, product.rhs, 1)]
        if contraction.second is not None and product.second is not None:
            sides.append((contraction.second[0], problem.rhs, product.second, 1))
        for load, side, operand, remainders in sides:
            if not operand.is_copy:
                self.numbers.append(load.input)
                continue
            elements = contraction.kernel.inputs[load.input].size
            kernel = copy_kernel(side, elements, None if operand.dtype == side.dtype else remainders)
            self.numbers.append(self.new(kernel.outputs[0].size * operand.dtype.itemsize))
            self.dispatches += elementwise_dispatches(kernel, (load.input, self.numbers[-1]), device)


def elementwise_dispatches(kernel: Kernel, numbers: Sequence[int], device: TargetCapabilities) -> list[Dispatch]:
    """Return the dispatches of an elementwise kernel on buffers of these numbers."""
    routine = loops.routine(kernel, device, {})
    assert not routine.workspaces, "an elementwise kernel is one dispatch"
    return [replace(d, buffers=tuple([numbers[number] for number in d.buffers])) for d in routine.dispatches]


def _matrices(kernel: Kernel, capabilities: TargetCapabilities) -> tuple[Contraction, MatrixProduct] | None:
    """Return a kernel as a product, or a pair of products, that is worth matrix units."""
    contraction = contraction_of(kernel) if capabilities.matrix_units else None
    if contraction is None:
        return _pair(kernel, capabilities) if capabilities.matrix_units == "wgmma" else None
    contraction = contraction.oriented()
    product = _product(contraction, capabilities)
    swapped = contraction.swapped()
    if product is not None and product.rhs.is_copy and product.lhs.dtype == np.float32 and _can_be_inside(swapped):
        other = _product(swapped, capabilities)  # in which the right operand, if it is not contiguous along k, is the left one
        if other is not None and not other.rhs.is_copy and other.lhs.is_copy <= product.lhs.is_copy:
            contraction, product = swapped, other
    if product is not None and product.rhs.is_copy and product.lhs.dtype == np.float32:
        options = {_product(c, capabilities, transposes=True): c for c in (contraction, swapped) if c is contraction or _can_be_inside(c)}
        best = faster_transposed([*options], product, capabilities)
        contraction, product = (contraction, product) if best is None else (options[best], best)
    return None if product is None or not is_worthwhile(product, capabilities) else (contraction, product)


def _product(contraction: Contraction, capabilities: TargetCapabilities, *, transposes: bool = False) -> MatrixProduct | None:
    """Return a contraction as a product for matrix units, if they compute it.

    For `transposes` see `matrix_product`.
    """
    total = contraction.kernel.nodes[contraction.total]
    precision = total.precision if isinstance(total, Reduce) else ""
    dtypes = HALVES
    if capabilities.matrix_units == "wgmma":
        dtypes |= {np.dtype(np.int8), np.dtype(np.float32)} if precision == TENSORFLOAT32 else {np.dtype(np.int8)}
    product = matrix_product(contraction.problem(), 0, 1, dtypes, pairs=precision == BFLOAT16_3X, transposes=transposes)
    if product is None or contraction.lhs.input != contraction.rhs.input or product.lhs.is_copy or product.rhs.is_copy:
        return product
    return product._replace(rhs=product.rhs._replace(binding=0))  # one buffer is bound once


def _pair(kernel: Kernel, capabilities: TargetCapabilities) -> tuple[Contraction, MatrixProduct] | None:
    """Return a kernel as a pair of products with the same left operand.

    Operands have numbers of 16 bits, and are read in place.
    """
    pair = paired_contraction(kernel)
    if pair is None or pair.second is None or pair.oriented() != pair or not _can_be_inside(pair):
        return None
    other = pair._replace(rhs=pair.second[0], total=pair.second[1])
    first, second = matrix_product(pair.problem(), 0, 1), matrix_product(other.problem(), 0, 2)
    if first is None or second is None or len({pair.lhs.input, pair.rhs.input, other.rhs.input}) < 3:
        return None
    if first.lhs.is_copy or first.rhs.is_copy or not isinstance(second.rhs, MatrixOperand):
        return None
    if first.lhs != second.lhs or second.rhs != first.rhs._replace(binding=2, start=second.rhs.start):
        return None
    product = first._replace(second=second.rhs)
    return (pair, product) if is_worthwhile(product, capabilities) else None


def multiplies_dequantized(avals: Sequence[ShapedArray], layout: QuantizedLayout, transposed: bool, device: TargetCapabilities) -> bool:
    """Return whether matrix units multiply by a quantised matrix.

    It is converted to floats before.
    """
    x, outputs = avals[0], layout.size if transposed else avals[1].shape[-2]
    if not device.matrix_units or x.dtype not in HALVES or min(x.shape[-2], x.shape[-1], outputs) < _NARROWEST:
        return False
    return x.size * outputs >= _FEWEST


def is_worthwhile(product: MatrixProduct, capabilities: TargetCapabilities) -> bool:
    """Return whether matrix units compute a product faster than shaders do."""
    if min(product.m, product.n, product.k) < _NARROWEST:
        return False
    sides = product.lhs, product.rhs
    if any(side.is_copy and other.outer < _FEWEST_PER_ELEMENT for side, other in (sides, sides[::-1])):
        return False
    copies = product.lhs.is_copy + product.rhs.is_copy
    is_short = product.k <= _SHORT and product.lhs.dtype in HALVES and not copies and capabilities.matrix_units == "wgmma"
    fewest = _FEWEST_OF_SHORT if is_short else _FEWEST
    return product.batch * product.m * product.n * product.k >= fewest * _FEWEST_PER_COPY**copies


def _can_be_inside(contraction: Contraction) -> bool:
    """Return whether an epilogue can be computed in registers."""
    for node in contraction.epilogue()[0].nodes:
        if node.dtype not in DTYPES or not isinstance(node, Apply | Constant | Inside | Load | Position):
            return False
        if isinstance(node, Apply) and node.op not in OPERATIONS:
            return False
    return True


def _whole(
    contraction: Contraction, product: MatrixProduct, operands: Sequence[int], schedule: AnySchedule, capabilities: TargetCapabilities
) -> Dispatch:
    """Return the dispatch of a product with its epilogue; `operands` are buffers."""
    _, loaded = contraction.epilogue()
    count, stores = len(contraction.kernel.inputs), len(contraction.kernel.stores)
    outputs = range(count, count + stores)
    buffers = tuple(dict.fromkeys([*operands, *loaded, *outputs]))
    bindings = {number: binding for binding, number in enumerate(buffers)}
    results: Results = Epilogue(contraction, schedule, bindings, [bindings[number] for number in outputs])
    target = _rounding(contraction)
    if target is not None and isinstance(schedule, Schedule):
        results = Rounded(product, schedule, target, bindings[count])
    return dispatch_of(product, schedule, results, buffers, stores, capabilities)


def _rounding(contraction: Contraction) -> ResultMap | None:
    """Return where results are stored if sums are only rounded.

    None for other epilogues, sums of integers, and dtypes of other than 16 bits.
    """
    kernel, loaded = contraction.epilogue()
    dtype = kernel.outputs[0].dtype
    if loaded or len(kernel.stores) != 1 or contraction.second is not None:
        return None
    value = kernel.nodes[kernel.stores[0].value]
    if dtype not in HALVES or not isinstance(value, Apply) or value.op != "convert_element_type":
        return None
    sums = kernel.nodes[value.operands[0]]
    if not isinstance(sums, Load) or sums.dtype != np.float32:
        return None
    target = replace(KernelEpilogue(contraction).target(), dtype=dtype)
    return target if Rounded.fits(target) else None


def dispatch_of(
    product: MatrixProduct, schedule: AnySchedule, results: Results, buffers: tuple[int, ...], stores: int, capabilities: TargetCapabilities
) -> Dispatch:
    """Return the dispatch of a product.

    The last `stores` of the buffers are its results.
    """
    kernel: WarpGroupKernel | WarpKernel
    if isinstance(schedule, Schedule):
        kernel = WarpGroupKernel(product, schedule, results, len(buffers))
    else:
        kernel = WarpKernel(product, schedule, results, len(buffers))
    most = capabilities.processors * schedule.residents if isinstance(schedule, Schedule) else capabilities.groups
    return kernel_dispatch(kernel.header, buffers, stores, kernel.text(), min(kernel.total, most))


# Pairs of products: gates and what they multiply.
#
# Both are products of the same left operand, whose rows they read once, and the epilogue of one reads the results of the other, which need
# not be stored then.


def join_products(program: FusedProgram, device: TargetCapabilities) -> FusedProgram:
    """Join products with those whose results their epilogues read.

    Both have the same left operand.
    """
    index = DefUse(program.nodes, program.roots)
    outputs = {program.root(v) for v in program.outputs if isinstance(v, Var)}
    nodes: list[ProgramNode | None] = [*program.nodes]
    for number, node in enumerate(program.nodes):
        if not isinstance(node, KernelCall) or not computes_product(node.kernel, device):
            continue
        for before in sorted({index.position(v) for v in program.reads(node)} - {-1}):
            first = nodes[before]
            if not isinstance(first, KernelCall) or first is not program.nodes[before]:
                continue
            readers = {v: {n for n in index.consumers.get(v, []) if n != number} for v in first.results}
            if any(n < number for others in readers.values() for n in others):
                continue  # they would have to wait
            joined = _joined(first, node, {v for v in first.results if v in outputs or readers[v]}, program.root)
            if joined is None or len(joined.operands) + len(joined.results) > device.kernel_buffers:
                continue
            if computes_product(first.kernel, device) and computes_product(joined.kernel, device):
                nodes[before], nodes[number] = None, joined
                break
    return program._replace(nodes=tuple([node for node in nodes if node is not None]))


def _joined(first: KernelCall, second: KernelCall, stored: Collection[Var], root: Callable[[Var], Var]) -> KernelCall | None:
    """Return a kernel that computes what two do.

    None if they have other axes, or the second reads results of the first elsewhere than where it stores its own. The kernel stores the
    results of the first that are in `stored`.
    """
    a, b = first.kernel, second.kernel
    if (a.sizes, a.parallel) != (b.sizes, b.parallel):
        return None
    read = [root(v) for v in second.operands]
    variables = list(dict.fromkeys([*[root(v) for v in first.operands], *[v for v in read if v not in first.results]]))
    inputs = {n: variables.index(root(v)) for n, v in enumerate(first.operands)}
    nodes: list[Node] = [renumbered(node, {n: n for n in range(len(a.nodes))}, inputs) for node in a.nodes]
    stores = dict(zip(first.results, a.stores, strict=True))
    inputs = {n: variables.index(v) for n, v in enumerate(read) if v not in stores}
    new: dict[int, int] = {}
    for n, node in enumerate(b.nodes):
        if isinstance(node, Load) and node.input not in inputs:
            store = stores[read[node.input]]
            if node.mask or row_major(node.index, node.shape) != row_major(store.index, store.shape):
                return None
            new[n] = store.value
        else:
            new[n] = len(nodes)
            nodes.append(renumbered(node, new, inputs))
    results = [(replace(store, value=new[store.value]), v) for store, v in zip(b.stores, second.results, strict=True)]
    results += [(store, v) for v, store in stores.items() if v in stored]
    buffers = dict(zip([*[root(v) for v in first.operands], *read], (*a.inputs, *b.inputs), strict=True))
    kernel = Kernel(a.sizes, a.parallel, tuple([buffers[v] for v in variables]), tuple(nodes), tuple([store for store, _ in results]))
    return KernelCall(kernel, tuple(variables), tuple([v for _, v in results]))
