"""Compare volta_fn with PyTorch on the samples of PyTorch's database of operators.

    python tools/torch_operators.py [NAME ...] [--target TARGET] [--dtypes D,D] [--modes M,M] [--samples N] [--reference] [--seed N]
        [--part K/N] [--seconds N] [--save FILE] [--show] [--errors]

It needs PyTorch. NAME is a pattern of operators' names (without any: all that torch_operator_calls.py and
torch_network_calls.py have a call for). Of each operator --samples samples are drawn, from the inputs that PyTorch's reference
implementations are tested on with --reference. --target is cpu, numpy or gpu.

Modes: `eager`, `jit` and `vmap` (of two samples, jitted) compare values; `grad`, `jvp` and `second` derivatives, jitted. The exact numbers
are PyTorch's in float64; a result may be as far from them as the dtype's rounding allows, or four times as far as PyTorch's result in that
dtype. torch_operator_differences.txt lists where JAX means something else by a function, or PyTorch is wrong, with the reasons.

A line per mode and dtype says how many samples there were of each outcome: `pass`; `differs`, of that list; `refused`, whose dtype or
arguments raise an error that says so; `concrete`, which cannot be traced; `fail`. The failures follow. With --errors the inputs are those
that PyTorch refuses, and calls are listed that raise nothing.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import re
import signal
import sys
import time
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
TARGETS: dict[str, dict[str, str]] = {"cpu": {}, "numpy": {"VOLTA_NATIVE": "0"}, "gpu": {"VOLTA_DEVICE": "gpu"}}
VALUES, DERIVATIVES = ("eager", "jit", "vmap"), ("grad", "jvp", "second")
DTYPES = "float32 float64 bfloat16 float16 complex64 complex128 int32 int64 int8 uint8 bool".split()
#: The rounding error of a dtype's numbers.
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "bfloat16": 2.0**-7, "float16": 2.0**-10, "complex64": 2.0**-23, "complex128": 2.0**-52}
#: The least normal number of a dtype.
TINY = {
    "float32": 2.0**-126,
    "float64": 2.0**-1022,
    "bfloat16": 2.0**-126,
    "float16": 2.0**-14,
    "complex64": 2.0**-126,
    "complex128": 2.0**-1022,
}
#: Rounding errors that an elementwise function may have, any other one, relative to its largest number, and a derivative.
ELEMENTWISE, OTHER, SLOPE = 16, 200, 1000
#: That of others and of derivatives, beside PyTorch's error, in dtypes of few digits, whose sums have more.
_NARROW = {"bfloat16": 8, "float16": 16}
#: Arguments of PyTorch that say where and how, not what.
_PLACEMENT = {"device", "layout", "requires_grad", "memory_format", "pin_memory", "generator"}
#: Operators whose result in another dtype is another one.
_OF_DTYPE = re.compile(
    r"nextafter|frexp|nan_to_num|matrix_rank|pinv|^(bfloat16|bool|byte|char|double|float|half|int|long|short|cdouble|cfloat)$"
)
#: What PyTorch says of a derivative that it lacks.
_NOT_IMPLEMENTED = re.compile("derivative for .* is not implemented|scale_grad_by_freq not supported")
#: Operators of sorted numbers.
_SORTED = ("bucketize", "searchsorted", "histogram")
#: Samples of more numbers take long and show nothing more.
_MOST_NUMBERS = 20_000
_DIFFERENCES = [
    tuple(line.split(" | ", 3))
    for line in (HERE / "torch_operator_differences.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]


class TooLong(BaseException):
    """A sample took longer than its limit."""


@dataclass
class Sample:
    """Arguments of an operator, with its tensors taken out."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    tensors: list[Any] = field(default_factory=list)

    def fill(self, tensors: Sequence[Any], convert: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with those in the tensors' places."""

        def place(value: Any) -> Any:
            if isinstance(value, _Place):
                return tensors[value.index]
            if isinstance(value, (tuple, list)):
                return type(value)(map(place, value)) if type(value) in (tuple, list) else tuple(map(place, value))
            return convert(value)

        return tuple(map(place, self.arguments)), {key: place(value) for key, value in self.keywords.items()}

    def __str__(self) -> str:
        arguments, keywords = self.fill([_Text(t) for t in self.tensors], lambda value: value)
        return ", ".join([*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())])


