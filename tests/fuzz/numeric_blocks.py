"""Blocks of numerical programs, beside those of `array_blocks.py`.

Complex numbers, factors of batches of matrices, indices beyond an array, windows with gaps, orders and cumulative operations in reverse,
compiled functions that are called with several shapes, and sums of many equal terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.blocks import Draft, activation

_MODES = ("clip", "drop", "fill", "wrap")


def complex_numbers(d: Draft) -> str:
    """Draw complex numbers of two real arrays, what is computed of them, and a real part of it."""
    x = d.pick(least=1)
    x = d.emit(d.full(x))
    y = d.emit(d.full(d.like(x)))
    n = d.shape(x)[-1]
    z = d.emit(d.draw.choice((f"lax.complex({x}, {y})", f"{x} + 1j * {y}", f"{x} * jnp.exp(1j * {y})")))
    forms = [
        "{z} * jnp.conj({z})", "{z} * {z} - {x}", "jnp.exp(0.5 * {z})", "{z} / ({z} * jnp.conj({z}) + 1)", "jnp.tanh(0.3 * {z})",
        "{z}.sum(-1, keepdims=True) * {z}", "{z}[..., ::-1] + {z}", "jnp.cumsum({z}, -1)", "{z}.mean(0)", "jnp.where({x} > 0, {z}, -{z})",
        "jnp.sqrt({z} * jnp.conj({z}) + 1)", "jnp.sin({z}) * 0.3", "{z} ** 2", "jnp.concatenate([{z}, jnp.conj({z})])", "{z} @ {w}",
        "jnp.einsum('...i,...i->...', {z}, {z})",
    ]  # fmt: skip
    w = f"lax.complex({d.new((n, 3))}, {d.new((n, 3))}).astype(jnp.complex64) * {max(1, n) ** -0.5:.3g}"
    z = d.emit(d.draw.choice(forms).format(z=z, x=x, w=f"({w})"))
    return d.emit(d.draw.choice(("jnp.real({z})", "jnp.imag({z})", "jnp.real({z} * jnp.conj({z}))", "jnp.abs({z} + 9)")).format(z=z))


def factors(d: Draft) -> str:
    """Draw factors of a batch of matrices whose singular values are apart, and what does not depend on their signs."""
    n, batch = d.draw.choice((1, 2, 3, 5, 8)), d.draw.choice(((), (2,), (3,), (2, 2)))
    x, y = d.new((*batch, n, n), 0.3), d.emit(f"jnp.tanh({d.full(d.pick(least=1))}.mean())")
    form = d.draw.randrange(9)
    a = d.emit(f"{d.full(x)} + jnp.diag(2.0 * jnp.arange({n}) + 3 + {y})")
    turned = f"jnp.swapaxes({a}, -1, -2)"
    lower = d.draw.choice((True, False))
    if form == 0:  # signs of rows of r, and of eigenvectors, are no results
        y = d.draw.choice(("jnp.abs(q @ r - 1)", "jnp.square(r)", f"q @ jnp.swapaxes(q * jnp.arange(1.0, {n + 1}), -1, -2)"))
        return d.emit(f"(lambda q, r: {y})(*jnp.linalg.qr({a}))")
    if form in (1, 2):
        y = d.draw.choice(("w", "(v * jnp.tanh(w * 0.1)[..., None, :]) @ jnp.swapaxes(v, -1, -2)", "jnp.square(v)"))
        return d.emit(f"(lambda w, v: {y})(*jnp.linalg.eigh({a} + {turned}))")
    if form == 3:
        return d.emit(
            d.draw.choice((f"jnp.linalg.svd({a}, compute_uv=False)", f"jnp.linalg.norm({a}, 'nuc', (-2, -1))", f"jnp.linalg.pinv({a})"))
        )
    if form == 4:
        return d.emit(
            d.draw.choice((f"jnp.linalg.det(0.2 * {a})", f"jnp.linalg.slogdet({a})[1]", f"jnp.linalg.matrix_power(0.2 * {a}, 3)"))
        )
    b = d.new((*batch, n, 2))
    if form == 5:
        options = f"lower={lower}, transpose_a={d.draw.choice((True, False))}, unit_diagonal={d.draw.choice((True, False))}"
        side = d.draw.choice((True, False))
        right = b if side else f"jnp.swapaxes({b}, -1, -2)"
        return d.emit(
            f"lax.linalg.triangular_solve(0.2 * {a}, {d.full(b) if side else f'{right}.astype(jnp.float32)'}, left_side={side}, {options})"
        )
    if form == 6:
        return d.emit(f"jnp.linalg.solve({d.draw.choice((a, turned))}, {d.full(b)})")
    positive = d.emit(f"{a} @ {turned}")
    if form == 7:
        return d.emit(f"jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({positive}), True), {d.full(b)})")
    return d.emit(f"jax.scipy.linalg.expm(0.1 * {a})" if not batch else f"jnp.linalg.inv({positive}) @ {d.full(b)}")


def beyond(d: Draft) -> str:
    """Draw gathers and scatters whose indices may be negative or beyond the array, by every mode, with windows and repeated indices."""
    x = d.pick(least=1)
    n, *rest = d.shape(x)
    if not n:
        return activation(d, x)
    k = d.draw.choice((1, 2, 7, 40))
    index, mode = d.integers((k,), -2 * n, 2 * n), d.draw.choice(_MODES)
    update = d.draw.choice(("drop", "clip", "fill"))
    values = f"{d.new((k, *rest))}.astype({x}.dtype)"
    name = d.draw.choice(("add", "multiply", "max", "min", "add"))
    forms = [
        f"jnp.take({x}, {index}, 0, mode='{d.draw.choice(('clip', 'wrap', 'fill'))}', fill_value=2)",
        f"{x}.at[{index}].get(mode='{'clip' if mode == 'wrap' else mode}')",
        f"{x}.at[{index}].{name}({values}, mode='{update}')",
        f"{x}.at[{index}].{name}(0.5, mode='{update}')",
        f"jnp.zeros_like({x}).at[{index}].add({values}, mode='{update}') * {x}",
        f"{x}.at[{index}[:1]].set({values}[:1], mode='{update}')",
        f"jax.ops.segment_{d.draw.choice(('sum', 'prod'))}(1 + 0.1 * {values}, {index}, {n})",
        f"jnp.where(jnp.isin(jnp.arange({n}), {index}).reshape(-1, *[1] * {len(rest)}), {x}, 0)",
        f"lax.dynamic_slice_in_dim({x}, {index}[0], {max(1, n // 3)}, 0)",
        f"lax.dynamic_update_slice_in_dim({x}, {values}[:{min(k, n)}], {index}[-1], 0)",
    ]
    if rest and rest[0]:
        columns = d.integers((k,), -2 * rest[0], 2 * rest[0])
        forms += [
            f"{x}.at[{index}, {columns}].{name}(0.25, mode='{update}')",
            f"{x}.at[{index}, {columns}].get(mode='{'clip' if mode == 'wrap' else mode}')",
            f"{x}.at[{index} % {n}, : {max(1, rest[0] // 2)}].add({values}[:, : {max(1, rest[0] // 2)}])",
        ]
    y = d.emit(d.draw.choice(forms))
    return d.emit(f"jnp.where(jnp.isfinite({y}), {y}, 0)") if mode == "fill" else y


def orders(d: Draft) -> str:
    """Draw orders and cumulative operations, from either end, along any axis."""
    x = d.pick(least=1)
    shape = d.shape(x)
    axis = d.draw.randrange(len(shape))
    if not all(shape):
        return activation(d, x)
    reverse = d.draw.choice((True, False))
    forms = (
        "jnp.take_along_axis({x}, jnp.argsort({x}, {a}, descending={r}), {a}) * {x}",
        "jnp.sort({x}, {a}, descending={r}) - {x}",
        "lax.top_k({x}, {k}, axis={a})[0].sum({a}, keepdims=True) * {x}",
        "jnp.take_along_axis({x}, lax.top_k(-{x}, {k}, axis={a})[1], {a})",
        "lax.cumsum({x}, {a}, reverse={r})", "lax.cumprod(1 + 0.1 * jnp.tanh({x}), {a}, reverse={r})", "lax.cummax({x}, {a}, reverse={r})",
        "lax.cummin({x}, {a}, reverse={r}) * {x}", "lax.cumlogsumexp({x}, {a}, reverse={r})",
        "{x} * jnp.argsort(jnp.round({x}), {a}, stable=True).astype({x}.dtype) * 0.1",
        "lax.cumsum(({x} > 0).astype(jnp.int32), {a}, reverse={r}).astype({x}.dtype) * {x}",
    )  # fmt: skip
    return d.emit(d.draw.choice(forms).format(x=x, a=axis, r=reverse, k=d.draw.randint(1, min(5, shape[axis]))))


def gaps(d: Draft) -> str:
    """Draw reductions of windows of an array with gaps between its elements, products of windows, and convolutions of such."""
    x = d.pick(least=1)
    shape = d.shape(x)
    if not all(shape) or len(shape) > 3:
        return activation(d, x)
    sizes = tuple([d.draw.choice((1, 2, 3)) for _ in shape])
    strides = tuple([d.draw.choice((1, 1, 2)) for _ in shape])
    spread, dilation = tuple([d.draw.choice((1, 2, 3)) for _ in shape]), tuple([d.draw.choice((1, 1, 2)) for _ in shape])
    edges = [(d.draw.randint(0, 2), (k - 1) * r) for k, r in zip(sizes, dilation, strict=True)]
    start, name = d.draw.choice((("0.0", "add"), ("-jnp.inf", "max"), ("jnp.inf", "min"), ("0.0", "add")))
    y = d.emit(
        f"lax.reduce_window({x}, {start}, lax.{name}, {sizes}, {strides}, {edges}, base_dilation={spread}, window_dilation={dilation})"
    )
    return y if name == "add" else d.emit(f"jnp.where(jnp.isfinite({y}), {y}, 0)")


def compiled(d: Draft) -> str:
    """Draw a compiled function within, called with several shapes or dtypes, and with arguments that are the same array."""
    x = d.pick(least=1)
    n = d.shape(x)[-1]
    f = d.draw.choice((
        "lambda v: jnp.tanh(v) * v.sum()", "lambda v: jnp.sin(v).mean(-1, keepdims=True) - v",
        "lambda v: v @ v.T if v.ndim == 2 else v * v",
        "jax.checkpoint(lambda v: jnp.exp(-v * v).sum(-1))", "lambda v: lax.scan(lambda c, r: (c + r, c * r), v[0], v)[1]",
    ))  # fmt: skip
    forms = (
        "(lambda f: f({x}).sum() + f({x}[..., : {h}]).sum() + f({x}[:1]).sum())(jax.jit({f}))",
        "(lambda f: f({x}).sum() * f({x}.astype(jnp.float32)).sum())(jax.jit({f}))",
        "jax.jit(lambda a, b: (a + b) * jnp.cos(a - b))({x}, {x})",
        "jax.jit(lambda a, b: jax.jit({f})(a).sum() * b, donate_argnums=(0,))({x} + 1, {x})",
        "jax.jit(jax.vmap({f}))(jnp.stack([{x}, -{x}]))[0]",
        "jax.jit(jax.grad(lambda v: jax.jit({f})(v).sum()))({x})",
        "lax.fori_loop(0, 3, lambda i, c: (jax.jit(lambda v: 0.5 * jnp.sin(v))(c[1]), c[0] + 1), ({x}, {x} * 2))[0]",
        "lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[2], 0.5 * c[1] + 0.1 * c[0]), (0, {x}, -{x}))[1]",
    )  # fmt: skip
    form = d.draw.choice(forms)
    return d.emit(form.format(x=x, f=f, h=max(1, n // 2)))


def broadcast_terms(d: Draft) -> str:
    """Draw sums of many equal terms, and of arrays along several axes, of which some are broadcast."""
    x = d.pick(rank=2)
    a, b = d.shape(x)
    k = d.size()
    forms = (
        "jnp.broadcast_to({x}[:, None], ({a}, {k}, {b})).sum((0, 1))", "jnp.broadcast_to({x}[:, :, None], ({a}, {b}, {k})).mean((0, 2))",
        "({x}[:, :, None] + jnp.arange({k}) * 0.01).sum((1, 2))", "jnp.sin({x}[:, None] * jnp.linspace(0, 1, {k})[:, None]).sum((0, 2))",
        "({x}[:, None] * {x}[None]).sum((0, 2))", "jnp.var({x}[:, :, None] + jnp.linspace(0, 1, {k}), (0, 2))",
    )  # fmt: skip
    return d.emit(d.draw.choice(forms).format(x=x, a=a, b=b, k=k))


#: Blocks, and how often they are drawn.
NUMERIC_BLOCKS: dict[Callable[[Any], str], int] = {
    complex_numbers: 3, factors: 3, beyond: 5, orders: 3, gaps: 3, compiled: 4, broadcast_terms: 3,
}  # fmt: skip
