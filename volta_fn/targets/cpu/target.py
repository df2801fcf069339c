"""The native lane's side of `compiler.bodies`."""

from __future__ import annotations

from volta_fn.compiler.ir.overwrite import overwritable
from volta_fn.compiler.lowering.program import Lane
from volta_fn.targets.cpu.matmul import contracts
from volta_fn.targets.cpu.routines import IN_PLACE, ROUTINES, kernel_routine
from volta_fn.targets.cpu.scalars import supports

LANE = Lane(
    buffers=48,
    supports=supports,
    kernel=kernel_routine,
    equations=ROUTINES,
    in_place=IN_PLACE,
    overwrites=overwritable,
    contracts=contracts,
)
