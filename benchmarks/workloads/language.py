"""The work of language models: decoding, prompts, products, attention, losses.

Models have random weights and the sizes of SmolLM2-135M and Qwen2.5-0.5B. A decoder is written once for JAX and volta_fn and once for
PyTorch; how a weight is stored (`STORED`) decides how it multiplies.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.workloads.attention import attention, attention_gradient
from benchmarks.workloads.case import Case, Library, Workload, normal
from benchmarks.workloads.products import QUICK, matmul

#: Slots of the cache, and where decoding begins.
CACHE, START = 1024, 512
#: Numbers of 4 bits that share a scale.
GROUP = 64
#: Results in bfloat16 differ by its rounding, 2⁻⁹, of each of many terms.
ROUNDED = 0.03


class Model(NamedTuple):
    """The shape of a decoder with grouped heads and gated feed-forward layers."""

    width: int
    layers: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int

    @property
    def features(self) -> int:
        """Features of a head."""
        return self.width // self.heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of a layer's matrices, (out, in)."""
        kv = self.key_heads * self.features
        return {
            "q": (self.width, self.width), "k": (kv, self.width), "v": (kv, self.width), "o": (self.width, self.width),
            "gate": (self.hidden, self.width), "up": (self.hidden, self.width), "down": (self.width, self.hidden),
        }  # fmt: skip


MODELS = {"smollm2-135m": Model(576, 30, 9, 3, 1536, 49152), "qwen2.5-0.5b": Model(896, 24, 14, 2, 4864, 151936)}
#: The model of a trial.
TINY = Model(128, 2, 4, 2, 128, 128)