@dataclass
class _Place:
    """The place of a tensor."""

    index: int


class _Text(str):
    """A tensor's dtype and shape."""

    def __new__(cls, tensor: Any) -> _Text:
        numbers = f" {tensor.tolist()}" if tensor.numel() <= 4 else ""
        return super().__new__(cls, f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{numbers}")

    __repr__ = str.__str__


def sample_of(source: Any) -> Sample:
    """Take the tensors out of a sample of PyTorch."""
    import torch  # noqa: PLC0415  # after the environment is set

    sample = Sample((), {})

    def take(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            sample.tensors.append(value.detach().resolve_conj().resolve_neg())
            return _Place(len(sample.tensors) - 1)
        if isinstance(value, (tuple, list)):
            return list(map(take, value)) if isinstance(value, list) else tuple(map(take, value))
        return value

    sample.arguments = tuple(map(take, (source.input, *source.args)))
    sample.keywords = {key: take(value) for key, value in source.kwargs.items()}
    return sample


def flatten(value: Any) -> list[Any]:
    """Return the arrays of nested results."""
    if isinstance(value, (tuple, list)):
        return [leaf for part in value for leaf in flatten(part)]
    return [] if value is None else [value]


def exact(tensor: Any) -> np.ndarray:
    """Return a tensor's numbers in NumPy's widest dtype of its kind."""
    import torch  # noqa: PLC0415

    if not isinstance(tensor, torch.Tensor):
        return np.asarray(tensor)
    tensor = wide(tensor.to_dense() if tensor.is_sparse else tensor)
    return tensor.numpy(force=True)


def widened(array: Any) -> np.ndarray:
    """Return an array of volta_fn as NumPy's, floats in float64."""
    numbers = np.asarray(array)
    if numbers.dtype.kind == "c":
        return numbers.astype(np.complex128)
    return numbers if numbers.dtype.kind in "biu" else numbers.astype(np.float64)


def wide(tensor: Any) -> Any:
    """Return a tensor in float64 or complex128."""
    import torch  # noqa: PLC0415

    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor


class Operator:
    """An operator of PyTorch beside the call of volta_fn that has its meaning."""

    def __init__(self, info: Any, call: Callable[..., Any]) -> None:
        self.info, self.call = info, call
        self.name = name_of(info)
        kinds = {kind.__name__ for kind in type(info).__mro__}
        self.hermitian = "hermitian" in self.name or self.name in ("linalg.eigh", "linalg.eigvalsh", "linalg.cholesky", "cholesky")
        self.elementwise = bool(kinds & {"UnaryUfuncInfo", "BinaryUfuncInfo"})

    def dtypes(self, mode: str) -> set[str]:
        """Return the dtypes for which PyTorch has samples."""
        kinds = self.info.supported_dtypes("cpu")
        if mode in DERIVATIVES:
            kinds = self.info.supported_backward_dtypes("cpu") if self.info.supports_autograd else set()
        return {str(k).removeprefix("torch.") for k in kinds}

    def differentiable(self, sample: Sample, dtype: str) -> list[int]:
        """Return the places of the tensors by which there are derivatives."""
        return [i for i, t in enumerate(sample.tensors) if str(t.dtype) == f"torch.{dtype}"]

    def samples(self, dtype: str, most: int, reference: bool, seed: int, derivative: bool = False) -> Iterator[Sample]:
        """Draw samples."""
        import torch  # noqa: PLC0415

        torch.manual_seed(seed)
        kind = getattr(torch, dtype)
        source = self.info.sample_inputs
        if reference and self.info.reference_inputs_func is not None and not derivative:
            source = self.info.reference_inputs
        rows = [sample_of(s) for s in itertools.islice(source("cpu", kind), 600)]
        rows = [s for s in rows if sum(t.numel() for t in s.tensors) <= _MOST_NUMBERS]
        if len(rows) > most:
            chosen = np.random.default_rng(seed).choice(len(rows), most, replace=False)
            rows = [rows[i] for i in sorted(chosen)]
        yield from rows

    def of_torch(self, sample: Sample, tensors: Sequence[Any], wide_dtype: bool) -> list[Any]:
        """Return PyTorch's results."""
        import torch  # noqa: PLC0415

        def convert(value: Any) -> Any:
            if wide_dtype and isinstance(value, torch.dtype) and not _OF_DTYPE.search(self.name):
                return torch.complex128 if value.is_complex else torch.float64 if value.is_floating_point else value
            return value

        arguments, keywords = sample.fill(tensors, convert)
        if self.hermitian:
            arguments = (arguments[0] + arguments[0].mH, *arguments[1:])
        return self._comparable(flatten(self.info.op(*arguments, **keywords)))

    def of_numpy(self, sample: Sample, tensors: Sequence[Any]) -> np.ndarray | None:
        """Return the results of the function that PyTorch tests by, NumPy's or SciPy's."""
        if not self.name.startswith("special.") or self.info.ref is None or sample.keywords or len(sample.arguments) != 1:
            return None
        return np.asarray(self.info.ref(exact(tensors[0]).astype(np.float64)))

    def of_volta(self, sample: Sample, arrays: Sequence[Any]) -> list[Any]:
        """Return volta_fn's results."""
        import torch  # noqa: PLC0415

        def convert(value: Any) -> Any:
            return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value

        arguments, keywords = sample.fill(arrays, convert)
        keywords = {key: value for key, value in keywords.items() if key not in _PLACEMENT}
        if self.hermitian:
            arguments = (arguments[0] + arguments[0].mT.conj(), *arguments[1:])
        return self._comparable(flatten(self.call(*arguments, **keywords)))

    def _comparable(self, results: list[Any]) -> list[Any]:
        """Return results without eigenvectors and the order of equal numbers."""
        if self.name in ("linalg.eigh", "linalg.svd"):
            return [r for r in results if r.ndim == min(q.ndim for q in results)]
        if self.name in ("sort", "topk", "max@reduction_with_dim", "min@reduction_with_dim", "cummax", "cummin", "aminmax"):
            return results[: 2 if self.name == "aminmax" else 1]
        return results


def name_of(info: Any) -> str:
    return f"{info.name}@{info.variant_test_name}" if info.variant_test_name else info.name


def arrays_of(tensors: Sequence[Any]) -> list[Any]:
    """Return arrays of volta_fn with the tensors' numbers and dtypes."""
    import volta_fn.numpy as jnp  # noqa: PLC0415

    return [jnp.asarray(exact(t), dtype=str(t.dtype).removeprefix("torch.")) for t in tensors]


def rolled(tensor: Any) -> Any:
    """Return other numbers of the same domain: those of a tensor in another order."""
    return tensor.reshape(-1).roll(1).reshape(tensor.shape)


def difference(result: np.ndarray, truth: np.ndarray, torchs: np.ndarray | None, dtype: str, elementwise: bool, rounding: float) -> str:
    """Return how a result differs from what it should be; nothing if it does not."""
    if result.shape != truth.shape:
        return f"shape {result.shape}, not {truth.shape}"
    if truth.dtype.kind in "biu":
        if result.dtype.kind not in "biu":
            return f"dtype {result.dtype}, not {truth.dtype}"
        same = result == truth
        return "" if np.all(same) else _first(result, truth, torchs, ~np.asarray(same))
    eps, tiny = EPS.get(dtype, EPS["float32"]), TINY.get(dtype, TINY["float32"])
    most = {"float16": 65504.0, "float64": np.inf, "complex128": np.inf}.get(dtype, 3.4e38)
    with np.errstate(all="ignore"):
        size = np.abs(truth)
        finite = np.isfinite(size)
        scale = size if elementwise else np.maximum(size, np.max(size, where=finite, initial=0.0))
        allowed = rounding * eps * scale + 4 * tiny
        if torchs is not None:
            error = np.abs(torchs - truth)
            allowed = allowed + 4 * np.where(np.isfinite(error), error, 0.0)
            if not elementwise:
                allowed = allowed + 2 * np.max(error, where=np.isfinite(error), initial=0.0)
        ok = (result == truth) | (np.isnan(result) & np.isnan(truth)) | (np.abs(result - truth) <= allowed)
        ok |= (size > most * 0.99) & (np.abs(result) > most * 0.98)  # overflows, to infinity or not
        if torchs is not None:
            ok |= (result == torchs) | (np.isnan(result) & np.isnan(torchs))
    return "" if np.all(ok) else _first(result, truth, torchs, ~np.asarray(ok))


def _first(result: np.ndarray, truth: np.ndarray, torchs: np.ndarray | None, wrong: np.ndarray) -> str:
    """Describe the first number that differs."""
    index = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(wrong)))
    pick = [np.atleast_1d(a)[index] if a is not None and np.shape(a) == np.shape(truth) else None for a in (result, truth, torchs)]
    return f"{int(wrong.sum())} of {wrong.size}, first at {index}: {pick[0]!r}, exact {pick[1]!r}, PyTorch {pick[2]!r}"


