"""Settings by JAX's names: those that act, those accepted, context managers."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import config as settings
from volta_fn import dtypes, errors
from volta_fn.config import config
from volta_fn.settings import current
from volta_fn.test_util import check_grads

jnp = vf.numpy


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave the process's settings as they are."""
    before = dict(config.values)
    yield
    for name, value in before.items():
        if config.values[name] != value:
            config.update(name, value)
    dtypes.set_width(None)
    current.permissive = False


def test_unknown_settings_are_refused_and_others_kept() -> None:
    with pytest.raises(errors.UnknownSettingError, match="jax_nonsense"):
        config.update("jax_nonsense", 1)
    with pytest.raises(AttributeError):
        _ = config.jax_nonsense
    config.update("jax_log_compiles", True)
    assert config.jax_log_compiles is config.read("jax_log_compiles") is True


def test_every_setting_of_jax_is_here_and_has_a_state() -> None:
    jax = pytest.importorskip("jax")
    theirs, ours = importlib.import_module("jax._src.config"), importlib.import_module("volta_fn.jax._src.config")
    assert not jax.config.values.keys() - ours.config.values.keys()
    names = [
        name
        for name in dir(theirs)
        if type(getattr(theirs, name)).__name__ in ("State", "Flag") and name[0] != "_" and name != "disable_jit"
    ]
    assert len(names) > 90
    for name in names:
        state, value = getattr(ours, name), getattr(theirs, name).value
        assert isinstance(state.value, str) or type(state.value) is type(value), name  # members of enumerations are texts
    assert ours.enable_compilation_cache.value is True
    with ours.enable_compilation_cache(False):
        assert ours.config.jax_enable_compilation_cache is False
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ours.nonsense


def test_the_arguments_of_update_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(config.values, "jax_log_compiles", False)
    config.update(name="jax_log_compiles", val=True)
    assert config.read("jax_log_compiles") is True


def test_a_setting_is_updated_through_the_module() -> None:
    """So that `jax.config.update` works after `import volta_fn as jax`."""
    vf.config.update("jax_log_compiles", True)
    assert config.read("jax_log_compiles") is True


CALLS = """
    np.ones(2); np.arange(3); np.arange(3.0); np.array([1, 2.0]); np.asarray(1j); np.asarray(host.ones(2)); np.asarray(host.arange(2))
    np.sin(1); np.ones(2, "float64"); np.ones(2, "int32") / 3; np.sum(np.ones(3, bool)); np.ones(2, "float32") * 2.5; np.eye(2)
    np.full(2, 1)
    np.mean(np.ones(2, "int32")); np.ones(2, "int32") * host.float64(2); np.where(True, 1, 2.5); np.linspace(0, 1, 3); np.zeros(1, complex)
    np.prod(np.ones(2, "int8"))
    np.ones(2).argmax(); np.argmin(np.ones(2)); np.nanargmax(np.ones(2)); np.argsort(np.ones(2)); np.argpartition(np.ones(2), 1)
    np.nonzero(np.ones(2))[0]; np.flatnonzero(np.ones(2)); np.argwhere(np.ones(2)); np.where(np.ones(2))[0]
    np.count_nonzero(np.ones(2)); np.cumsum(np.ones(2, bool)); np.lexsort((np.ones(2), np.ones(2))); np.bincount(np.arange(2))
    np.unique(np.ones(2), return_index=True)[1]; np.unique(np.ones(2), return_inverse=True)[1]; np.unique(np.ones(2), return_counts=True)[1]
    np.nonzero(np.ones(2), size=1)[0]; np.tril_indices(2)[0]; np.searchsorted(np.ones(2), 1.0); np.digitize(np.ones(2), np.ones(2))
    np.linalg.matrix_rank(np.eye(2))
    np.intersect1d(np.ones(2), np.ones(1), return_indices=True)[1]; np.unique(np.ones(2), size=2, fill_value=0)
    np.compress(np.ones(2), np.arange(2), size=1); np.setdiff1d(np.arange(3), np.arange(1), size=2)
    np.fft.fftfreq(4); np.fft.rfftfreq(4); np.diag_indices(3)[0]; np.diag_indices_from(np.ones((2, 2)))[0]
    np.rint(np.ones(2, "int32")); np.angle(np.ones(2, "int32")); np.angle(np.ones(2, "int8"), deg=True); np.rint(np.ones(2, bool))
    np.linalg.vector_norm(np.ones(2, "int32")); np.linalg.vector_norm(np.ones(2, "uint8")); np.linalg.norm(np.ones(2, "int32"))
    np.linalg.lstsq(np.eye(2), np.ones(2))[2]; np.polyint(np.ones(2, "int32")); np.polyint(np.ones(2, "bfloat16"))
    np.std(np.ones(2, "int32"))
    np.quantile(np.arange(3).astype("int32"), 0.5); np.median(np.ones(2, "int32")); np.reciprocal(np.ones(2, "float16"))
    np.hanning(4); np.hamming(4); np.blackman(4); np.bartlett(4); np.kaiser(4, 2.0); np.kaiser(1, 2.0)
"""

