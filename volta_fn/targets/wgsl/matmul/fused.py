"""Lower kernels that are matrix products (see `compiler.ir.contraction`).

Operands are read through their index maps, and the kernel's elementwise operations on the sums are an epilogue in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from volta_fn.compiler.contractions import index_maps
from volta_fn.compiler.contractions.matmul_problem import Operand, merged
from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.ir.contraction import Axes, Contraction, contraction_of
from volta_fn.compiler.ir.kernel import Kernel, Load
from volta_fn.compiler.ir.views import row_major
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.emit_values import LaneScope, arrays
from volta_fn.targets.wgsl.loops.kernel_step import Buffers
from volta_fn.targets.wgsl.loops.linear_index import LANES, AxisSpan, Texts
from volta_fn.targets.wgsl.matmul.choice import LITTLE, choose
from volta_fn.targets.wgsl.matmul.compute_dtype import Working, working
from volta_fn.targets.wgsl.matmul.contract import CHOSEN, ProductOptions, contract, is_tiled, legal_options
from volta_fn.targets.wgsl.matmul.epilogues import ResultStore, SumIndex
from volta_fn.targets.wgsl.matmul.indices import digits
from volta_fn.targets.wgsl.matmul.tiles import BufferNumbers
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars.number import is_supported, kind
from volta_fn.targets.wgsl.scalars.shader import Shader


def contracts(kernel: Kernel, device: TargetCapabilities) -> bool:
    """Return whether a kernel is a product whose operands can be read in place.

    Neighbouring invocations must read neighbouring elements.
    """
    found = contraction_of(kernel)
    if found is None:
        return False
    problem = found.problem()
    dtypes = problem.lhs.dtype, problem.rhs.dtype, problem.dtype
    return all(is_supported(d, device) for d in dtypes) and len({*map(kind, dtypes)}) == 1 and all(map(_is_near, problem[:2]))


def is_little(kernel: Kernel, device: TargetCapabilities) -> bool:
    """Return whether a kernel is a product that leaves a GPU underused."""
    return math.prod(kernel.sizes) < LITTLE and contracts(kernel, device)


def _is_near(operand: Operand) -> bool:
    """Return whether an operand is contiguous along an axis of the product."""
    return 1 in (*operand.inner.strides[-1:], *operand.outer.strides[-1:])


def contraction(kernel: Kernel, device: TargetCapabilities, batch_products: int = 0, options: ProductOptions = CHOSEN) -> Routine | None:
    """Return the routine of a kernel that `contracts`; None for others."""
    if not contracts(kernel, device):
        return None
    found = _oriented(kernel, options.swapped)
    epilogue = Fused(found)
    count = len(found.kernel.inputs)
    buffers = BufferNumbers(found.lhs.input, found.rhs.input, count, count + len(found.kernel.stores))
    c, may_split = _maps(found, epilogue), epilogue.may_split(device)
    return contract(c, device, buffers, epilogue, may_split=may_split, batch_products=batch_products, options=options)


def contraction_options(kernel: Kernel, device: TargetCapabilities) -> Iterator[ProductOptions]:
    """Yield the options that `contraction` takes for a kernel."""
    if not contracts(kernel, device):
        return
    for swapped in (None, True, False):
        found = _oriented(kernel, swapped)
        epilogue = Fused(found)
        for options in legal_options(_maps(found, epilogue), device, epilogue.may_split(device)):
            if swapped is not None or options == CHOSEN:
                yield options._replace(swapped=swapped)


def split_k(kernel: Kernel, device: TargetCapabilities) -> int:
    """Return the split-K factor of a kernel; 1 if it is no product."""
    if not contracts(kernel, device):
        return 1
    found = _oriented(kernel, None)
    c = _maps(found, Fused(found))
    return choose(c, working(c.target.dtype), device).fitted(c).splits if is_tiled(c) else 1


def _maps(found: Contraction, epilogue: Fused) -> index_maps.IndexedContraction:
    """Return the contraction as schedules see it."""
    inputs, problem = found.kernel.inputs, found.problem()
    lhs, rhs = [
        index_maps.OperandMap(side.dtype, inputs[load.input].size, side.start, side.stack, side.outer, side.inner)
        for side, load in zip(problem[:2], (found.lhs, found.rhs), strict=True)
    ]
    return index_maps.IndexedContraction(lhs, rhs, epilogue.target())


def _oriented(kernel: Kernel, swapped: bool | None) -> Contraction:
    """Return a contraction whose columns are the contiguous axis of the first result.

    Or it is `swapped`, or not, as is asked for.
    """
    found = contraction_of(kernel)
    assert found is not None
    if swapped is not None:
        return found.swapped() if swapped else found
    store = found.kernel.stores[0]
    side_by_side = [axis for axis, c in row_major(store.index, store.shape).terms if c == 1]
    return found.swapped() if side_by_side and side_by_side[0] in found.rows else found


class Fused:
    """The epilogue of a contraction: the kernel's operations on the sums."""

    def __init__(self, found: Contraction) -> None:
        self.found = found
        kernel, self.inputs = found.epilogue()
        self.analysis = KernelAnalysis(kernel)
        #: The node that loads a sum.
        self.total = next(n for n, node in enumerate(kernel.nodes) if isinstance(node, Load) and node.input == 0)

    def may_split(self, device: TargetCapabilities) -> bool:
        """Return whether the device can bind partial sums and the kernel's buffers."""
        return len({*self.inputs}) + len(self.found.kernel.stores) + 1 <= device.buffers

    def target(self) -> index_maps.ResultMap:
        """Return where the first result's elements are."""
        kernel, offset = self.found.kernel, self.analysis.store_offsets[0]
        steps = dict(offset.terms)

        def walk(axes: Axes) -> index_maps.Walk:
            return merged([kernel.sizes[a] for a in axes], [[steps.get(a, 0) for a in axes]])[0]

        walks = [walk(axes) for axes in (self.found.batch, self.found.rows, self.found.columns)]
        return index_maps.ResultMap(kernel.nodes[self.found.total].dtype, kernel.outputs[0].size, offset.offset, *walks)

    def __call__(self, f: Shader, work: Working, c: index_maps.IndexedContraction, number: int, lanes: int) -> ResultStore:
        """Declare the results; see `Epilogue`."""
        found, sizes = self.found, self.found.kernel.sizes
        columns = tuple([sizes[a] for a in found.columns])
        together = LANES if lanes == LANES and columns[-1] % LANES == 0 else 1
        span = AxisSpan(found.columns, columns, together)
        outputs = tuple(range(number, number + len(found.kernel.stores)))
        nest = arrays(f, self.analysis, (span,), Buffers((-1, *self.inputs), outputs), absent=(0,))

        def store(at: SumIndex, sums: Sequence[str]) -> None:
            axes: dict[int, Texts] = {}
            for names, index in ((found.batch, at.stack), (found.rows, at.row)):
                axes |= {a: (text,) for a, text in zip(names, digits(f, index, [sizes[a] for a in names]), strict=True)}
            group = at.column if together == 1 else f.let("u32", f"{at.column} / {LANES}u")
            here = LaneScope(nest, None, axes).child(span.bind(f, group), span)
            here.numbers[self.total] = tuple([work.number(f, x, c.target.dtype) for x in sums])
            for s in range(len(outputs)):
                here.store(s)

        return ResultStore(together, store)
