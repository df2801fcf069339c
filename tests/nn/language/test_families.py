"""Models of all families: transformers' logits, with caches and without, and the files between the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.language import families
from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, SerializationError, StateDictError

STORED = json.loads(families.STORED.read_text())


@pytest.fixture(params=list(families.CONFIGS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(name: str, tmp_path: Path) -> nn.CausalLM:
    model: nn.CausalLM = families.model_of(name, tmp_path)
    return model


def test_every_family_is_compared() -> None:
    assert {entry["model_type"] for entry in families.CONFIGS.values()} == set(nn.FAMILIES)
    assert set(STORED) == set(families.CONFIGS)


def test_logits_are_those_of_transformers(name: str, model: nn.CausalLM) -> None:
    logits = np.asarray(model(vnp.asarray(families.TOKENS)))
    np.testing.assert_allclose(logits[:, -1], STORED[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rolling", [False, True])
def test_caches_give_the_same_logits(name: str, model: nn.CausalLM, rolling: bool) -> None:
    """In pieces of several tokens, some with padding, and of one; a ring is overwritten several times."""
    if name in ("llama_dynamic", "phi3_longrope"):
        pytest.skip("the frequencies of a call depend on its longest position, and cached keys keep theirs, as in transformers")
    tokens = vnp.asarray(families.TOKENS)
    expected = np.asarray(model(tokens))
    step = vf.jit(lambda m, t, c, n: m(t, cache=c, count=n))
    logits, cache = model(tokens[:, :3], cache=model.init_cache(2, 16, rolling=rolling), prefill=True)
    pieces = [np.asarray(logits)]
    for begin, count in [(3, 2), (5, 4), (9, 1), (10, 1), (11, 1)]:
        piece = tokens[:, begin : begin + count]
        padded = vnp.pad(piece, ((0, 0), (0, 4 - count))) if count > 1 else piece
        logits, cache = step(model, padded, cache, count)
        pieces.append(np.asarray(logits)[:, :count])
    np.testing.assert_allclose(np.concatenate(pieces, 1), expected, rtol=1e-4, atol=2e-5)


def test_rows_of_unequal_lengths(name: str, model: nn.CausalLM) -> None:
    """A row that is padded on the left gives the logits that it gives alone."""
    if name in ("llama_dynamic", "phi3_longrope"):
        pytest.skip("the frequencies of a call depend on its longest position")
    tokens = families.TOKENS.copy()
    tokens[1, :4] = 0
    cache = model.init_cache(2, 14, start=vnp.array([0, 4]))
    logits, cache = model(vnp.asarray(tokens[:, :-1]), cache=cache, prefill=True)
    last, _ = model(vnp.asarray(tokens[:, -1:]), cache=cache)
    alone = np.asarray(model(vnp.asarray(tokens[1:, 4:])))
    np.testing.assert_allclose(np.asarray(logits)[1:, 4:], alone[:, :-1], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(np.asarray(last)[1:], alone[:, -1:], rtol=1e-4, atol=2e-5)


def test_saving_and_loading(model: nn.CausalLM, tmp_path: Path) -> None:
    vf.io.save_pretrained(tmp_path / "new", model, max_shard_size="20KB")
    assert (tmp_path / "new" / "model.safetensors.index.json").is_file()
    same = vf.io.load_pretrained(tmp_path / "new")
    assert same.config == model.config
    assert nn.tree_equal(same, model)


def test_transformers_reads_what_is_saved(name: str, model: nn.CausalLM, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    expected = families.transformers_logits(tmp_path)
    vf.io.save_pretrained(tmp_path, model)
    np.testing.assert_allclose(families.transformers_logits(tmp_path), expected, atol=1e-6)
    np.testing.assert_allclose(np.asarray(model(vnp.asarray(families.TOKENS))), expected, rtol=1e-4, atol=1e-4)


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    model = families.model_of("llama", tmp_path)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("the system does not tell what is mapped")
    ranges = [line.split()[0].split("-") for line in maps.read_text().splitlines() if "model.safetensors" in line]
    projection: Any = model.model.layers[0].self_attn.q_proj
    for array in (projection.weight, model.model.embed_tokens.weight):
        address = np.from_dlpack(array).__array_interface__["data"][0]
        assert any(int(low, 16) <= address < int(high, 16) for low, high in ranges)


def test_loading_with_another_dtype(tmp_path: Path) -> None:
    families.model_of("llama", tmp_path)
    model = vf.io.load_pretrained(tmp_path, dtype="bfloat16")
    assert model.config.dtype == "bfloat16"
    assert {leaf.dtype.name for leaf in vf.tree.leaves(model)} == {"bfloat16"}
    assert model(vnp.asarray(families.TOKENS)).dtype.name == "float32"


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(SerializationError, match="no config"):
        vf.io.load_pretrained(tmp_path)
    families.model_of("qwen3_moe", tmp_path)
    arrays = vf.io.load_safetensors(tmp_path)
    del arrays["model.layers.0.mlp.experts.3.up_proj.weight"]
    vf.io.save_safetensors(tmp_path / "model.safetensors", arrays)
    with pytest.raises(StateDictError, match=r"experts.3.up_proj"):
        vf.io.load_pretrained(tmp_path)
    families.model_of("llama", tmp_path)
    vf.io.save_safetensors(tmp_path / "model.safetensors", vf.io.load_safetensors(tmp_path) | {"extra": vnp.ones(1)})
    with pytest.raises(StateDictError, match="extra"):
        vf.io.load_pretrained(tmp_path)
    with pytest.raises(ArgumentTypeError, match="CausalLM"):
        vf.io.save_pretrained(tmp_path, nn.Linear.init(vf.random.key(0), 1, 1))  # type: ignore[arg-type]


def test_stacked_layers_give_the_same(name: str, model: nn.CausalLM, tmp_path: Path) -> None:
    """Logits, with caches and without, gradients, and files."""
    if name == "qwen2_moe":
        with pytest.raises(ArgumentError, match="2 structures of 3 layers"):
            model.stack()
        return
    tokens = vnp.asarray(families.TOKENS)
    stacked = model.stack()
    assert nn.tree_equal(stacked.unstack(), model)
    np.testing.assert_allclose(np.asarray(vf.jit(lambda m: m(tokens))(stacked)), np.asarray(model(tokens)), rtol=1e-4, atol=2e-5)
    logits, cache = stacked(tokens[:, :7], cache=stacked.init_cache(2, 16), prefill=True)
    expected, other = model(tokens[:, :7], cache=model.init_cache(2, 16, rolling=False), prefill=True)
    for _ in range(2):
        np.testing.assert_allclose(np.asarray(logits), np.asarray(expected), rtol=1e-4, atol=2e-5)
        logits, cache = stacked(tokens[:, 7:8], cache=cache)
        expected, other = model(tokens[:, 7:8], cache=other)
    loss = lambda m: vnp.mean(vnp.sin(m(tokens[:1, :5])))
    gradient, plain = vf.grad(loss)(stacked.replace(remat=True)).unstack(), vf.grad(loss)(model)
    for a, b in zip(vf.tree.leaves(gradient), vf.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-5)
    vf.io.save_pretrained(tmp_path / "stacked", stacked)
    assert nn.tree_equal(vf.io.load_pretrained(tmp_path / "stacked"), model)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_language_model_of_a_gemma_with_vision(prefix: str, tmp_path: Path) -> None:
    model = families.model_of("gemma3", tmp_path)
    arrays = {name.replace("model.", prefix, 1): value for name, value in vf.io.load_safetensors(tmp_path).items()}
    vision = {"vision_tower.weight": vnp.ones(2), "multi_modal_projector.weight": vnp.ones(2)}
    vf.io.save_safetensors(tmp_path / "model.safetensors", arrays | vision)
    entries = {"model_type": "gemma3", "text_config": families.entries("gemma3"), "vision_config": {"hidden_size": 3}}
    (tmp_path / "config.json").write_text(json.dumps(entries))
    same = vf.io.load_pretrained(tmp_path)
    assert same.config == model.config
    assert nn.tree_equal(same, model)
