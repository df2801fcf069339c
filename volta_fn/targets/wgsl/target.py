"""A GPU as a compilation target: its capabilities, routines and passes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.node_passes import (
    DeferralPolicy,
    defer_products,
    defer_small_kernels,
    duplicate_outputs,
    split_k_into_consumers,
)
from volta_fn.compiler.passes.attention import keep_attention, replace_attention
from volta_fn.compiler.passes.expansions import (
    expand_cholesky,
    expand_fourier_transforms,
    expand_quantized_products,
    expand_ragged_products,
    keep_negative_indices,
)
from volta_fn.compiler.passes.loops import drop_delay_stacks
from volta_fn.compiler.target import CommandPass, Item, NodePass, Pass, ProgramPass, RoutineKey, Target, TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import LruCache
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, program_cache
from volta_fn.primitives.call import optimization_barrier_p
from volta_fn.primitives.contraction import ragged_dot_p
from volta_fn.primitives.fourier import fft_p
from volta_fn.primitives.linalg.solvers import cholesky_p
from volta_fn.primitives.quantized import BLOCK_NUMBERS, quantized_dot_p
from volta_fn.primitives.scan import scan_p
from volta_fn.targets.wgsl import attention, convolution, library, loops, matmul, quantized
from volta_fn.targets.wgsl.commands import fuse_horizontally
from volta_fn.targets.wgsl.loops.routine import is_small
from volta_fn.targets.wgsl.routine import Routine
from volta_fn.targets.wgsl.scalars import supports

# Limits of devices.

#: WebGPU's names of limits, with the fields of `TargetCapabilities`, whose defaults every WebGPU device guarantees.
LIMITS = {
    "maxStorageBuffersPerShaderStage": "buffers",
    "maxStorageBufferBindingSize": "binding",
    "maxComputeWorkgroupStorageSize": "workgroup_memory",
    "maxComputeInvocationsPerWorkgroup": "invocations",
    "maxComputeWorkgroupsPerDimension": "groups",
    "minStorageBufferOffsetAlignment": "alignment",
}

#: Bytes of the largest buffer that every WebGPU device has.
LARGEST_BUFFER = 1 << 28


# List the routines of kernels and equations.

#: A generator of an equation's routine for a GPU: (operands' types, parameters, capabilities) -> routine, or None if there is none.
GpuRoutineMaker = Callable[[tuple[ShapedArray, ...], dict[str, Any], TargetCapabilities], Routine | None]

#: By the names of primitives.
ROUTINES: dict[str, GpuRoutineMaker] = {
    **attention.ROUTINES, **matmul.ROUTINES, **quantized.ROUTINES, **convolution.ROUTINES, **library.ROUTINES,
}  # fmt: skip

#: Primitives whose routines may store the result in the memory of an operand, with its position. The first dispatch of such a routine
#: copies that operand to the result; it is left out if they are one memory (`Writer.routine_of` in `writer.py`).
IN_PLACE: dict[str, int] = library.IN_PLACE


def kernel_routine(kernel: Kernel, capabilities: TargetCapabilities, overwrites: Mapping[int, int], deferred_work: int = 0) -> Routine:
    """Generate a kernel's routine.

    `overwrites` maps outputs to inputs of the same memory. For a product that runs in one dispatch with others, `deferred_work` counts the
    multiplications of all of them.
    """
    product = matmul.contraction(kernel, capabilities, deferred_work) if not overwrites else None
    return product or loops.routine(kernel, capabilities, overwrites)


#: The most routines in the cache of a device.
_MOST_ROUTINES = 1024


class RoutineCache:
    """A cache of the most recently used routines of a target."""

    def __init__(self) -> None:
        #: By their keys; False for keys without a routine.
        self._recent: LruCache[Routine | Literal[False]] = LruCache(_MOST_ROUTINES)

    def __call__(self, key: RoutineKey) -> Routine | None:
        """Return the routine of a key; None if the target has none."""
        routine = self._recent.get(key.key)
        if routine is None:
            routine = self._recent.setdefault(key.key, key.make() or False)
        return routine or None


# A GPU as a compilation target, with the passes that it adds to the pipeline.

#: The most buffers that fusion gives a kernel: more gain little, even where the device has them.
_KERNEL_BUFFERS = 24
#: The most buffers of a kernel whose further outputs save copies.
_MOST_BUFFERS = 32

#: The fewest products without dependents that are deferred, and the most bytes that deferred products may read in total.
_DEFERRED, _DEFERRED_BYTES = 8, 1 << 28


class WgslTarget(Target):
    """Shaders for one GPU."""

    name = "wgsl"
    host_log_level = logging.WARNING
    in_place = IN_PLACE
    #: The most numbers of a quantised matrix that exist as floats at a time, where a product with it has no routine.
    dequantized_numbers = BLOCK_NUMBERS

    def __init__(self, capabilities: TargetCapabilities) -> None:
        self.capabilities = capabilities._replace(kernel_buffers=min(capabilities.buffers, _KERNEL_BUFFERS))
        self._keep_attention = program_cache(partial(keep_attention, worthwhile=self._attends))
        self.equations = {name: partial(_routine, maker, self.capabilities) for name, maker in ROUTINES.items()}

    def supports(self, op: str, dtypes: Sequence[Any], params: Mapping[str, Any]) -> bool:
        """Return True if kernels can do a scalar operation on operands of these dtypes."""
        return supports(op, dtypes, params, self.capabilities)

    def supports_reduction(self, dtype: Any) -> bool:
        """Return True: complex numbers are pairs, which kernels can add and multiply, too."""
        return True

    def keeps_as_kernel(self, kernel: Kernel) -> bool:
        """Return True if a matrix product is worth a kernel that reads these views."""
        return matmul.computes_product(kernel, capabilities=self.capabilities)

    def kernel_routine(self, kernel: Kernel, deferred_work: int = 0) -> Routine:
        """Generate the routine of a kernel."""
        return kernel_routine(kernel, self.capabilities, {}, deferred_work)

    def split_k(self, kernel: Kernel) -> int:
        """Return the split-K factor of a kernel; 1 if it is no product."""
        return matmul.split_k(kernel, self.capabilities)

    def is_small_product(self, kernel: Kernel) -> bool:
        """Return True if a kernel is a product that leaves the GPU underused."""
        return matmul.is_small_product(kernel, self.capabilities)

    def keep_calls(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Return the program with equations for calls of attention worth a routine."""
        return self._keep_attention(closed)

    def passes(self) -> Sequence[Pass]:
        """Return the passes that GPUs add: for routines, and for fewer, fuller dispatches."""
        capabilities = self.capabilities
        most = min(capabilities.buffers, _MOST_BUFFERS)
        small = partial(is_small, capabilities=capabilities)
        passes: list[Pass] = [
            ProgramPass(
                "Fourier transforms",
                "Expand Fourier transforms to products with small matrices.",
                expand_fourier_transforms,
                simplify_after=True,
                subjects=frozenset({fft_p}),
            ),
            ProgramPass(
                "Cholesky factors",
                "Expand Cholesky factorisations to those of panels, and products.",
                partial(expand_cholesky, panel_width=partial(library.panel_width, capabilities=capabilities)),
                simplify_after=True,
                subjects=frozenset({cholesky_p}),
            ),
            ProgramPass(
                "attention",
                "Replace hand-written softmax(QKᵀ)V by a routine.",
                partial(replace_attention, worthwhile=self._attends),
                simplify_after=True,
            ),
            ProgramPass(
                "quantised products",
                "Expand products with quantised matrices to blocks of rows, where there is no routine.",
                partial(expand_quantized_products, has_routine=self.has_quantized_routine, block_numbers=self.dequantized_numbers),
                simplify_after=True,
                subjects=frozenset({quantized_dot_p}),
            ),
            ProgramPass(
                "ragged products",
                "Expand products of rows in groups to blocks of rows.",
                expand_ragged_products,
                simplify_after=True,
                subjects=frozenset({ragged_dot_p}),
            ),
            ProgramPass(
                "delay stacks",
                "Derive a scan's stacked previous carries by shifting its stacked carries.",
                drop_delay_stacks,
                subjects=frozenset({scan_p}),
            ),
            ProgramPass(
                "negative indices",
                "Let gathers and sums of rows count negative indices from the end.",
                keep_negative_indices,
                simplify_after=True,
            ),
            NodePass("duplicate outputs", "Store values that are several outputs several times.", partial(duplicate_outputs, most=most)),
            NodePass(
                "split-K",
                "Split long sums of products in chunks whose partial sums the next kernel adds.",
                partial(split_k_into_consumers, splits=self.split_k, most=capabilities.kernel_buffers),
            ),
            NodePass(
                "late small kernels",
                "Move small kernels to where they are needed, next to each other.",
                partial(defer_small_kernels, is_small=small),
            ),
        ]
        if capabilities.buffers >= 3 * _DEFERRED:  # a dispatch can bind two operands and a result of each
            policy = DeferralPolicy(self.is_small_product, max_bytes=_DEFERRED_BYTES, min_products=_DEFERRED)
            run = partial(defer_products, policy=policy)
            passes.append(
                NodePass("deferred products", "Move small products that no other depends on to the end, to run in one dispatch.", run)
            )
        return [*passes, CommandPass("horizontal fusion", "Fuse independent dispatches into one.", fuse_horizontally)]

    def has_quantized_routine(self, eqn: Equation) -> bool:
        """Return True if a product with a quantised matrix is best computed by a routine."""
        return quantized.has_routine(eqn)

    def _attends(self, avals: tuple[ShapedArray, ...], form: Any) -> bool:
        return attention.worthwhile(avals, form, self.capabilities)

    def host_reason(self, item: Item) -> str | None:
        """Return why NumPy computes an item; None if the target generates code for it."""
        if item.key is None and isinstance(item.node, Equation) and item.node.primitive is optimization_barrier_p:
            return None  # the writer of commands copies literals, which alone are left of a barrier
        return super().host_reason(item)


def _routine(
    maker: Callable[..., Routine | None], capabilities: TargetCapabilities, avals: tuple[ShapedArray, ...], params: dict[str, Any]
) -> Routine | None:
    return maker(avals, params, capabilities)
