"""Rotary positions, beside their papers' formulas written pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest

from volta_fn import jit, nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.language.layers import rotary_rotation

BASE, FEATURES, ORIGINAL = 1000.0, 16, 64


def turned(rope: nn.RopeParameters, positions: np.ndarray, longest: int = 128) -> tuple[np.ndarray, np.ndarray]:
    rotation = jit(lambda p: rotary_rotation(p, rope, FEATURES, longest))(vnp.asarray(positions))
    return np.asarray(rotation.cos, np.float64), np.asarray(rotation.sin, np.float64)


def check(rope: nn.RopeParameters, rates: list[float], factor: float = 1.0, last: int = 40, longest: int = 128) -> None:
    positions = np.arange(last + 1)[None]
    cos, sin = turned(rope, positions, longest)
    angles = positions[..., None] * np.array(rates)
    np.testing.assert_allclose(cos, factor * np.cos(angles), atol=2e-5)
    np.testing.assert_allclose(sin, factor * np.sin(angles), atol=2e-5)


def rate(i: int, base: float = BASE, features: int = FEATURES) -> float:
    return float(base ** (-2 * i / features))


def test_plain_partial_and_linear() -> None:
    check(nn.RopeParameters(BASE), [rate(i) for i in range(8)])
    check(nn.RopeParameters(BASE, partial_rotary_factor=0.5), [rate(i, features=8) for i in range(4)])
    check(nn.RopeParameters(BASE, "linear", factor=4.0), [rate(i) / 4 for i in range(8)])


def test_llama3() -> None:
    rates = []
    for i in range(8):
        wavelength = 2 * math.pi / rate(i)
        if wavelength < ORIGINAL / 4:
            rates.append(rate(i))
        elif wavelength > ORIGINAL:
            rates.append(rate(i) / 8)
        else:
            smooth = (ORIGINAL / wavelength - 1) / (4 - 1)
            rates.append((1 - smooth) * rate(i) / 8 + smooth * rate(i))
    check(nn.RopeParameters(BASE, "llama3", factor=8.0, original_max_position_embeddings=ORIGINAL), rates)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn(truncate: bool) -> None:
    rates = []
    bounds = [FEATURES * math.log(ORIGINAL / (2 * math.pi * turns)) / (2 * math.log(BASE)) for turns in (32, 1)]
    low, high = (math.floor(bounds[0]), math.ceil(bounds[1])) if truncate else bounds
    low, high = max(low, 0), min(high, FEATURES - 1)
    for i in range(8):
        ramp = min(max((i - low) / (high - low), 0), 1)
        rates.append(rate(i) / 4 * ramp + rate(i) * (1 - ramp))
    scaled = nn.RopeParameters(BASE, "yarn", factor=4.0, original_max_position_embeddings=ORIGINAL, truncate=truncate)
    check(scaled, rates, 0.1 * math.log(4) + 1)
    options = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, "truncate": truncate}
    check(nn.RopeParameters(BASE, "yarn", attention_factor=1.5, **options), rates, 1.5)  # type: ignore[arg-type]
    both = (0.1 * 0.7 * math.log(4) + 1) / (0.1 * 0.3 * math.log(4) + 1)
    check(nn.RopeParameters(BASE, "yarn", mscale=0.7, mscale_all_dim=0.3, **options), rates, both)  # type: ignore[arg-type]


@pytest.mark.parametrize("last", [20, 90])
def test_dynamic(last: int) -> None:
    base = BASE * (3 * max(last + 1, 32) / 32 - 2) ** (FEATURES / (FEATURES - 2))
    check(nn.RopeParameters(BASE, "dynamic", factor=3.0), [rate(i, base) for i in range(8)], last=last, longest=32)


@pytest.mark.parametrize("last", [63, 64])
def test_longrope(last: int) -> None:
    short, long = tuple(1 + 0.1 * i for i in range(8)), tuple(2.0 + i for i in range(8))
    rates = [rate(i) / (long if last >= ORIGINAL else short)[i] for i in range(8)]
    rope = nn.RopeParameters(BASE, "longrope", original_max_position_embeddings=ORIGINAL, short_factor=short, long_factor=long)
    check(rope, rates, math.sqrt(1 + math.log(2) / math.log(ORIGINAL)), last=last)


def test_rotation_leaves_features_beyond_the_pairs() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 16)).astype(np.float32)
    rotation = rotary_rotation(vnp.arange(3), nn.RopeParameters(BASE, partial_rotary_factor=0.5), 16, 64)
    from volta_fn.nn.layers.multi_head_attention import rotate_pairs

    out = np.asarray(rotate_pairs(vnp.asarray(x), *rotation))
    np.testing.assert_array_equal(out[..., 8:], x[..., 8:])
    np.testing.assert_allclose(out[..., :8], np.asarray(nn.apply_rotary(vnp.asarray(x[..., :8]), vnp.arange(3), BASE)), atol=1e-6)


def test_bad_arguments() -> None:
    with pytest.raises(ShapeError, match=r"\(…, T\)"):
        rotary_rotation(3, nn.RopeParameters(), 8, 64)
    with pytest.raises(ArgumentError, match="pairs of features"):
        rotary_rotation(vnp.arange(3), nn.RopeParameters(partial_rotary_factor=0.3), 10, 64)
    short = nn.RopeParameters(rope_type="longrope", original_max_position_embeddings=8, short_factor=(1.0,), long_factor=(1.0,))
    with pytest.raises(ArgumentError, match="need 4 numbers"):
        rotary_rotation(vnp.arange(3), short, 8, 64)


def test_no_positions() -> None:
    for rope in (nn.RopeParameters(), nn.RopeParameters(rope_type="dynamic", factor=2.0)):
        assert rotary_rotation(vnp.zeros((1, 0), "int32"), rope, 8, 64).cos.shape == (1, 0, 4)
