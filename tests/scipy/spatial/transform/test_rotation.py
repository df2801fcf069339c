"""Rotations against SciPy's: every constructor and method."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation as ScipyRotation

import volta_fn as vf
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.scipy.spatial.transform import Rotation

pytestmark = pytest.mark.wide

RNG = np.random.default_rng(0)
SEQUENCES = ["".join(s) for s in itertools.product("xyz", repeat=3) if s[0] != s[1] != s[2]]
SEQUENCES += [s.upper() for s in SEQUENCES]
#: Among the quaternions: the identity, half turns, and tiny angles.
SPECIAL = [[0, 0, 0, 1], [0, 0, 0, -1], [1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 1, 0], [1e-5, 0, 0, 1], [3e-4, -4e-4, 0, -1], [1, 1, 0, 1e-9]]
QUATERNIONS = np.concatenate([RNG.normal(size=(24, 4)), SPECIAL])
MINE, THEIRS = Rotation.from_quat(QUATERNIONS), ScipyRotation.from_quat(QUATERNIONS)


def close(rotations: Rotation, expected: ScipyRotation, tolerance: float = 1e-13) -> None:
    """Compare as matrices: q and -q are the same rotation."""
    np.testing.assert_allclose(rotations.as_matrix(), expected.as_matrix(), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "name, options",
    [
        ("as_matrix", {}), ("as_mrp", {}), ("as_quat", {}), ("as_quat", {"canonical": True}), ("as_quat", {"scalar_first": True}),
        ("as_rotvec", {}), ("as_rotvec", {"degrees": True}), ("magnitude", {}),
    ],
)  # fmt: skip
def test_representations(name, options):
    expected = getattr(THEIRS, name)(**options)
    np.testing.assert_allclose(getattr(MINE, name)(**options), expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(getattr(MINE[3], name)(**options), expected[3], rtol=1e-13, atol=1e-13)
    batch = getattr(Rotation(MINE.quat.reshape(4, 8, 4)), name)(**options)
    np.testing.assert_allclose(batch, expected.reshape(4, 8, *expected.shape[1:]), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("seq", SEQUENCES)
def test_euler_angles(seq):
    generic = np.abs(QUATERNIONS).min(1) > 1e-3
    for degrees in (False, True):
        angles = MINE.as_euler(seq, degrees=degrees)
        expected = THEIRS[generic].as_euler(seq, degrees=degrees)
        np.testing.assert_allclose(np.asarray(angles)[generic], expected, rtol=1e-11, atol=1e-11)
        close(Rotation.from_euler(seq, angles, degrees=degrees), THEIRS, 5e-7)  # near gimbal lock the third angle is 0 within 1e-7
        close(Rotation.from_euler(seq, expected, degrees=degrees), ScipyRotation.from_euler(seq, expected, degrees=degrees))


LOCKED = [(seq, angle) for seq in ("xyz", "ZYX") for angle in (np.pi / 2, -np.pi / 2)]
LOCKED += [(seq, angle) for seq in ("zxz", "XYX") for angle in (0.0, np.pi)]


@pytest.mark.parametrize("seq, middle", LOCKED)
@pytest.mark.filterwarnings("ignore:Gimbal lock")
def test_gimbal_lock(seq, middle):
    mine, theirs = (R.from_euler(seq, [0.3, middle, 0.4]) for R in (Rotation, ScipyRotation))
    np.testing.assert_allclose(mine.as_euler(seq), theirs.as_euler(seq), atol=1e-7)
    assert np.isfinite(vf.jacrev(lambda q: Rotation(q).as_euler(seq))(mine.quat)).all()


@pytest.mark.parametrize("seq", ["x", "Z", "xy", "YZ", "zxz"])
def test_fewer_angles(seq):
    angles = RNG.uniform(-4, 4, size=(6, len(seq)))
    close(Rotation.from_euler(seq, angles), ScipyRotation.from_euler(seq, angles))
    close(Rotation.from_euler(seq, angles[0]), ScipyRotation.from_euler(seq, angles[0]))
    assert Rotation.from_euler("y", 0.5).single


def test_constructors():
    close(MINE, THEIRS)
    first = np.roll(QUATERNIONS, 1, -1)
    close(Rotation.from_quat(first, scalar_first=True), THEIRS)
    close(Rotation.from_quat(QUATERNIONS[0].tolist()), THEIRS[0], 5e-7)  # lists are float32
    close(Rotation.from_matrix(THEIRS.as_matrix()), THEIRS)
    close(Rotation.from_matrix(THEIRS[:8].as_matrix().reshape(2, 4, 3, 3))[1], THEIRS[4:8])
    vectors = np.concatenate(
        [RNG.normal(size=(5, 3)) * 3, np.zeros((1, 3)), RNG.normal(size=(2, 3)) * 1e-4, RNG.normal(size=(2, 3)) * 1e-8]
    )
    close(Rotation.from_rotvec(vectors), ScipyRotation.from_rotvec(vectors))
    close(Rotation.from_rotvec(vectors * 50, degrees=True), ScipyRotation.from_rotvec(vectors * 50, degrees=True))
    np.testing.assert_allclose(Rotation.from_rotvec(vectors / 9).as_rotvec(), vectors / 9, rtol=1e-14)
    close(Rotation.from_mrp(vectors), ScipyRotation.from_mrp(vectors))
    close(Rotation.identity(dtype=np.float64), ScipyRotation.identity())
    close(Rotation.identity(3), ScipyRotation.identity(3))
    close(Rotation.concatenate([MINE[:2], MINE[5], MINE[7:]]), ScipyRotation.concatenate([THEIRS[:2], THEIRS[5], THEIRS[7:]]))


def test_random_rotations_are_uniform():
    rotations = Rotation.random(vf.random.key(0), 4000)
    np.testing.assert_allclose(np.asarray(rotations.as_matrix()).mean(0), np.zeros((3, 3)), atol=0.05)  # 5 standard errors of 0.009
    # The angle of a uniform rotation has the density (1 - cos) / π.
    assert float(rotations.magnitude().mean()) == pytest.approx(np.pi / 2 + 2 / np.pi, abs=0.05)
    np.testing.assert_allclose(vf.numpy.linalg.norm(rotations.quat, axis=-1), 1, rtol=1e-6)
    assert Rotation.random(vf.random.key(0)).single


def test_composition():
    close(MINE * MINE[::-1], THEIRS * THEIRS[::-1])
    close(MINE[0] * MINE, THEIRS[0] * THEIRS)
    close(MINE * MINE[0], THEIRS * THEIRS[0])
    close(MINE.inv(), THEIRS.inv())
    close(MINE * MINE.inv(), ScipyRotation.identity(len(THEIRS)))
    np.testing.assert_allclose((MINE * MINE[1]).as_quat(canonical=True), (THEIRS * THEIRS[1]).as_quat(canonical=True), atol=1e-13)
    with pytest.raises(TypeError):
        MINE * 2


@pytest.mark.parametrize("inverse", [False, True])
def test_vectors(inverse):
    vectors = RNG.normal(size=(len(THEIRS), 3))
    np.testing.assert_allclose(MINE.apply(vectors, inverse), THEIRS.apply(vectors, inverse), atol=1e-13)
    np.testing.assert_allclose(MINE[0].apply(vectors, inverse), THEIRS[0].apply(vectors, inverse), atol=1e-13)
    np.testing.assert_allclose(MINE.apply(vectors[0], inverse), THEIRS.apply(vectors[0], inverse), atol=1e-13)
    np.testing.assert_allclose(MINE[2].apply(vectors[0], inverse), THEIRS[2].apply(vectors[0], inverse), atol=1e-13)


def test_means():
    close(MINE[:10].mean(), THEIRS[:10].mean())
    weights = RNG.uniform(size=10)
    close(MINE[:10].mean(weights), THEIRS[:10].mean(weights))
    close(MINE[3].mean(), THEIRS[3])


def test_indexing_and_lengths():
    assert len(MINE) == len(THEIRS) == len(list(MINE))
    close(MINE[4], THEIRS[4])
    close(MINE[-3:], THEIRS[-3:])
    close(MINE[np.array([3, 1])], THEIRS[np.array([3, 1])])
    assert Rotation(MINE.quat.reshape(4, 8, 4))[1:, 2].quat.shape == (3, 4)
    assert MINE[4].single
    assert not MINE.single
    for call in (lambda: MINE[0][0], lambda: len(MINE[0])):
        with pytest.raises(ArgumentTypeError, match="single Rotation"):
            call()


def test_rotations_are_frozen_pytrees():
    with pytest.raises(AttributeError):
        MINE.quat = None
    vectors = RNG.normal(size=(len(THEIRS), 3))
    np.testing.assert_allclose(
        vf.jit(lambda r, v: (r * r).inv().apply(v))(MINE, vectors), (THEIRS * THEIRS).inv().apply(vectors), atol=1e-13
    )
    np.testing.assert_allclose(vf.vmap(lambda r, v: r.apply(v))(MINE, vectors), THEIRS.apply(vectors), atol=1e-13)
    close(vf.vmap(Rotation.from_rotvec)(vectors), ScipyRotation.from_rotvec(vectors))
    assert vf.tree.leaves(MINE)[0] is MINE.quat


@pytest.mark.parametrize("convert", ["from_rotvec", "from_mrp", "from_quat", "from_matrix"])
def test_slopes(convert):
    """Differentiate through every representation, also at the identity."""
    to_rotation, back = getattr(Rotation, convert), f"as_{convert[5:]}"
    vector = np.array([1.0, -2.0, 0.5])

    def function(x: np.ndarray) -> vf.Array:
        rotation = to_rotation(x)
        return rotation.apply(vector) + rotation.as_rotvec() + rotation.as_mrp() * rotation.magnitude() + rotation.as_euler("xyz")

    points = [np.asarray(getattr(MINE[i], back)()) for i in (0, 3)]
    for x in points:
        slopes = np.asarray(vf.jacrev(function)(x))
        steps = np.eye(x.size).reshape(x.size, *x.shape) * 1e-6
        expected = np.stack([(function(x + s) - function(x - s)) / 2e-6 for s in steps], -1)
        np.testing.assert_allclose(slopes.reshape(expected.shape), expected, rtol=1e-6, atol=1e-7)
    identity = np.asarray(getattr(Rotation.identity(dtype=np.float64), back)())
    assert np.isfinite(
        vf.jacrev(lambda x: to_rotation(x).apply(vector) + to_rotation(x).as_rotvec() + to_rotation(x).as_mrp())(identity)
    ).all()


def test_dtypes():
    for dtype in (np.float32, np.float64):
        rotation = Rotation.from_quat(QUATERNIONS.astype(dtype))
        results = [rotation.as_matrix(), rotation.as_rotvec(), rotation.as_mrp(), rotation.as_euler("zyx"), rotation.magnitude()]
        assert {r.dtype for r in [*results, rotation.inv().quat, (rotation * rotation).quat, rotation.mean().quat]} == {np.dtype(dtype)}
        # atan2 of a rounded sine; the half turn's axis has either sign.
        np.testing.assert_allclose(rotation.as_matrix(), THEIRS.as_matrix(), atol=5e-7 if dtype == np.float32 else 1e-14)
    assert Rotation.from_euler("x", 90, degrees=True).quat.dtype == np.float32


def test_wrong_arguments_are_named():
    for call, error, words in [
        (lambda: Rotation.from_euler("xx", [1.0, 2.0]), ArgumentError, "'xx'"),
        (lambda: Rotation.from_euler("xY", [1.0, 2.0]), ArgumentError, "'xY'"),
        (lambda: Rotation.from_euler("", []), ArgumentError, "one to three"),
        (lambda: Rotation.from_euler("xyz", [1.0, 2.0]), ShapeError, r"\(\.\.\., 3\)"),
        (lambda: MINE.as_euler("xy"), ArgumentError, "three"),
        (lambda: Rotation.from_quat([1.0, 2.0, 3.0]), ShapeError, "from_quat"),
        (lambda: Rotation.from_matrix(np.eye(2)), ShapeError, "from_matrix"),
        (lambda: MINE.apply(np.ones(4)), ShapeError, "apply"),
        (lambda: MINE.mean(np.ones(3)), ShapeError, "weights"),
        (lambda: Rotation.concatenate([]), ArgumentError, "no rotations"),
    ]:
        with pytest.raises(error, match=words):
            call()
