"""Decoders of tokens: Llama, Mistral, Qwen, Gemma, Phi and SmolLM by their config."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from volta_fn import lax, random, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.dtypes import BOOL, INTEGERS, accumulator, as_dtype
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.nn.language.config import SLIDING, CausalLMConfig
from volta_fn.nn.language.layers import (
    Cache,
    CausalLMCache,
    DecoderAttention,
    DecoderMLP,
    FullCache,
    Placement,
    Projection,
    RollingCache,
    Rotation,
    SparseMLP,
    norm_of,
    rotary_rotation,
)
from volta_fn.nn.layers.arguments import check_sizes
from volta_fn.nn.layers.linear import Embedding
from volta_fn.nn.module import Module, static
from volta_fn.primitives.call import CAUSAL, Window
from volta_fn.transforms.checkpoint import checkpoint

__all__ = ["CausalLM", "Decoder", "DecoderLayer", "StackedLayers"]


class Step(NamedTuple):
    """What all layers of one kind read besides their input.

    Attributes:
        rotation: of the tokens' positions, or None.
        query_slots: the tokens' slots, of shape (1, T), or (batch, T) where rows have their own.
        start: the slot of each row's first token, or None for 0.
        key_mask: bool of shape (batch, T), False for padding among the new tokens, or None.
        placement: where the cache puts the tokens; None without a cache.
        window: how many tokens a token sees, where layers of several windows are one program; None for the layer's own.
    """

    rotation: Rotation | None
    query_slots: Array
    start: Array | None
    key_mask: Array | None
    placement: Placement | None
    window: Array | None = None

    def seen(self, window: int | None, slots: Array | None) -> tuple[list[Array], Window]:
        """Return masks of keys in slots, and which keys are seen by their positions.

        Slots of None are those of the new tokens, which are causal.
        """
        queries = self.query_slots[:, None, :, None]
        keys = (self.query_slots if slots is None else slots[None])[:, None, None]
        masks, by_position = [], CAUSAL
        if slots is not None:
            masks.append((keys >= 0) & (keys <= queries))
            by_position = Window()
        if self.window is not None:
            masks.append(keys > queries - self.window)
        elif window is not None and slots is None:
            by_position = Window(window - 1, 0)
        elif window is not None:
            masks.append(keys > queries - window)
        if self.start is not None:
            masks.append(keys >= self.start[:, None, None, None])
        if self.key_mask is not None:
            masks.append(self.key_mask[:, None, None])
        return masks, by_position


class DecoderLayer(Module):
    """Attention and a feed-forward layer with norms and residual connections.

    `mlp` is a `DecoderMLP` or a `SparseMLP`. Without `post_attention_layernorm` both sublayers read the same input, as in Phi-2. With
    `pre_feedforward_layernorm` and `post_feedforward_layernorm` norms also follow the sublayers, as in Gemma 2.
    """

    self_attn: DecoderAttention
    mlp: Module
    input_layernorm: Module
    post_attention_layernorm: Module | None = None
    pre_feedforward_layernorm: Module | None = None
    post_feedforward_layernorm: Module | None = None
    window: int | None = static(default=None)

    @classmethod
    def init(cls, key: Any, config: CausalLMConfig, index: int) -> Self:
        """Create layer number `index` with the config's initial weights."""
        first, second = random.split(key)
        mlp: Module = SparseMLP.init(second, config) if config.is_sparse(index) else DecoderMLP.init(second, config)
        family = config.family
        names = ["input_layernorm"] + ["post_attention_layernorm"] * (not family.parallel)
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] * family.post_norms
        norms: dict[str, Any] = {name: norm_of(config, config.hidden_size) for name in names}
        window = config.sliding_window if config.layer_types[index] == SLIDING else None
        return cls(DecoderAttention.init(first, config), mlp, **norms, window=window)

    def __call__(self, x: Array, step: Step, cache: Cache | None = None, prefill: bool = False) -> tuple[Array, Cache | None, Array | None]:
        """Return the output, the new cache or None, and a router's logits or None.

        Args:
            x: shape (batch, T, hidden_size).
            step: positions and masks.
            cache: earlier keys and values.
            prefill: the cache is empty.
        """
        seen = functools.partial(step.seen, self.window)
        placement = None if step.placement is None else step.placement._replace(window=self.window)
        normed = self.input_layernorm(x)
        attended, cache = self.self_attn(normed, step.rotation, seen, cache, placement, prefill)
        if self.post_attention_layernorm is None:
            out, logits = self._feed_forward(normed)
            return x + attended + out, cache, logits
        if self.pre_feedforward_layernorm is None or self.post_feedforward_layernorm is None:
            x = x + attended
            out, logits = self._feed_forward(self.post_attention_layernorm(x))
            return x + out, cache, logits
        x = x + self.post_attention_layernorm(attended)
        out, logits = self._feed_forward(self.pre_feedforward_layernorm(x))
        return x + self.post_feedforward_layernorm(out), cache, logits

    def _feed_forward(self, x: Array) -> tuple[Array, Array | None]:
        return self.mlp(x) if isinstance(self.mlp, SparseMLP) else (self.mlp(x), None)