def compare(operator: Operator, sample: Sample, dtype: str, mode: str) -> str:
    """Return how results of a sample differ in a mode, or nothing."""
    if mode in DERIVATIVES:
        return compare_derivatives(operator, sample, dtype, mode)
    import volta_fn as vf  # noqa: PLC0415
    import volta_fn.numpy as jnp  # noqa: PLC0415

    if not sample.tensors and isinstance(sample.arguments[0], float):
        raise Untested("numbers of Python, of which PyTorch makes float32")
    both = [sample.tensors]
    if mode == "vmap":
        both.append(sample.tensors if operator.name in _SORTED else [rolled(t) for t in sample.tensors])
    truths, torchs = zip(*[_torch_values(operator, sample, tensors) for tensors in both], strict=True)
    arrays = [arrays_of(tensors) for tensors in both]

    def call(*leaves: Any) -> list[Any]:
        return operator.of_volta(sample, leaves)

    if mode == "eager":
        results = [call(*arrays[0])]
    elif mode == "jit":
        results = [vf.jit(call)(*arrays[0])]
    elif not arrays[0]:
        return ""
    else:
        out = vf.jit(vf.vmap(call))(*[jnp.stack(pair) for pair in zip(*arrays, strict=True)])
        results = [[r[i] for r in out] for i in range(2)]
    rounding = ELEMENTWISE if operator.elementwise else _NARROW.get(dtype, OTHER)
    for result, truth, of_torch in zip(results, truths, torchs, strict=True):
        if len(result) != len(truth):
            return f"{len(result)} results, not {len(truth)}"
        for i, (r, t) in enumerate(zip(result, truth, strict=True)):
            text = difference(widened(r), t, of_torch[i] if of_torch else None, dtype, operator.elementwise, rounding)
            if text:
                return f"result {i}: {text}"
    return ""


