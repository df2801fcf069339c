"""The CPU as a compilation target, with the routines that it generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.passes.attention import keep_attention, replace_attention
from volta_fn.compiler.passes.dce import with_products_together
from volta_fn.compiler.passes.expansions import (
    expand_quantized_products,
    expand_ragged_products,
    keep_negative_indices,
    read_narrow_operands,
)
from volta_fn.compiler.target import Item, LoweredProgram, Pass, ProgramPass, RoutineKey, RoutineMaker, Target, TargetCapabilities, forced
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, program_cache
from volta_fn.core.primitive import Primitive
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.contraction import ragged_dot_p
from volta_fn.primitives.data_movement.gather import gather_p
from volta_fn.primitives.quantized import quantized_dot_p
from volta_fn.targets.cpu import attention, lapack, library, loops, matmul, quantized
from volta_fn.targets.cpu.library.scans import loop_key
from volta_fn.targets.cpu.routine import MOST_ARRAYS, Routine, routine_of
from volta_fn.targets.cpu.scalars import supports

#: Packages that few programs need, imported on first use.
_CONVOLUTION, _FOURIER = deferred("volta_fn.targets.cpu.convolution"), deferred("volta_fn.targets.cpu.fourier")

#: Makers of routines, by the names of primitives.
ROUTINES: dict[str, RoutineMaker] = {
    **matmul.ROUTINES,
    **quantized.ROUTINES,
    "conv_general_dilated": lambda avals, params: _CONVOLUTION.conv_general_dilated(avals, params),
    **attention.ROUTINES,
    **library.ROUTINES,
    **lapack.ROUTINES,
    "fft": lambda avals, params: _FOURIER.fft(avals, params),
}
#: The operands whose memory results may be, by the names of primitives.
IN_PLACE: dict[str, int] = {**library.IN_PLACE, **lapack.IN_PLACE}

_keep_attention = program_cache(partial(keep_attention, worthwhile=attention.worthwhile))


class CpuTarget(Target):
    """Machine code for the CPU."""

    name = "cpu"
    capabilities = TargetCapabilities(float16=True, float64=True, int64=True, fma=True, fp_contract=False, kernel_buffers=48)
    equations = ROUTINES
    in_place = IN_PLACE

    def supports(self, op: str, dtypes: Sequence[Any], params: Mapping[str, Any]) -> bool:
        """Return True if kernels can do a scalar operation on operands of these dtypes."""
        return supports(op, dtypes, params)

    def keeps_as_kernel(self, kernel: Kernel) -> bool:
        """Return True if a product is worth being a kernel: tiles of sums, or loops."""
        return matmul.has_product_routine(kernel) or matmul.suits_loops(kernel)

    def uses_product_routine(self, kernel: Kernel) -> bool:
        """Return True if a kernel is computed as a product, not by loops."""
        return matmul.has_product_routine(kernel) and not matmul.suits_loops(kernel)

    def kernel_routine(self, kernel: Kernel, deferred_work: int = 0) -> Routine | None:
        """Generate the routine of a kernel, as a product or as loops; None if unsupported."""
        return matmul.contraction(kernel) if self.uses_product_routine(kernel) else loops.routine(kernel)

    def routine(self, key: RoutineKey) -> Routine | None:
        """Generate the routine of a key; None if there is none, on this CPU."""
        return routine_of(key)

    def keep_calls(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Return the program with equations for calls of attention worth a routine."""
        return _keep_attention(closed)

    def passes(self) -> Sequence[Pass]:
        """Return the passes that the CPU adds."""
        recognize = partial(replace_attention, worthwhile=attention.worthwhile)
        by_blocks = partial(expand_quantized_products, has_routine=quantized.has_routine)
        keep = partial(keep_negative_indices, primitives=(gather_p,), elements=True)

        def expansion(name: str, description: str, run: Callable[[ClosedJaxpr], ClosedJaxpr], *subjects: Primitive) -> ProgramPass:
            return ProgramPass(name, description, run, simplify_after=True, subjects=frozenset(subjects))

        return [
            expansion("attention", "Replace hand-written softmax(QKᵀ)V by a routine.", recognize),
            expansion("quantised products", "Expand products with quantised matrices of many rows to blocks.", by_blocks, quantized_dot_p),
            expansion("ragged products", "Expand products of rows in groups to blocks of rows.", expand_ragged_products, ragged_dot_p),
            expansion("narrow operands", "Let products read operands before exact conversions.", read_narrow_operands),
            ProgramPass(
                "neighbouring products", "Bring products of one small array with several matrices together.", with_products_together
            ),
            expansion("negative indices", "Let gathers count negative indices from the end.", keep, gather_p),
        ]

    def loop_key(self, eqn: Equation, programs: Sequence[LoweredProgram]) -> RoutineKey | None:
        """Return the key of a loop over single numbers; None for other control flow."""
        return loop_key(eqn, programs)

    def host_reason(self, item: Item) -> str | None:
        """Return why NumPy computes an item; None if the target generates code for it."""
        return excess_of_arrays(item) or super().host_reason(item)

    def explain_host(self, item: Item) -> str:
        """Explain why an item that the target generates no code for runs on the host."""
        return excess_of_arrays(item) or super().explain_host(item)

    def all_kernel_routines(self, kernel: Kernel) -> Iterator[tuple[str, Routine]]:
        """Yield every routine that the target may generate for a kernel, for tests.

        Each comes with the choices that are forced for it.
        """
        for product in matmul.contraction_options(kernel):
            if (routine := matmul.contraction(kernel, product)) is not None:
                yield f"product: {forced(product)}", routine
        for options in loops.options_of(kernel):
            if (routine := loops.routine(kernel, options)) is not None:
                yield f"loops: {forced(options)}", routine


def excess_of_arrays(item: Item) -> str | None:
    """Return why an item has too many arrays for a routine; None if it has not."""
    count = len(item.operands) + len(item.results)
    if item.key is None or count <= MOST_ARRAYS:
        return None
    return f"it has {count} operands and results, and a routine has at most {MOST_ARRAYS}"


TARGET = CpuTarget()
