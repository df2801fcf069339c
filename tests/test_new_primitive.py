"""Adding something is small: a declaration of a primitive or a reduction is enough for every law, target and transform.

`additions.py` has texts for a unary primitive, a reduction, a layer and an optimizer, which CONTRIBUTING.md walks through. They are put
into a copy of the package here, whose own tests find them by themselves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.special

import volta_fn as vf
from tests.additions import ADDITIONS, Addition
from tests.compiler.ir.oracle import fuse_function, run
from tests.laws import laws_for, missing
from tests.nn import test_every_layer
from tests.optim import test_optimizers
from tests.samples import on_this_device
from tests.samples.elementwise import samples_of
from tests.samples.sample import Arg, Sample
from volta_fn import dtypes, lax, nn, optim
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.optim.base import stateful_rule
from volta_fn.optim.numerics import zeros_like
from volta_fn.primitives.declare import Domain, Elementwise, elementwise, promoted
from volta_fn.primitives.reduction import Reducer, reduction, repeated


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


@pytest.fixture(scope="module")
def reduce_logsumexp() -> Iterator[Reducer]:
    """log(Σ exp(x)). These lines are all it takes."""
    yield reduction(
        "reduce_logsumexp",
        Reduction("logaddexp", lambda dtype: -np.inf, rounds=True),
        operands=dtypes.FLOATS,
        tangent=lambda t, x, out, axes: lax.reduce_sum(t * lax.exp(x - repeated(out, x.shape, axes)), axes),
    )
    del PRIMITIVES["reduce_logsumexp"]


@pytest.mark.parametrize("shape, axes", [((3, 4), (1,)), ((3, 4, 2), (0, 2)), ((5,), (0,))])
def test_every_law_holds_for_a_reduction(reduce_logsumexp: Reducer, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Values, derivatives, batching and staging."""
    sample = Sample(
        "reduce_logsumexp",
        lambda x: reduce_logsumexp(x, axes),
        (Arg(shape),),
        lambda x: scipy.special.logsumexp(x, axes),
        dtypes=("float32", "float64"),
    )
    assert not missing(reduce_logsumexp.primitive, {"reduce_logsumexp"})
    for law in laws_for(on_this_device(sample)):
        law(sample)