#: Calls beyond `numpy`.
OTHERS = [
    lambda ja: ja.nn.one_hot(ja.numpy.arange(2), 2),
    lambda ja: ja.random.permutation(ja.random.key(0), 3),
    lambda ja: ja.random.choice(ja.random.key(0), 3),
    lambda ja: ja.random.categorical(ja.random.key(0), ja.numpy.ones(3)),
    lambda ja: ja.scipy.stats.mode(ja.numpy.arange(3))[1],
    lambda ja: ja.scipy.stats.rankdata(ja.numpy.ones(3, "int32")),
    lambda ja: ja.scipy.stats.rankdata(ja.numpy.ones(3, "float16"), method="min"),
    lambda ja: ja.nn.initializers.zeros(ja.random.key(0), (2,)),
    lambda ja: ja.nn.initializers.normal()(ja.random.key(0), (2,)),
    lambda ja: ja.nn.initializers.he_uniform()(ja.random.key(0), (2, 2)),
    lambda ja: ja.nn.initializers.orthogonal()(ja.random.key(0), (2, 2)),
    lambda ja: ja.scipy.linalg.block_diag(),
    lambda ja: ja.scipy.linalg.dft(2),
    lambda ja: ja.scipy.linalg.hadamard(2),
    lambda ja: ja.scipy.linalg.helmert(2),
    lambda ja: ja.scipy.linalg.hilbert(2),
    lambda ja: ja.scipy.linalg.invhilbert(2),
    lambda ja: ja.scipy.special.bernoulli(2),
]


def calls_of(library: object) -> list[Callable[[], Any]]:
    """Return the calls, of a library with the modules of JAX."""
    texts = [call for row in CALLS.strip().splitlines() for call in row.strip().split("; ")]
    functions = [partial(eval, call, {"np": library.numpy, "host": np}) for call in texts]
    return [*functions, *[partial(call, library) for call in OTHERS]]


def dtype_of_jax(jax: Any, call: Callable[[], Any]) -> np.dtype:
    """Return the dtype of JAX's result, which is traced where it can be: what JAX computes it compiles first, by the call."""
    try:
        return jax.eval_shape(call).dtype
    except (TypeError, IndexError):  # the shape depends on numbers
        return call().dtype


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_widths_are_jaxs_default_dtypes(width: int) -> None:
    jax = pytest.importorskip("jax")
    config.update("jax_enable_x64", width == 64)  # which drops programs of another width, too
    with jax.enable_x64(width == 64):
        expected = [dtype_of_jax(jax, call) for call in calls_of(jax)]
    assert [call().dtype for call in calls_of(vf)] == expected


