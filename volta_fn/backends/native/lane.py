"""The native lane's side of `compiler.bodies`."""

from __future__ import annotations

from volta_fn.backends.native.matmul import contracts
from volta_fn.backends.native.routines import IN_PLACE, ROUTINES, kernel_routine
from volta_fn.backends.native.scalars import supports
from volta_fn.compiler.bodies import Lane
from volta_fn.compiler.kernels.overwrite import overwritable

LANE = Lane(
    buffers=48,
    supports=supports,
    kernel=kernel_routine,
    equations=ROUTINES,
    in_place=IN_PLACE,
    overwrites=overwritable,
    contracts=contracts,
)
