"""Tiny models of each supported family, as Hugging Face's `transformers` describes them, and their logits.

`python -m tests.nn.language.families` compares fresh random models with transformers', which must be installed. `--write` stores the logits
that the tests compare with where it is not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn import numpy as vnp

#: transformers' logits of the models that `weights` draws, by name.
STORED = Path(__file__).parent / "family_logits.json"

_SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads":
    2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 2.0, 3.0]}
_GEMMA2 = {"head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True, "head_dim": 8}

#: Entries of config.json, by name: each family, and each way to stretch positions.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 10000.0, "tie_word_embeddings": False},
    "llama_biased": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "llama3": {"model_type": "llama", "rope_theta": 500000.0, "rope_scaling": _LLAMA3, "tie_word_embeddings": True},
    "llama_linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama_dynamic": {"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 3.0}, "max_position_embeddings": 8},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e6, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen2_yarn": {"model_type": "qwen2", "rope_scaling": _YARN},
    "qwen3": {"model_type": "qwen3", "head_dim": 12, "rope_theta": 1e6},
    "qwen2_moe": {"model_type": "qwen2_moe", **_MOE, "shared_expert_intermediate_size": 20, "norm_topk_prob": False,
                  "mlp_only_layers": [1]},
    "qwen3_moe": {"model_type": "qwen3_moe", **_MOE},
    "mistral": {"model_type": "mistral", "sliding_window": 5, "head_dim": 8},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "gemma": {"model_type": "gemma", "head_dim": 16, "hidden_act": "gelu_pytorch_tanh"},
    "gemma2": {"model_type": "gemma2", **_GEMMA2},
    "gemma3": {
        "model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4, "sliding_window_pattern": 3,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi2": {"model_type": "phi", "partial_rotary_factor": 0.5, "num_key_value_heads": 4},
    "phi3": {"model_type": "phi3", "sliding_window": 6},
    "phi3_longrope": {"model_type": "phi3", "rope_scaling": _LONGROPE, "original_max_position_embeddings": 8},
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2, "rope_theta": 2e6, "tie_word_embeddings": True},
}  # fmt: skip

#: The text that is read, in a batch of two.
TOKENS = np.random.default_rng(7).integers(3, 61, (2, 12)).astype(np.int32)


def entries(name: str) -> dict[str, Any]:
    """Return the content of a family's config.json."""
    return {**_SIZES, **CONFIGS[name], "torch_dtype": "float32"}


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return random weights, which depend on names in files and shapes alone."""
    arrays = {}
    for name, shape in sorted(shapes.items()):
        generator = np.random.default_rng(list(name.encode()))
        arrays[name] = (generator.standard_normal(shape) * (0.3 if len(shape) > 1 else 0.1)).astype(np.float32)
        if "norm" in name and name.endswith("weight") and "gemma" not in name:
            arrays[name] += 1
    return arrays


def model_of(name: str, folder: Path) -> Any:
    """Return a family's model with the weights of `weights`, read from a folder."""
    config = vf.nn.CausalLMConfig.from_json(entries(name))
    template = vf.nn.CausalLM.init(vf.random.key(0), config)
    vf.io.save_pretrained(folder, template)
    (folder / "config.json").write_text(json.dumps(entries(name)))
    shapes = {key: array.shape for key, array in vf.io.load_safetensors(folder).items()}
    vf.io.save_safetensors(folder / "model.safetensors", weights(shapes), {"format": "pt"})
    return vf.io.load_pretrained(folder)


def transformers_logits(folder: Path) -> np.ndarray:
    """Return transformers' logits of the model in a folder."""
    import torch
    from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    with torch.no_grad():
        logits: np.ndarray = model.eval()(torch.from_numpy(TOKENS).long()).logits.float().numpy()
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="store transformers' logits for the tests")
    parser.add_argument("names", nargs="*", default=list(CONFIGS))
    options = parser.parse_args()
    stored = {}
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            model = model_of(name, Path(folder))
            expected = transformers_logits(Path(folder))
            vf.io.save_pretrained(folder, model)
            saved = transformers_logits(Path(folder))
        logits = np.asarray(model(vnp.asarray(TOKENS)))
        differs = lambda x, y=expected: f"{np.abs(x - y).max():.1e}"
        print(f"{name:14} largest logit {np.abs(expected).max():7.3f}  differences {differs(logits)}, saved {differs(saved)}", flush=True)
        stored[name] = [[round(float(x), 5) for x in row] for row in expected[:, -1]]
    if options.write:
        STORED.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(rows)}' for name, rows in stored.items()) + "\n}\n")


if __name__ == "__main__":
    main()