def test_x64_reaches_traced_functions_random_numbers_and_derivatives() -> None:
    f = vf.jit(lambda x: jnp.zeros(2) + x)
    assert f(1).dtype == np.float32
    with settings.enable_x64():
        assert f(1).dtype == vf.random.normal(vf.random.key(0)).dtype == vf.grad(lambda x: x**2)(3.0).dtype == np.float64
        assert dtypes.as_dtype(int) == np.int64
    assert not config.jax_enable_x64 and f(1).dtype == np.float32
    assert jnp.asarray(np.ones(1)).dtype == np.float64  # as before


@pytest.mark.parametrize("width", [32, 64])
def test_a_block_of_a_width_leaves_no_width_where_there_was_none(width: int) -> None:
    with settings.enable_x64(width == 64), settings.enable_x64(width == 32):
        pass
    assert config.jax_enable_x64 is False and settings.enable_x64.value is False
    assert jnp.asarray(np.ones(1)).dtype == np.float64 and jnp.ones(1).dtype == np.float32
    config.update("jax_enable_x64", False)
    with settings.enable_x64():
        pass
    assert jnp.asarray(np.ones(1)).dtype == np.float32


def test_without_a_width_64_bits_stay_where_they_are_asked_for() -> None:
    dtypes.set_width(64)
    dtypes.set_width(None)
    assert jnp.asarray(np.ones(1)).dtype == np.float64 and jnp.ones(1).dtype == np.float32 and jnp.asarray(2**40).dtype == np.int64


def test_integers_beyond_the_width_overflow() -> None:
    dtypes.set_width(32)
    with pytest.raises(OverflowError, match="int32"):
        jnp.asarray(2**40)


def test_the_value_of_a_setting_is_read_from_its_manager() -> None:
    assert settings.debug_nans.value is False and settings.numpy_rank_promotion.value == "allow"
    with settings.debug_nans(True), settings.numpy_rank_promotion("raise"):
        assert settings.debug_nans.value is True and settings.numpy_rank_promotion.value == "raise"
        with settings.debug_nans(False):
            assert settings.debug_nans.value is False
    with settings.debug_nans():
        assert settings.debug_nans.value is True
    assert repr(settings.debug_nans) == "State(jax_debug_nans=False)" and settings.debug_nans.__name__ == "debug_nans"


def test_disable_jit_runs_python() -> None:
    f = vf.jit(lambda x: 3 if x > 1 else 4)
    with settings.disable_jit():
        assert f(2.0) == 3
    with pytest.raises(errors.TracerBoolError):
        f(2.0)


def test_debug_nans_finds_the_primitive_also_in_jitted_functions() -> None:
    log = vf.jit(lambda x: jnp.log(x) * 2)
    assert np.isnan(log(-1.0))
    with settings.debug_nans(), pytest.raises(FloatingPointError, match=r"nan.*log"):
        log(-1.0)
    with settings.debug_nans(), pytest.raises(FloatingPointError, match=r"nan.*sqrt"):
        jnp.sqrt(jnp.asarray(-1.0))
    with settings.debug_infs(), pytest.raises(FloatingPointError, match=r"inf.*div"):
        jnp.ones(1) / 0
    assert np.isnan(log(-1.0)) and np.isnan(jnp.sqrt(jnp.asarray(-1.0)))


def test_rank_promotion_warns_or_raises() -> None:
    a, b = jnp.ones((2, 3)), jnp.ones(3)
    with settings.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank"):
        a + b
    with settings.numpy_rank_promotion("raise"):
        assert (a + 1.0).shape == (a + a).shape == (2, 3)
    with settings.numpy_rank_promotion("warn"), pytest.warns(UserWarning, match="rank"):
        a * b
    assert (a + b).shape == (2, 3)
    with pytest.raises(errors.ArgumentError, match="allow, warn, raise"):
        config.update("jax_numpy_rank_promotion", "refuse")


