"""Single operations on large arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Workload, normal


def gelu(rng: np.random.Generator, count: int, approximate: bool) -> Case:
    """Compute x Φ(x), exactly or by tanh."""
    return Case(
        (normal(rng, count),),
        lambda lib: lambda x: lib.nn.gelu(x, approximate),
        lambda torch, x: lambda: torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none"),
    )


def negative(rng: np.random.Generator, count: int) -> Case:
    """Compute -x: a copy that no framework can avoid."""
    return Case((normal(rng, count),), lambda lib: lambda x: -x, lambda torch, x: lambda: -x)


def add(rng: np.random.Generator, count: int) -> Case:
    """Compute x + y."""
    return Case((normal(rng, count), normal(rng, count)), lambda lib: lambda x, y: x + y, lambda torch, x, y: lambda: x + y)


def softmax(rng: np.random.Generator, rows: int, columns: int) -> Case:
    """Compute the softmax of each row."""
    return Case((normal(rng, rows, columns),), lambda lib: lib.nn.softmax, lambda torch, x: lambda: torch.softmax(x, -1))


def softmax_gradient(rng: np.random.Generator, rows: int, columns: int) -> Case:
    """Return the cotangent of a softmax's input from that of its result."""

    def ours(lib: Any) -> Any:
        return lambda x, ct: lib.jax.vjp(lib.nn.softmax, x)[1](ct)[0]

    def torch_work(torch: Any, x: Any, ct: Any) -> Any:
        x.requires_grad_()
        return lambda: torch.autograd.grad(torch.softmax(x, -1), x, ct)[0]

    return Case((normal(rng, rows, columns), normal(rng, rows, columns)), ours, torch_work)


def _layer_norm(lib: Any, x: Any, scale: Any, shift: Any) -> Any:
    centred = x - lib.jnp.mean(x, -1, keepdims=True)
    return centred * lib.lax.rsqrt(lib.jnp.mean(centred**2, -1, keepdims=True) + 1e-5) * scale + shift


def layer_norm(rng: np.random.Generator, rows: int, width: int) -> Case:
    """Normalise each row to mean 0 and variance 1, then scale and shift it."""
    return Case(
        (normal(rng, rows, width), normal(rng, width), normal(rng, width)),
        lambda lib: lambda x, scale, shift: _layer_norm(lib, x, scale, shift),
        lambda torch, x, scale, shift: lambda: torch.nn.functional.layer_norm(x, (width,), scale, shift),
    )


def layer_norm_gradient(rng: np.random.Generator, rows: int, width: int) -> Case:
    """Return the cotangents of all three operands."""

    def ours(lib: Any) -> Any:
        return lambda ct, *args: lib.jax.vjp(lambda *args: _layer_norm(lib, *args), *args)[1](ct)

    def torch_work(torch: Any, ct: Any, *args: Any) -> Any:
        for arg in args:
            arg.requires_grad_()
        return lambda: torch.autograd.grad(torch.nn.functional.layer_norm(args[0], (width,), *args[1:]), args, ct)

    return Case((normal(rng, rows, width), normal(rng, rows, width), normal(rng, width), normal(rng, width)), ours, torch_work)


def total(rng: np.random.Generator, rows: int, columns: int, axis: int | None) -> Case:
    """Sum over everything or over one axis."""
    return Case((normal(rng, rows, columns),), lambda lib: lambda x: lib.jnp.sum(x, axis), lambda torch, x: lambda: torch.sum(x, axis))


def cumsum(rng: np.random.Generator, rows: int, columns: int) -> Case:
    """Compute running sums along each row."""
    return Case((normal(rng, rows, columns),), lambda lib: lambda x: lib.jnp.cumsum(x, 1), lambda torch, x: lambda: torch.cumsum(x, 1))


