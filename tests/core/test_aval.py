"""Promotion of dtypes: the warning at float64 by accident, and the strict mode."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import config, lax
from volta_fn.core.aval import ShapedArray, broadcasts_to, check_option
from volta_fn.errors import ArgumentError, DTypeError, PromotionWarning, ShapeError


@pytest.fixture(autouse=True)
def default_mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Test as if no mode was chosen, and nothing warned of."""
    monkeypatch.delenv("VOLTA_NUMPY_DTYPE_PROMOTION", raising=False)
    vf.set_numpy_dtype_promotion(None)
    yield
    vf.set_numpy_dtype_promotion(None)


W = jnp.ones((3, 4))
DATA = np.ones((5, 3))
IMAGE, FILTER = np.ones((1, 1, 4, 4)), jnp.ones((1, 1, 2, 2))

#: Expressions in which float64 data widen parameters.
ACCIDENTS: dict[str, Callable[[], Any]] = {
    "product": lambda: DATA @ W,
    "einsum": lambda: jnp.einsum("bi,ij->bj", DATA, W),
    "sum": lambda: W + np.ones((3, 4)),
    "NumPy's scalar": lambda: W * np.sqrt(2.0),
    "where": lambda: jnp.where(True, W, np.zeros(4)),
    "concatenation": lambda: jnp.concatenate([W, np.ones((1, 4))]),
    "convolution": lambda: lax.conv_general_dilated(IMAGE, FILTER, (1, 1), "VALID"),
    "complex": lambda: W * np.ones(4, np.complex128),
    "bfloat16": lambda: W.astype("bfloat16") * np.ones(4),
    "traced": lambda: vf.jit(lambda w: DATA @ w)(W),
    "differentiated": lambda: vf.grad(lambda w: (DATA @ w).sum())(W),
}

#: Expressions that do not: what is asked for, or costs nothing.
INTENDED: dict[str, Callable[[], Any]] = {
    "Python's number": lambda: W * 2.0,
    "float64 alone": lambda: jnp.asarray(DATA) @ np.ones((3, 4)),
    "one float32 number": lambda: jnp.asarray(DATA) * np.float32(2.0),
    "a conversion": lambda: DATA.astype(np.float32) @ W,
    "an explicit float64": lambda: jnp.asarray(DATA) @ W.astype("float64"),
    "integers": lambda: W * np.arange(4),
    "half precision": lambda: W * W.astype("float16"),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", ACCIDENTS)
def test_the_first_accident_gives_a_warning(name: str) -> None:
    with pytest.warns(PromotionWarning, match=r"float64|complex128"):
        ACCIDENTS[name]()
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        for accident in ACCIDENTS.values():
            accident()
    assert not records


@pytest.mark.wide
@pytest.mark.parametrize("name", INTENDED)
def test_intended_promotions_are_silent(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        INTENDED[name]()


@pytest.mark.wide
def test_the_warning_has_the_users_position() -> None:
    with pytest.warns(PromotionWarning) as records:
        number = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]  # CPython has frames
        vf.jit(lambda w: w * DATA[:, :1])(W[0])
    assert (records[0].filename, records[0].lineno) == (__file__, number)
    assert "float32[4] and float64[5,1]" in str(records[0].message)


@pytest.mark.wide
@pytest.mark.parametrize("name", ACCIDENTS)
def test_modes(name: str) -> None:
    with vf.numpy_dtype_promotion("strict"), pytest.raises(DTypeError, match=r"would combine .*astype"):
        ACCIDENTS[name]()
    with vf.numpy_dtype_promotion("standard"):
        ACCIDENTS[name]()


def test_a_mode_for_the_process_and_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    vf.set_numpy_dtype_promotion("strict")
    with pytest.raises(DTypeError):
        ACCIDENTS["sum"]()
    with vf.numpy_dtype_promotion("standard"):
        W * W.astype("float16")
    vf.set_numpy_dtype_promotion(None)
    monkeypatch.setenv("VOLTA_NUMPY_DTYPE_PROMOTION", "strict")
    with pytest.raises(DTypeError):
        ACCIDENTS["sum"]()
    monkeypatch.setenv("VOLTA_NUMPY_DTYPE_PROMOTION", "lax")
    with pytest.raises(ArgumentError, match="'standard' or 'strict'"):
        ACCIDENTS["sum"]()
    with pytest.raises(ArgumentError, match="'standard' or 'strict'"):
        vf.numpy_dtype_promotion("loose")  # type: ignore[arg-type]  # the test is that


DTYPES = ("bool", "uint8", "int32", "int64", "bfloat16", "float32", "float64", "complex64")


@pytest.mark.wide
@pytest.mark.parametrize("name", ["add", "matmul"])
def test_strict_mode_refuses_the_pairs_that_jax_refuses(name: str) -> None:
    def refuses(library: Any, numpy: Any, x: Any, y: Any) -> bool:
        make = lambda v: numpy.ones((1, 1), v) if isinstance(v, str) else v
        try:
            with library.numpy_dtype_promotion("strict"):
                getattr(numpy, name)(make(x), make(y))
        except (DTypeError, jax.dtypes.TypePromotionError):
            return True
        return False

    pairs = [*itertools.product(DTYPES, DTYPES), *(itertools.product(DTYPES, (1, 1.5, 1j)) if name == "add" else [])]
    with jax.enable_x64(True):
        expected = {pair: refuses(jax, jax.numpy, *pair) for pair in pairs}
    assert {pair: refuses(vf, jnp, *pair) for pair in pairs} == expected


def test_a_training_step_is_strict() -> None:
    """Check that the package itself never promotes the user's float32 arrays."""
    model = vf.nn.Sequential.init(vf.nn.Linear.init(vf.random.key(0), 3, 4), vf.nn.LayerNorm.init(4), vf.nn.gelu)
    optimizer = vf.optim.chain(vf.optim.clip_by_global_norm(1.0), vf.optim.adamw(vf.optim.cosine_decay_schedule(0.1, 10)))

    @vf.jit
    def step(model: Any, moments: Any) -> Any:
        loss, grads = vf.value_and_grad(lambda m: vf.nn.cross_entropy(m(jnp.ones((2, 3))), jnp.array([0, 3])))(model)
        updates, moments = optimizer.update(grads, moments, model)
        return vf.optim.apply_updates(model, updates), moments, loss

    with vf.numpy_dtype_promotion("strict"):
        *_, loss = step(model, optimizer.init(model))
    assert (loss.dtype, bool(jnp.isfinite(loss))) == (np.float32, True)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: vf.scipy.signal.stft(x, nperseg=8)[2],
        lambda x: vf.scipy.signal.welch(x, nperseg=8)[1],
        lambda x: vf.scipy.signal.csd(x, x, nperseg=8)[1],
        lambda x: vf.experimental.ode.odeint(lambda y, t: -y, x[:2], x),
        lambda x: vf.scipy.optimize.minimize(lambda y: (y * y).sum(), x[:2], method="BFGS").x,
        lambda x: vf.random.multivariate_normal(vf.random.key(0), np.zeros(2), np.eye(2), dtype="float32"),
    ],
)
def test_the_package_s_own_functions_are_strict(call: Callable[[Any], Any]) -> None:
    with config.numpy_dtype_promotion("strict"), config.numpy_rank_promotion("raise"):
        assert np.isfinite(call(jnp.arange(32, dtype="float32") / 32)).all()