def test_strict_dtype_promotion() -> None:
    a, b = jnp.ones(2, "float32"), jnp.ones(2, "int32")
    with settings.numpy_dtype_promotion("strict"):
        assert (a * 2).dtype == np.float32
        with pytest.raises(errors.TypePromotionError, match="strict"):
            a + b
    assert (a + b).dtype == np.float32


def test_backward_rules_may_go_unchecked() -> None:
    f = vf.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda _, ct: (jnp.zeros(3),))
    gradient = vf.grad(lambda x: f(x).sum())
    with pytest.raises(errors.ShapeError, match="f32\\[3\\]"):
        gradient(jnp.ones(2))
    config.update("jax_disable_bwd_checks", True)
    assert gradient(jnp.ones(2)).shape == (3,)
    config.update("jax_disable_bwd_checks", False)


def test_sums_of_16_bits_may_be_refused() -> None:
    x = jnp.ones((1, 3), "bfloat16")
    assert float(vf.lax.reduce_sum(x, (1,))[0]) == 3.0
    with settings.allow_f16_reductions(False):
        assert vf.lax.reduce_sum(x, (0,)).shape == (3,)
        assert vf.lax.reduce_sum(x.astype("float32"), (1,)).shape == (1,)
        with pytest.raises(errors.DTypeError, match="not allowed"):
            vf.lax.reduce_sum(x, (1,))


def test_programs_depend_on_values_of_users() -> None:
    factor = settings.make_user_context(2)
    scaled = vf.jit(lambda x: factor.value * x)
    assert scaled(1) == 2
    with factor(3):
        assert scaled(1) == 3
    factor.set_global(4)
    assert scaled(1) == factor.get_global() == 4


def test_permissive_casts_to_the_arrays_dtype() -> None:
    x = jnp.arange(3)
    with pytest.raises(errors.DTypeError):
        x.at[0].set(2.5)
    current.permissive = True
    with pytest.warns(FutureWarning, match="incompatible types"):
        assert x.at[0].set(2.5).tolist() == [2, 1, 2]
    assert int(x[7]) == 2 and x.at[7].set(5).tolist() == [0, 1, 2]


