"""Unit quaternions (x, y, z, w) of rotations, and other representations of these.

All arrays may have batch dimensions in front. Derivatives are finite at the identity, where norms have none.
"""

from __future__ import annotations

import math

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array


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


def canonical(quaternion: Array) -> Array:
    """Return the one of q and -q whose last component that is not 0 is positive.

    "Last" counts w first, then x, y, z.
    """
    x, y, z, w = vnp.moveaxis(quaternion, -1, 0)
    first = vnp.where(w != 0, w, vnp.where(x != 0, x, vnp.where(y != 0, y, z)))
    return vnp.where(first[..., None] < 0, -quaternion, quaternion)


def upper(quaternion: Array) -> Array:
    """Return the one of q and -q with w >= 0, whose angle is at most π."""
    return vnp.where(quaternion[..., 3:] < 0, -quaternion, quaternion)


def magnitude(quaternion: Array) -> Array:
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
    q = canonical(quaternion)
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


def from_matrix(matrix: Array) -> Array:
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