def _torch_values(operator: Operator, sample: Sample, tensors: Sequence[Any]) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    """Return PyTorch's results in float64, and in the dtype itself where it has it."""
    narrow: list[np.ndarray] | None
    numpys = operator.of_numpy(sample, tensors)
    if numpys is not None:
        return [numpys], None
    try:
        narrow = list(map(exact, operator.of_torch(sample, [t.clone() for t in tensors], False)))
    except (RuntimeError, NotImplementedError):
        narrow = None
    if _OF_DTYPE.search(operator.name):
        if narrow is None:
            raise Untested("PyTorch has no such dtype")
        return narrow, narrow
    try:
        return list(map(exact, operator.of_torch(sample, [wide(t).clone() for t in tensors], True))), narrow
    except (RuntimeError, NotImplementedError):
        if narrow is None:
            raise Untested("PyTorch refuses it") from None
        return narrow, narrow


class Untested(Exception):
    """A sample that PyTorch itself refuses."""


def compare_derivatives(operator: Operator, sample: Sample, dtype: str, mode: str) -> str:
    """Return how derivatives of a sample differ."""
    import torch  # noqa: PLC0415

    import volta_fn as vf  # noqa: PLC0415
    import volta_fn.numpy as jnp  # noqa: PLC0415

    draw, slope = np.random.default_rng(0), _NARROW.get(dtype, SLOPE)
    tensors = [wide(t).clone() for t in sample.tensors]
    places, narrow = operator.differentiable(sample, dtype), None
    if not places or _OF_DTYPE.search(operator.name):
        raise Untested("no numbers")
    try:
        leaves = [tensors[i].requires_grad_() for i in places]
        outs = operator.of_torch(sample, [t * 1 if i in places else t for i, t in enumerate(tensors)], True)
    except RuntimeError as error:
        if "not differentiable with respect to argument" not in str(error):
            raise
        tensors, places = [t.detach() for t in tensors], places[:1]
        leaves = [tensors[places[0]].requires_grad_()]
        outs = operator.of_torch(sample, tensors, True)
    indices = [i for i, o in enumerate(outs) if isinstance(o, torch.Tensor) and (o.dtype.is_floating_point or o.dtype.is_complex)]
    if not any(outs[i].requires_grad for i in indices):
        raise Untested("no derivative")

    def numbers(like: Any) -> np.ndarray:
        array = draw.normal(size=tuple(like.shape))
        return array + 1j * draw.normal(size=tuple(like.shape)) if like.dtype.is_complex else array

    weights = [numbers(outs[i]) for i in indices]
    directions = [numbers(leaf) for leaf in leaves]
    grads = torch.autograd.grad(
        [outs[i] for i in indices if outs[i].requires_grad],
        leaves,
        [torch.tensor(w).conj() for i, w in zip(indices, weights, strict=True) if outs[i].requires_grad],
        allow_unused=True,
        create_graph=mode == "second",
    )
    grads = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves, strict=True)]
    if mode == "second":
        total = sum(
            (g * torch.tensor(d)).sum().real if g.dtype.is_complex else (g * torch.tensor(d)).sum()
            for g, d in zip(grads, directions, strict=True)
        )
        if not total.requires_grad:
            raise Untested("no second derivative")
        seconds = torch.autograd.grad(total, leaves, allow_unused=True)
        truth = [np.zeros(tuple(x.shape)) if s is None else exact(s) for s, x in zip(seconds, leaves, strict=True)]
        if any(leaf.dtype.is_complex for leaf in leaves):
            raise Untested("complex second derivatives")
    else:
        truth = [np.conj(exact(g)) for g in grads]
        if mode == "grad" and dtype in _NARROW:
            narrow = _narrow_gradients(operator, sample, places, dict(zip(indices, weights, strict=True)))

    arrays = arrays_of(sample.tensors)

    def call(*floats: Any) -> list[Any]:
        every = list(arrays)
        for i, value in zip(places, floats, strict=True):
            every[i] = value
        out = operator.of_volta(sample, every)
        return [out[i] for i in indices]

    points = [arrays[i] for i in places]
    steps = [jnp.asarray(d, dtype=p.dtype) for d, p in zip(directions, points, strict=True)]

    def gradient(*floats: Any) -> Any:
        out, pull = vf.vjp(call, *floats)
        return pull([jnp.asarray(w, dtype=o.dtype) for w, o in zip(weights, out, strict=True)])

    if mode == "grad":
        results = vf.jit(gradient)(*points)
    elif mode == "second":

        def along(*floats: Any) -> Any:
            return sum(jnp.sum(g * d) for g, d in zip(gradient(*floats), steps, strict=True))

        results = vf.jit(vf.grad(along, tuple(range(len(points)))))(*points)
    else:
        _, tangents = vf.jit(lambda *floats: vf.jvp(call, floats, tuple(steps)))(*points)
        terms = [widened(t) * w for t, w in zip(tangents, weights, strict=True)]
        exact_terms = [t * d for t, d in zip(truth, directions, strict=True)]
        result = np.real(sum(t.sum() for t in terms))
        size = sum(np.abs(t).sum() for t in terms) + sum(np.abs(t).sum() for t in exact_terms)
        expected = np.real(sum(t.sum() for t in exact_terms))
        near = np.isfinite(size) and np.abs(result - expected) <= slope * EPS[dtype] * size + 100 * EPS[dtype]
        if near or result == expected or (np.isnan(result) and np.isnan(expected)):
            return ""
        return f"along a direction {result}, exact {expected}"
    for i, (r, t) in enumerate(zip(results, truth, strict=True)):
        near = (
            np.abs(widened(r) - t) <= slope / 10 * EPS[dtype] if np.shape(r) == t.shape else np.False_
        )  # cancellations of numbers about 1
        text = difference(np.where(near, t, widened(r)), t, narrow[i] if narrow else None, dtype, False, slope)
        if text:
            return f"by argument {places[i]}: {text}"
    return ""


