"""Rotations of space and their interpolation, as in `jax.scipy.spatial.transform`.

Rotations are unit quaternions, which the first section converts from and to other representations; `Rotation` and `Slerp` are the classes.

>>> vf.scipy.spatial.transform.Rotation.from_euler("z", 90, degrees=True).as_rotvec().round(4)
Array([0.    , 0.    , 1.5708], dtype=float32)
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from volta_fn import dtypes, lax, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy.linalg import eigh
from volta_fn.primitives.declare import promote_args

__all__ = ["Rotation", "Slerp"]


# Unit quaternions (x, y, z, w) of rotations, and other representations of these.
#
# All arrays may have batch dimensions in front. Derivatives are finite at the identity, where norms have none.


def norm(vector: Array) -> Array:
    """Return the Euclidean norm along the last axis, kept with size 1.

    Its derivative at 0 is 0.
    """
    square = vnp.sum(vector * vector, -1, keepdims=True)
    return vnp.where(square == 0, 0.0, vnp.sqrt(vnp.where(square == 0, 1.0, square)))


def normalized(quaternion: Array) -> Array:
    """Return a quaternion of norm 1; NaN for 0."""
    return quaternion / norm(quaternion)


def product(p: Array, q: Array) -> Array:
    """Return Hamilton's product: the rotation by q, and then by p."""
    u, v, a, b = p[..., :3], q[..., :3], p[..., 3:], q[..., 3:]
    vector = a * v + b * u + vnp.cross(u, v)
    return vnp.concatenate([vector, a * b - vnp.sum(u * v, -1, keepdims=True)], -1)


def conjugate(quaternion: Array) -> Array:
    """Return the quaternion of the inverse rotation."""
    return vnp.concatenate([-quaternion[..., :3], quaternion[..., 3:]], -1)


def canonical_quaternion(quaternion: Array) -> Array:
    """Return the one of q and -q whose last component that is not 0 is positive.

    "Last" counts w first, then x, y, z.
    """
    x, y, z, w = vnp.moveaxis(quaternion, -1, 0)
    first = vnp.where(w != 0, w, vnp.where(x != 0, x, vnp.where(y != 0, y, z)))
    return vnp.where(first[..., None] < 0, -quaternion, quaternion)


def upper(quaternion: Array) -> Array:
    """Return the one of q and -q with w >= 0, whose angle is at most π."""
    return vnp.where(quaternion[..., 3:] < 0, -quaternion, quaternion)


def quaternion_magnitude(quaternion: Array) -> Array:
    """Return the angle, from 0 to π."""
    return 2.0 * vnp.arctan2(norm(quaternion[..., :3])[..., 0], vnp.abs(quaternion[..., 3]))


def from_rotation_vector(vector: Array) -> Array:
    """Return the quaternion of a rotation by |v| about v."""
    angle = norm(vector)
    small = angle < 1e-3
    safe = vnp.where(small, 1.0, angle)
    square = vnp.sum(vector * vector, -1, keepdims=True)
    scale = vnp.where(small, 0.5 - square / 48.0 + square * square / 3840.0, vnp.sin(0.5 * safe) / safe)
    return vnp.concatenate([scale * vector, vnp.cos(0.5 * angle)], -1)


def to_rotation_vector(quaternion: Array) -> Array:
    """Return the axis times the angle, at most π."""
    q = canonical_quaternion(quaternion)
    vector, real = q[..., :3], q[..., 3:]
    sine = norm(vector)
    small = sine < 1e-3
    ratio = vnp.where(small, sine, 0.0) / vnp.where(small, real, 1.0)
    near = (2.0 - ratio * ratio * (2.0 / 3.0)) / vnp.where(small, real, 1.0)
    far = 2.0 * vnp.arctan2(sine, real) / vnp.where(small, 1.0, sine)
    return vnp.where(small, near, far) * vector


def from_rodrigues(parameters: Array) -> Array:
    """Return the quaternion of modified Rodrigues parameters, axis · tan(angle / 4)."""
    square = vnp.sum(parameters * parameters, -1, keepdims=True)
    return vnp.concatenate([2.0 * parameters, 1.0 - square], -1) / (1.0 + square)


def to_rodrigues(quaternion: Array) -> Array:
    """Return the modified Rodrigues parameters, of norm at most 1."""
    q = upper(quaternion)
    return q[..., :3] / (1.0 + q[..., 3:])


