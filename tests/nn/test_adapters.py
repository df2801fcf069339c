"""LoRA and DoRA beside their formulas written out in float64, training, merging and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.language import families
from tests.nn.test_every_layer import LAYERS, batch
from volta_fn import nn, optim, tree
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, SerializationError, ShapeError, StateDictError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 4)).astype(np.float32)


def layer_of(kind: str, bias: bool) -> Any:
    cls: Any = nn.Linear if kind == "Linear" else nn.Projection
    layer = cls.init(vf.random.key(0), 4, 3, bias=bias)
    return layer.replace(bias=vnp.asarray(RNG.standard_normal(3), "float32")) if bias else layer


def trained(layer: Any, dora: bool) -> nn.LoRA:
    """Return an adapter whose parameters are not the initial ones."""
    adapter = nn.LoRA.init(vf.random.key(1), layer, 2, scale=0.7, dora=dora)
    adapter = adapter.replace(lora_B=vnp.asarray(RNG.standard_normal((3, 2)), "float32"))
    return adapter.replace(magnitude=vnp.asarray(RNG.random(3) + 0.5, "float32")) if dora else adapter


def oracle(adapter: nn.LoRA) -> tuple[np.ndarray, np.ndarray]:
    """Return the adapted weight, (out, in), and the output for X."""
    layer, a, b = adapter.layer, *(np.asarray(w, np.float64) for w in (adapter.lora_A, adapter.lora_B))
    weight = np.asarray(layer.weight, np.float64)
    weight = (weight.T if isinstance(layer, nn.Linear) else weight) + 0.7 * b @ a
    if adapter.magnitude is not None:
        weight = np.asarray(adapter.magnitude, np.float64)[:, None] * weight / np.linalg.norm(weight, axis=1, keepdims=True)
    return weight, X @ weight.T + (0 if layer.bias is None else np.asarray(layer.bias))


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["Linear", "Projection"])
def test_formula_and_merging(kind: str, bias: bool, dora: bool) -> None:
    layer = layer_of(kind, bias)
    initial = nn.LoRA.init(vf.random.key(1), layer, 2, scale=0.7, dora=dora)
    np.testing.assert_allclose(np.asarray(initial(X)), np.asarray(layer(X)), rtol=1e-5, atol=1e-6)
    adapter = trained(layer, dora)
    weight, out = oracle(adapter)
    np.testing.assert_allclose(np.asarray(vf.jit(lambda m, x: m(x))(adapter, X)), out, rtol=1e-5, atol=1e-5)
    merged = adapter.merged()
    assert type(merged) is type(layer)
    rows = np.asarray(merged.weight).T if kind == "Linear" else np.asarray(merged.weight)
    np.testing.assert_allclose(rows, weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(merged(X)), out, rtol=1e-5, atol=1e-5)


def has_linear(layer: Any) -> bool:
    kinds = (nn.Linear, nn.Projection)
    return any(isinstance(leaf, kinds) for leaf in tree.leaves(layer, is_leaf=lambda node: isinstance(node, kinds)))


#: Layers with an adapter, or whose weights are computed.
WHOLE = ("LoRA", "WeightNorm", "SpectralNorm")


@pytest.mark.parametrize("name", [name for name, (_, layer, _) in LAYERS.items() if has_linear(layer) and name not in WHOLE])
def test_layers_compute_with_adapters_what_they_do_with_merged_weights(name: str) -> None:
    shape, layer, call = LAYERS[name]
    x = batch(shape, 2)
    adapted = nn.lora(layer, vf.random.key(1), 2)
    np.testing.assert_allclose(np.asarray(call(adapted, x)), np.asarray(call(layer, x)), rtol=1e-5, atol=1e-6)
    rng = np.random.default_rng(1)
    moved = tree.map_with_path(
        lambda path, leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype(np.float32) if "lora_B" in tree.keystr(path) else leaf, adapted
    )
    expected = np.asarray(call(nn.merge_lora(moved), x))
    assert np.abs(expected - np.asarray(call(layer, x))).max() > 1e-3
    np.testing.assert_allclose(np.asarray(call(moved, x)), expected, rtol=1e-4, atol=1e-5)


def test_layers_with_computed_weights_are_left_out() -> None:
    plain, normed = nn.Linear.init(vf.random.key(0), 4, 4), nn.WeightNorm.init(nn.Linear.init(vf.random.key(1), 4, 4))
    spectral, state = nn.SpectralNorm.init(vf.random.key(2), nn.Linear.init(vf.random.key(3), 4, 4))
    adapted = nn.lora([plain, normed, spectral], vf.random.key(4), 2)
    assert isinstance(adapted[0], nn.LoRA)
    assert nn.tree_equal(adapted[1:], [normed, spectral])
    assert adapted[2](vnp.ones((1, 4)), state)[0].shape == (1, 4)


def test_a_cache_of_adapted_attention() -> None:
    gpt = nn.GPT.init(vf.random.key(0), 20, 8, num_layers=1, d_model=8, nhead=2, dtype="bfloat16")
    adapted = nn.lora(gpt, vf.random.key(1), 2, where="*.self_attn.*", dtype="float32")
    cache = adapted.init_cache(1)
    assert cache[0].keys.dtype == "bfloat16" and cache[0].keys.shape == gpt.init_cache(1)[0].keys.shape
    logits, _ = adapted(vnp.array([[1, 2, 3]]), cache=cache)
    assert logits.shape == (1, 3, 20)


def test_gradients_of_dora_see_lengths_as_constants() -> None:
    adapter = trained(layer_of("Projection", True), True)
    base = np.asarray(adapter.layer.weight, np.float64) + 0.7 * np.asarray(adapter.lora_B, np.float64) @ np.asarray(adapter.lora_A)
    lengths = np.linalg.norm(base, axis=1)
    gradient = vf.grad(lambda m: vnp.sum(vnp.sin(m(X))))(adapter)
    magnitude = np.asarray(adapter.magnitude, np.float64)
    out_bar = np.cos(oracle(adapter)[1])
    weight_bar = (magnitude / lengths)[:, None] * (out_bar.T @ X)
    np.testing.assert_allclose(np.asarray(gradient.lora_B), 0.7 * weight_bar @ np.asarray(adapter.lora_A).T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.asarray(gradient.lora_A), 0.7 * np.asarray(adapter.lora_B).T @ weight_bar, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.asarray(gradient.magnitude), (out_bar * (X @ (base / lengths[:, None]).T)).sum(0), rtol=1e-4, atol=1e-5)


def test_training_changes_adapters_alone() -> None:
    mlp = nn.MLP.init(vf.random.key(0), 4, 2, width_size=8, depth=1)
    model = nn.lora(mlp, vf.random.key(1), rank=2, alpha=4)
    part, frozen = nn.partition(model, nn.lora_filter(model))
    assert nn.parameter_count(frozen) == nn.parameter_count(mlp)
    optimizer = optim.adam(1e-2)
    state = optimizer.init(part)
    assert nn.parameter_count(state[0].mu) == nn.parameter_count(part)
    targets = X[:, :2] ** 2

    def loss(part: Any) -> Any:
        return vnp.mean((nn.combine(part, frozen)(X) - targets) ** 2)

    @vf.jit
    def step(part: Any, state: Any) -> tuple[Any, Any, Any]:
        value, gradient = vf.value_and_grad(loss)(part)
        updates, state = optimizer.update(gradient, state, part)
        return optim.apply_updates(part, updates), state, value

    losses = []
    for _ in range(60):
        part, state, value = step(part, state)
        losses.append(float(value))
    assert losses[-1] < 0.7 * losses[0]
    model = nn.combine(part, frozen)
    merged = nn.merge_lora(model)
    assert vf.tree.structure(merged) == vf.tree.structure(mlp)
    np.testing.assert_allclose(np.asarray(merged(X)), np.asarray(model(X)), rtol=1e-4, atol=1e-5)


def test_which_layers() -> None:
    model = nn.CausalLM.init(vf.random.key(0), nn.CausalLMConfig.from_json(families.entries("llama")))
    names = lambda m: sorted({name.rpartition(".lora_")[0] for name in vf.io.state_dict(m) if ".lora_A" in name})
    assert len(names(nn.lora(model, vf.random.key(1), 2))) == 21
    assert names(nn.lora(model, vf.random.key(1), 2, where=["*.0.*.q_proj", "lm_head"])) == ["lm_head", "model.layers.0.self_attn.q_proj"]
    chosen = nn.lora(model, vf.random.key(1), 2, where=lambda name: name.endswith("v_proj"))
    assert len(names(chosen)) == 3
    tokens = vnp.asarray(families.TOKENS)
    np.testing.assert_array_equal(np.asarray(chosen(tokens)), np.asarray(model(tokens)))
    half = nn.lora(model, vf.random.key(1), 2, dtype="bfloat16")
    assert half.model.layers[0].mlp.up_proj.lora_A.dtype.name == "bfloat16"
    assert half(tokens).dtype.name == "float32"


@pytest.mark.parametrize("name", ["llama", "phi2", "phi3"])
@pytest.mark.parametrize("dora", [False, True])
def test_files(name: str, dora: bool, tmp_path: Path) -> None:
    model = families.model_of(name, tmp_path / "model")
    adapted = nn.lora(model, vf.random.key(1), 2, alpha=3.0, where="*.self_attn.*", dora=dora)
    random = lambda path, leaf: vnp.asarray(RNG.standard_normal(leaf.shape) * 0.1, "float32") if "lora_B" in str(path[-1]) else leaf
    adapted = vf.tree.map_with_path(random, adapted)
    vf.io.save_adapter(tmp_path / "adapter", adapted)
    same = vf.io.load_adapter(tmp_path / "adapter", model)
    assert nn.tree_equal(same, adapted)
    peft = pytest.importorskip("peft")
    import torch
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    other = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.no_grad():
        expected = other(torch.from_numpy(families.TOKENS).long()).logits.numpy()
    np.testing.assert_allclose(np.asarray(adapted(vnp.asarray(families.TOKENS))), expected, rtol=1e-4, atol=1e-4)


def test_bad_arguments() -> None:
    mlp = nn.MLP.init(vf.random.key(0), 4, 2, width_size=8, depth=1)
    with pytest.raises(ArgumentError, match="rank"):
        nn.lora(mlp, vf.random.key(1), 0)
    with pytest.raises(ArgumentError, match=r"no Linear or Projection matches where='x'; there are 2: layers.0, layers.1"):
        nn.lora(mlp, vf.random.key(1), 1, where="x")
    with pytest.raises(ArgumentError, match="adapter already"):
        nn.lora(nn.lora(mlp, vf.random.key(1), 1), vf.random.key(1), 1)
    with pytest.raises(ArgumentTypeError, match="Linear or a Projection"):
        nn.LoRA.init(vf.random.key(0), nn.Embedding.init(vf.random.key(0), 3, 4), 1)  # type: ignore[arg-type]


def test_patterns_of_scales_are_regular_expressions_of_names_ends(tmp_path: Path) -> None:
    model = families.model_of("llama", tmp_path / "model")
    vf.io.save_adapter(tmp_path, nn.lora(model, vf.random.key(1), 2, where="*.[qv]_proj"))
    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text()) | {"lora_alpha": 2}
    for pattern, name, scale in (
        ("proj", "q_proj", 1.0),  # a part of a name
        ("q_proj", "q_proj", 4.0),
        (r".*layers\.0\.self_attn.[qk]_proj", "q_proj", 4.0),
        (r"layers\.[1-9].*", "q_proj", 1.0),
        ("q_proj", "v_proj", 1.0),
    ):
        path.write_text(json.dumps(config | {"alpha_pattern": {pattern: 8}}))
        attention = vf.io.load_adapter(tmp_path, model).model.layers[0].self_attn
        assert getattr(attention, name).scale == scale
    path.write_text(json.dumps(config | {"alpha_pattern": {"(": 8}}))
    with pytest.raises(ArgumentError, match="no regular expression"):
        vf.io.load_adapter(tmp_path, model)


def test_bad_files(tmp_path: Path) -> None:
    model = families.model_of("llama", tmp_path / "model")
    with pytest.raises(SerializationError, match=r"no adapter_config.json"):
        vf.io.load_adapter(tmp_path, model)
    with pytest.raises(ArgumentError, match="has no adapters"):
        vf.io.save_adapter(tmp_path, model)
    vf.io.save_adapter(tmp_path, nn.lora(model, vf.random.key(1), 2, where="*.q_proj"))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj"]
    arrays = vf.io.load_safetensors(tmp_path / "adapter_model.safetensors")
    first = next(iter(arrays))
    for changed in (arrays | {"other": vnp.zeros(1)}, {k: v for k, v in arrays.items() if k != first}, {}):
        vf.io.save_safetensors(tmp_path / "adapter_model.safetensors", changed)
        with pytest.raises(StateDictError):
            vf.io.load_adapter(tmp_path, model)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"bias": "all"}))
    with pytest.raises(ArgumentError, match="biases"):
        vf.io.load_adapter(tmp_path, model)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "IA3"}))
    with pytest.raises(ArgumentError, match="'LORA'"):
        vf.io.load_adapter(tmp_path, model)


@pytest.mark.parametrize("kind", ["Linear", "Projection"])
def test_dora_of_a_weight_with_rows_of_zeros(kind: str) -> None:
    """A row of zeros has no direction: it is not divided by its length."""
    layer = layer_of(kind, True)
    rows = np.asarray(layer.weight).copy()
    rows[(slice(None), 1) if kind == "Linear" else 1] = 0
    layer = layer.replace(weight=vnp.asarray(rows))
    adapter = nn.LoRA.init(vf.random.key(1), layer, 2, dora=True)
    np.testing.assert_allclose(adapter(X), layer(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(adapter.merged().weight, rows, rtol=1e-5, atol=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in tree.leaves(vf.grad(lambda a: (a(X) ** 2).sum())(adapter)))


def test_models_without_adapters_and_stacked_ones_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"merge_lora: Linear has no adapters to merge; nn.lora\(model, key, rank\) adds them"):
        nn.merge_lora(layer_of("Linear", False))
    config = nn.CausalLMConfig(
        model_type="llama", vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=2, num_attention_heads=2
    )
    model = nn.CausalLM.init(vf.random.key(0), config)
    with pytest.raises(ShapeError, match=r"the weight is a matrix, got shape \(2, 4, 4\); model.unstack\(\) takes stacked layers apart"):
        nn.lora(model.stack(), vf.random.key(1), rank=2)


@pytest.mark.parametrize("kind", ["Linear", "Projection"])
@pytest.mark.parametrize("dora", [False, True])
def test_integers_meet_adapters_as_floats(kind: str, dora: bool) -> None:
    adapter = trained(layer_of(kind, True), dora)
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    np.testing.assert_allclose(adapter(x), adapter(x.astype(np.float32)), rtol=1e-6)
