"""Stacks of a transformer's layers, what encoders and decoders have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.nn.layers.common import check_sizes, split_key
from volta_fn.nn.layers.layer_norm import LayerNorm
from volta_fn.nn.module import Module, static
from volta_fn.transforms.checkpoint import checkpoint


class Stack(Module):
    """Layers on top of each other, and a last norm."""

    layers: Sequence[Any]
    norm: Module | None = None
    remat: bool = static(default=False)

    layer: ClassVar[Any]

    @classmethod
    def init(
        cls,
        key: Any,
        num_layers: int,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        *,
        norm_first: bool = False,
        norm: Callable[..., Any] = LayerNorm.init,
        final_norm: bool | None = None,
        remat: bool = False,
        dtype: Any = "float32",
        **options: Any,
    ) -> Self:
        """The layers that the layer's own `init` makes, each with a key of its own.

        Args:
            key, d_model, nhead, dim_feedforward, norm_first, norm, dtype: of the layers.
            num_layers: how many.
            final_norm: whether there is a last norm (default: if `norm_first`, where the sums are not normalised otherwise).
            remat: whether the layers' intermediate values are computed again in the backward pass instead of kept, see `checkpoint`.
            options: others of the layers' `init`.

        Raises:
            ArgumentError: sizes are no natural numbers, or one does not divide the other.
        """
        check_sizes(cls.__name__, num_layers=num_layers)
        options |= {"norm_first": norm_first, "norm": norm, "dtype": dtype}
        layers = [cls.layer.init(k, d_model, nhead, dim_feedforward, **options) for k in random.split(key, num_layers)]
        last = norm_first if final_norm is None else final_norm
        return cls(tuple(layers), norm(d_model, dtype=dtype) if last else None, remat)

    def _run(self, x: Any, arrays: dict[str, Any], flags: dict[str, bool], cache: Sequence[Any] | None, key: Any) -> Any:
        """The output, with caches (one for each layer) the pair of that and the new ones.

        `arrays` are the layers' options that hold arrays or None, `flags` those that are true or false.
        """
        count = len(self.layers)
        if cache is not None and len(cache) != count:
            raise ArgumentError(f"{type(self).__name__}: {len(cache)} caches for {count} layers; init_cache makes one for each")
        y: Array = as_value(x)
        call = _call_again if self.remat else _call
        settings, news = tuple(flags.items()), []
        for layer, own, k in zip(self.layers, cache or [None] * count, split_key(key, count), strict=True):
            y, new = call(layer, y, arrays | {"cache": own, "key": k}, settings)
            news.append(new)
        y = y if self.norm is None else self.norm(y)
        return y if cache is None else (y, tuple(news))


def _call(layer: Any, x: Array, arrays: dict[str, Any], flags: tuple[tuple[str, bool], ...]) -> tuple[Array, Any]:
    """A layer's output and its new cache, None if it has none."""
    out = layer(x, **arrays, **dict(flags))
    return (out, None) if arrays["cache"] is None else out


_call_again = checkpoint(_call, static_argnums=(3,))


def residual(
    x: Array,
    part: Callable[[Array], tuple[Array, Any]],
    norm: Callable[[Array], Array],
    drop: Callable[[Array], Array],
    norm_first: bool,
) -> tuple[Array, Any]:
    """x + drop(part(norm(x))), or if not `norm_first` norm(x + drop(part(x))); and what else the part gives."""
    added, extra = part(norm(x) if norm_first else x)
    total = x + drop(added)
    return total if norm_first else norm(total), extra
