"""Store sums: through an epilogue, or as partial sums in a workspace.

A *writer* is a function in the shader, ``put(stack, row, column, sums)``, of the sums of `lanes` consecutive columns, the first of which is
a multiple of `lanes`. It leaves out what is beyond the last row or column.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.compiler.contractions.index_maps import IndexedContraction
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.epilogues import Epilogue, ResultStore, SumIndex
from volta_fn.targets.wgsl.scalars.number import Number
from volta_fn.targets.wgsl.scalars.shader import Shader


def results(f: Shader, work: Working, c: IndexedContraction, number: int, epilogue: Epilogue, lanes: int) -> str:
    """Write the function that stores results by an epilogue; return its name."""
    return _function(f, work, c, lanes, epilogue(f, work, c, number, lanes))


def partial(f: Shader, work: Working, c: IndexedContraction, number: int, splits: int, lanes: int) -> str:
    """Write the function that stores partial sums to a workspace; return its name.

    The workspace is an array [splits, stack, m, n]; `stack` is given as ``split * batch + stack``.
    """
    fours = c.n % 4 == 0 and lanes == 4
    array = f.buffer(number, work.dtype, True, splits * c.batch * c.m * c.n if fours else 0)

    def store(index: SumIndex, sums: Sequence[str]) -> None:
        at = f.let("u32", f"({index.stack} * {c.m}u + {index.row}) * {c.n}u + {index.column}")
        numbers = [Number(work.dtype, x) for x in sums]
        if fours:
            array.store4(f.let("u32", f"{at} / 4u"), numbers)
        else:
            array.store(at, numbers[0])

    return _function(f, work, c, lanes, ResultStore(4 if fours else 1, store))


def _function(f: Shader, work: Working, c: IndexedContraction, lanes: int, found: ResultStore) -> str:
    main, f.statements = f.statements, []
    with f.block(f"if (row < {c.m}u && column < {c.n}u)"):
        sums = [f"sums.{e}" for e in "xyzw"] if lanes == 4 else ["sums"]
        found.store(SumIndex("stack", "row", "column"), sums[: found.together])
        for e in range(found.together, lanes):
            with f.block(f"if (column + {e}u < {c.n}u)"):
                found.store(SumIndex("stack", "row", f.let("u32", f"column + {e}u")), [sums[e]])
    body, f.statements = f.statements, main
    type_ = f"vec4<{work.type}>" if lanes == 4 else work.type
    return f.helper("put", "\n".join([f"fn put(stack: u32, row: u32, column: u32, sums: {type_}) {{", *body, "}"]))