def weight(rng: np.random.Generator, rows: int, columns: int, stored: str, spread: float) -> dict[str, np.ndarray]:
    """Return a random matrix (out, in) as floats, or as codes and scales.

    Codes of 4 bits are two to a byte, in blocks of 32: the lower halves of 16 bytes, then the upper ones.
    """
    if stored == "bfloat16":
        return {"floats": normal(rng, rows, columns, scale=spread)}
    if stored == "int8":
        codes = rng.integers(-127, 128, (rows, columns), np.int8)
        return {"codes": codes, "scales": np.full((rows, 1), spread / 73, np.float32)}  # 73: the deviation of the codes
    halves = rng.integers(0, 16, (rows, columns // 32, 2, 16), np.uint8)
    packed = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(rows, columns // 2)
    return {"codes": packed, "scales": np.full((rows, columns // GROUP), spread / 4.6, np.float32)}


def weights(rng: np.random.Generator, model: Model, stored: str) -> dict[str, Any]:
    """Return the weights of a model by name."""

    def layer() -> dict[str, Any]:
        matrices = {name: weight(rng, *shape, stored, shape[1] ** -0.5) for name, shape in model.matrices().items()}
        return matrices | {norm: np.ones(model.width, np.float32) for norm in ("norm1", "norm2")}

    embedding = weight(rng, model.vocabulary, model.width, stored, 1.0)
    return {"embedding": embedding, "norm": np.ones(model.width, np.float32), "layers": [layer() for _ in range(model.layers)]}


class Store(NamedTuple):
    """How a library keeps a weight: `linear(x, w)` is x wᵀ, `take(w, i)` its rows i."""

    linear: Callable[[Any, Any], Any]
    take: Callable[[Any, Any], Any]


def store(lib: Library, stored: str) -> Store:
    """Return the products of JAX or of volta_fn with weights that are stored so."""
    if stored == "bfloat16":
        return Store(lambda x, w: x @ w["floats"].T, lambda w, i: w["floats"][i])
    if lib.jax.__name__ == "volta_fn":

        def array(w: Any) -> Any:
            columns = w["codes"].shape[1] * (2 if stored == "int4" else 1)
            group = GROUP if stored == "int4" else columns
            return lib.nn.QuantizedArray(w["codes"], w["scales"], None, stored, (columns,), group, dtype=w["scales"].dtype)

        return Store(lambda x, w: x @ array(w).T, lambda w, i: array(w).take(i))
    return Store(
        lambda x, w: (x @ w["codes"].astype(x.dtype).T) * w["scales"][:, 0],
        lambda w, i: w["codes"][i].astype(w["scales"].dtype) * w["scales"][i],
    )


def forward(lib: Library, model: Model, kept: Store, p: Any, tokens: Any, cache: Any, position: Any) -> tuple[Any, Any]:
    """Return the logits after the last of some tokens, and the cache that holds them.

    Tokens have shape (rows, count); the first one has this position. Several are a prompt, whose position is 0.
    """
    jnp, nn = lib.jnp, lib.nn
    rows, count = tokens.shape

    def norm(x: Any, w: Any) -> Any:
        wide = x.astype("float32")
        return (wide * lib.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * w

    positions = position + jnp.arange(count)
    rates = 1e5 ** (-jnp.arange(0, model.features, 2, dtype="float32") / model.features)
    angles = positions.astype("float32")[:, None, None] * rates
    cosine, sine = jnp.cos(angles), jnp.sin(angles)

    def rotate(x: Any) -> Any:
        first, second = jnp.split(x.astype("float32"), 2, -1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1).astype(x.dtype)

    x, new = kept.take(p["embedding"], tokens), []
    mask = (jnp.arange(CACHE) <= positions[:, None])[None, None]
    for w, (keys, values) in zip(p["layers"], cache, strict=True):
        h = norm(x, w["norm1"])
        q, k, v = (kept.linear(h, w[name]).reshape(rows, count, -1, model.features) for name in "qkv")
        keys, values = (lib.lax.dynamic_update_slice(old, x, (0, position, 0, 0)) for old, x in ((keys, rotate(k)), (values, v)))
        new.append((keys, values))
        if count > 1:  # a prompt, which fills an empty cache
            attended = nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        else:
            attended = nn.dot_product_attention(rotate(q), keys, values, mask=mask)
        x = x + kept.linear(attended.reshape(rows, count, -1), w["o"])
        h = norm(x, w["norm2"])
        x = x + kept.linear(nn.silu(kept.linear(h, w["gate"])) * kept.linear(h, w["up"]), w["down"])
    return kept.linear(norm(x[:, -1], p["norm"]), p["embedding"]), new


def torch_store(torch: Any, stored: str) -> tuple[Callable[[Any], Any], Store]:
    """Return what PyTorch makes of a weight once, and its products with that."""
    if stored == "bfloat16":
        return lambda w: w["floats"], Store(torch.nn.functional.linear, lambda w, i: w[i])
    if stored == "int8":
        return lambda w: (w["codes"], w["scales"][:, 0].contiguous()), Store(
            lambda x, w: torch._weight_int8pack_mm(x.flatten(0, -2), *w).unflatten(0, x.shape[:-1]),
            lambda w, i: w[0][i].to(w[1].dtype) * w[1][i, None],
        )

    def packed(w: Any) -> Any:
        rows, half = w["codes"].shape
        blocks = w["codes"].view(rows, half // 16, 1, 16)
        codes = torch.cat([blocks & 15, blocks >> 4], 2).reshape(rows, 2 * half).to(torch.int32)
        scales = w["scales"].T.contiguous()
        return torch._convert_weight_to_int4pack_for_cpu(codes, 2), torch.stack([scales, torch.zeros_like(scales)], -1), w

    def product(x: Any, w: Any) -> Any:
        return torch._weight_int4pack_mm_for_cpu(x.flatten(0, -2), w[0], GROUP, w[1]).unflatten(0, x.shape[:-1])

    def take(w: Any, i: Any) -> Any:
        codes, scales = w[2]["codes"][i], w[2]["scales"][i]
        blocks = codes.unflatten(-1, (-1, 1, 16))
        numbers = torch.cat([blocks & 15, blocks >> 4], -2).flatten(-3).to(scales.dtype) - 8
        return numbers * scales.repeat_interleave(GROUP, -1)

    return packed, Store(product, take)


def torch_forward(torch: Any, model: Model, kept: Store, p: Any, tokens: Any, cache: Any, position: int) -> Any:
    """Return the logits after the last of some tokens; the cache changes in place."""
    functional = torch.nn.functional
    rows, count = tokens.shape
    norm = lambda x, w: functional.rms_norm(x, (model.width,), w, 1e-5)
    positions = torch.arange(position, position + count)
    rates = 1e5 ** (-torch.arange(0, model.features, 2).float() / model.features)
    cosine, sine = (f(positions[:, None].float() * rates) for f in (torch.cos, torch.sin))

    def rotate(x: Any) -> Any:
        first, second = x.float().chunk(2, -1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(x.dtype)

    x, end = kept.take(p["embedding"], tokens), position + count
    causal = count > 1 and position == 0
    for w, (keys, values) in zip(p["layers"], cache, strict=True):
        h = norm(x, w["norm1"])
        q, k, v = (kept.linear(h, w[name]).view(rows, count, -1, model.features).transpose(1, 2) for name in "qkv")
        keys[:, :, position:end], values[:, :, position:end] = rotate(k), v
        attended = functional.scaled_dot_product_attention(
            rotate(q), keys[:, :, :end], values[:, :, :end], is_causal=causal, enable_gqa=True
        )
        x = x + kept.linear(attended.transpose(1, 2).reshape(rows, count, -1), w["o"])
        h = norm(x, w["norm2"])
        x = x + kept.linear(functional.silu(kept.linear(h, w["gate"])) * kept.linear(h, w["up"]), w["down"])
    return kept.linear(norm(x[:, -1], p["norm"]), p["embedding"])


def torch_weights(p: dict[str, Any], prepare: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the weights of a model with each matrix prepared."""
    if "floats" in p or "codes" in p:
        return prepare(p)
    branch = lambda x: torch_weights(x, prepare) if isinstance(x, dict) else x
    return {name: [branch(x) for x in value] if isinstance(value, list) else branch(value) for name, value in p.items()}


def decode(rng: np.random.Generator, model: Model, stored: str, rows: int = 1) -> Case:
    """Decode a token of each sequence; the tokens count up, so that all do the same."""
    empty = lambda: np.zeros((rows, CACHE, model.key_heads, model.features), np.float32)
    cache = [(empty(), empty()) for _ in range(model.layers)]
    state = {"cache": cache, "tokens": np.ones((rows, 1), np.int32), "position": np.array(START, np.int32)}

    def functional(lib: Library) -> Any:
        kept = store(lib, stored)

        def step(state: Any, p: Any) -> Any:
            tokens, position = state["tokens"], state["position"]
            logits, cache = forward(lib, model, kept, p, tokens, state["cache"], position)
            new = {"tokens": (tokens + 1) % model.vocabulary, "position": lib.jnp.minimum(position + 1, CACHE - 1), "cache": cache}
            return new, logits

        return step

    def torch_work(torch: Any, state: Any, p: Any) -> Any:
        prepare, kept = torch_store(torch, stored)
        p = torch_weights(p, prepare)
        cache = [[x.transpose(1, 2).contiguous() for x in pair] for pair in state["cache"]]
        tokens, position = state["tokens"], START

        def call() -> Any:
            nonlocal tokens, position
            logits = torch_forward(torch, model, kept, p, tokens, cache, position)
            tokens, position = (tokens + 1) % model.vocabulary, min(position + 1, CACHE - 1)
            return logits

        return torch.inference_mode()(call)

    inputs = (state, weights(rng, model, stored))
    return Case(inputs, functional, torch_work, stateful=True, tolerance=ROUNDED, dtype="bfloat16", jax=stored != "int4")


def prefill(rng: np.random.Generator, model: Model, tokens: int) -> Case:
    """Read a prompt into a new cache, and return the logits after it."""
    shape = (1, CACHE, model.key_heads, model.features)
    prompt = rng.integers(0, model.vocabulary, (1, tokens), np.int32)

    def functional(lib: Library) -> Any:
        def read(prompt: Any, p: Any) -> Any:
            empty = lambda: lib.jnp.zeros(shape, p["norm"].dtype)
            cache = [(empty(), empty()) for _ in range(model.layers)]
            return forward(lib, model, store(lib, "bfloat16"), p, prompt, cache, lib.jnp.int32(0))

        return read

    def torch_work(torch: Any, prompt: Any, p: Any) -> Any:
        prepare, kept = torch_store(torch, "bfloat16")
        p = torch_weights(p, prepare)

        def call() -> Any:
            empty = lambda: torch.zeros(1, model.key_heads, CACHE, model.features, dtype=torch.bfloat16)
            cache = [(empty(), empty()) for _ in range(model.layers)]
            logits = torch_forward(torch, model, kept, p, prompt, cache, 0)
            return logits, [tuple(x.transpose(1, 2) for x in pair) for pair in cache]

        return torch.inference_mode()(call)

    # Keys and values of the last layer carry the rounding of all before them, for each of many tokens.
    return Case((prompt, weights(rng, model, "bfloat16")), functional, torch_work, tolerance=2 * ROUNDED, dtype="bfloat16")


def bfloat16_product(rng: np.random.Generator, m: int, k: int, n: int) -> Case:
    """Multiply matrices in bfloat16."""
    return replace(matmul(rng, m, k, n), dtype="bfloat16", tolerance=ROUNDED)


def int8_product(rng: np.random.Generator, m: int, k: int, n: int) -> Case:
    """Multiply matrices of int8, (m, k) by (n, k) transposed, with sums in int32."""
    x, w = (rng.integers(-128, 128, shape, np.int8) for shape in ((m, k), (n, k)))

    def functional(lib: Library) -> Any:
        return lambda x, w: lib.lax.dot_general(x, w, (((1,), (1,)), ((), ())), preferred_element_type="int32")

    return Case((x, w), functional, lambda torch, x, w: lambda: torch._int_mm(x, w.T), tolerance=0.0, onnxruntime=integer_product_session)


def integer_product_session(x: np.ndarray, w: np.ndarray) -> Callable[[], Any]:
    """Return the same product by onnxruntime, whose weight is a constant of its model.

    Its fast kernel is that of unsigned by signed numbers, so x moves by 128, its zero point.
    """
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    node = helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])
    inputs = [helper.make_tensor_value_info("x", kinds.UINT8, list(x.shape))]
    outputs = [helper.make_tensor_value_info("y", kinds.INT32, [x.shape[0], w.shape[0]])]
    constants = {"w": np.ascontiguousarray(w.T), "zero": np.array(128, np.uint8)}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "product", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", 1))
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    moved = (x.astype(np.int16) + 128).astype(np.uint8)
    return lambda: session.run(None, {"x": moved})[0]


def cross_entropy_gradient(rng: np.random.Generator, rows: int, width: int, vocabulary: int, fused: bool) -> Case:
    """Return the gradient of the loss of a last layer, by its input and its weight.

    With `fused` volta_fn's is `nn.linear_cross_entropy`, which JAX and PyTorch lack.
    """
    x, w = normal(rng, rows, width), normal(rng, vocabulary, width, scale=0.05)
    labels = rng.integers(0, vocabulary, rows, np.int32)

    def functional(lib: Library) -> Any:
        def loss(x: Any, w: Any, labels: Any) -> Any:
            if fused and lib.jax.__name__ == "volta_fn":
                return lib.nn.linear_cross_entropy(x, w, labels, axis=0)
            logits = x @ w.T
            target = lib.jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
            return lib.jnp.mean(lib.nn.logsumexp(logits, -1) - target)

        return lib.jax.grad(loss, (0, 1))

    def torch_work(torch: Any, x: Any, w: Any, labels: Any) -> Any:
        leaves = [a.requires_grad_() for a in (x, w)]
        return lambda: torch.autograd.grad(torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T, labels), leaves)

    return Case((x, w, labels), functional, torch_work)


_SMALL_HEADS = {"batch": 2, "tokens": 5, "heads": 2, "width": 4}
_LOSS, _SMALL_LOSS = {"rows": 4096, "width": 256, "vocabulary": 50257}, {"rows": 5, "width": 8, "vocabulary": 17}


def _attention(tokens: int, *, large: bool, jax: bool = True) -> list[Workload]:
    size = {"batch": 1, "tokens": tokens, "heads": 4, "width": 64}
    without = lambda make: lambda rng, **sizes: replace(make(rng, **sizes), jax=jax)
    return [
        Workload(f"llm/{name} {tokens}", without(make), size, _SMALL_HEADS, large=large)
        for name, make in (("attention", attention), ("attention gradient", attention_gradient))
    ]


WORKLOADS = [
    *(
        Workload(f"llm/decode {name} {stored}", decode, {"model": model, "stored": stored}, {"model": TINY}, large=name != "smollm2-135m")
        for name, model in MODELS.items()
        for stored in ("bfloat16", "int8", "int4")
    ),
    *(
        Workload(
            f"llm/prefill 512 {name}", prefill, {"model": model, "tokens": 512}, {"model": TINY, "tokens": 9}, large=name != "smollm2-135m"
        )
        for name, model in MODELS.items()
    ),
    *(Workload(f"llm/bfloat16 product {n}", bfloat16_product, {"m": n, "k": n, "n": n}, QUICK) for n in (512, 1024, 2048, 4096)),
    *(Workload(f"llm/int8 product {n}", int8_product, {"m": n, "k": n, "n": n}, {"m": 32, "k": 16, "n": 8}) for n in (512, 1024, 2048)),
    *_attention(4096, large=False),
    *_attention(16384, large=True, jax=False),  # JAX stores the scores: 12 GB
    *(
        Workload(f"llm/{name} gradient 4096×50257", cross_entropy_gradient, _LOSS | {"fused": fused}, _SMALL_LOSS, large=True)
        for name, fused in (("cross-entropy", False), ("linear cross-entropy", True))
    ),
]

#: Of these the memory that a compiled program needs besides arguments and results is measured, too; nothing runs for it.
PLANS = [work.name for work in WORKLOADS if work.name.startswith("llm/attention") or "cross-entropy" in work.name]