def _narrow_gradients(operator: Operator, sample: Sample, places: Sequence[int], weights: dict[int, np.ndarray]) -> list[np.ndarray] | None:
    """Return PyTorch's gradients in the dtype of the sample, where it has them."""
    import torch  # noqa: PLC0415

    tensors = [t.clone() for t in sample.tensors]
    leaves = [tensors[i].requires_grad_() for i in places]
    try:
        outs = operator.of_torch(sample, [t * 1 if i in places else t for i, t in enumerate(tensors)], False)
        ends = {i: torch.tensor(w).to(outs[i].dtype) for i, w in weights.items() if outs[i].requires_grad}
        grads = torch.autograd.grad([outs[i] for i in ends], leaves, list(ends.values()), allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return None
    return [np.zeros(tuple(x.shape)) if g is None else exact(g) for g, x in zip(grads, leaves, strict=True)]


def outcome(operator: Operator, sample: Sample, dtype: str, mode: str, limit: float) -> tuple[str, str]:
    """Return the outcome of a sample in a mode, and what there is to say of it."""
    result, text = _outcome(operator, sample, dtype, mode, limit)
    return "differs" if result == "fail" and differs(operator.name, dtype, mode) else result, text


def _outcome(operator: Operator, sample: Sample, dtype: str, mode: str, limit: float) -> tuple[str, str]:
    from tools.torch_network_calls import Unsupported  # noqa: PLC0415
    from volta_fn.errors import VoltaError  # noqa: PLC0415

    def stop(*_: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        text = compare(operator, sample, dtype, mode)
    except (Untested, Unsupported) as error:
        return "untested", str(error)
    except RuntimeError as error:
        if not _NOT_IMPLEMENTED.search(str(error)):
            return "fail", f"RuntimeError: {str(error)[:300]}"
        return "untested", str(error)
    except TooLong:
        return "fail", "too long"
    except VoltaError as error:
        kind = type(error).__name__
        where = "concrete" if re.search("Concretization|Tracer|Boolean", kind) else "refused"
        return where, f"{kind}: {str(error).splitlines()[0][:200]}"
    except Exception as error:  # whatever it is, it is a failure
        return "fail", f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ("fail", text) if text else ("pass", "")


def differs(name: str, dtype: str, mode: str) -> bool:
    """Return whether a difference is on the list."""
    return any(
        re.fullmatch(names, name) and re.fullmatch(dtypes, dtype) and re.fullmatch(modes, mode) for names, dtypes, modes, _ in _DIFFERENCES
    )


def stand_in_for_expecttest() -> None:
    """Stand in for a package of PyTorch's tests, of which its databases need a class."""
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]


def operators(patterns: Sequence[str]) -> list[Operator]:
    """Return the operators with a call whose names match a pattern."""
    stand_in_for_expecttest()
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415

    import tools.torch_network_calls  # noqa: F401, PLC0415  # it adds calls
    from tools.torch_operator_calls import CALLS  # noqa: PLC0415

    matching = [info for info in op_db if not patterns or any(re.fullmatch(p, name_of(info)) for p in patterns)]
    return [Operator(info, CALLS[name_of(info)]) for info in matching if name_of(info) in CALLS]


def main(find: Callable[[Sequence[str]], Sequence[Operator]] = operators, description: str | None = __doc__) -> None:
    """Compare the operators that `find` returns, of patterns of their names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", choices=TARGETS, default="cpu")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--modes", default="eager,jit")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--limit", type=float, default=20.0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--errors", action="store_true")
    options = parser.parse_args()
    os.environ |= TARGETS[options.target]
    sys.path.insert(0, str(HERE.parent))
    warnings.simplefilter("ignore")
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    first, step = map(int, options.part.split("/"))
    chosen = find(options.names)[first - 1 :: step]
    end = time.monotonic() + options.seconds
    rows = list(errors_not_raised(chosen, end) if options.errors else outcomes(chosen, options, end))
    report(rows, len(chosen))
    if options.save:
        options.save.write_text("\n".join(map(json.dumps, rows)) + "\n")


def outcomes(chosen: Sequence[Operator], options: argparse.Namespace, end: float) -> Iterator[dict[str, str]]:
    """Yield the outcome of every sample in every mode and dtype."""
    for operator in chosen:
        for dtype, mode in itertools.product(options.dtypes.split(","), options.modes.split(",")):
            if dtype not in operator.dtypes(mode) or (mode in DERIVATIVES and dtype not in EPS):
                continue
            try:
                samples = list(operator.samples(dtype, options.samples, options.reference, options.seed, mode in DERIVATIVES))
            except Exception as error:  # PyTorch cannot make samples of some dtypes
                yield {
                    "operator": operator.name,
                    "dtype": dtype,
                    "mode": mode,
                    "outcome": "untested",
                    "text": str(error)[:100],
                    "sample": "",
                }
                continue
            for sample in samples:
                if time.monotonic() > end:
                    print(f"stopped at {operator.name}")
                    return
                result, text = outcome(operator, sample, dtype, mode, options.limit)
                yield {
                    "operator": operator.name,
                    "dtype": dtype,
                    "mode": mode,
                    "outcome": result,
                    "text": text,
                    "sample": str(sample)[:400],
                }


def errors_not_raised(chosen: Sequence[Operator], end: float) -> Iterator[dict[str, str]]:
    """Yield the inputs that PyTorch refuses, and what volta_fn does of them."""
    from volta_fn.errors import VoltaError  # noqa: PLC0415

    for operator in chosen:
        if operator.info.error_inputs_func is None or time.monotonic() > end:
            continue
        try:
            inputs = list(operator.info.error_inputs("cpu"))
        except Exception:  # some need a device
            continue
        for one in inputs:
            text = ""
            try:
                sample = sample_of(one.sample_input)
                out = operator.of_volta(sample, arrays_of(sample.tensors))
                result, text = "fail", f"no error: {[getattr(o, 'shape', o) for o in out]}; PyTorch: {one.error_regex}"
            except VoltaError as error:
                result, text = "pass", str(error).splitlines()[0][:160]
            except Exception as error:
                result, text = "fail", f"{type(error).__name__}: {str(error)[:160]}; PyTorch: {one.error_regex}"
            yield {"operator": operator.name, "dtype": "", "mode": "errors", "outcome": result, "text": text, "sample": str(sample)[:300]}


def report(rows: Sequence[dict[str, str]], count: int) -> None:
    """Print the counts, and the failures by operator."""
    names = ("pass", "differs", "refused", "concrete", "untested", "fail")
    tally: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        tally[row["mode"], row["dtype"]][row["outcome"]] += 1
    print(f"{count} operators")
    for (mode, dtype), counts in sorted(tally.items()):
        print(f"{mode:7}{dtype:11}" + "  ".join(f"{n} {counts[n]:5}" for n in names))
    causes: dict[tuple[str, str], list[dict[str, str]]] = collections.defaultdict(list)
    for row in rows:
        if row["outcome"] in ("fail", "refused", "concrete"):
            causes[row["outcome"], row["operator"]].append(row)
    for (result, name), group in sorted(causes.items()):
        where = ",".join(sorted({f"{r['mode']}:{r['dtype']}" for r in group}))
        print(f"{result:9}{name} x{len(group)} [{where[:120]}]")
        for row in group[: 3 if result == "fail" else 1]:
            print(f"          {row['mode']}:{row['dtype']} ({row['sample'][:260]}): {row['text']}")


if __name__ == "__main__":
    main()