def spectral_filter(rng: np.random.Generator, count: int) -> Case:
    """Filter an even number of samples by their frequencies, by Fourier transforms."""
    return Case(
        (normal(rng, count), normal(rng, count // 2 + 1)),
        lambda lib: lambda x, weights: lib.jnp.fft.irfft(lib.jnp.fft.rfft(x) * weights),
        lambda torch, x, weights: lambda: torch.fft.irfft(torch.fft.rfft(x) * weights),
    )


def sort(rng: np.random.Generator, rows: int, columns: int) -> Case:
    """Sort each row."""
    return Case((normal(rng, rows, columns),), lambda lib: lib.jnp.sort, lambda torch, x: lambda: torch.sort(x).values)


def transpose(rng: np.random.Generator, side: int) -> Case:
    """Add a transposed matrix to another, so that renaming the axes is not enough."""
    return Case((normal(rng, side, side), normal(rng, side, side)), lambda lib: lambda x, y: y + x.T, lambda torch, x, y: lambda: y + x.T)


def gather(rng: np.random.Generator, rows: int, width: int, count: int) -> Case:
    """Look rows of a table up by their numbers."""
    inputs = normal(rng, rows, width), rng.integers(0, rows, count, np.int32)
    return Case(inputs, lambda lib: lambda table, index: table[index], lambda torch, table, index: lambda: table[index])


def embedding_gradient(rng: np.random.Generator, rows: int, width: int, count: int) -> Case:
    """Return the cotangent of a table from those of its rows, by scatter-add."""

    def ours(lib: Any) -> Any:
        return lambda index, ct: lib.jnp.zeros((rows, width), "float32").at[index].add(ct)

    return Case(
        (rng.integers(0, rows, count, np.int32), normal(rng, count, width)),
        ours,
        lambda torch, index, ct: lambda: torch.ops.aten.embedding_dense_backward(ct, index, rows, -1, False),
    )


def random_normal(rng: np.random.Generator, count: int) -> Case:
    """Draw normal random numbers; PyTorch's generator gives other numbers."""

    def torch_work(torch: Any, key: Any) -> Any:
        generator = torch.Generator(key.device).manual_seed(0)
        return lambda: torch.randn(count, generator=generator, device=key.device)

    def ours(lib: Any) -> Any:
        return lambda key: lib.random.normal(lib.random.wrap_key_data(key), (count,), "float32")

    return Case((np.array([0, 1], np.uint32),), ours, torch_work, same_numbers=False)


SQUARE, SMALL = {"side": 2048}, {"side": 16}
TABLE, SMALL_TABLE = {"rows": 32768, "width": 256, "count": 16384}, {"rows": 30, "width": 8, "count": 50}
MATRIX, SMALL_MATRIX = {"rows": 2048, "columns": 2048}, {"rows": 12, "columns": 17}

WORKLOADS = [
    Workload("op/gelu by tanh 4M", gelu, {"count": 2**22, "approximate": True}, {"count": 100}),
    Workload("op/gelu exact 4M", gelu, {"count": 2**22, "approximate": False}, {"count": 100}),
    Workload("op/softmax 2048×2048", softmax, MATRIX, SMALL_MATRIX),
    Workload("op/softmax gradient 2048×2048", softmax_gradient, MATRIX, SMALL_MATRIX),
    Workload("op/layer norm 4096×1024", layer_norm, {"rows": 4096, "width": 1024}, {"rows": 5, "width": 16}),
    Workload("op/layer norm gradient 4096×1024", layer_norm_gradient, {"rows": 4096, "width": 1024}, {"rows": 5, "width": 16}),
    Workload("op/sum 2048×2048", total, MATRIX | {"axis": None}, SMALL_MATRIX),
    Workload("op/sum of rows 2048×2048", total, MATRIX | {"axis": 1}, SMALL_MATRIX),
    Workload("op/sum of columns 2048×2048", total, MATRIX | {"axis": 0}, SMALL_MATRIX),
    Workload("op/cumsum 2048×2048", cumsum, MATRIX, SMALL_MATRIX),
    Workload("op/spectral filter of 1M", spectral_filter, {"count": 2**20}, {"count": 100}),
    Workload("op/sort 1M", sort, {"rows": 1, "columns": 2**20}, SMALL_MATRIX),
    Workload("op/sort 1024×1024", sort, {"rows": 1024, "columns": 1024}, SMALL_MATRIX),
    Workload("op/transpose 2048×2048", transpose, SQUARE, SMALL),
    Workload("op/gather 16384 of 32768×256", gather, TABLE, SMALL_TABLE),
    Workload("op/embedding gradient 16384 to 32768×256", embedding_gradient, TABLE, SMALL_TABLE),
    Workload("op/random normal 4M", random_normal, {"count": 2**22}, {"count": 100}),
]