class StackedLayers(Module):
    """Layers of one structure, whose arrays are stacked along a leading axis.

    `scan` runs them, so that the program has one layer, whatever their number. Layers may differ in their windows and positions alone.
    """

    layer: DecoderLayer
    windows: tuple[int | None, ...] = static()

    @classmethod
    def init(cls, layers: Sequence[DecoderLayer]) -> Self:
        """Stack layers; raise `ArgumentError` for none, or for different structures."""
        alike = [layer.replace(window=None) for layer in layers]
        kinds = {(tree.structure(layer), tuple([(x.shape, x.dtype) for x in tree.leaves(layer)])) for layer in alike}
        if len(kinds) != 1:
            raise ArgumentError(f"StackedLayers: layers of one structure are needed, got {len(kinds)} structures of {len(layers)} layers")
        return cls(tree.map(lambda *leaves: vnp.stack(leaves), *alike), tuple([layer.window for layer in layers]))

    def unstack(self) -> tuple[DecoderLayer, ...]:
        """Return the layers one by one."""
        rows = [tree.map(lambda x, i=i: x[i], self.layer) for i in range(len(self.windows))]
        return tuple([row.replace(window=window) for row, window in zip(rows, self.windows, strict=True)])


class Decoder(Module):
    """Embeddings of tokens, decoder layers one by one or stacked, and a last norm."""

    embed_tokens: Embedding
    layers: tuple[DecoderLayer, ...] | StackedLayers
    norm: Module


def _run(layer: DecoderLayer, x: Array, step: Step, cache: Cache | None, prefill: bool) -> tuple[Array, Cache | None, Array | None]:
    return layer(x, step, cache, prefill)


_run_remat = checkpoint(_run, static_argnums=(4,))
Run = Callable[[DecoderLayer, Array, Step, Cache | None, bool], tuple[Array, Cache | None, Array | None]]
#: More tokens than any text has: the window of layers that see all.
_NO_WINDOW = 2**30


def _scan(
    run: Run, layers: StackedLayers, x: Array, steps: Sequence[Step], caches: Sequence[Cache | None], prefill: bool
) -> tuple[Array, list[Cache | None], list[Array]]:
    """Run stacked layers; return the output, the new caches, and routers' logits."""
    shape = next((step.rotation.cos.shape for step in steps if step.rotation is not None), None)
    rotations = [step.rotation or Rotation(vnp.ones(shape), vnp.zeros(shape)) for step in steps] if shape else []
    kinds = list(dict.fromkeys(map(id, rotations)))  # as few as the layers' kinds of positions
    table = [next(rotation for rotation in rotations if id(rotation) == kind) for kind in kinds]
    windows = vnp.array([_NO_WINDOW if window is None else window for window in layers.windows], "int32")
    which = vnp.array([kinds.index(id(rotation)) for rotation in rotations], "int32") if rotations else None
    stacked = None if caches[0] is None else tree.map(lambda *rows: vnp.stack(rows), *caches)

    def body(x: Array, inputs: Any) -> Any:
        layer, window, kind, cache = inputs
        rotation = None if kind is None else tree.map(lambda *rows: vnp.stack(rows)[kind], *table)
        step = steps[0]._replace(rotation=rotation, window=None if set(layers.windows) == {None} else window)
        x, new, router = run(layer, x, step, cache, prefill)
        return x, (new, router)

    x, (new, routers) = lax.scan(body, x, (layers.layer, windows, which, stacked))
    count = len(layers.windows)
    rows: list[Cache | None] = [None if new is None else tree.map(lambda leaf, i=i: leaf[i], new) for i in range(count)]
    return x, rows, [] if routers is None else [routers[i] for i in range(count)]


