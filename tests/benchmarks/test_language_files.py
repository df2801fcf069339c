"""The benchmarks that read language models from files run on a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from benchmarks import llama_cpp, perplexity
from volta_fn import io, nn


def small_model() -> nn.CausalLM:
    config = nn.CausalLMConfig(
        model_type="llama", vocab_size=90, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return nn.CausalLM.init(vf.random.key(0), config)


TEXT = np.random.default_rng(0).integers(0, 90, (2, 9)).astype(np.int32)


def test_permuted_features_compute_the_same_with_other_groups() -> None:
    model = small_model()
    other = perplexity.permuted(model)
    np.testing.assert_allclose(other(TEXT), model(TEXT), rtol=1e-4, atol=1e-4)
    pairs = zip(io.state_dict(model).values(), io.state_dict(other).values(), strict=True)
    assert all(x.ndim == 1 or not np.array_equal(x, y) for x, y in pairs)


def test_the_table_has_the_perplexity_of_each_kind() -> None:
    model, lines = small_model(), list[str]()
    logits = np.asarray(model(TEXT[:, :-1]), np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, TEXT[:, 1:, None], -1)[..., 0]
    assert perplexity.perplexity(model, TEXT) == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    names = ["int8", "int4, groups of 32", "sensitive: int4, groups of 32"]
    factors = perplexity.table(model, TEXT, names, lines.append)
    assert list(factors) == names and len(lines) == 2 + len(names)
    assert abs(factors["int8"] - 1) < 0.02
    mixed = perplexity.quantized(model, names[-1]).model.layers[0]
    assert (mixed.mlp.down_proj.weight.scheme, mixed.mlp.up_proj.weight.scheme) == ("int8", "int4")


def test_calibrated_kinds_lose_less_than_rounded_ones() -> None:
    model, rng = small_model(), np.random.default_rng(1)
    calibration = rng.integers(0, 90, (6, 32)).astype(np.int32)
    new = rng.integers(0, 90, (4, 32)).astype(np.int32)
    error = lambda name: float(np.square(np.asarray(perplexity.quantized(model, name, calibration)(new) - model(new))).mean())
    assert error("GPTQ: int4, groups of 32") < 0.8 * error("int4, groups of 32")


def test_texts_of_evaluation_and_calibration_differ() -> None:
    evaluation, calibration = perplexity.evaluation_text(), perplexity.calibration_text()
    assert min(len(evaluation), len(calibration)) > 100_000
    lines = {line for line in calibration.splitlines() if len(line) > 60}
    first = [line for line in evaluation[:20_000].splitlines() if len(line) > 60]  # the windows of the table
    assert len(first) > 100 and not lines.intersection(first)


def test_gguf_files_are_rewritten_and_decoded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    tensors: dict[str, Any] = {
        "a.weight": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32),
        "b.weight": np.ones(64, np.float32),
    }
    io.save_gguf(path, tensors, {"general.architecture": "llama", "llama.block_count": 1, "general.file_type": 3})
    other = io.open_gguf(llama_cpp.rewritten(path, "Q4_0", str(tmp_path)))
    assert other["a.weight"].scheme == "int4" and other["b.weight"].dtype == np.float32
    assert other.metadata["llama.block_count"] == 1 and "general.file_type" not in other.metadata
    assert not any(name.startswith("GGUF.") for name in other.metadata)
    wide = io.open_gguf(llama_cpp.rewritten(path, "Q4_K", str(tmp_path)))["a.weight"]  # 64 numbers are no block of Q4_K
    assert wide.group_size == 32 and wide.offsets is not None


def test_turns_keep_the_least_time() -> None:
    times = iter([9.0, 9.0, 5.0, 4.0, 3.0, 6.0])
    runners = {"a": {"decode": lambda: next(times)}, "b": {"decode": lambda: next(times)}}
    assert llama_cpp.by_turns(runners, {"decode": 2}) == {"a": {"decode": 3.0}, "b": {"decode": 4.0}}
