"""Language models beside PyTorch's eager mode: reading a prompt, and decoding.

    VOLTA_NUM_THREADS=1 taskset -c 1 python -m benchmarks.language            # SmolLM2-135M's sizes, random weights in bfloat16
    VOLTA_NUM_THREADS=1 taskset -c 1 python -m benchmarks.language --stacked  # also with layers under one scan
    VOLTA_NUM_THREADS=1 taskset -c 1 python -m benchmarks.language --quantize int8 int4 nf4  # also with quantised weights

CPU milliseconds, the minimum of several turns; frameworks take turns. PyTorch runs the same decoder, written with its functions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn import nn
from volta_fn import numpy as jnp
from volta_fn.nn.language.generation import rounded_size
from volta_fn.primitives.quantized import SCHEMES

#: Sizes by name: features, layers, heads, groups, inner features, tokens, and whether q, k and v have biases (Qwen 2).
SIZES = {
    "tiny": (64, 2, 4, 2, 96, 128, False),
    "smollm2-135m": (576, 30, 9, 3, 1536, 49152, False),
    "qwen2.5-0.5b": (896, 24, 14, 2, 4864, 151936, True),
}


def model_of(name: str, dtype: str) -> nn.CausalLM:
    """Return a random model of these sizes."""
    hidden, layers, heads, groups, inner, tokens, biased = SIZES[name]
    config = nn.CausalLMConfig(
        model_type="qwen2" if biased else "llama", vocab_size=tokens, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=groups, tie_word_embeddings=True, dtype=dtype,
    )  # fmt: skip
    return nn.CausalLM.init(vf.random.key(0), config)


class Ours:
    """The model here, with a cache that decoding goes on from."""

    def __init__(self, model: nn.CausalLM, prompt: np.ndarray) -> None:
        self.model, self.prompt = model, prompt
        self.step = vf.jit(self._step, donate_argnums=2)

    @staticmethod
    def _step(model: nn.CausalLM, tokens: Any, cache: Any) -> tuple[Any, Any, Any]:
        logits, cache = model(tokens, cache=cache)
        return jnp.argmax(logits, -1).astype("int32"), logits, cache

    def prefill(self) -> np.ndarray:
        logits, self.cache = nn.prefill(self.model, self.prompt)
        self.tokens = jnp.argmax(logits, -1).astype("int32")[:, None]
        return np.asarray(logits, np.float32)

    def decode(self) -> np.ndarray:
        self.cache = self.cache.grow(rounded_size(int(self.cache.length) + 1, 128))
        self.tokens, logits, self.cache = self.step(self.model, self.tokens, self.cache)
        return np.asarray(logits[:, 0], np.float32)


class PyTorch:
    """The same decoder with PyTorch's functions and a cache of constant size."""

    def __init__(self, model: nn.CausalLM, prompt: np.ndarray, slots: int) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch, self.config, self.prompt = torch, model.config, torch.from_numpy(prompt).long()
        kind = getattr(torch, self.config.dtype)
        self.weights = {name: torch.from_numpy(np.array(x, np.float32)).to(kind) for name, x in vf.io.state_dict(model).items()}
        shape = (1, self.config.num_key_value_heads, slots, self.config.head_dim)
        self.keys, self.values = ([torch.zeros(shape, dtype=kind) for _ in model.config.layer_types] for _ in range(2))
        self.rates = 10000.0 ** (-torch.arange(0, self.config.head_dim, 2).float() / self.config.head_dim)

    def _rotate(self, x: Any, positions: Any) -> Any:
        angles = positions[:, None].float() * self.rates
        cos, sin = angles.cos(), angles.sin()
        first, second = x.float().chunk(2, -1)
        return self.torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    def _forward(self, tokens: Any, positions: Any) -> Any:
        functional, config, w = self.torch.nn.functional, self.config, self.weights
        x = w["model.embed_tokens.weight"][tokens]
        filled = int(positions[-1]) + 1
        mask = self.torch.arange(filled)[None, :] <= positions[:, None]
        for i, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            at = f"model.layers.{i}."
            linear = lambda name, y, at=at: functional.linear(y, w[f"{at}{name}.weight"], w.get(f"{at}{name}.bias"))
            norm = lambda name, y, at=at: functional.rms_norm(y, (config.hidden_size,), w[f"{at}{name}.weight"], config.rms_norm_eps)
            h = norm("input_layernorm", x)
            q, k, v = (linear(f"self_attn.{c}_proj", h).unflatten(-1, (-1, config.head_dim)).transpose(1, 2) for c in "qkv")
            keys[:, :, positions], values[:, :, positions] = self._rotate(k, positions), v
            out = functional.scaled_dot_product_attention(
                self._rotate(q, positions), keys[:, :, :filled], values[:, :, :filled], attn_mask=mask, enable_gqa=True
            )
            x = x + linear("self_attn.o_proj", out.transpose(1, 2).flatten(2))
            h = norm("post_attention_layernorm", x)
            x = x + linear("mlp.down_proj", functional.silu(linear("mlp.gate_proj", h)) * linear("mlp.up_proj", h))
        x = functional.rms_norm(x[:, -1], (config.hidden_size,), w["model.norm.weight"], config.rms_norm_eps)
        return functional.linear(x, w["model.embed_tokens.weight"]).float()

    def prefill(self) -> np.ndarray:
        self.length = self.prompt.shape[1]
        with self.torch.inference_mode():
            logits = self._forward(self.prompt, self.torch.arange(self.length))
        self.tokens = logits.argmax(-1)[:, None]
        result: np.ndarray = logits.numpy()
        return result

    def decode(self) -> np.ndarray:
        with self.torch.inference_mode():
            logits = self._forward(self.tokens, self.torch.tensor([self.length]))
        self.tokens, self.length = logits.argmax(-1)[:, None], self.length + 1
        result: np.ndarray = logits.numpy()
        return result