def to_matrix(quaternion: Array) -> Array:
    """Return the matrices (..., 3, 3)."""
    x, y, z, w = vnp.moveaxis(quaternion, -1, 0)
    rows = (
        (x * x - y * y - z * z + w * w, 2.0 * (x * y - z * w), 2.0 * (x * z + y * w)),
        (2.0 * (x * y + z * w), y * y - x * x - z * z + w * w, 2.0 * (y * z - x * w)),
        (2.0 * (x * z - y * w), 2.0 * (y * z + x * w), z * z - x * x - y * y + w * w),
    )
    return vnp.stack([vnp.stack(row, -1) for row in rows], -2)


def quaternion_from_matrix(matrix: Array) -> Array:
    """Return the quaternion of orthogonal matrices with determinant 1.

    4 q qᵀ is linear in the matrix; its column of the largest diagonal element has no cancellation (Markley 2008).
    """
    m = [[matrix[..., i, j] for j in range(3)] for i in range(3)]
    trace = m[0][0] + m[1][1] + m[2][2]
    columns = []
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        column = {i: 1.0 - trace + 2.0 * m[i][i], j: m[j][i] + m[i][j], k: m[k][i] + m[i][k], 3: m[k][j] - m[j][k]}
        columns.append(vnp.stack([column[axis] for axis in range(4)], -1))
    columns.append(vnp.stack([m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1], 1.0 + trace], -1))
    best = vnp.argmax(vnp.stack([m[0][0], m[1][1], m[2][2], trace], -1), -1)[..., None]
    chosen = columns[3]
    for i in range(3):
        chosen = vnp.where(best == i, columns[i], chosen)
    return normalized(chosen)


def about_axis(axis: int, angle: Array) -> Array:
    """Return the quaternion of rotations by `angle` about the x, y or z axis."""
    zero, half = vnp.zeros_like(angle), 0.5 * angle
    return vnp.stack([vnp.sin(half) if i == axis else zero for i in range(3)] + [vnp.cos(half)], -1)


def to_euler(quaternion: Array, axes: tuple[int, int, int], extrinsic: bool) -> Array:
    """Return angles of rotations about three axes (Bernardes and Viollet 2022).

    At gimbal lock, where only their sum or difference is determined, the third angle is 0.
    """
    i, j, k = axes if extrinsic else axes[::-1]
    symmetric = i == k
    k = 3 - i - j if symmetric else k
    sign = (i - j) * (j - k) * (k - i) // 2
    q = [quaternion[..., n] for n in range(4)]
    a, b, c, d = q[3], q[i], q[j], q[k] * sign
    if not symmetric:
        a, b, c, d = a - c, b + d, c + a, d - b
    middle = 2.0 * vnp.arctan2(_length(c, d), _length(a, b))
    at_start, at_end = vnp.abs(middle) <= 1e-7, vnp.abs(middle - math.pi) <= 1e-7
    locked = at_start | at_end
    half_sum, half_difference = _angle(b, a), _angle(d, c)
    first, third = half_sum - half_difference, half_sum + half_difference
    if not extrinsic:
        first, third = third, first
    lone = vnp.where(at_start, 2.0 * half_sum, (-2.0 if extrinsic else 2.0) * half_difference)
    first, third = vnp.where(locked, lone, first), vnp.where(locked, 0.0, third)
    if not symmetric:
        middle = middle - 0.5 * math.pi
        first, third = (first, third * sign) if extrinsic else (first * sign, third)
    return vnp.stack([_wrapped(angle) for angle in (first, middle, third)], -1)


def _length(x: Array, y: Array) -> Array:
    return norm(vnp.stack([x, y], -1))[..., 0]


def _angle(y: Array, x: Array) -> Array:
    """Return arctan2(y, x), with a derivative of 0 where both are 0."""
    undefined = (x == 0) & (y == 0)
    return vnp.where(undefined, 0.0, vnp.arctan2(y, vnp.where(undefined, 1.0, x)))


def _wrapped(angle: Array) -> Array:
    """Return the angle between -π and π."""
    return vnp.where(angle < -np.pi, angle + 2.0 * np.pi, vnp.where(angle > np.pi, angle - 2.0 * np.pi, angle))


# Rotations in three dimensions.


def _floats(function: str, value: Any, *shape: int) -> Array:
    """Return lists or arrays as an array of floats, whose last dimensions are checked."""
    (array,) = promote_args(f"Rotation.{function}", (vnp.asarray(value),), dtypes.FLOATS)
    if array.shape[-len(shape) :] != shape:
        raise ShapeError(f"Rotation.{function}: expected shape (..., {', '.join(map(str, shape))}), got {array.shape}")
    return array


