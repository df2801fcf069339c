"""An NVIDIA GPU as a compilation target: WGSL's, with matrix units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.passes.dce import bucket_sums
from volta_fn.compiler.passes.expansions import transpose_convolution_operands
from volta_fn.compiler.passes.loops import pass_constants
from volta_fn.compiler.target import LoweredProgram, NodePass, Pass, ProgramPass, RoutineKey, TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Equation
from volta_fn.targets.nvidia import attention, collectives, convolution, float8, matmul, recurrence, rows
from volta_fn.targets.nvidia.matmul import join_products
from volta_fn.targets.nvidia.peers import Peers
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.target import WgslTarget

#: Bytes of values above which consumers compute cheap values again: a dispatch that another one waits for takes longer than any small
#: array does.
_RECOMPUTE_ABOVE = 0


class NvidiaTarget(WgslTarget):
    """Kernels for one NVIDIA GPU."""

    name = "nvidia"
    dequantized_numbers = 1 << 26

    def __init__(self, capabilities: TargetCapabilities, shared: Peers | None = None) -> None:
        """Describe a GPU, with the memory that it shares with those of other processes."""
        super().__init__(capabilities._replace(scatters_rows=False, recompute_above=_RECOMPUTE_ABOVE))
        makers = attention.ROUTINES | convolution.ROUTINES | float8.ROUTINES
        routines = {name: partial(maker, device=self.capabilities) for name, maker in makers.items()}
        shaders = self.equations
        routines |= {
            name: partial(_first_of, partial(maker, device=self.capabilities), shaders[name]) for name, maker in rows.ROUTINES.items()
        }
        one_query = partial(rows.attention, device=self.capabilities)
        routines["attention_routine"] = partial(_first_of, one_query, routines["attention_routine"])
        routines["products_of_row"] = partial(rows.products_of_row, device=self.capabilities)
        self.equations = {**shaders, **routines}
        self._shared = shared if capabilities.matrix_units else None  # whose architecture orders accesses of peers' memory
        if self._shared is not None:
            of_peers = {name: partial(maker, shared=self._shared) for name, maker in collectives.ROUTINES.items()}
            self.equations = {**self.equations, **of_peers}

    def keeps_as_kernel(self, kernel: Kernel) -> bool:
        """Return True if a matrix product is worth a kernel that reads these views.

        One of few rows is an equation.
        """
        return not rows.computes_product(kernel, self.capabilities) and super().keeps_as_kernel(kernel)

    def kernel_routine(self, kernel: Kernel, deferred_work: int = 0) -> Routine:
        """Generate the routine of a kernel: for matrix units, or else a shader."""
        return matmul.contraction(kernel, self.capabilities) or super().kernel_routine(kernel, deferred_work)

    def loop_key(self, eqn: Equation, programs: Sequence[LoweredProgram]) -> RoutineKey | None:
        """Return the key of the routine of a recurrence; None for other loops."""
        return recurrence.loop_key(eqn, self.capabilities)

    def split_k(self, kernel: Kernel) -> int:
        """Return the split-K factor of a kernel.

        Sums on matrix units are split by their own routine.
        """
        return 1 if matmul.computes_product(kernel, self.capabilities) else super().split_k(kernel)

    def is_small_product(self, kernel: Kernel) -> bool:
        """Return True if a kernel is a product that leaves the GPU underused.

        Those on matrix units are none.
        """
        return not matmul.computes_product(kernel, self.capabilities) and super().is_small_product(kernel)

    def has_quantized_routine(self, eqn: Equation) -> bool:
        """Return True if a product with a quantised matrix is best computed by a routine.

        With many rows the matrix is converted to floats before, for matrix units.
        """
        avals = [v.aval for v in eqn.invars]
        if rows.quantized_product(avals, eqn.params, self.capabilities) is not None:
            return True
        return not matmul.multiplies_dequantized(avals, **eqn.params, device=self.capabilities) and super().has_quantized_routine(eqn)

    def passes(self) -> Sequence[Pass]:
        """Return the passes that GPUs add.

        Before them come those for sums between processes, for constants of recurrences, and for operands of convolutions.
        """
        orders = partial(convolution.operand_orders, device=self.capabilities)
        run = partial(transpose_convolution_operands, orders=orders)
        description = "Transpose operands of convolutions to what matrix units read in place."
        passes = [ProgramPass("channels last", description, run, simplify_after=True), *super().passes()]
        if self.capabilities.matrix_units:
            passes.insert(0, ProgramPass("constants of scans", "Make constants of scans' bodies operands.", pass_constants))
        if self.capabilities.matrix_units == "wgmma":
            join = partial(join_products, device=self.capabilities)
            passes.append(NodePass("pairs of products", "Join gates' products with those that they multiply.", join))
        fuse = partial(rows.fuse_products_of_rows, device=self.capabilities)
        passes.append(NodePass("products of a row", "Fuse products of the same row, and the kernel that computes it.", fuse))
        if self._shared is None:
            return passes
        buckets = partial(bucket_sums, sums=partial(collectives.sums, shared=self._shared))
        description = "Sum arrays between processes as soon as they are computed."
        return [ProgramPass("buckets of sums", description, buckets, simplify_after=True), *passes]

    def _attends(self, avals: tuple[ShapedArray, ...], form: Any) -> bool:
        by_one_query = rows.attends_by_one_query(avals, form, self.capabilities)
        return by_one_query or attention.worthwhile(avals, form, self.capabilities) or super()._attends(avals, form)


def _first_of(first: Callable[..., Routine | None], second: Callable[..., Routine | None], avals: Any, params: Any) -> Routine | None:
    """Return the routine of one generator, or else of another one."""
    return first(avals, params) or second(avals, params)