def timed(run: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """Return CPU milliseconds of a call, and its result."""
    start = time.process_time()
    result = run()
    return (time.process_time() - start) * 1e3, result


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Print and return milliseconds by framework and task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", choices=SIZES, default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=24, help="tokens that are decoded")
    parser.add_argument("--turns", type=int, default=3, help="how often prompts are read")
    parser.add_argument("--stacked", action="store_true", help="also with layers under one scan")
    parser.add_argument("--quantize", nargs="*", choices=SCHEMES, default=[], help="also with quantised weights")
    options = parser.parse_args(argv)
    model = model_of(options.model, options.dtype)
    prompt = np.random.default_rng(1).integers(0, model.config.vocab_size, (1, options.prompt)).astype(np.int32)
    runners: dict[str, Any] = {"volta_fn": Ours(model, prompt)}
    if options.stacked:
        runners["stacked"] = Ours(model.stack(), prompt)
    for scheme in options.quantize:
        runners[scheme] = Ours(nn.quantize(model, scheme), prompt)
        if scheme == "int8":
            runners["int8 × int8"] = Ours(nn.quantize(model, "int8", activations="int8"), prompt)
    runners["PyTorch"] = PyTorch(model, prompt, options.prompt + options.steps + 1)
    times: dict[str, dict[str, float]] = {name: {} for name in runners}
    for task, turns in (("prefill", options.turns), ("decode", options.steps)):
        for turn in range(turns + 1):  # the first one compiles
            logits = {}
            for name, runner in runners.items():
                milliseconds, logits[name] = timed(getattr(runner, task))
                key = f"first {task}" if turn == 0 else task
                times[name][key] = min(milliseconds, times[name].get(key, np.inf))
            if turn == 0:
                scale = np.abs(logits["PyTorch"]).max()
                exact = [logits[name] for name in ("volta_fn", "stacked") if name in logits]
                difference = max(np.abs(x - logits["PyTorch"]).max() for x in exact) / scale
                print(f"{task}: largest difference of logits {difference:.1e} of the largest")
    for name, row in times.items():
        ratios = "; ".join(
            f"beside {peer}: " + ", ".join(f"{task} {row[task] / times[peer][task]:.2f}" for task in ("prefill", "decode"))
            for peer in ("PyTorch", "volta_fn")
        )
        size = sum(x.nbytes for x in vf.tree.leaves(runners[name].model)) / 1e6 if isinstance(runners[name], Ours) else np.nan
        print(f"{name:11} {size:.0f} MB,", *[f"{task} {row[task]:.1f} ms" for task in row], f"| {ratios}")
    return times


if __name__ == "__main__":
    main()
