"""Workloads: a computation at one size, for JAX and volta_fn, and for PyTorch.

A *library* is the set of modules that JAX and volta_fn have in common; a function written for it runs on both. A *contestant* is a
framework with its computation prepared: arrays in memory, functions jitted, waiting to be called.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import on_gpu


class Library(NamedTuple):
    """The modules of JAX, or of volta_fn under JAX's names."""

    jax: Any
    jnp: Any
    lax: Any
    nn: Any
    random: Any


@dataclass(frozen=True)
class Case:
    """A workload at one size.

    Attributes:
        inputs: arguments as NumPy arrays, in tuples, lists and dicts.
        functional: gives, for a library, the function of the inputs that is measured.
        torch: gives, for the module torch and the inputs as tensors, a function without arguments that does the same;
            None where PyTorch has no counterpart.
        stateful: whether the function is a step from a state, its first argument, to (new state, result); the state is donated.
        jit: whether JAX and volta_fn compile it.
        wait: whether the time goes on until the results are there; not so for tiny calls, where the return is what counts.
        tolerance: largest difference of results, over the largest number in the result.
        same_numbers: whether PyTorch's result is the same, not only of the same shape (its random numbers differ).
        in_precision: gives the same case in another precision; None where there is none.
        dtype: what inputs of float32 are converted to before the measurement; None: they stay.
        jax: whether JAX takes part.
        onnxruntime: gives, for the inputs as NumPy arrays, a function without arguments that does the same by onnxruntime; None where it
            takes no part.
        loss: gives, for a library, the loss of a training step as a function of parameters and data; None where there is none.
        torch_loss: that of PyTorch, a function of the module torch, parameters and data.
        torch_optimizer: gives, for the module torch and a list of parameters, PyTorch's optimizer of a training step.
    """

    inputs: tuple[Any, ...]
    functional: Callable[[Library], Callable[..., Any]]
    torch: Callable[..., Callable[[], Any]] | None
    stateful: bool = False
    jit: bool = True
    wait: bool = True
    tolerance: float = 1e-4
    same_numbers: bool = True
    in_precision: Callable[[str], Case] | None = None
    dtype: str | None = None
    jax: bool = True
    onnxruntime: Callable[..., Callable[[], Any]] | None = None
    loss: Callable[[Library], Callable[..., Any]] | None = None
    torch_loss: Callable[..., Any] | None = None
    torch_optimizer: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Workload:
    """A named workload: `make(rng, **size)` gives its case; `quick` is a tiny size.

    With a `precision` the case is that of a training step in it ("bfloat16" or "tensorfloat32"). A `large` one takes minutes or gigabytes,
    so it is measured only if it is asked for.
    """

    name: str
    make: Callable[..., Case]
    size: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    precision: str = ""
    large: bool = False

    def case(self, quick: bool = False) -> Case:
        """Return the case at its full or its tiny size, with the same numbers every time."""
        case = self.make(np.random.default_rng(0), **(self.size | self.quick if quick else self.size))
        if not self.precision:
            return case
        assert case.in_precision is not None
        return case.in_precision(self.precision)


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Draw random float32 numbers."""
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def library(framework: str) -> Library:
    """Return the modules of "jax" or "volta_fn"."""
    names = {"jax": ("jax", "jax.numpy", "jax.lax", "jax.nn", "jax.random")}
    ours = ("volta_fn", "volta_fn.numpy", "volta_fn.lax", "volta_fn.nn", "volta_fn.random")
    return Library(*(importlib.import_module(name) for name in names.get(framework, ours)))


def map_arrays(function: Callable[[np.ndarray], Any], tree: Any) -> Any:
    """Replace every array in tuples, lists and dicts."""
    if isinstance(tree, dict):
        return {name: map_arrays(function, value) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(map_arrays(function, value) for value in tree)
    return function(tree)


def arrays_in(tree: Any) -> list[np.ndarray]:
    """Return all arrays of a result as NumPy's, in the same order for every framework."""
    if isinstance(tree, dict):
        return [array for name in sorted(tree) for array in arrays_in(tree[name])]
    if isinstance(tree, tuple | list):
        return [array for value in tree for array in arrays_in(value)]
    if hasattr(tree, "detach"):
        tree = tree.detach().cpu()
        tree = tree.float() if "bfloat16" in str(tree.dtype) else tree  # which NumPy lacks
    array = np.asarray(tree)
    return [array.astype(np.float32) if array.dtype.name == "bfloat16" else array]


#: Of a training step, the losses before it, after one and after two updates are compared.
STEPS = 3


class Contestant(NamedTuple):
    """A prepared computation: functions that run it and that wait for its result."""

    call: Callable[[], Any]
    wait: Callable[[Any], Any]


def contestant(framework: str, case: Case) -> Contestant:
    """Prepare a case; on a GPU, calls only begin it, so that steps follow closely."""
    if framework == "onnxruntime":
        assert case.onnxruntime is not None
        return Contestant(case.onnxruntime(*case.inputs), lambda result: result)
    return _torch(case) if framework == "torch" else _functional(library(framework), case)


def competes(framework: str, case: Case) -> bool:
    """Return True if the framework has such a workload."""
    return {"torch": case.torch is not None, "jax": case.jax, "onnxruntime": case.onnxruntime is not None}.get(framework, True)


def _functional(lib: Library, case: Case) -> Contestant:

    def convert(array: np.ndarray) -> Any:
        stays = case.dtype is None or array.dtype != np.float32
        return lib.jnp.array(array) if stays else lib.jnp.array(array).astype(case.dtype)

    function, args = case.functional(lib), map_arrays(convert, case.inputs)
    wait = lib.jax.block_until_ready
    if case.jit:
        function = lib.jax.jit(function, donate_argnums=(0,) if case.stateful else ())
    finish = wait if case.wait and not on_gpu() else lambda result: result
    if not case.stateful:
        return Contestant(functools.partial(function, *args) if not case.wait else lambda: finish(function(*args)), wait)
    state, batch = args[0], args[1:]

    def step() -> Any:
        nonlocal state
        state, result = finish(function(state, *batch))
        return result

    return Contestant(step, wait)


def _torch(case: Case) -> Contestant:
    torch = importlib.import_module("torch")
    assert case.torch is not None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = "cuda" if on_gpu() else "cpu"

    def tensor(array: np.ndarray) -> Any:
        """Copy an array; integers of 32 bits become int64, as PyTorch's indices are."""
        floats = getattr(torch, case.dtype) if case.dtype and array.dtype == np.float32 else None
        return torch.tensor(array, dtype=torch.int64 if array.dtype == np.int32 else floats, device=device)

    wait = lambda result: torch.cuda.synchronize() if on_gpu() else None
    return Contestant(case.torch(torch, *map_arrays(tensor, case.inputs)), wait)