class CausalLM(Module):
    """A language model by its config: logits of each next token.

    Its arrays have the names of Hugging Face's models, but for a few that `io.load_pretrained` maps. Weights of projections have PyTorch's
    layout, (out, in). `stack` makes one program of all layers. The loss is ``nn.cross_entropy(logits, next_tokens, axis=-1)``. With
    `remat` the backward pass recomputes the layers' intermediate values instead of storing them, see `checkpoint`.

    >>> config = nn.CausalLMConfig(model_type="llama", vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                            num_attention_heads=4, num_key_value_heads=2)
    >>> model = nn.CausalLM.init(vf.random.key(0), config)
    >>> tokens = jnp.array([[1, 2, 3]])
    >>> model(tokens).shape
    (1, 3, 50)

    Step by step, with the keys and values of earlier tokens in a cache:

    >>> logits, cache = model(tokens, cache=model.init_cache(1, 8))
    >>> logits, cache = model(jnp.argmax(logits[:, -1:], -1), cache=cache)
    >>> logits.shape
    (1, 1, 50)
    """

    model: Decoder
    config: CausalLMConfig = static()
    lm_head: Projection | None = None
    remat: bool = static(default=False)

    @classmethod
    def init(cls, key: Any, config: CausalLMConfig, *, remat: bool = False) -> Self:
        """Create the model with normal weights of the config's `initializer_range`.

        Raises `ArgumentError` for an activation that is not supported, and `ArgumentTypeError` if `config` is none.
        """
        if not isinstance(config, CausalLMConfig):
            raise ArgumentTypeError(
                f"CausalLM.init: the config is a nn.CausalLMConfig, got {type(config).__name__}; nn.CausalLMConfig.from_json(entries) "
                "makes one of the entries of Hugging Face's config.json, and io.load_pretrained(folder) loads the weights, too"
            )
        first, second, third = random.split(key, 3)
        keys = random.split(first, config.num_hidden_layers)
        weight = random.normal(second, (config.vocab_size, config.hidden_size), config.dtype) * config.initializer_range
        layers = tuple([DecoderLayer.init(k, config, i) for i, k in enumerate(keys)])
        decoder = Decoder(Embedding(weight.astype(config.dtype)), layers, norm_of(config, config.hidden_size))
        if config.tie_word_embeddings:
            return cls(decoder, config, None, remat)
        options: dict[str, Any] = {"bias": config.family.parallel, "std": config.initializer_range, "dtype": config.dtype}
        return cls(decoder, config, Projection.init(third, config.hidden_size, config.vocab_size, **options), remat)

    def init_cache(self, batch: int, slots: int, *, rolling: bool = True, start: Any = None, dtype: Any = None) -> CausalLMCache:
        """Return an empty cache for `batch` rows of up to `slots` tokens.

        Args:
            batch: how many texts.
            slots: how many tokens there is room for, padding included.
            rolling: whether layers of sliding attention keep only the tokens of their window; not if they are stacked.
            start: how many tokens of padding each row begins with, int32 of shape (batch,) (default: none).
            dtype: of keys and values (default: the config's).

        Raises:
            ArgumentError: sizes that are negative or not integers. ShapeError: `start` has another shape.
        """
        check_sizes("CausalLM.init_cache", batch=batch, slots=slots)
        config, kind = self.config, self.config.dtype if dtype is None else dtype
        layers: list[Cache] = []
        stacked = isinstance(self.model.layers, StackedLayers)
        for layer_type in config.layer_types:
            sizes = (config.num_key_value_heads, config.head_dim)
            window = config.sliding_window if layer_type == SLIDING else None
            if rolling and not stacked and window is not None:
                layers.append(RollingCache.empty(batch, sizes[0], min(window, slots), sizes[1], kind))
            else:
                layers.append(FullCache.empty(batch, sizes[0], slots, sizes[1], kind))
        first = None if start is None else as_value(start).astype("int32")
        if first is not None and first.shape != (batch,):
            raise ShapeError(f"CausalLM.init_cache: start has shape ({batch},), got {first.shape}")
        return CausalLMCache(tuple(layers), vnp.zeros((), "int32"), first)

    def hidden(
        self,
        tokens: Any,
        *,
        positions: Any = None,
        key_mask: Any = None,
        cache: CausalLMCache | None = None,
        count: Any = None,
        prefill: bool = False,
    ) -> tuple[Array, CausalLMCache | None, tuple[Array, ...]]:
        """Return features of each token, the new cache or None, and routers' logits.

        Arguments and errors are those of calls; features are those before the output layer, of shape (batch, T, hidden_size), and
        logits those of sparse layers, of shape (batch, T, experts) each, for `load_balancing_loss`.
        """
        numbers = self._checked(tokens, key_mask, cache)
        steps = self._steps(numbers, positions, key_mask, cache, count)
        x = self.model.embed_tokens(numbers)
        if self.config.family.scale_embeddings:
            x = x * vnp.asarray(self.config.hidden_size**0.5, x.dtype)
        run: Run = _run_remat if self.remat else _run
        old = [None] * self.config.num_hidden_layers if cache is None else list(cache.layers)
        layers = self.model.layers
        if isinstance(layers, StackedLayers):
            x, caches, logits = _scan(run, layers, x, [steps(i) for i in range(len(old))], old, prefill)
        else:
            caches, logits = [], []
            for i, layer in enumerate(layers):
                x, new, router = run(layer, x, steps(i), old[i], prefill)
                caches.append(new)
                logits += [] if router is None else [router]
        added = numbers.shape[1] if count is None else count
        new_cache = (
            None if cache is None else cache._replace(layers=tuple([new for new in caches if new is not None]), length=cache.length + added)
        )
        return self.model.norm(x), new_cache, tuple(logits)

    def stack(self) -> CausalLM:
        """Return the model with its layers stacked, for `scan`; see `StackedLayers`.

        Programs are smaller and take less time to compile; layers one by one decode faster, since a scan copies their caches. Raises
        `ArgumentError` if there are no layers, or some have experts and others none.
        """
        layers = self.model.layers
        return self if isinstance(layers, StackedLayers) else self.replace(model=self.model.replace(layers=StackedLayers.init(layers)))

    def unstack(self) -> CausalLM:
        """Return the model with its layers one by one."""
        layers = self.model.layers
        return self.replace(model=self.model.replace(layers=layers.unstack())) if isinstance(layers, StackedLayers) else self

    def logits(self, hidden: Array) -> Array:
        """Return the logits of features, float32 if those have fewer bits."""
        head = Projection(self.model.embed_tokens.weight) if self.lm_head is None else self.lm_head
        out = head(hidden, preferred_element_type=accumulator(hidden.dtype))
        cap = self.config.final_logit_softcapping
        return out if cap is None else cap * vnp.tanh(out / cap)

    def __call__(
        self,
        tokens: Any,
        *,
        positions: Any = None,
        key_mask: Any = None,
        cache: CausalLMCache | None = None,
        count: Any = None,
        prefill: bool = False,
    ) -> Any:
        """Return the logits of each next token; with a cache, paired with the new one.

        Args:
            tokens: integers of shape (batch, T).
            positions: those of the tokens, integers that broadcast to (batch, T) (default: 0, 1, …, or those after the cache's).
            key_mask: bool of shape (batch, T), False for padding; not with a cache, whose `start` tells of padding.
            cache: what `init_cache` or the last call returned; `tokens` are those that follow.
            count: how many of the tokens count, an integer that may be traced; the others are padding at the end, whose logits mean
                nothing (default: all).
            prefill: the cache is empty, so that tokens need attend to one another only; saves the time of attending to its slots.

        Returns:
            Shape (batch, T, vocab_size), float32 for weights of fewer bits.

        Raises:
            ShapeError: more tokens than slots, or arrays that do not fit. DTypeError: the tokens are not integers.
            ArgumentError: arguments exclude each other.
        """
        hidden, new, _ = self.hidden(tokens, positions=positions, key_mask=key_mask, cache=cache, count=count, prefill=prefill)
        logits = self.logits(hidden)
        return logits if cache is None else (logits, new)

    def _checked(self, tokens: Any, key_mask: Any, cache: CausalLMCache | None) -> Array:
        numbers = as_value(tokens)
        if numbers.dtype not in INTEGERS:
            raise DTypeError(f"CausalLM: tokens are integers, got {numbers.aval}")
        if numbers.ndim != 2:
            raise ShapeError(f"CausalLM: tokens have shape (batch, T), got {numbers.shape}; a single text needs a batch axis, tokens[None]")
        if cache is not None:
            if key_mask is not None:
                raise ArgumentError("CausalLM: with a cache leave key_mask out, and give init_cache the start of each row")
            count, table = len(cache.layers), cache.table
            rows = {layer.keys.shape[0] if table is None else table.shape[0] for layer in cache.layers}
            if count != self.config.num_hidden_layers or not rows <= {numbers.shape[0]}:
                raise ArgumentError(
                    f"CausalLM: the cache is for {count} layers and {min(rows, default=0)} rows, the model has "
                    f"{self.config.num_hidden_layers} and tokens have {numbers.shape[0]}"
                )
        elif key_mask is not None:
            real = as_value(key_mask)
            if real.dtype not in BOOL or real.shape != numbers.shape:
                raise ShapeError(f"CausalLM: key_mask is bool of shape {numbers.shape}, got {real.aval}")
            return vnp.where(real, numbers, 0)  # padding may have any number
        return numbers

    def _steps(self, tokens: Array, positions: Any, key_mask: Any, cache: CausalLMCache | None, count: Any) -> Callable[[int], Step]:
        """Return a function from a layer's number to what it reads besides its input."""
        batch, t = tokens.shape
        if cache is None and count is not None:
            raise ArgumentError("CausalLM: count is for calls with a cache; use key_mask for padding without one")
        if cache is None:
            placement, start, slots = None, None, vnp.arange(t)[None]
            indices = slots if positions is None else as_value(positions)
        else:
            start = cache.start
            placement = Placement(cache.length, vnp.asarray(t if count is None else count, "int32"), cache.table)
            slots = cache.length.reshape(-1, 1) + vnp.arange(t)
            indices = slots if start is None else vnp.maximum(slots - start[:, None], 0)
            indices = indices if positions is None else as_value(positions)
        if indices.ndim == 1:
            indices = indices[None]
        if indices.ndim != 2 or indices.shape[1] != t or indices.shape[0] not in (1, batch):
            raise ShapeError(f"CausalLM: positions broadcast to {(batch, t)}, got {indices.shape}")
        mask = None if key_mask is None else as_value(key_mask)
        config = self.config

        @functools.cache
        def step(rope: Any) -> Step:
            options = (config.head_dim, config.max_position_embeddings)
            rotation = None if rope is None else rotary_rotation(indices, rope, *options, dtype=accumulator(as_dtype(config.dtype)))
            return Step(rotation, slots, start, mask, placement)

        return lambda layer: step(config.rope_of(layer))
