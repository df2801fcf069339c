"""Language models on a GPU beside PyTorch: decoding tokens, and reading a prompt.

Run `python -m benchmarks.gpu.decoding`. Models have random weights and the sizes of SmolLM2-135M and Qwen2.5-0.5B, in bfloat16 and
quantised. A token is decoded by a cache of 1,024 slots. First logits are compared with PyTorch's, which runs the same decoder in
bfloat16. Times are medians of several samples, by turns: on the device, by chains of the dispatches of a token, and as a program sees
them, by a loop whose tokens stay on the device. PyTorch's decoder is a CUDA graph, with `--compile` of compiled layers. The bandwidth is
that of the weights, which a token reads once, beside that of a copy. With `--profile` the dispatches of a token and of the prompt are timed
one by one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

import volta_fn as vf
from benchmarks.gpu import peers
from benchmarks.gpu.chains import chain, repeated, steps_of
from benchmarks.gpu.few_rows import copy_bandwidth
from benchmarks.gpu.products import alternate
from benchmarks.language import SIZES, model_of
from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.primitives.quantized import SCHEMES
from volta_fn.targets.gpu.driver import BoundDispatch

#: Slots of the cache, tokens that it holds, and tokens of a sample.
SLOTS, PROMPT, TOKENS = 1024, 512, 32

#: The largest difference of logits from PyTorch's, relative to the largest: both round to bfloat16 after each operation, and quantised
#: weights differ. With 4 bits little of a random model's logits is left: products are checked by `few_rows`.
TOLERANCES = {"bfloat16": 0.05, "int8": 0.1, "fp8": 0.3}


class Ours:
    """A model with a cache that holds a prompt."""

    def __init__(self, model: nn.CausalLM, prompt: np.ndarray) -> None:
        self.model, self.prompt = model, vnp.asarray(prompt)
        self.step = vf.jit(self._step, donate_argnums=2)
        self.read = vf.jit(self._read, donate_argnums=2)
        self.cache = model.init_cache(len(prompt), SLOTS)
        self.logits = self.prefill()

    @staticmethod
    def _read(model: nn.CausalLM, prompt: Any, cache: Any) -> tuple[Any, Any]:
        hidden, cache, _ = model.hidden(prompt, cache=cache, prefill=True)
        return model.logits(hidden[:, -1]), cache

    @staticmethod
    def _step(model: nn.CausalLM, tokens: Any, cache: Any) -> tuple[Any, Any, Any]:
        logits, cache = model(tokens, cache=cache)
        return vnp.argmax(logits, -1).astype("int32"), logits[:, 0], cache

    def prefill(self) -> Any:
        """Read the prompt anew, and return the logits of the next token."""
        logits, self.cache = self.read(self.model, self.prompt, self.cache._replace(length=vnp.zeros((), "int32")))
        self.tokens = vnp.argmax(logits, -1).astype("int32")[:, None]
        return logits

    def decode(self) -> Any:
        """Decode a token, and return the logits of the next one."""
        self.tokens, logits, self.cache = self.step(self.model, self.tokens, self.cache)
        return logits

    def loop(self) -> float:
        """Return the seconds of a token in a loop."""
        vf.block_until_ready(self.tokens)
        start = time.perf_counter()
        for _ in range(TOKENS):
            self.decode()
        vf.block_until_ready(self.tokens)
        return (time.perf_counter() - start) / TOKENS


class PyTorch:
    """The same decoder with PyTorch's functions, and a cache of constant size."""

    def __init__(self, model: nn.CausalLM, prompt: np.ndarray, compiled: bool) -> None:
        self.torch = torch = peers.torch()
        self.config = config = model.config
        arrays = vf.io.state_dict(model)
        self.weights = {name: torch.from_numpy(np.array(x, np.float32)).cuda().bfloat16() for name, x in arrays.items()}
        shape = (len(prompt), config.num_key_value_heads, SLOTS, config.head_dim)
        count = len(config.layer_types)
        self.cache = [[torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)] for _ in range(count)]
        self.rates = 10000.0 ** (-torch.arange(0, config.head_dim, 2, device="cuda").float() / config.head_dim)
        self.layers = [self._fused(f"model.layers.{i}.") for i in range(count)]
        self.layer = torch.compile(self._layer, dynamic=False) if compiled else self._layer
        self.prompt = torch.from_numpy(prompt).long().cuda()
        self.tokens = torch.zeros((len(prompt), 1), dtype=torch.int64, device="cuda")
        self.position = torch.full((1,), PROMPT, device="cuda")
        self.read, self.logits = self._captured(self._prefill)
        self.step, self.next_logits = self._captured(self._decode)

    def _fused(self, at: str) -> dict[str, Any]:
        """Return a layer's weights.

        There is one matrix for q, k and v, and one for gate and up.
        """
        cat, w = self.torch.cat, self.weights
        joined = {"qkv": [f"self_attn.{c}_proj" for c in "qkv"], "up": ["mlp.gate_proj", "mlp.up_proj"]}
        joined |= {"o": ["self_attn.o_proj"], "down": ["mlp.down_proj"]}
        result: dict[str, Any] = {name: cat([w[f"{at}{part}.weight"] for part in parts]) for name, parts in joined.items()}
        biases = [w.get(f"{at}{part}.bias") for part in joined["qkv"]]
        result["bias"] = None if biases[0] is None else cat(biases)
        return result | {norm: w[f"{at}{norm}.weight"] for norm in ("input_layernorm", "post_attention_layernorm")}

    def _norm(self, x: Any, weight: Any) -> Any:
        return self.torch.nn.functional.rms_norm(x, (self.config.hidden_size,), weight, self.config.rms_norm_eps)

    def _rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.float().chunk(2, -1)
        return self.torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    def _layer(self, x: Any, w: dict[str, Any], keys: Any, values: Any, positions: Any, cos: Any, sin: Any, mask: Any) -> Any:
        functional, config = self.torch.nn.functional, self.config
        heads, groups, features = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        rows = functional.linear(self._norm(x, w["input_layernorm"]), w["qkv"], w["bias"]).unflatten(-1, (-1, features)).transpose(1, 2)
        q, k, v = rows.split([heads, groups, groups], 1)
        k = self._rotate(k, cos, sin)
        keys.index_copy_(2, positions, k)
        values.index_copy_(2, positions, v)
        attended = (k, v) if mask is None else (keys, values)
        q = self._rotate(q, cos, sin)
        out = functional.scaled_dot_product_attention(q, *attended, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        x = x + functional.linear(out.transpose(1, 2).flatten(2), w["o"])
        gate, up = functional.linear(self._norm(x, w["post_attention_layernorm"]), w["up"]).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, w["down"])

    def _forward(self, tokens: Any, positions: Any, mask: Any) -> Any:
        angles = positions[:, None].float() * self.rates
        cos, sin = angles.cos(), angles.sin()
        x = self.weights["model.embed_tokens.weight"][tokens]
        for w, (keys, values) in zip(self.layers, self.cache, strict=True):
            x = self.layer(x, w, keys, values, positions, cos, sin, mask)
        x = self._norm(x[:, -1], self.weights["model.norm.weight"])
        return self.torch.nn.functional.linear(x, self.weights["model.embed_tokens.weight"]).float()

    def _prefill(self) -> Any:
        logits = self._forward(self.prompt, self.torch.arange(PROMPT, device="cuda"), None)
        self.tokens.copy_(logits.argmax(-1)[:, None])
        self.position.fill_(PROMPT)
        return logits

    def _decode(self) -> Any:
        mask = self.torch.arange(SLOTS, device="cuda")[None] <= self.position[:, None]
        logits = self._forward(self.tokens, self.position, mask)
        self.tokens.copy_(logits.argmax(-1)[:, None])
        self.position.add_(1).clamp_(max=SLOTS - 1)
        return logits

    def _captured(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        """Return a function's CUDA graph, and its result."""
        torch = self.torch
        with torch.inference_mode():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    function()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = function()
        return graph, result

    def seconds(self, graph: Any, count: int) -> float:
        """Return the seconds of a graph."""
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            graph.replay()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - start) / count


def difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of logits, relative to the largest."""
    x, y = np.asarray(ours, np.float32), theirs.float().cpu().numpy()
    return float(np.abs(x - y).max() / np.abs(y).max())


def profile(program: Callable[[], Any]) -> None:
    """Print the dispatches of a program by their times.

    Each is timed in a chain of itself.
    """
    steps, held = steps_of(program)
    alike: dict[Any, list[BoundDispatch]] = {}
    for step in steps:
        alike.setdefault((step.pipeline, step.workgroups), []).append(step)
    costs = [(repeated([group[0]], 64), group) for group in alike.values()]
    for seconds, group in sorted(costs, key=lambda cost: -cost[0] * len(cost[1])):
        threads = group[0].pipeline.threads[0]
        print(f"  {len(group):4d} × {seconds * 1e6:6.2f} us  {group[0].workgroups[0]:6d} groups of {threads:4d}")
    print(
        f"  {len(steps)} dispatches, {sum(seconds * len(group) for seconds, group in costs) * 1e6:.0f} us by themselves, {len(held)} calls"
    )


def run_model(name: str, schemes: Sequence[str], options: argparse.Namespace, bandwidth: float) -> int:
    """Check and time a model in all schemes; return the number of wrong results."""
    model = model_of(name, "bfloat16")
    prompt = np.random.default_rng(1).integers(0, model.config.vocab_size, (1, PROMPT)).astype(np.int32)
    runs = {"bfloat16": Ours(model, prompt)} if "bfloat16" in schemes else {}
    for scheme in schemes:
        if scheme in SCHEMES:
            runs[scheme] = Ours(nn.quantize(model, cast(Any, scheme)), prompt)
    samplers: dict[str, Callable[[], float]] = {}
    failures, torch = 0, None
    if peers.torch() is not None and not options.alone:
        torch = PyTorch(model, prompt, options.compile)
        torch.read.replay()
        torch.step.replay()
    for scheme, run in runs.items():
        first, second = run.logits, run.decode()
        if torch is not None:
            errors = difference(first, torch.logits), difference(second, torch.next_logits)
            verdict = "" if max(errors) < TOLERANCES.get(scheme, np.inf) else "  FAILED"
            failures += bool(verdict)
            print(
                f"{name}, {scheme}: logits differ by {errors[0]:.1e} after the prompt, {errors[1]:.1e} after a token{verdict}", flush=True
            )
        samplers[f"{scheme} prompt"] = chain(run.prefill, 1)
        run.prefill()
        samplers[f"{scheme} token"] = chain(run.decode, 1)
        run.prefill()
        samplers[f"{scheme} loop"] = run.loop
    if torch is not None:
        samplers["PyTorch prompt"] = lambda: torch.seconds(torch.read, 4)
        samplers["PyTorch token"] = lambda: torch.seconds(torch.step, TOKENS)
    times = alternate(samplers)
    for key, seconds in times.items():
        scheme, _, task = key.partition(" ")
        size = sum(x.nbytes for x in vf.tree.leaves(runs[scheme].model if scheme in runs else model))
        rate = f"{size / 1e6:7.1f} MB, {size / seconds / bandwidth:4.0%} of the bandwidth" if task != "prompt" else ""
        peer = "PyTorch prompt" if task == "prompt" else "PyTorch token"
        ratio = f"{seconds / times[peer]:5.2f} of PyTorch's time" if peer in times else ""
        print(f"{name:14s} {key:18s} {seconds * 1e6:9.1f} us  {ratio}  {rate}", flush=True)
    for scheme in schemes if options.profile else ():
        for task, program in (("the prompt", runs[scheme].prefill), ("a token", runs[scheme].decode)):
            runs[scheme].prefill()
            print(f"{name}, {scheme}: the dispatches of {task}")
            profile(program)
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; return 1 if logits are wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.decoding", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", nargs="*", choices=SIZES, default=["smollm2-135m", "qwen2.5-0.5b"])
    parser.add_argument("--scheme", nargs="*", choices=["bfloat16", *SCHEMES], default=["bfloat16", "int8", "int4"])
    parser.add_argument("--compile", action="store_true", help="compile PyTorch's layers")
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    parser.add_argument("--profile", action="store_true", help="time dispatches one by one")
    options = parser.parse_args(arguments)
    bandwidth = copy_bandwidth()
    print(f"a copy moves {bandwidth / 1e9:.0f} GB/s")
    return 1 if sum(run_model(name, options.scheme, options, bandwidth) for name in options.model) else 0


if __name__ == "__main__":
    raise SystemExit(main())
