"""Descriptions of language models, with the names of Hugging Face's config.json."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from volta_fn.core.aval import check_option
from volta_fn.dtypes import FLOATS, as_dtype
from volta_fn.errors import ArgumentError, CorruptFileError, SerializationError

__all__ = ["FAMILIES", "CausalLMConfig", "Family", "RopeParameters"]

LayerType = Literal["full_attention", "sliding_attention"]
FULL: LayerType = "full_attention"
SLIDING: LayerType = "sliding_attention"

#: Kinds of rotary positions, with Hugging Face's older names for two of them.
_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_OLD_ROPE_TYPES = {"su": "longrope", "mrope": "default"}
#: The kinds that stretch positions beyond `original_max_position_embeddings`.
_WITH_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """Rotary positions (Su et al. 2021) and how they are stretched to longer texts.

    Attributes:
        rope_theta: the base; the slowest rotation takes 2π rope_theta positions.
        rope_type: "default"; "linear" (Chen et al. 2023); "dynamic" (NTK, whose base grows with the text); "llama3" (Llama 3.1);
            "yarn" (Peng et al. 2023); "longrope" (Ding et al. 2024).
        partial_rotary_factor: the part of a head's features that is rotated.
        factor: how many times longer texts may become; None for "longrope" is the ratio of the two lengths.
        original_max_position_embeddings: positions before stretching, for "llama3", "yarn" and "longrope".
        low_freq_factor, high_freq_factor: for "llama3": wavelengths above the original length divided by the first are stretched, those
            below it divided by the second are not.
        attention_factor: a factor of rotated queries and keys, for "yarn" and "longrope"; None for the one of the paper.
        beta_fast, beta_slow, mscale, mscale_all_dim, truncate: those of "yarn".
        short_factor, long_factor: factors of wavelengths, for "longrope", of texts up to the original length and of longer ones.
    """

    rope_theta: float = 10000.0
    rope_type: str = "default"
    partial_rotary_factor: float = 1.0
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_option(self.rope_type, "RopeParameters: rope_type", _ROPE_TYPES)
        if not self.rope_theta > 0:
            raise ArgumentError(f"RopeParameters: rope_theta is above 0, got {self.rope_theta}")
        if not 0 < self.partial_rotary_factor <= 1:
            raise ArgumentError(f"RopeParameters: partial_rotary_factor is above 0 and at most 1, got {self.partial_rotary_factor}")
        if self.rope_type in ("linear", "dynamic", "llama3", "yarn") and not (self.factor and self.factor > 0):
            raise ArgumentError(f"RopeParameters: rope_type {self.rope_type!r} needs a factor above 0, got {self.factor}")
        if self.rope_type in _WITH_ORIGINAL_LENGTH and not self.original_max_position_embeddings:
            raise ArgumentError(f"RopeParameters: rope_type {self.rope_type!r} needs original_max_position_embeddings")
        if self.rope_type == "longrope" and (self.short_factor is None or self.long_factor is None):
            raise ArgumentError(
                "RopeParameters: rope_type 'longrope' needs short_factor and long_factor, a number for each pair of features"
            )


@dataclass(frozen=True, slots=True)
class Family:
    """The traits of models of one `model_type`.

    Attributes:
        norm: "rms"; "rms_plus_one", whose weights are stored minus 1; or "layer".
        qkv_bias, out_bias: whether attention's projections have biases; None if `attention_bias` tells.
        qk_norm: whether queries and keys of each head are normalised.
        post_norms: whether sublayers' outputs are normalised, too, before they are added.
        packed: whether queries, keys and values are one matrix, and so gate and up.
        parallel: whether attention and feed-forward read the same input, and there is no gate.
        scale_embeddings: whether embeddings are multiplied by √hidden_size.
        defaults: values of a config's fields that its file may leave out.
    """

    norm: Literal["rms", "rms_plus_one", "layer"] = "rms"
    qkv_bias: bool | None = False
    out_bias: bool | None = False
    qk_norm: bool = False
    post_norms: bool = False
    packed: bool = False
    parallel: bool = False
    scale_embeddings: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_GEMMA: dict[str, Any] = {
    "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "max_position_embeddings": 8192,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip

#: The supported values of `model_type`.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(qkv_bias=None, out_bias=None, defaults={"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2}),
    "mistral": Family(
        defaults={"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096, "bos_token_id": 1, "eos_token_id": 2}
    ),
    "mixtral": Family(
        defaults={"max_position_embeddings": 131072, "num_key_value_heads": 8, "rope_theta": 1e6, "rms_norm_eps": 1e-5,
                  "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "bos_token_id": 1, "eos_token_id": 2}
    ),
    "qwen2": Family(qkv_bias=True, defaults={"max_position_embeddings": 32768, "max_window_layers": 28}),
    "qwen2_moe": Family(
        qkv_bias=True,
        defaults={"max_position_embeddings": 32768, "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                  "shared_expert_intermediate_size": 5632, "max_window_layers": 28},
    ),
    "qwen3": Family(
        qkv_bias=None, out_bias=None, qk_norm=True,
        defaults={"max_position_embeddings": 32768, "head_dim": 128, "max_window_layers": 28},
    ),
    "qwen3_moe": Family(
        qkv_bias=None, out_bias=None, qk_norm=True,
        defaults={"max_position_embeddings": 32768, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
                  "moe_intermediate_size": 768},
    ),
    "gemma": Family(norm="rms_plus_one", qkv_bias=None, out_bias=None, scale_embeddings=True, defaults=_GEMMA),
    "gemma2": Family(
        norm="rms_plus_one", qkv_bias=None, out_bias=None, post_norms=True, scale_embeddings=True,
        defaults=_GEMMA | {"query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 2,
                           "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3_text": Family(
        norm="rms_plus_one", qkv_bias=None, out_bias=None, qk_norm=True, post_norms=True, scale_embeddings=True,
        defaults=_GEMMA | {"query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
                           "max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                           "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4},
    ),
    "phi": Family(
        norm="layer", qkv_bias=True, out_bias=True, parallel=True,
        defaults={"max_position_embeddings": 2048, "hidden_act": "gelu_new", "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5,
                  "bos_token_id": 1, "eos_token_id": 2},
    ),
    "phi3": Family(
        packed=True,
        defaults={"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "bos_token_id": 1,
                  "eos_token_id": 32000, "pad_token_id": 32000},
    ),
    "smollm3": Family(
        qkv_bias=None, out_bias=None,
        defaults={"max_position_embeddings": 32768, "num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": True,
                  "no_rope_layer_interval": 4, "bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128004},
    ),
}  # fmt: skip

#: Families whose `sliding_window` counts only where `use_sliding_window` is true.
_OPTIONAL_WINDOW = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3")
#: Other names of fields, in some families or in older or newer files.
_ALIASES = {"hidden_activation": "hidden_act", "num_local_experts": "num_experts", "torch_dtype": "dtype", "layer_norm_eps": "rms_norm_eps"}


# Configs.


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig:
    """A language model's description, under the names of Hugging Face's config.json.

    `from_json` reads one; None and defaults stand for what the family does, see `FAMILIES`. Instances are immutable and hashable.

    Attributes:
        model_type: the family.
        vocab_size, hidden_size, intermediate_size, num_hidden_layers: tokens, features, features inside feed-forward layers, and layers.
        num_attention_heads, num_key_value_heads, head_dim: heads of queries, of keys and values, and features of a head.
        hidden_act: the activation, by Hugging Face's name.
        max_position_embeddings: the longest text that the model is meant for.
        rms_norm_eps: added to mean squares, or to variances (Phi's `layer_norm_eps`).
        initializer_range: the standard deviation of initial weights.
        tie_word_embeddings: whether the output layer is the tokens' table.
        attention_bias, mlp_bias: whether projections have biases, in families that leave it open.
        rope_parameters: positions, in layers of full attention and, unless `sliding_rope_parameters` are given, in all.
        sliding_rope_parameters: positions in layers of sliding attention.
        sliding_window: how many tokens a token sees in those layers, itself included.
        layer_types: "full_attention" or "sliding_attention" for each layer.
        no_rope_layers: for each layer 1, or 0 if it has no rotary positions; None for 1 everywhere.
        query_pre_attn_scalar: logits of attention are divided by its square root (default: `head_dim`).
        attn_logit_softcapping, final_logit_softcapping: c in c tanh(logit / c), of attention and of the result; None for none.
        num_experts: experts of sparse layers (Mixtral's `num_local_experts`); 0 for none.
        num_experts_per_tok: how many of them see a token.
        moe_intermediate_size: features inside an expert (default: `intermediate_size`).
        shared_expert_intermediate_size: features inside the expert that sees all tokens; 0 for none.
        norm_topk_prob: whether the chosen experts' weights add up to 1.
        decoder_sparse_step, mlp_only_layers: layer i has experts if i + 1 is a multiple of the first and i is not among the second.
        bos_token_id, eos_token_id, pad_token_id: the first token of a text, those that end one, and padding.
        dtype: the weights'.

    >>> nn.CausalLMConfig(model_type="qwen2", vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    ...                   num_attention_heads=4, num_key_value_heads=2).head_dim
    8
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_parameters: RopeParameters = RopeParameters()
    sliding_rope_parameters: RopeParameters | None = None
    sliding_window: int | None = None
    layer_types: tuple[LayerType, ...] = ()
    no_rope_layers: tuple[int, ...] | None = None
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int | None = None
    shared_expert_intermediate_size: int = 0
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()
    bos_token_id: int | None = None
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.model_type not in FAMILIES:
            raise ArgumentError(f"CausalLMConfig: model_type {self.model_type!r} is not supported; supported are {', '.join(FAMILIES)}")
        for name in ("vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) > (-1 if name == "num_hidden_layers" else 0)):
                raise ArgumentError(f"CausalLMConfig: {name} is a positive integer, got {getattr(self, name)!r}")
        fill = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        if not self.num_key_value_heads:
            fill("num_key_value_heads", self.num_attention_heads)
        if not self.head_dim:
            if self.hidden_size % self.num_attention_heads:
                raise ArgumentError(
                    f"CausalLMConfig: num_attention_heads={self.num_attention_heads} does not divide hidden_size={self.hidden_size}; "
                    "choose another one, or give head_dim, the features of a head"
                )
            fill("head_dim", self.hidden_size // self.num_attention_heads)
        if not self.layer_types:
            fill("layer_types", (FULL,) * self.num_hidden_layers)
        self._check()

    def _check(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ArgumentError(
                f"CausalLMConfig: num_key_value_heads divides num_attention_heads, got {self.num_key_value_heads} and "
                f"{self.num_attention_heads}"
            )
        if len(self.layer_types) != self.num_hidden_layers or not set(self.layer_types) <= {FULL, SLIDING}:
            raise ArgumentError(
                f"CausalLMConfig: layer_types has {FULL!r} or {SLIDING!r} for each of {self.num_hidden_layers} layers, got "
                f"{self.layer_types}"
            )
        if SLIDING in self.layer_types and not (self.sliding_window and self.sliding_window > 0):
            raise ArgumentError(f"CausalLMConfig: layers of sliding attention need a sliding_window, got {self.sliding_window}")
        if self.num_experts and not 0 < self.num_experts_per_tok <= self.num_experts:
            raise ArgumentError(
                f"CausalLMConfig: num_experts_per_tok is between 1 and num_experts = {self.num_experts}, got {self.num_experts_per_tok}"
            )
        if as_dtype(self.dtype) not in FLOATS:
            raise ArgumentError(f"CausalLMConfig: dtype is that of floats, got {self.dtype!r}")

    @property
    def family(self) -> Family:
        """The traits of the model's family."""
        return FAMILIES[self.model_type]

    def is_sparse(self, layer: int) -> bool:
        """Return True if a layer has experts."""
        return self.num_experts > 0 and layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0

    def rope_of(self, layer: int) -> RopeParameters | None:
        """Return the rotary positions of a layer, None if it has none."""
        if self.no_rope_layers is not None and not self.no_rope_layers[layer]:
            return None
        local = self.sliding_rope_parameters if self.layer_types[layer] == SLIDING else None
        return self.rope_parameters if local is None else local

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> Self:
        """Return the config in a file, of older and newer versions of Hugging Face's.

        Args:
            source: a path, or the file's content as a mapping. Of a Gemma 3 with vision it is the language model's config. Entries that
                have no meaning here are left out: they name classes and versions, or belong to training.

        Raises:
            ArgumentError: an unsupported family or value, or an entry is missing.
            CorruptFileError: the file is not JSON.

        >>> sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        >>> nn.CausalLMConfig.from_json({"model_type": "llama", **sizes, "rope_theta": 500000.0}).rope_parameters.rope_theta
        500000.0
        """
        name = "CausalLMConfig.from_json"
        entries = dict(source) if isinstance(source, Mapping) else read_json_object(Path(source))
        if entries.get("model_type") == "gemma3":  # with a vision tower, which is left out
            entries = {"eos_token_id": entries.get("eos_token_id"), "model_type": "gemma3_text", **entries.get("text_config", {})}
        model_type = entries.get("model_type")
        if not isinstance(model_type, str) or model_type not in FAMILIES:
            raise ArgumentError(f"{name}: model_type {model_type!r} is not supported; supported are {', '.join(FAMILIES)}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        entries = {_ALIASES.get(key, key): value for key, value in entries.items() if value is not None or key not in _ALIASES}
        optional = {key for key, item in fields.items() if item.default is None} | {"eos_token_id", "num_key_value_heads"}
        values = dict(FAMILIES[model_type].defaults) | {k: v for k, v in entries.items() if v is not None or k in optional}
        _add_layers(values)
        _add_rope(values)
        absent = [key for key, item in fields.items() if item.default is dataclasses.MISSING and key not in values]
        if absent:
            raise ArgumentError(f"{name}: the entries {', '.join(absent)} are missing")
        eos = values.get("eos_token_id")
        values["eos_token_id"] = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        chosen: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key in fields}
        return cls(**chosen)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> Self:
        """Return the config in ``folder/config.json``; see `from_json` for its errors.

        The folder's `generation_config.json` adds tokens that end a text. Raises `SerializationError` if there is no config.
        """
        path = Path(folder) / "config.json"
        if not path.is_file():
            download = (
                ""
                if path.parent.is_dir()
                else ". Nothing is downloaded here: `hf download NAME --local-dir FOLDER` gets a model by its name"
            )
            raise SerializationError(
                f"{os.fspath(folder)}: there is no config.json; a folder of a model as Hugging Face saves it is needed{download}"
            )
        config, generation = cls.from_json(path), path.with_name("generation_config.json")
        eos = read_json_object(generation).get("eos_token_id") if generation.is_file() else None
        return config if eos is None else replace(config, eos_token_id=(eos,) if isinstance(eos, int) else tuple(eos))

    def to_json(self) -> dict[str, Any]:
        """Return the content of a config.json, which `from_json` and Hugging Face read."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        rope, local = values.pop("rope_parameters"), values.pop("sliding_rope_parameters")
        values |= {"rope_theta": rope.rope_theta, "partial_rotary_factor": rope.partial_rotary_factor, "rope_scaling": _scaling(rope)}
        if local is not None:
            values["rope_local_base_freq"] = local.rope_theta
        if self.model_type == "phi":
            values["layer_norm_eps"] = values.pop("rms_norm_eps")
        if self.model_type.startswith("gemma"):
            values["hidden_activation"] = values["hidden_act"]
        if self.model_type == "mixtral":
            values["num_local_experts"] = values.pop("num_experts")
        if self.model_type == "phi3" and rope.original_max_position_embeddings:
            values["original_max_position_embeddings"] = rope.original_max_position_embeddings
        if self.model_type in _OPTIONAL_WINDOW:
            values["use_sliding_window"] = SLIDING in self.layer_types
        if not self.num_experts:
            values = {key: value for key, value in values.items() if not _is_about_experts(key)}
        eos = values.pop("eos_token_id")
        values["eos_token_id"] = None if not eos else eos[0] if len(eos) == 1 else eos
        values["torch_dtype"] = self.dtype
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _is_about_experts(key: str) -> bool:
    return "expert" in key or key in ("moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers")


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; raise `CorruptFileError` for other contents."""
    try:
        entries = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(entries, dict):
        raise CorruptFileError(f"{path}: a JSON object is needed, got {type(entries).__name__}")
    return entries


def _add_layers(values: dict[str, Any]) -> None:
    """Add the kinds of layers that a family derives from other entries."""
    model_type, count = values["model_type"], values.get("num_hidden_layers", 0)
    if model_type in _OPTIONAL_WINDOW and not values.get("use_sliding_window"):
        values["sliding_window"] = None
    window = values.get("sliding_window")
    if model_type == "smollm3" and values.get("no_rope_layers") is None:
        values["no_rope_layers"] = [int((i + 1) % values["no_rope_layer_interval"] != 0) for i in range(count)]
    if "layer_types" in values:
        return
    if window is None:
        slides = [False] * count
    elif model_type == "smollm3":
        slides = [not rotary for rotary in values["no_rope_layers"][:count]]
    elif "sliding_window_pattern" in values:
        slides = [(i + 1) % values["sliding_window_pattern"] != 0 for i in range(count)]
    else:
        slides = [i >= values.get("max_window_layers", 0) for i in range(count)]
    values["layer_types"] = [SLIDING if sliding else FULL for sliding in slides]


def _add_rope(values: dict[str, Any]) -> None:
    """Add rotary positions, which older files spread over several entries."""
    parameters = values.pop("rope_parameters", None) or values.pop("rope_scaling", None) or {}
    if isinstance(parameters, RopeParameters):
        values["rope_parameters"] = parameters
        return
    nested = FULL in parameters or SLIDING in parameters
    values["rope_parameters"] = _rope(parameters.get(FULL) or {} if nested else parameters, values, values.get("rope_theta", 10000.0))
    if nested or "rope_local_base_freq" in values:
        local = parameters.get(SLIDING) or {} if nested else {}
        values["sliding_rope_parameters"] = _rope(local, values, values.get("rope_local_base_freq", 10000.0))


def _rope(entries: Mapping[str, Any], values: Mapping[str, Any], theta: float) -> RopeParameters:
    names = {field.name for field in dataclasses.fields(RopeParameters)}
    chosen = {key: tuple(v) if isinstance(v, list) else v for key, v in entries.items() if key in names and v is not None}
    kind = entries.get("rope_type", entries.get("type", "default"))
    kind = _OLD_ROPE_TYPES.get(kind, kind)
    if values["model_type"] == "phi3" and kind == "yarn":
        kind = "longrope"
    if kind in _WITH_ORIGINAL_LENGTH:
        original = values.get("original_max_position_embeddings") or chosen.get("original_max_position_embeddings")
        chosen["original_max_position_embeddings"] = original or values.get("max_position_embeddings")
    defaults = {"rope_theta": theta, "partial_rotary_factor": values.get("partial_rotary_factor", 1.0)}
    return RopeParameters(**{**defaults, **chosen, "rope_type": kind})


def _scaling(rope: RopeParameters) -> dict[str, Any] | None:
    """Return the entry `rope_scaling`, None for the usual positions."""
    if rope.rope_type == "default":
        return None
    chosen = {f.name: getattr(rope, f.name) for f in dataclasses.fields(rope) if f.name not in ("rope_theta", "partial_rotary_factor")}
    if rope.rope_type != "llama3":
        chosen = {key: value for key, value in chosen.items() if not key.endswith("_freq_factor")}
    if rope.rope_type != "yarn":
        chosen = {key: value for key, value in chosen.items() if key not in ("beta_fast", "beta_slow", "truncate")}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in chosen.items() if value is not None}