@pytest.mark.parametrize("native", [False, True], ids=["numpy", "machine code"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_new_reduction_is_precise(
    reduce_logsumexp: Reducer, native: bool, axes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long reductions lose no digits."""
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", native)
    x = np.random.default_rng(0).normal(size=(300, 5000)).astype(np.float32)
    result = vf.jit(lambda a: reduce_logsumexp(lax.tanh(a), axes))(x)
    assert np.allclose(result, scipy.special.logsumexp(np.tanh(x.astype(np.float64)), axes), rtol=5e-7)


def test_a_new_reduction_is_fused(reduce_logsumexp: Reducer) -> None:
    """One kernel has it, with what comes before and after."""
    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    partition = fuse_function(lambda a: reduce_logsumexp(lax.tanh(a), (1,)) + 1.0, x)
    assert len(partition.nodes) == len(partition.kernels) == 1
    np.testing.assert_allclose(run(partition, x)[0], scipy.special.logsumexp(np.tanh(x), 1) + 1, rtol=1e-5)


def test_incomplete_primitives_are_named() -> None:
    """What is missing from a primitive is said, and one that was never registered has left no trace."""
    assert "softsign" not in PRIMITIVES or PRIMITIVES["softsign"].arity == 1
    assert missing(PRIMITIVES["sin"], set()) == ["samples in tests/samples"]


class Snake(nn.Module):
    """x + sin²(alpha x) / alpha, with a learnt alpha for each channel: a layer in ten lines (Ziyin et al. 2020)."""

    alpha: vf.Array

    @classmethod
    def init(cls, channels: int) -> Snake:
        return cls(vf.numpy.ones(channels))

    def __call__(self, x: vf.Array) -> vf.Array:
        return x + vf.numpy.sin(self.alpha * x) ** 2 / self.alpha


LAYER_LAWS = [law for law in vars(test_every_layer).values() if hasattr(law, "pytestmark")]


@pytest.mark.parametrize("law", LAYER_LAWS)
def test_every_law_holds_for_a_layer(law: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer takes its class and a row in `tests/nn/test_every_layer.py`."""
    monkeypatch.setitem(test_every_layer.LAYERS, "Snake", ((4,), Snake.init(4), test_every_layer.plain))
    law("Snake")


def signed_momentum(learning_rate: float, decay: float = 0.9) -> optim.GradientTransformation:
    """Steps by the sign of a decaying sum of gradients: an optimizer in six lines."""

    def rule(gradient: vf.Array, total: vf.Array) -> tuple[vf.Array, vf.Array]:
        total = gradient + decay * total
        return vf.numpy.sign(total), total

    momentum = stateful_rule(optim.TraceState, lambda params: (zeros_like(params),), rule)
    return optim.chain(momentum, optim.scale_by_learning_rate(learning_rate))


def test_every_law_holds_for_an_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer takes its function, in a module of `optim.optimizers`, and a row in `tests/optim/test_optimizers.py`."""
    monkeypatch.setitem(test_optimizers.MAKERS, "signed_momentum", lambda o: signed_momentum(0.1))
    test_optimizers.test_jitted_scanned_and_repeated_steps_are_the_same("signed_momentum")
    test_optimizers.test_states_keep_their_types("signed_momentum", "float16")
    test_optimizers.test_empty_trees_and_arrays("signed_momentum")


ROOT = Path(__file__).resolve().parents[1]

#: Tests that go over all that is registered or public, and examples of the new docstrings.
SWEEPS = [
    *("test_registry.py", "test_registry_elementwise.py", "test_layers.py", "test_layout.py"),
    *("targets/cpu/test_four_ways.py", "targets/wgsl/test_samples.py", "nn/test_every_layer.py", "optim/test_optimizers.py"),
]
EXAMPLES = ["volta_fn/nn/activations.py", "volta_fn/optim/optimizers.py"]
CHOSEN = "softsign or reduce_logsumexp or snake or heavy_ball or lacks or has_tests or has_a_row"

#: By addition, the tests that must be of those that passed.
EXPECTED = {
    "softsign": ["test_law[softsign-first_derivatives_hold]", "test_law[softsign-vmap_is_a_loop]", "test_edge_values[softsign-float32]"]
    + ["test_samples[softsign]"] * 2,
    "reduce_logsumexp": ["test_law[reduce_logsumexp-first_derivatives_hold]", "test_law[reduce_logsumexp-jit_is_eager]"]
    + ["test_samples[reduce_logsumexp]"] * 2,
    "Snake": ["test_jit_and_vmap_agree_with_a_batch[Snake]", "test_every_layer_has_a_row", "volta_fn.nn.activations.Snake"],
    "heavy_ball": ["test_agrees_with_optax[heavy_ball-float64]", "volta_fn.optim.optimizers.heavy_ball"],
}


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tests that pass in a copy with all additions; none may fail."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("volta_fn", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml", "examples", "benchmarks", "tools"):
        (copy / name).symlink_to(ROOT / name)
    for addition in ADDITIONS.values():
        addition.put(copy)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-rA", "-k", CHOSEN, *EXAMPLES]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VOLTA_DEVICE")}
    done = subprocess.run(
        [*command, *[f"tests/{name}" for name in SWEEPS]], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return re.findall(r"^PASSED (.*)$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", ADDITIONS)
def test_an_addition_is_complete(name: str, passed: list[str]) -> None:
    """It holds every law, on every target, with derivative, batching, docs and tests."""
    for test in set(EXPECTED[name]):
        assert sum(result.endswith(f"::{test}") for result in passed) == EXPECTED[name].count(test), test


@pytest.mark.parametrize("addition", ADDITIONS.values(), ids=ADDITIONS)
def test_an_addition_is_small(addition: Addition) -> None:
    files, lines = addition.count()
    assert files <= addition.most_files
    assert lines <= addition.length


def test_the_guide_shows_the_additions() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    for addition in ADDITIONS.values():
        for name, text in addition.texts.items():
            assert name.partition(": ")[0] in guide
            assert text.strip("\n") in guide, name
