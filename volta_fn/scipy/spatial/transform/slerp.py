"""Spherical linear interpolation of rotations."""

from __future__ import annotations

import dataclasses
from typing import Any

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentTypeError, ShapeError
from volta_fn.scipy.spatial.transform.rotation import Rotation


@tree.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Slerp:
    """Rotations between given ones, at constant angular velocity; an immutable pytree.

    `Slerp.init(times, rotations)` makes it. The fields are the times (n,), their differences (n - 1,), the rotations at all but the last
    time, and the rotation vectors (n - 1, 3) that lead from each to the next.

    >>> Rotation, Slerp = vf.scipy.spatial.transform.Rotation, vf.scipy.spatial.transform.Slerp
    >>> keys = Rotation.from_euler("z", [[0.0], [90.0]], degrees=True)
    >>> Slerp.init([0.0, 1.0], keys)(0.5).as_rotvec(degrees=True).round(3)
    Array([ 0.,  0., 45.], dtype=float32)
    """

    times: Array
    timedelta: Array
    rotations: Rotation
    rotvecs: Array

    @classmethod
    def init(cls, times: Any, rotations: Rotation) -> Slerp:
        """Interpolate `rotations`, a row of two or more, at increasing `times` (n,).

        Raises `ArgumentTypeError` for other objects, and `ShapeError` if the shapes do not fit. With times that do not increase, the
        interpolation is not defined.
        """
        if not isinstance(rotations, Rotation):
            raise ArgumentTypeError(f"Slerp: rotations must be a Rotation, got {type(rotations).__name__}")
        quat = rotations.quat
        if quat.ndim != 2 or quat.shape[0] < 2:
            raise ShapeError(f"Slerp: rotations must be a row of at least two, got shape {quat.shape[:-1]}")
        moments = _as_times(times, quat.dtype)
        if moments.shape != quat.shape[:1]:
            raise ShapeError(f"Slerp: times must have shape ({quat.shape[0]},), one for each rotation, got {moments.shape}")
        starts, ends = Rotation(quat[:-1]), Rotation(quat[1:])
        return cls(moments, vnp.diff(moments), starts, (starts.inv() * ends).as_rotvec())

    def __call__(self, times: Any) -> Rotation:
        """Return the rotations at `times`, a scalar or a vector; others extrapolate."""
        moments = _as_times(times, self.times.dtype)
        if moments.ndim > 1:
            raise ShapeError(f"Slerp: times must be a scalar or a vector, got shape {moments.shape}")
        index = vnp.clip(vnp.searchsorted(self.times, moments) - 1, 0, self.timedelta.shape[0] - 1)
        share = (moments - self.times[index]) / self.timedelta[index]
        return self.rotations[index] * Rotation.from_rotvec(self.rotvecs[index] * share[..., None])


def _as_times(times: Any, dtype: Any) -> Array:
    given = vnp.asarray(times).dtype
    if given not in dtypes.REALS:
        raise ArgumentTypeError(f"Slerp: times must be real numbers, got {given.name}")
    return vnp.asarray(times, dtype)