SHAPES = [(), (1,), (3,), (1, 3), (2, 1), (2, 3), (0,), (2, 0), (3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", SHAPES)
def test_shapes_broadcast_as_those_of_numpy(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    try:
        expected = np.broadcast_to(np.empty(shape), target).shape == target
    except ValueError:
        expected = False
    assert broadcasts_to(shape, target) == expected


def test_options_are_listed_where_another_value_is_given() -> None:
    check_option("b", "f: mode", ("a", "b"))
    check_option(None, "f: mode", (None, "b"))
    with pytest.raises(ArgumentError, match="f: mode must be 'a', 'b' or 3, got 'c'"):
        check_option("c", "f: mode", ("a", "b", 3))
    with pytest.raises(ArgumentError, match="f: mode must be 'a' or 'b', got 1"):
        check_option(1, "f: mode", {"a": 0, "b": 1})


def test_types_tell_a_memory_and_a_sharding_as_those_of_jax() -> None:
    ours, theirs = vf.typeof(jnp.ones((2, 3))), jax.typeof(jax.numpy.ones((2, 3)))
    assert ours.memory_space.name == theirs.memory_space.name == "Device"
    assert ours.sharding.mesh.empty and tuple(ours.sharding.spec) == tuple(theirs.sharding.spec) == (None, None)
    rows = ours.sharding.update(spec=vf.P(None))
    assert ours.update(shape=(2,), sharding=rows, memory_space=ours.memory_space) is type(ours)((2,), ours.dtype, sharding=rows)


def test_sizes_are_integers_of_python() -> None:
    """Also of types that users make: programs write them to files."""
    aval = ShapedArray((np.int64(1013), np.int32(3)), np.dtype("float32"))
    assert [type(size) for size in aval.shape] == [int, int] and aval is ShapedArray((1013, 3), np.dtype("float32"))
    with pytest.raises(ShapeError, match="negative"):
        ShapedArray((-1,), np.dtype("float32"))
