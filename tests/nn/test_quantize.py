"""Quantised models: which layers, their results, and the errors of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn, optim
from volta_fn.errors import ArgumentError


def test_layers_of_a_model() -> None:
    key = vf.random.key(0)
    model = {
        "embed": nn.Embedding.init(key, 20, 64),
        "attention": nn.MultiHeadAttention.init(key, 64, 4),
        "norm": nn.LayerNorm.init(64),
        "conv": nn.Conv1d.init(key, 3, 4, 3),
    }
    eight, four = nn.quantize(model, "int8"), nn.quantize(model, "int4")
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        assert isinstance(getattr(four["attention"], name).weight, nn.QuantizedArray)
    assert isinstance(eight["conv"].weight, nn.QuantizedArray) and not isinstance(four["conv"].weight, nn.QuantizedArray)
    assert not any(isinstance(v, nn.QuantizedArray) for v in vars(eight["norm"]).values())
    x = vf.random.normal(key, (2, 5, 64))
    np.testing.assert_allclose(eight["attention"](x), model["attention"](x), atol=0.02)
    tokens = vf.numpy.array([[0, 19]])
    np.testing.assert_allclose(eight["embed"](tokens), model["embed"](tokens), atol=0.02)
    np.testing.assert_allclose(eight["embed"].attend(x), model["embed"].attend(x), atol=0.3)
    image = vf.random.normal(key, (2, 3, 9))
    np.testing.assert_allclose(eight["conv"](image), model["conv"](image), atol=0.03)
    again = nn.quantize(eight, "int4")
    assert again["embed"].weight.scheme == "int8"


def test_embeddings_have_8_bits_under_schemes_of_4() -> None:
    key = vf.random.key(0)
    model = {"embed": nn.Embedding.init(key, 20, 64), "layer": nn.Linear.init(key, 64, 8)}
    options: dict[str, Any] = {"group_size": 32, "symmetric": False}
    four = nn.quantize(model, "int4", **options)
    assert (four["embed"].weight.scheme, four["layer"].weight.scheme) == ("int8", "int4")
    assert (four["embed"].weight.group_size, four["embed"].weight.offsets) == (64, None)  # one scale a row
    assert four["layer"].weight.group_size == 32 and four["layer"].weight.offsets is not None
    assert nn.quantize(model, "nf4")["embed"].weight.scheme == "int8"
    assert nn.quantize(model, "fp8")["embed"].weight.scheme == "fp8"
    same = nn.quantize(model, "int4", embeddings="int4", **options)["embed"].weight
    assert (same.scheme, same.group_size) == ("int4", 32) and same.offsets is not None
    wider = nn.quantize(model, "int8", embeddings="fp8", activations="int8")
    assert (wider["embed"].weight.scheme, wider["layer"].weight.activations) == ("fp8", "int8")
    error = [
        float(vf.numpy.abs(x["embed"].weight.dequantize() - model["embed"].weight).max()) for x in (four, {"embed": nn.Embedding(same)})
    ]
    assert error[0] < error[1] / 4
    with pytest.raises(ArgumentError, match="int2"):
        nn.quantize(model, "int4", embeddings="int2")  # type: ignore[arg-type]  # to be refused


def test_where_selects_by_name_and_layer() -> None:
    model = nn.MLP.init(vf.random.key(0), 64, 8, 32, 2)
    names = []

    def where(name: str, layer: nn.Module) -> bool:
        names.append(name)
        return isinstance(layer, nn.Linear) and layer.weight.shape[1] == 32

    small = nn.quantize(model, "nf4", where=where)
    assert names == ["layers.0", "layers.1", "layers.2"]
    assert [isinstance(layer.weight, nn.QuantizedArray) for layer in small.layers] == [True, True, False]
    whole = nn.dequantize(small)
    x = vf.numpy.ones((3, 64))
    np.testing.assert_allclose(whole(x), small(x), rtol=1e-5, atol=1e-6)
    assert nn.dequantize(small, "bfloat16").layers[0].weight.dtype == vf.numpy.bfloat16


def test_errors() -> None:
    model = nn.MLP.init(vf.random.key(0), 64, 8, 32, 1)
    with pytest.raises(ArgumentError, match="no layer"):
        nn.quantize(model, "int8", where=lambda name, layer: False)
    with pytest.raises(ArgumentError, match="int3"):
        nn.quantize(model, "int3")  # type: ignore[arg-type]  # to be refused
    for options in ({"symmetric": False}, {"group_size": 32}, {"activations": "int4"}):
        with pytest.raises(ArgumentError, match="activations"):
            nn.quantize(model, "int8", **{"activations": "int8", **options})


def test_a_quantised_model_is_jitted_and_stacked() -> None:
    model = nn.quantize(nn.MLP.init(vf.random.key(0), 64, 8, 32, 1), "int4")
    x = vf.random.normal(vf.random.key(1), (4, 3, 64))
    np.testing.assert_allclose(vf.jit(lambda m, x: m(x))(model, x), model(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(vf.vmap(model)(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("transposed", "rows"), [(False, 1), (False, 64), (True, 1), (True, 64)])
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_no_plan_stores_the_matrix(scheme: Any, transposed: bool, rows: int) -> None:
    weight = vf.eval_shape(lambda: nn.quantize_array(vf.numpy.zeros((4096, 4096), "bfloat16"), scheme))
    x = vf.ShapeDtypeStruct((rows, 4096), "bfloat16")
    lowered = vf.jit(lambda x, w: x @ (w if transposed else w.T)).lower(x, weight)
    assert lowered.memory().temporaries < 4096 * 4096 * 2 / 4
    assert lowered.plan("phone").temporaries < 4096 * 4096 * 2 / 2
    gradient = vf.jit(lambda x, w, ct: vf.vjp(lambda x: x @ (w if transposed else w.T), x)[1](ct)).lower(x, weight, x).memory()
    assert gradient.temporaries < 4096 * 4096 * 2 / 4


def language_loss(model: Any, windows: Any) -> Any:
    return nn.cross_entropy(model(windows[:, :-1]).astype("float32"), windows[:, 1:], axis=-1)


@pytest.fixture(scope="module")
def trained() -> tuple[Any, np.ndarray]:
    """A small GPT in bfloat16 that has learnt the letters of a licence, and a part of the text."""
    text = (Path(__file__).parents[2] / "LICENSE").read_bytes()
    letters = sorted(set(text))
    tokens = np.searchsorted(letters, np.frombuffer(text, np.uint8)).astype(np.int32)
    windows = np.stack([tokens[i : i + 33] for i in range(0, len(tokens) - 33, 11)])
    model = nn.GPT.init(vf.random.key(0), len(letters), 32, num_layers=1, d_model=128, nhead=2, dropout=0.0)
    optimizer = optim.adamw(optim.cosine_decay_schedule(2e-3, 300))

    @vf.jit
    def step(model: Any, state: Any, batch: Any) -> Any:
        gradients = vf.grad(language_loss)(model, batch)
        updates, state = optimizer.update(gradients, state, model)
        return optim.apply_updates(model, updates), state

    state, rng = optimizer.init(model), np.random.default_rng(0)
    for _ in range(300):
        model, state = step(model, state, windows[rng.integers(0, len(windows), 32)])
    return vf.tree.map(lambda x: x.astype("bfloat16"), model), windows[::8]


@pytest.mark.parametrize(
    ("scheme", "options", "most"),
    [
        ("int8", {}, 1.01),
        ("int8", {"activations": "int8"}, 1.01),
        ("int8", {"symmetric": False, "group_size": 64}, 1.01),
        ("fp8", {}, 1.01),
        ("int4", {"group_size": 32}, 1.05),
        ("int4", {"group_size": 32, "symmetric": False}, 1.05),
        ("nf4", {"group_size": 32}, 1.05),
    ],
)
def test_the_perplexity_of_a_trained_model_stays(trained: Any, scheme: Any, options: Any, most: float) -> None:
    model, text = trained
    perplexity = vf.jit(lambda m: vf.numpy.exp(language_loss(m, text)))
    before, after = float(perplexity(model)), float(perplexity(nn.quantize(model, scheme, **options)))
    assert before < 6  # of 76 letters
    assert after < before * most
