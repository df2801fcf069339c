"""Samples of `quantized_dot`: each scheme, offsets, both directions, and stacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import Arg, Sample, integers, uniform
from volta_fn.primitives.quantized import CODES, QuantizedLayout, decode, quantized_dot


def _weights(layout: QuantizedLayout, data: Any, scales: Any, offsets: Any) -> Any:
    groups = np.arange(layout.size) // layout.group_size
    values = decode(data, layout).astype(np.float64) * scales[..., groups]
    return values if offsets is None else values + offsets[..., groups]


def _sample(scheme: str, size: int, group: int, offsets: bool, transposed: bool, lead: tuple[int, ...] = (), label: str = "") -> Sample:
    layout = QuantizedLayout(scheme, size, group)
    shape = (*lead, 3, layout.groups)
    scale = Arg(shape, uniform(0.5, 1.5))
    codes = {"int8": integers(-128, 128), "fp8": integers(0, 120)}.get(scheme, integers(0, 256))

    def reference(x: Any, data: Any, scales: Any, *rest: Any) -> Any:
        w = _weights(layout, data, scales, rest[0] if rest else None)
        return x @ (w if transposed else w.swapaxes(-1, -2))

    return Sample(
        "quantized_dot",
        lambda x, data, scales, *rest: quantized_dot(x, data, scales, rest[0] if rest else None, layout, transposed),
        (Arg((*lead, 2, 3 if transposed else size)), Arg((*lead, 3, layout.width), codes, CODES[scheme]), scale, *[Arg(shape)] * offsets),
        reference,
        linear=(0,),
        label=f"{scheme}{label}",
    )


SAMPLES = [
    _sample("int8", 5, 5, False, False),
    _sample("int8", 6, 4, True, True, label="-offsets-transposed"),
    _sample("int4", 40, 32, True, False),
    _sample("nf4", 33, 32, False, False),
    _sample("fp8", 4, 2, False, True, label="-transposed"),
    _sample("int8", 4, 2, True, False, (2,), label="-stack"),
]
