"""Add up the partial sums of split-K, always in the same order."""

from __future__ import annotations

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.epilogues import Epilogue
from volta_fn.targets.wgsl.matmul.indices import digits
from volta_fn.targets.wgsl.matmul.results import results
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars.memory import Array
from volta_fn.targets.wgsl.scalars.shader import Shader

_INVOCATIONS = 128


def combine(
    c: IndexedContraction, work: Working, splits: int, device: TargetCapabilities, epilogue: Epilogue, source: int, result: int
) -> Dispatch:
    """Write the results from `splits` arrays [stack, m, n] of partial sums.

    They are in the buffer number `source`; without any, results are zeros.
    """
    f = Shader(device, _INVOCATIONS)
    each = 4 if c.n % 4 == 0 and work.lanes == 4 else 1
    put = results(f, work, c, result, epilogue, each)
    size = c.batch * c.m * c.n
    partials = f.buffer(source, work.dtype, False, splits * size if each == 4 else 0) if splits else None
    number = f.let("u32", f"group * {_INVOCATIONS}u + local")
    with f.block(f"if ({number} < {size // each}u)"):
        sums = [f.var(work.type, f"{work.type}()") for _ in range(each)]
        if partials is not None:
            _add_partials(f, work, partials, sums, splits, size // each, number)
        stack, row, column = digits(f, number, (c.batch, c.m, c.n // each))
        every = f"vec4<{work.type}>({', '.join(sums)})" if each == 4 else sums[0]
        f.emit(f"{put}({stack}, {row}, {column} * {each}u, {every});")
    return f.dispatch(-(-size // each // _INVOCATIONS))


def _add_partials(f: Shader, work: Working, partials: Array, sums: list[str], splits: int, size: int, number: str) -> None:
    """Add to `sums`, one or four, the elements `number` of all arrays of partial sums.

    Each array has `size` elements, or vectors of four.
    """
    with f.loop(splits) as i:
        offset = f.let("u32", f"{i} * {size}u + {number}")
        found = partials.load4(offset) if len(sums) == 4 else [partials.load(offset)]
        for total, x in zip(sums, found, strict=True):
            f.emit(f"{total} = {work.add(total, x.text)};")