@pytest.mark.parametrize("number", [-3, 301, -40_001, 2**31 - 5])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32"])
def test_integers_wrap_around_in_jaxs_mode(dtype: str, number: int) -> None:
    jax = pytest.importorskip("jax")
    current.permissive = True
    dtypes.set_width(32)

    def results(package: Any) -> Iterator[Any]:
        lib = package.numpy
        x = lib.asarray(np.array([0, 120, 255]).astype(dtype))
        for call in (lambda v: v + number, lambda v: number - v, lambda v: v == number, lambda v: v < number, lambda v: number <= v):
            yield call(x)
            yield package.jit(call)(x)
        yield lib.maximum(x, number)
        yield lib.clip(x, number)
        yield lib.full(2, number, dtype)
        yield lib.full_like(x, number)
        yield x.at[1].set(number)
        yield lib.arange(number - 300, number, 9, dtype)

    for result, expected in zip(results(vf), results(jax), strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


def test_clear_caches_forgets_programs() -> None:
    f = vf.jit(lambda x: x + 1)
    f(1.0)
    assert f.cache_info().programs == 1
    vf.clear_caches()
    assert f.cache_info().programs == 0 and f(1.0) == 2


def test_rank_promotion_concerns_the_users_own_operands() -> None:
    x = jnp.ones((2, 3))
    with settings.numpy_rank_promotion("raise"):
        assert jnp.var(x, 0).shape == (3,)
        assert vf.vmap(lambda row, scale: row * scale)(x, jnp.ones(2)).shape == (2, 3)
        with pytest.raises(ValueError, match="rank"):
            vf.jit(lambda row: x + row)(jnp.ones(3))


def test_scalar_types_follow_the_width_that_is_set_later() -> None:
    dtypes.set_width(32)
    derived = type("Derived", (jnp.float64,), {})
    assert jnp.ones(2, derived).dtype == np.float32
    dtypes.set_width(64)
    assert jnp.ones(2, derived).dtype == jnp.ones(2, jnp.float64).dtype == np.float64


def test_known_indices_can_be_checked_although_the_mode_is_jaxs() -> None:
    current.permissive = True
    assert jnp.arange(3)[5] == 2
    config.update("jax_check_static_indices", True)
    with pytest.raises(IndexError):
        jnp.arange(3)[5]


@pytest.mark.parametrize("name", ["sin", "clz", "add", "cumsum", "reduce_max"])
@pytest.mark.parametrize("permissive", [False, True])
def test_errors_name_the_dtype_of_4_bits_that_was_passed(name: str, permissive: bool) -> None:
    current.permissive = permissive
    x = jnp.arange(3).astype("int4")
    arguments = {"add": (x, x), "reduce_max": (x, (0,))}.get(name, (x,))
    if permissive and name not in ("sin", "clz"):
        assert getattr(vf.lax, name)(*arguments).dtype == x.dtype
        return
    with pytest.raises(errors.DTypeError, match=f"{name} is not defined for int4"):
        getattr(vf.lax, name)(*arguments)


def test_permissive_checks_of_derivatives_take_two_nan_for_equal() -> None:
    x = np.array([0.5, 1.5], np.float32)
    with pytest.raises(errors.DerivativeError):
        check_grads(jnp.arcsin, (x,), order=1)
    current.permissive = True
    check_grads(jnp.arcsin, (x,), order=2)


def test_calls_inside_programs_do_not_warn_of_buffers_that_no_result_can_take() -> None:
    current.permissive = True
    total = vf.jit(lambda s, k: (k + s.sum(),), donate_argnums=(0,))

    def within(w: vf.Array, x: vf.Array) -> tuple[vf.Array, ...]:
        scaled = vf.jit(lambda s, k: (s * w.sum(), k), donate_argnums=(0,))  # captures w, which is no argument
        return *scaled(x, jnp.ones(5)), *total(x, jnp.ones(2))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = vf.jit(within)(jnp.ones(4), jnp.ones(3))
    assert [r.tolist() for r in results] == [[4.0] * 3, [1.0] * 5, [4.0] * 2]
    with pytest.warns(UserWarning, match=r"not usable: f32\[4\]"):
        total(jnp.ones(4), jnp.ones(2))


def test_arrays_of_64_bits_count_as_such_of_32_once_x64_is_off() -> None:
    with settings.enable_x64():
        wide, scalar, integers = vf.numpy.arange(3.0), vf.numpy.float64(1.5), vf.numpy.arange(3)
    config.update("jax_enable_x64", False)
    assert [x.dtype.name for x in (wide, scalar, integers)] == ["float64", "float64", "int64"]
    results = [wide + 1.0, 2 * scalar, wide * vf.numpy.float32(2.0), integers + 1, wide * integers, vf.numpy.where(wide > 1, wide, 0.0)]
    assert {x.dtype.name for x in results} == {"float32", "int32"}
    np.testing.assert_array_equal(results[2], [0.0, 2.0, 4.0])
    np.testing.assert_array_equal(results[4], [0.0, 1.0, 4.0])
    assert (wide * wide).dtype == np.float64


def test_gradients_pass_through_blocks_of_64_bits() -> None:
    def f(x: object) -> object:
        with settings.enable_x64():
            wide = vf.numpy.array(x, np.float64)
            return vf.numpy.sin(wide) * wide

    config.update("jax_enable_x64", False)
    slope = vf.grad(f)(5.0)
    assert slope.dtype == np.float32
    np.testing.assert_allclose(slope, 5.0 * np.cos(5.0) + np.sin(5.0), rtol=1e-6)
