"""One declaration makes an elementwise operation whole: every law holds for a new one without another line."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import volta_fn as vf
from tests.laws import laws_for, missing
from tests.samples import on_this_device
from tests.samples.elementwise import samples_of
from volta_fn import dtypes, lax
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.primitives.declare import Domain, Elementwise, elementwise, promoted


@pytest.fixture(scope="module")
def softsign() -> Iterator[Elementwise]:
    """x / (1 + |x|). These lines are all it takes."""
    yield elementwise(
        "softsign",
        lambda x: x / (1 + np.abs(x)),
        operands=dtypes.FLOATS,
        derivatives=[lambda g, out, x: g / (1.0 + lax.abs(x)) ** 2],
        domain=Domain(avoid=(0.0,)),
    )
    del PRIMITIVES["softsign"]


@pytest.fixture(scope="module")
def hypotenuse() -> Iterator[Elementwise]:
    """√(x² + y²), of two operands."""
    yield elementwise(
        "hypotenuse",
        np.hypot,
        operands=dtypes.FLOATS,
        derivatives=[lambda g, out, x, y: g * x / out, lambda g, out, x, y: g * y / out],
        domain=Domain(0.2, 3.0),
    )
    del PRIMITIVES["hypotenuse"]


@pytest.mark.parametrize("name", ["softsign", "hypotenuse"])
def test_every_law_holds(name: str, request: pytest.FixtureRequest) -> None:
    primitive = request.getfixturevalue(name).primitive
    samples = list(map(on_this_device, samples_of(primitive)))
    assert not missing(primitive, {name}) and len(samples) >= 3
    for sample in samples:
        for law in laws_for(sample):
            law(sample)


def test_new_functions_are_like_any(softsign: Elementwise, hypotenuse: Elementwise) -> None:
    """They promote, nest in transforms, and appear in programs under their names."""
    x = np.array([3.0, -4.0], np.float32)
    assert promoted(softsign)(3).dtype == np.float32 and float(softsign(3.0)) == 0.75
    assert float(vf.grad(vf.grad(lambda a: softsign(a) * a))(1.0)) == pytest.approx(0.25)
    total = vf.jit(vf.vmap(lambda a, b: hypotenuse(a, softsign(b)), in_axes=(0, None)))
    assert np.allclose(total(x, np.float32(1.0)), np.hypot(x, 0.5), rtol=1e-6)
    assert "hypotenuse" in total.lower(x, np.float32(1.0)).as_text()


def test_incomplete_primitives_are_named() -> None:
    """What is missing from a primitive is said, and one that was never registered has left no trace."""
    assert "softsign" not in PRIMITIVES or PRIMITIVES["softsign"].arity == 1
    assert missing(PRIMITIVES["sin"], set()) == ["samples in tests/samples"]