def _axes(function: str, seq: str, least: int) -> tuple[tuple[int, ...], bool]:
    """Return the axes of a sequence, and whether they are extrinsic."""
    if not re.fullmatch(f"[xyz]{{{least},3}}|[XYZ]{{{least},3}}", seq) or any(a == b for a, b in itertools.pairwise(seq)):
        count = "three" if least == 3 else "one to three"
        raise ArgumentError(f"Rotation.{function}: seq must be {count} of 'xyz' (extrinsic) or 'XYZ', none twice in a row, got {seq!r}")
    return tuple("xyz".index(axis) for axis in seq.lower()), seq.islower()


@tree.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Rotation:
    """One rotation, or an array of rotations; an immutable pytree.

    `quat` has unit quaternions (x, y, z, w) in its last dimension; the other dimensions number the rotations. `p * q` is the rotation by
    q and then by p, `rotations[i]` indexes, and `len` and iteration go along the first dimension.

    >>> Rotation = vf.scipy.spatial.transform.Rotation
    >>> quarter = Rotation.from_rotvec([0.0, 0.0, vf.numpy.pi / 2])
    >>> quarter.apply([1.0, 2.0, 3.0]).round(4)
    Array([-2.,  1.,  3.], dtype=float32)
    >>> (quarter * quarter).magnitude().round(4)
    Array(3.1416, dtype=float32)
    """

    quat: Array

    @classmethod
    def concatenate(cls, rotations: Iterable[Rotation]) -> Rotation:
        """Join rotations along their first dimension; single ones count as one row."""
        arrays = [vnp.atleast_2d(r.quat) for r in rotations]
        if not arrays:
            raise ArgumentError("Rotation.concatenate: there are no rotations")
        return cls(vnp.concatenate(arrays))

    @classmethod
    def from_euler(cls, seq: str, angles: Any, degrees: bool = False) -> Rotation:
        """Make rotations of angles about a sequence of axes.

        `seq` has up to three letters: lowercase for axes that stay, uppercase for axes that rotate with the body. `angles` has shape
        (..., len(seq)), or () for one letter. Raises `ArgumentError` for other sequences.
        """
        axes, extrinsic = _axes("from_euler", seq, 1)
        values = vnp.asarray(angles)
        radians = _floats("from_euler", values if values.ndim else values[None], len(axes))
        radians = vnp.deg2rad(radians) if degrees else radians
        result, *others = [about_axis(axis, radians[..., i]) for i, axis in enumerate(axes)]
        for quat in others:
            result = product(quat, result) if extrinsic else product(result, quat)
        return cls(result)

    @classmethod
    def from_matrix(cls, matrix: Any) -> Rotation:
        """Make rotations of orthogonal matrices (..., 3, 3) with determinant 1."""
        return cls(quaternion_from_matrix(_floats("from_matrix", matrix, 3, 3)))

    @classmethod
    def from_mrp(cls, mrp: Any) -> Rotation:
        """Make rotations of modified Rodrigues parameters (..., 3), axis · tan(angle / 4)."""
        return cls(from_rodrigues(_floats("from_mrp", mrp, 3)))

    @classmethod
    def from_quat(cls, quat: Any, *, scalar_first: bool = False) -> Rotation:
        """Make rotations of quaternions (..., 4), which need not have norm 1.

        Their order is x, y, z, w, or w, x, y, z if `scalar_first`. NaN for the quaternion 0.
        """
        components = _floats("from_quat", quat, 4)
        return cls(normalized(vnp.roll(components, -1, -1) if scalar_first else components))

    @classmethod
    def from_rotvec(cls, rotvec: Any, degrees: bool = False) -> Rotation:
        """Make rotations of vectors (..., 3) along the axes, of the angles' lengths."""
        vector = _floats("from_rotvec", rotvec, 3)
        return cls(from_rotation_vector(vnp.deg2rad(vector) if degrees else vector))

    @classmethod
    def identity(cls, num: int | None = None, dtype: Any = float) -> Rotation:
        """Make the identity, `num` times in a row if given."""
        unit = vnp.asarray(np.array([0.0, 0.0, 0.0, 1.0]), dtype)
        return cls(unit if num is None else vnp.tile(unit, (num, 1)))

    @classmethod
    def random(cls, random_key: Any, num: int | None = None) -> Rotation:
        """Sample uniformly distributed rotations: one, or a row of `num`.

        Normal vectors of four dimensions have uniform directions (Shoemake 1992).
        """
        return cls(normalized(random.normal(random_key, (4,) if num is None else (num, 4))))

    def __getitem__(self, indexer: Any) -> Rotation:
        if self.single:
            raise ArgumentTypeError("a single Rotation cannot be indexed")
        rows = indexer if isinstance(indexer, tuple) else (indexer,)
        return Rotation(self.quat[rows] if Ellipsis in [r for r in rows if r is Ellipsis] else self.quat[(*rows, Ellipsis, slice(None))])

    def __len__(self) -> int:
        if self.single:
            raise ArgumentTypeError("a single Rotation has no length")
        return self.quat.shape[0]

    def __iter__(self) -> Iterator[Rotation]:
        return (self[i] for i in range(len(self)))

    def __mul__(self, other: Rotation) -> Rotation:
        if not isinstance(other, Rotation):
            return NotImplemented
        return Rotation(normalized(product(*_promoted_quaternions(self.quat, other.quat))))

    def apply(self, vectors: Any, inverse: bool = False) -> Array:
        """Rotate vectors (..., 3), or with `inverse` rotate them back.

        Their batch dimensions broadcast with the rotations'.
        """
        operand, quat = promote_args("Rotation.apply", (_floats("apply", vectors, 3), self.quat), dtypes.FLOATS)
        matrix = to_matrix(quat)
        return vnp.sum((matrix.mT if inverse else matrix) * operand[..., None, :], -1)

    def as_euler(self, seq: str, degrees: bool = False) -> Array:
        """Return angles (..., 3) about a sequence of three axes, as `from_euler` takes it.

        The first and third are between -π and π, the second between 0 and π if its neighbours are equal, else between -π/2 and π/2. At
        gimbal lock the third angle is 0.
        """
        (i, j, k), extrinsic = _axes("as_euler", seq, 3)
        angles = to_euler(self.quat, (i, j, k), extrinsic)
        return vnp.rad2deg(angles) if degrees else angles

    def as_matrix(self) -> Array:
        """Return the matrices (..., 3, 3)."""
        return to_matrix(self.quat)

    def as_mrp(self) -> Array:
        """Return the modified Rodrigues parameters (..., 3), of norm at most 1."""
        return to_rodrigues(self.quat)

    def as_rotvec(self, degrees: bool = False) -> Array:
        """Return vectors (..., 3) along the axes, of the angles' lengths, at most π."""
        vector = to_rotation_vector(self.quat)
        return vnp.rad2deg(vector) if degrees else vector

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Array:
        """Return the quaternions (..., 4).

        Their order is x, y, z, w, or w, x, y, z if `scalar_first`. With `canonical`, of q and -q the one with positive w (or if that is 0,
        the first of x, y, z that is not).
        """
        quat = canonical_quaternion(self.quat) if canonical else self.quat
        return vnp.roll(quat, 1, -1) if scalar_first else quat

    def inv(self) -> Rotation:
        """Return the inverse rotations."""
        return Rotation(conjugate(self.quat))

    def magnitude(self) -> Array:
        """Return the angles (...) of the rotations, from 0 to π."""
        return quaternion_magnitude(self.quat)

    def mean(self, weights: Any = None) -> Rotation:
        """Return the mean, weighted by `weights` (n,), of a row of n rotations.

        It minimises the sum of squared distances of the matrices (Markley et al. 2007).
        """
        rows = vnp.atleast_2d(self.quat)
        if rows.ndim != 2:
            raise ShapeError(f"Rotation.mean: the rotations must be a row, got shape {rows.shape[:-1]}")
        shares = vnp.ones(rows.shape[0], rows.dtype) if weights is None else lax.convert_element_type(vnp.asarray(weights), rows.dtype)
        if shares.shape != (rows.shape[0],):
            raise ShapeError(f"Rotation.mean: weights must have shape ({rows.shape[0]},), got {shares.shape}")
        _, vectors = eigh((shares[:, None] * rows).T @ rows)
        return Rotation(vectors[:, -1])

    @property
    def single(self) -> bool:
        """Whether it is one rotation, and not an array of them."""
        return self.quat.ndim == 1


def _promoted_quaternions(p: Array, q: Array) -> tuple[Array, Array]:
    """Return quaternions of one dtype and shape."""
    p, q = promote_args("Rotation.__mul__", (p, q), dtypes.FLOATS)
    shape = lax.broadcast_shapes(p.shape, q.shape)
    return vnp.broadcast_to(p, shape), vnp.broadcast_to(q, shape)


# Spherical linear interpolation of rotations.


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
    time_dtype = vnp.asarray(times).dtype
    if time_dtype not in dtypes.REALS:
        raise ArgumentTypeError(f"Slerp: times must be real numbers, got {time_dtype.name}")
    return vnp.asarray(times, dtype)
