"""Blocks of programs as people write them: each draws its statements, one intermediate value a line.

A block takes a `Draft`, reads variables that the draft has, adds inputs (weights, labels, masks) and statements, and so leaves all of its
intermediate values for later blocks and for the results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Protocol

ACTIVATIONS = (
    "jnp.tanh({x})", "nn.relu({x})", "nn.gelu({x})", "nn.silu({x})", "nn.sigmoid({x})", "nn.softplus({x})", "nn.elu({x})",
    "nn.leaky_relu({x})", "jnp.maximum({x}, 0)", "jnp.where({x} > 0, {x}, 0.1 * {x})", "jnp.sin({x})",
    "jnp.exp(-{x} * {x})", "jnp.square(nn.relu({x}))", "jnp.log1p(jnp.abs({x}))", "lax.rsqrt({x} * {x} + 1)", "jnp.clip({x}, -1, 1)",
    "nn.relu6({x})", "nn.softmax({x})", "nn.log_softmax({x})", "{x} / (1 + jnp.abs({x}))", "jnp.sign({x}) * jnp.sqrt(jnp.abs({x}) + 1e-3)",
    "nn.hard_tanh({x})", "jax.scipy.special.erf({x})",
    "jnp.arctan({x})", "jnp.cos({x}) + {x}", "jnp.expm1(jnp.minimum({x}, 1))", "{x} ** 2 - {x}", "jnp.power(jnp.abs({x}) + 0.5, 1.5)",
)  # fmt: skip
REDUCTIONS = ("sum", "mean", "max", "min", "var", "std", "sum", "mean", "prod")


class Draft(Protocol):
    """A program under construction."""

    draw: random.Random
    half: str | None

    def size(self) -> int:
        """Return a random size."""

    def pick(self, rank: int | None = None, least: int = 0) -> str:
        """Return a floating-point variable of a rank, or at least of one."""

    def like(self, name: str) -> str:
        """Return another variable of the same shape, or a new input."""

    def new(self, shape: tuple[int, ...], scale: float = 1.0) -> str:
        """Return a new float32 input of normal numbers."""

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> str:
        """Return a new int32 input of numbers from `low` up to but without `high`."""

    def array(self, shape: tuple[int, ...], dtype: str) -> str:
        """Return a new input of a dtype: normal numbers, bools, or integers."""

    def emit(self, text: str, count: int = 1) -> Any:
        """Add a statement; return its variable, or its `count` variables."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a variable."""

    def low(self, name: str) -> str:
        """Return an expression of a variable in the dtype of products."""

    def full(self, name: str) -> str:
        """Return an expression of a variable in float32."""


def _weights(d: Draft, *shape: int, fan: int) -> str:
    return d.new(shape, max(1, fan) ** -0.5)


def activation(d: Draft, x: str | None = None) -> str:
    """Draw an elementwise function."""
    x = x or d.pick(least=1)
    return d.emit(d.draw.choice(ACTIVATIONS).format(x=x))


def arithmetic(d: Draft) -> str:
    """Draw an expression of two variables of one shape, or of one and a vector."""
    x = d.pick(least=1)
    n = d.shape(x)[-1]
    y = d.draw.choice([x, d.like(x), d.like(x), d.new((n,)), d.new((1,) * (len(d.shape(x)) - 1) + (n,)), d.emit(f"{x}[..., ::-1]")])
    forms = (
        "{x} + {y}", "{x} * {y}", "{x} - {y}", "{x} / (1 + {y} * {y})", "jnp.maximum({x}, {y})", "jnp.where({x} < {y}, {x}, {y} * 0.5)",
        "{x} * nn.sigmoid({y})", "jnp.hypot({x}, {y})", "jnp.arctan2({x}, {y} * {y} + 1)", "0.9 * {x} + 0.1 * {y}",
        "jnp.logaddexp({x}, {y})", "jnp.abs({x} - {y})", "{x} * {y} + {x}",
    )  # fmt: skip
    return d.emit(d.draw.choice(forms).format(x=x, y=y))


def combination(d: Draft) -> str:
    """Draw an expression of two variables of any shapes, one of which is reduced, cut or repeated to fit."""
    x, y = d.pick(least=1), d.pick(least=1)
    n, m = d.shape(x)[-1], d.shape(y)[-1]
    if n == m and d.draw.random() < 0.8:
        axes = tuple(range(len(d.shape(y)) - 1))
        y = d.emit(f"{y}.{d.draw.choice(('sum', 'mean', 'max'))}({axes})") if axes else y
    elif d.draw.random() < 0.5:
        y = d.emit(f"{y}.mean()")
    elif len(d.shape(x)) < 4:
        y = d.emit(f"{y}.reshape(-1)[:3]")
        return d.emit(
            d.draw.choice(("{x}[..., None] * {y}", "{x}[..., None] + {y}", "jnp.tanh({x}[..., None] - {y}).sum(-1)")).format(x=x, y=y)
        )
    forms = ("{x} * {y}", "{x} + {y}", "{x} - {y}", "jnp.where({y} > 0, {x}, {y})", "{x} * jnp.tanh({y}) + {y}", "jnp.maximum({x}, {y})")
    return d.emit(d.draw.choice(forms).format(x=x, y=y))


def linear(d: Draft, x: str | None = None, outputs: int | None = None) -> str:
    """Draw a dense layer with a bias, perhaps an activation, perhaps a residual connection."""
    x = x or d.pick(least=1)
    n, m = d.shape(x)[-1], outputs or d.size()
    residual = outputs is None and d.draw.random() < 0.4
    m = n if residual else m
    product = d.emit(f"{d.low(x)} @ {d.low(_weights(d, n, m, fan=n))}")
    y = d.emit(f"{product} + {d.low(d.new((m,)))}") if d.draw.random() < 0.8 else product
    if d.draw.random() < 0.5:
        y = activation(d, y)
    return d.emit(f"{x} + {y}") if residual else y


def bilinear(d: Draft) -> str:
    """Draw a batched product, or one with operands transposed."""
    x = d.pick(least=2)
    *batch, n, k = d.shape(x)
    m = d.size()
    form = d.draw.randrange(5)
    if form == 0:
        return d.emit(f"{d.low(x)} @ jnp.swapaxes({d.low(_weights(d, *batch, m, k, fan=k))}, -1, -2)")
    if form == 1:
        return d.emit(f"jnp.swapaxes({d.low(x)}, -1, -2) @ {d.low(_weights(d, n, m, fan=n))}")
    if form == 2:
        bias = d.new((*batch[:1], *[1] * len(batch), m)[: len(batch) + 2] if batch else (1, m))
        return d.emit(f"{d.low(x)} @ {d.low(_weights(d, *batch, k, m, fan=k))} + {d.low(bias)}")
    if form == 3:
        return d.emit(f"{d.low(x)} @ jnp.swapaxes({d.low(x)}, -1, -2) * {max(k, 1) ** -0.5:.3g}")
    return d.emit(f"jnp.tensordot({d.low(x)}, {d.low(_weights(d, k, n, m, fan=k * n))}, ((-1, -2), (0, 1)))")


def einsum(d: Draft) -> str:
    """Draw an einsum of two to four operands with a bias, and perhaps its weighted contraction."""
    letters = "abcdef"[: d.draw.choice((3, 4, 4, 5))]
    sizes = {letter: d.size() for letter in letters}
    x = d.pick(least=1) if d.draw.random() < 0.6 else None
    subscripts, operands = [], []
    if x is not None and len(d.shape(x)) <= len(letters):
        operand_letters = d.draw.sample(letters, len(d.shape(x)))
        sizes.update(zip(operand_letters, d.shape(x), strict=True))
        subscripts.append("".join(operand_letters))
        operands.append(x)
    while len(operands) < d.draw.choice((2, 2, 3, 4)):
        operand_letters = d.draw.sample(letters, d.draw.randint(1, min(3, len(letters))))
        subscripts.append("".join(operand_letters))
        operands.append(d.new(tuple([sizes[letter] for letter in operand_letters])))
    used = sorted(set("".join(subscripts)))
    result = d.draw.sample(used, min(len(used), d.draw.randint(1, 3)))
    summed = 1
    for letter in used:
        summed *= 1 if letter in result else sizes[letter]
    operands = [d.low(name) for name in operands]
    y = d.emit(f"jnp.einsum('{','.join(subscripts)}->{''.join(result)}', {', '.join(operands)}) * {max(summed, 1) ** -0.5:.3g}")
    if d.draw.random() < 0.6:
        bias = d.new(tuple([sizes[letter] if d.draw.random() < 0.6 else 1 for letter in result]))
        y = d.emit(f"{y} + {d.low(bias)}")
    if d.draw.random() < 0.5:
        operand_letters = d.draw.sample(result, d.draw.randint(1, len(result)))
        weights = d.new(tuple([sizes[letter] for letter in operand_letters]))
        rest = "".join([letter for letter in result if d.draw.random() < 0.6])
        y = d.emit(f"jnp.einsum('{''.join(operand_letters)},{''.join(result)}->{rest}', {d.low(weights)}, {y})")
    return y


def outer(d: Draft) -> str:
    """Draw a product of broadcast arrays, and a reduction of it."""
    x = d.pick(rank=2)
    b, n = d.shape(x)
    y = d.draw.choice((d.like(x), d.new((b, d.size())), d.new((1, d.size()))))
    form = d.draw.randrange(3)
    if form == 0:
        p = d.emit(f"{x}[:, :, None] * {y}[:, None, :]")
    elif form == 1:
        p = d.emit(f"{x}[:, None, :] - {x}[None, :, :]")
    else:
        p = d.emit(f"{x}[:, :, None] * {y}[:, None, :] + {d.new((n, 1))}")
    return reduction(d, p) if d.draw.random() < 0.5 else d.emit(f"{p}.sum({d.draw.choice((0, 0, 1, 2))})")


def reduction(d: Draft, x: str | None = None) -> str:
    """Draw a reduction along some axes, and perhaps what it is subtracted from or divides."""
    x = x or d.pick(least=1)
    rank = len(d.shape(x))
    axes = tuple(sorted(d.draw.sample(range(rank), d.draw.randint(1, min(2, rank)))))
    retained = d.draw.random() < 0.5
    name = d.draw.choice(REDUCTIONS)
    values = f"(1 + 0.1 * {x})" if name == "prod" else f"(jnp.sin({x}) + 0.1 * {d.new(d.shape(x))})" if name == "std" else x
    y = d.emit(f"{values}.{name}({axes}{', keepdims=True' if retained else ''})")
    if retained:
        y = d.emit(d.draw.choice(("{x} - {y}", "{x} / (1 + {y} * {y})", "{x} * {y}", "jnp.where({x} > {y}, {x}, {y})")).format(x=x, y=y))
    return y


def norm(d: Draft, x: str | None = None) -> str:
    """Draw layer, RMS, group or batch normalisation, in float32."""
    x = x or d.pick(least=2)
    shape = d.shape(x)
    n = shape[-1]
    values = d.emit(d.full(x))
    kind = d.draw.choice(("layer", "layer", "moments", "rms", "group", "batch"))
    if kind == "rms":
        scale = d.emit(f"lax.rsqrt(jnp.mean({values} * {values}, -1, keepdims=True) + 1e-3)")
        return d.emit(f"({values} * {scale} * {d.new((n,))}).astype({x}.dtype)")
    if kind == "group":
        groups = d.draw.choice([g for g in (1, 2, 3, 4, 8) if n % g == 0])
        values = d.emit(f"{values}.reshape({(*shape[:-1], groups, n // groups)})")
    axes = tuple(range(len(shape) - 1)) if kind == "batch" else -1
    mean = d.emit(f"{values}.mean({axes}, keepdims=True)")
    if kind == "moments":
        variance = d.emit(f"jnp.maximum(({values} * {values}).mean({axes}, keepdims=True) - {mean} * {mean}, 0.0)")
    else:
        variance = d.emit(f"jnp.square({values} - {mean}).mean({axes}, keepdims=True)")
    form = "({v} - {m}) * lax.rsqrt({s} + 1e-2)" if d.draw.random() < 0.6 else "({v} - {m}) / jnp.sqrt({s} + 1e-2)"
    y = d.emit(form.format(v=values, m=mean, s=variance))
    if kind == "group":
        y = d.emit(f"{y}.reshape({shape})")
    y = d.emit(f"{y} * {d.new((n,))} + {d.new((n,))}")
    return d.emit(f"{y}.astype({x}.dtype)")


def transformer(d: Draft) -> str:
    """Draw a residual block of a normalisation and two dense layers."""
    x = d.pick(least=2)
    n = d.shape(x)[-1]
    h = norm(d, x)
    h = d.emit(f"{d.low(h)} @ {d.low(_weights(d, n, m := d.size(), fan=n))} + {d.low(d.new((m,)))}")
    h = activation(d, h)
    h = d.emit(f"{d.low(h)} @ {d.low(_weights(d, m, n, fan=m))} + {d.low(d.new((n,)))}")
    return d.emit(f"{x} + {h}")


def _softmax(d: Draft, x: str) -> str:
    """Draw a softmax of logits, or something like it: written out, biased, unnormalised, along another axis."""
    form = d.draw.randrange(9)
    if form < 4:
        return d.emit(f"nn.softmax({x}, -1)")
    shift = d.emit(f"{x}.max(-1, keepdims=True)") if form != 4 else "1.0"
    e = d.emit(f"jnp.exp({x} - jnp.where(jnp.isfinite({shift}), {shift}, 0))" if form == 5 else f"jnp.exp({x} - {shift})")
    if form == 6:
        return d.emit(f"{e} / ({e}.sum(-1, keepdims=True) + 1.0)")
    if form == 7:
        return d.emit(f"{e} / {e}.sum(-2, keepdims=True)")
    if form == 8:
        e = d.emit(f"jnp.where({x} > -1, {e}, 0.0)")
        return d.emit(f"{e} / jnp.sqrt(jnp.square({e}).sum(-1, keepdims=True) + 1e-2)")
    return d.emit(f"{e} / {e}.sum(-1, keepdims=True)")


def attention(d: Draft) -> str:
    """Draw attention: heads, grouped keys, rotary embeddings, masks."""
    x = d.pick(rank=3)
    b, t, n = d.shape(x)
    heads, groups, size = d.draw.choice((1, 2, 3)), d.draw.choice((1, 1, 2)), d.draw.choice((2, 4, 5, 8, 16))
    q = d.emit(f"({d.low(x)} @ {d.low(_weights(d, n, heads * groups * size, fan=n))}).reshape({b}, {t}, {heads * groups}, {size})")
    k, v = [d.emit(f"({d.low(x)} @ {d.low(_weights(d, n, heads * size, fan=n))}).reshape({b}, {t}, {heads}, {size})") for _ in "kv"]
    if size % 2 == 0 and d.draw.random() < 0.3:
        angles = d.emit(f"(jnp.arange({t})[:, None] * 10.0 ** (-jnp.arange({size // 2}) / {size}))[:, None]")
        q, k = [d.emit(f"cells.rotated({a}, {angles})") for a in (q, k)]
    if d.draw.random() < 0.2:
        causal = d.draw.random() < 0.5
        y = d.emit(f"nn.dot_product_attention({q}, {k}, {v}, is_causal={causal})")
    else:
        if groups > 1:
            k, v = [d.emit(f"jnp.repeat({a}, {groups}, axis=2)") for a in (k, v)]
        logits = d.emit(f"jnp.einsum('bqhd,bkhd->bhqk', {q}, {k}) * {size**-0.5:.4g}")
        logits = d.emit(d.full(logits))
        mask = d.draw.randrange(5)
        if mask == 0:
            logits = d.emit(f"jnp.where(jnp.tril(jnp.ones(({t}, {t}), bool)), {logits}, -jnp.inf)")
        elif mask == 1:
            logits = d.emit(f"jnp.where(jnp.arange({t}) <= {d.integers((b, 1, 1, 1), 0, t)}, {logits}, -1e9)")
        elif mask == 2:
            logits = d.emit(f"{logits} + {d.new((heads * groups, t, t))}")
        weights = d.emit(f"{_softmax(d, logits)}.astype({v}.dtype)")
        y = d.emit(f"jnp.einsum('bhqk,bkhd->bqhd', {weights}, {v})")
    y = d.emit(f"{y}.reshape({b}, {t}, {heads * groups * size})")
    return d.emit(f"{x} + {y} @ {d.low(_weights(d, heads * groups * size, n, fan=heads * groups * size))}")


def experts(d: Draft) -> str:
    """Draw a mixture of experts with biases: dense, top-k gathered, or dispatched by one-hot codes."""
    x = d.pick(rank=2)
    _, n = d.shape(x)
    e, m = d.draw.choice((2, 3, 4, 8)), d.size()
    logits = d.emit(f"{d.full(x)} @ {_weights(d, n, e, fan=n)}")
    w, bias = _weights(d, e, n, m, fan=n), d.new((e, m))
    form = d.draw.randrange(4)
    if form == 0:
        gates = d.emit(f"nn.softmax({logits}, -1)")
        h = d.emit(f"jnp.einsum('bn,enm->ebm', {d.low(x)}, {d.low(w)}) + {d.low(bias)}[:, None]")
        h = activation(d, h) if d.draw.random() < 0.6 else h
        return d.emit(f"jnp.einsum('be,ebm->bm', {gates}, {h})")
    if form == 1:
        gates = d.emit(f"nn.softmax({logits}, -1)")
        h = d.emit(f"{d.low(x)} @ {d.low(w)} + {d.low(bias)}[:, None]")
        return d.emit(f"({gates}.T[:, :, None] * {h}).sum(0)")
    k = d.draw.choice((1, 2))
    gates, index = d.emit(f"lax.top_k({logits}, {k})", 2)
    gates = d.emit(f"nn.softmax({gates}, -1)")
    if form == 2:
        h = d.emit(f"jnp.einsum('bn,bknm->bkm', {d.low(x)}, {d.low(w)}[{index}]) + {d.low(bias)}[{index}]")
        h = activation(d, h)
        return d.emit(f"jnp.einsum('bk,bkm->bm', {gates}, {h})")
    dispatch = d.emit(f"(nn.one_hot({index}, {e}) * {gates}[..., None]).sum(1)")
    h = d.emit(f"jnp.einsum('be,bn->ebn', {dispatch}, {d.full(x)})")
    return d.emit(f"({d.low(h)} @ {d.low(w)} + {d.low(bias)}[:, None]).sum(0)")


def recurrence(d: Draft) -> str:
    """Draw a recurrence along the first axis: an LSTM, a GRU, a linear one, one by an associative scan."""
    x = d.pick(rank=d.draw.choice((2, 3)))
    steps, *batch, n = d.shape(x)
    if steps > 40:
        return cumulative(d)
    m = d.draw.choice((1, 2, 3, 5, 8, 16))
    state = (*batch, m)
    form = d.draw.randrange(6)
    reverse = d.draw.choice(("", "", ", reverse=True"))
    if form == 0:
        w, u, b = _weights(d, n, 4 * m, fan=n), _weights(d, m, 4 * m, fan=m), d.new((4 * m,))
        h, c, y = d.emit(f"cells.lstm({d.full(x)}, {d.new(state)}, {d.new(state)}, {w}, {u}, {b}{reverse})", 3)
        return d.draw.choice((h, c, y))
    if form == 1:
        w, u, b = _weights(d, n, 3 * m, fan=n), _weights(d, m, 3 * m, fan=m), d.new((3 * m,))
        h, y = d.emit(f"cells.gru({d.full(x)}, {d.new(state)}, {w}, {u}, {b}{reverse})", 2)
        return d.draw.choice((h, y))
    if form == 2:
        w, u, b = [d.low(name) for name in (_weights(d, n, m, fan=n), _weights(d, m, m, fan=m), d.new((m,)))]
        h, y = d.emit(
            f"lax.scan(lambda h, x: (jnp.tanh(x @ {w} + h @ {u} + {b}),) * 2, {d.low(d.new(state))}, {d.low(x)}{reverse})",
            2,
        )
        return d.draw.choice((h, y))
    if form == 3:
        decay = d.emit(f"nn.sigmoid({d.new((n,))})")
        h, y = d.emit(f"lax.scan(lambda h, x: ({decay} * h + x, h - x), {d.new((*batch, n))}, {d.full(x)}{reverse})", 2)
        return d.draw.choice((h, y))
    gate = d.emit(f"nn.sigmoid({x} + {d.new((n,))})")
    if form == 4:
        _, y = d.emit(f"lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), ({gate}, {x}))", 2)
        return str(y)
    h, y = d.emit(
        f"lax.scan(lambda h, gx: (gx[0] * h + gx[1], (gx[0] * h).sum(-1)), jnp.zeros({(*batch, n)}, {x}.dtype), ({gate}, {x}))", 2
    )
    return d.draw.choice((h, y))


def control(d: Draft) -> str:
    """Draw a conditional or a loop on a variable."""
    x = d.pick(least=1)
    n = d.shape(x)[-1]
    w = _weights(d, n, n, fan=n)
    form = d.draw.randrange(6)
    if form == 0:
        return d.emit(f"lax.cond({x}.sum() > 0, lambda x: jnp.tanh(x) * 2, lambda x: x - {d.new((n,))}, {x})")
    if form == 1:
        return d.emit(f"lax.fori_loop(0, {d.draw.randint(1, 4)}, lambda i, x: jnp.sin(x) + 0.1 * i * {d.new((n,))}, {d.full(x)})")
    if form == 2:
        _, y = d.emit(f"lax.fori_loop(0, 3, lambda i, c: (c[0] + 1, jnp.tanh(c[1] @ {w}) + c[1][..., ::-1]), (0, {d.full(x)}))", 2)
        return str(y)
    if form == 3:
        branches = "[lambda x: x * 2, lambda x: jnp.tanh(x), lambda x: x[..., ::-1]]"
        return d.emit(f"lax.switch({d.integers((), 0, 3)}, {branches}, {x})")
    if form == 4:
        return d.emit(f"jax.checkpoint(lambda x: nn.relu(jnp.sin(x) @ {w}) @ {w}.T)({d.full(x)})")
    return d.emit(f"jax.jit(lambda x, w: jnp.tanh(x @ w) * x)({d.full(x)}, {w})")


def loop(d: Draft) -> str:
    """Draw a loop of two or three carries of one shape, which its steps exchange, add products to, update by parts, or leave as they are.

    Some begin with the same value, and steps read values that carries begin with. Some loops have no steps, or as many as a number says.
    """
    x = d.pick(least=1)
    shape = d.shape(x)
    x, y, w = d.emit(d.full(x)), d.new(shape), _weights(d, shape[-1], shape[-1], fan=shape[-1])
    kind = d.draw.choice(("scan", "scan", "fori", "while", "vmap"))
    starts = [d.draw.choice((x, x, y, f"jnp.zeros_like({x})", f"0.5 * {x}")) for _ in range(d.draw.choice((2, 2, 3)))]
    carries = [f"c[{number}]" for number in range(len(starts))]
    if kind == "vmap" and (len(shape) < 2 or not shape[0]):
        kind = "while"
    constants = [f"{name}[0]" for name in (x, y)] if kind == "vmap" else [x, y]
    forms = (
        "{a}", "{b}", "{b}", "0.5 * {a} + 0.1 * {b}", "jnp.tanh({a} @ {w})", "{a} + 0.1 * ({b} @ {w})", "{a} + 0.1 * ({r} @ {w})", "{r}",
        "{a}[..., ::-1]", "jnp.where(i % 2 == 0, {a}, {b})", "lax.cond(i % 2 == 0, lambda: {a}, lambda: jnp.sin({b}))",
        "jnp.sin({r}) + {a}", "{a}.at[..., 0].add({b}[..., -1])", "lax.fori_loop(0, 2, lambda k, v: 0.5 * v + {b}, {a})",
        "{a} - {b}.mean(-1, keepdims=True)",
        "lax.cond(i > 1, lambda a, b: (b @ {w}, a), lambda a, b: (a, b), {a}, {b})[0]", "jnp.maximum({a}, {r})", "{a} * {a} * 0.1 + {r}",
        "lax.scan(lambda v, u: (v + 0.1 * (u @ {w}), None), {a}, jnp.stack([{b}, {r}]))[0]",
    )  # fmt: skip

    def terms(numbers: Iterable[int], *rows: str) -> str:
        others = [*constants, *rows]
        drawn = [d.draw.choice(forms).format(a=carries[i], b=d.draw.choice(carries), r=d.draw.choice(others), w=w) for i in numbers]
        return "(" + "".join([f"{term}, " for term in drawn]) + ")"

    steps, begin = d.draw.choice((0, 1, 2, 3, 3, 4, 5)), f"({', '.join(starts)})"
    if kind == "scan":
        rows = d.emit(f"jnp.stack([{', '.join(d.draw.choices((x, y), k=steps))}])" if steps else f"{x}[None][:0]")
        stacked = d.draw.sample(range(len(starts)), d.draw.choice((1, 2)))
        step = f"lambda c, row: (lambda i, r: ({terms(range(len(starts)), 'r')}, {terms(stacked, 'r')}))(*row)"
        reverse = d.draw.choice(("", ", reverse=True"))
        results = d.emit(f"lax.scan({step}, {begin}, (jnp.arange({steps}), {rows}){reverse})", len(starts) + len(stacked))
        return d.draw.choice(results)
    step = f"lambda i, c: {terms(range(len(starts)))}"
    if kind == "fori":
        return d.draw.choice(d.emit(f"lax.fori_loop(0, {steps}, {step}, {begin})", len(starts)))
    most = d.integers(shape[:1] if kind == "vmap" else (), 0, 5)
    function = f"lambda most, *c: lax.while_loop(lambda s: s[0] < most, lambda s: (s[0] + 1, ({step})(*s)), (0, c))[1]"
    function = f"jax.vmap({function})" if kind == "vmap" else f"({function})"
    return d.draw.choice(d.emit(f"{function}({most}, *{begin})", len(starts)))


def loss(d: Draft) -> str:
    """Draw a loss: cross-entropy, contrastive, CTC's sums over paths, Huber, and others."""
    form = d.draw.randrange(8)
    if form in (0, 1):
        x = d.pick(least=2)
        *batch, n = d.shape(x)
        labels = d.integers(tuple(batch), 0, n)
        logs = (
            d.emit(f"nn.log_softmax({d.full(x)}, -1)")
            if form == 0
            else d.emit(f"{d.full(x)} - jax.nn.logsumexp({d.full(x)}, -1, keepdims=True)")
        )
        if d.draw.random() < 0.5:
            losses = d.emit(f"-jnp.take_along_axis({logs}, {labels}[..., None], -1)[..., 0]")
        else:
            losses = d.emit(f"-(nn.one_hot({labels}, {n}) * {logs}).sum(-1)")
        return d.emit(f"{losses}.mean()") if d.draw.random() < 0.5 else losses
    if form == 2:
        x = d.pick(rank=2)
        b, n = d.shape(x)
        z = d.emit(f"{d.full(x)} / jnp.sqrt(jnp.sum(jnp.square({d.full(x)}), -1, keepdims=True) + 1e-2)")
        y = d.emit(f"{d.new((b, n))} * {max(n, 1) ** -0.5:.3g}")
        logits = d.emit(f"{d.low(z)} @ {d.low(y)}.T / 0.5")
        rows = d.emit(f"jnp.diag(nn.log_softmax({d.full(logits)}, 1))")
        columns = d.emit(f"jnp.diag(nn.log_softmax({d.full(logits)}, 0))")
        return d.emit(f"-({rows} + {columns}) / 2")
    if form == 3:
        x = d.pick(rank=2)
        t, n = d.shape(x)
        if t > 40:
            return reduction(d, x)
        labels = d.integers((s := d.draw.randint(1, 5),), 0, n)
        logs = d.emit(f"nn.log_softmax({d.full(x)}, -1)[:, {labels}]")
        step = "lambda a, e: ((jnp.logaddexp(a, jnp.concatenate([jnp.full((1,), -1e5), a[:-1]])) + e,) * 2)"
        last, paths = d.emit(f"lax.scan({step}, jnp.where(jnp.arange({s}) == 0, 0.0, -1e5), {logs})", 2)
        return d.draw.choice((last, paths))
    x = d.pick(least=1)
    y = d.new(d.shape(x))
    if form == 4:
        e = d.emit(f"{d.full(x)} - {y}")
        return d.emit(f"jnp.where(jnp.abs({e}) < 1, 0.5 * {e} * {e}, jnp.abs({e}) - 0.5).mean()")
    if form == 5:
        return d.emit(f"(jnp.maximum({d.full(x)}, 0) - {d.full(x)} * ({y} > 0) + jnp.log1p(jnp.exp(-jnp.abs({d.full(x)})))).mean(-1)")
    if form == 6:
        p, q = [d.emit(f"nn.log_softmax({d.full(a)}, -1)") for a in (x, y)]
        return d.emit(f"(jnp.exp({p}) * ({p} - {q})).sum(-1)")
    return d.emit(f"jnp.maximum(0, 1 - {d.full(x)} * jnp.sign({y})).sum(-1)")


def embedding(d: Draft) -> str:
    """Draw an embedding: rows by indices, in one of several notations, and a position's."""
    n, m, b, t = d.size(), d.size(), d.draw.choice((1, 2, 3, 5)), d.draw.choice((1, 3, 5, 8))
    table, ids = d.new((n, m)), d.integers((b, t), 0, n)
    form = d.draw.randrange(3)
    y = d.emit((f"{table}[{ids}]", f"jnp.take({table}, {ids}, axis=0)", f"nn.one_hot({ids}, {n}) @ {table}")[form])
    if d.draw.random() < 0.6:
        y = d.emit(f"{y} + {d.new((t, m))}")
    return d.emit(f"{d.low(y)} @ {d.low(table)}.T * {m**-0.5:.3g}") if d.draw.random() < 0.4 else y


def convolution(d: Draft) -> str:
    """Draw a convolution in one or two dimensions with a bias, and perhaps pooling."""
    c, o = d.draw.choice((1, 2, 3, 4, 8, 16)), d.draw.choice((1, 2, 3, 4, 8, 16))
    h, w, b = d.draw.choice((1, 3, 5, 8, 9)), d.draw.choice((2, 4, 7, 8, 12)), d.draw.choice((1, 2, 3))
    stride, padding = d.draw.choice((1, 1, 2)), d.draw.choice(("'SAME'", "'VALID'"))
    form = d.draw.randrange(4)
    if form == 0:
        x, k = d.new((b, w, c)), d.draw.choice((1, 2, 3))
        kernel = _weights(d, k, c, o, fan=k * c)
        y = d.emit(
            f"lax.conv_general_dilated({d.low(x)}, {d.low(kernel)}, ({stride},), {padding}, dimension_numbers=('NWC', 'WIO', 'NWC'))"
        )
        return activation(d, d.emit(f"{y} + {d.low(d.new((o,)))}"))
    k = d.draw.choice((1, 2, 3)) if h >= 3 else 1
    if form == 1:
        x, kernel = d.new((b, c, h, w)), _weights(d, o, c, k, k, fan=k * k * c)
        y = d.emit(f"lax.conv_general_dilated({d.low(x)}, {d.low(kernel)}, ({stride}, {stride}), {padding})")
        return activation(d, d.emit(f"{y} + {d.low(d.new((o,)))}[:, None, None]"))
    x = d.new((b, h, w, c))
    layout = f"({stride}, {stride}), {padding}, dimension_numbers=('NHWC', 'HWIO', 'NHWC')"
    if form == 2:
        kernel = _weights(d, k, k, 1, c, fan=k * k)
        y = d.emit(f"lax.conv_general_dilated({d.low(x)}, {d.low(kernel)}, {layout}, feature_group_count={c})")
    else:
        kernel = _weights(d, k, k, c, o, fan=k * k * c)
        y = d.emit(f"lax.conv_general_dilated({d.low(x)}, {d.low(kernel)}, {layout}) + {d.low(d.new((o,)))}")
    y = activation(d, y)
    if d.draw.random() < 0.5 and min(d.shape(y)[1:3]) >= 2:
        window = "(1, 2, 2, 1), (1, 2, 2, 1), 'VALID'"
        y = d.emit(
            d.draw.choice((f"lax.reduce_window({y}, -jnp.inf, lax.max, {window})", f"lax.reduce_window({y}, 0.0, lax.add, {window}) / 4"))
        )
    return y


def update(d: Draft) -> str:
    """Draw an optimizer's step for a variable, as if it were a gradient."""
    g = d.pick(least=1)
    g = d.emit(d.full(g))
    p, m = d.new(d.shape(g)), d.new(d.shape(g))
    form = d.draw.randrange(4)
    if form == 0:
        m = d.emit(f"0.9 * {m} + {g}")
        return d.emit(f"{p} - 0.1 * {m}")
    if form == 1:
        v = d.emit(f"jnp.square({d.new(d.shape(g))})")
        m = d.emit(f"0.9 * {m} + 0.1 * {g}")
        v = d.emit(f"0.999 * {v} + 0.001 * {g} * {g}")
        return d.emit(f"{p} - 0.01 * ({m} / (1 - 0.9 ** 3) / (jnp.sqrt({v} / (1 - 0.999 ** 3)) + 1e-3) + 0.1 * {p})")
    if form == 2:
        size = d.emit(f"jnp.sqrt(jnp.sum({g} * {g}) + jnp.sum({m} * {m}))")
        scale = d.emit(f"jnp.minimum(1.0, 1.0 / ({size} + 1e-3))")
        return d.emit(f"{p} - {scale} * {g}")
    return d.emit(f"{p} - 0.1 * jnp.sign(0.9 * {m} + 0.1 * {g})")


def quantised(d: Draft) -> str:
    """Draw a quantised layer: an int8 product, converted to float32, scaled, with a bias."""
    x = d.pick(least=1)
    n, m = d.shape(x)[-1], d.size()
    w = d.integers((n, m), -127, 128)
    scale = d.emit(f"jnp.maximum(jnp.max(jnp.abs({d.full(x)}), -1, keepdims=True), 1e-3) / 127")
    codes = d.emit(f"jnp.clip(jnp.round({d.full(x)} / {scale}), -127, 127).astype(jnp.int8)")
    numbers = f"((({len(d.shape(x)) - 1},), (0,)), ((), ()))"
    product = f"lax.dot_general({codes}, {w}.astype(jnp.int8), {numbers}, preferred_element_type=jnp.int32)"
    if d.draw.random() < 0.5:
        product = d.emit(product)
    y = d.emit(f"{product}.astype(jnp.float32)")
    return d.emit(f"{y} * {scale} * 0.01 + {d.new((m,))}")


def statistics(d: Draft) -> str:
    """Draw statistics: order, extremes, moments, correlations, logsumexp."""
    x = d.pick(least=1)
    forms = [
        "jnp.sort({x}, -1)", "jnp.median({x}, -1)", "jax.nn.logsumexp({x}, -1)", "jnp.max({x}, -1) - jnp.min({x}, -1)",
        "jnp.take_along_axis({x}, jnp.argsort({x}, -1), -1)", "jnp.quantile({f}, 0.3, axis=-1)", "jnp.average({x}, axis=-1)",
        "lax.top_k({x}, 1)[0]", "jnp.take_along_axis({x}, jnp.argmax({x}, -1, keepdims=True), -1)", "jnp.linalg.norm({f} + 1, axis=-1)",
        "jnp.sum(jnp.abs({x}), -1)", "jnp.sum(jnp.where({x} > 0, {x}, 0), -1)", "jnp.sum({x} > 0, -1).astype(jnp.float32)",
    ]  # fmt: skip
    if len(d.shape(x)) == 2:
        forms += [
            "jnp.cov({f}, ddof=0)",
            "({f} - {f}.mean(0)).T @ ({f} - {f}.mean(0))",
            "jnp.sum(jnp.square({x}[:, None] - {x}[None]), -1)",
        ]
    return d.emit(d.draw.choice(forms).format(x=x, f=d.full(x)))


def indexing(d: Draft) -> str:
    """Draw a gather, a scatter, or an update of a slice."""
    x = d.pick(least=1)
    n, *rest = d.shape(x)
    k = d.draw.choice((1, 2, 3, 5, 8))
    index = d.integers((k,), 0, n)
    values = d.new((k, *rest))
    forms = [
        f"{x}.at[{index}].add({d.full(values)}.astype({x}.dtype))", f"{x}.at[{index}].max({values}.astype({x}.dtype))",
        f"{x}.at[{index}].mul(0.5)", f"{x}[{index}]", f"{x}[{index}] * {values}",
        f"jax.ops.segment_sum({values}, {index}, {n})", f"jnp.zeros_like({x}).at[{index}].add({values}.astype({x}.dtype))",
        f"lax.dynamic_slice_in_dim({x}, {d.integers((), 0, n)}, {max(1, n // 2)})",
        f"lax.dynamic_update_slice_in_dim({x}, {x}[:{max(1, n // 2)}] * 2, {d.integers((), 0, n)}, 0)",
        f"{x}.at[{n // 2}].set({d.new(tuple(rest))}.astype({x}.dtype))", f"{x}.at[::2].multiply(2.0)",
        f"jnp.take_along_axis({x}, {d.integers(d.shape(x), 0, n)}, 0)", f"jax.ops.segment_max({values}, {index}, {n})",
    ]  # fmt: skip
    y = d.emit(d.draw.choice(forms))
    return d.emit(f"jnp.where(jnp.isfinite({y}), {y}, 0)") if "segment_max" in forms else y


def cumulative(d: Draft) -> str:
    """Draw a cumulative operation."""
    x = d.pick(least=1)
    axis = d.draw.randrange(len(d.shape(x)))
    forms = (
        "jnp.cumsum({x}, {a})", "lax.cumsum({x}, {a}, reverse=True)", "lax.cummax({x}, {a})", "lax.cummin({x}, {a}, reverse=True)",
        "jnp.cumprod(1 + 0.1 * jnp.tanh({x}), {a})", "lax.cumlogsumexp({x}, {a})", "jnp.diff({x}, axis={a}, prepend=0)",
        "jnp.cumsum({x}, {a}) / jnp.arange(1, {n} + 1).reshape({s})",
    )  # fmt: skip
    shape = tuple([-1 if i == axis else 1 for i in range(len(d.shape(x)))])
    return d.emit(d.draw.choice(forms).format(x=x, a=axis, n=d.shape(x)[axis], s=shape))


def view(d: Draft) -> str:
    """Draw a transpose, a slice, a reversal, a join, a reshape, or padding."""
    x = d.pick(least=1)
    shape = d.shape(x)
    forms = [
        "{x}[..., ::-1]",
        "{x}[::2]",
        "jnp.roll({x}, 1, -1)",
        "{x}[None]",
        "jnp.concatenate([{x}, {y}])",
        "{x}.reshape(-1)",
        "jnp.pad({x}, 1)",
    ]
    forms += ["jnp.stack([{x}, {y}])", "jnp.stack([{x}, {y}], -1)", "jnp.tile({x}, 2)", "jnp.repeat({x}, 2, 0)", "{x}[:1]", "jnp.flip({x})"]
    if len(shape) >= 2:
        forms += ["jnp.swapaxes({x}, -1, -2)", "{x}.reshape({x}.shape[0], -1)", "jnp.moveaxis({x}, 0, -1)", "jnp.tril({x})", "{x}[:, ::-1]"]
        forms += ["jnp.broadcast_to({x}[:, None], {b})", "{x}.T", "{x}[:, :{k}]", "jnp.concatenate([{x}, {x}], 1)"]
    y = d.new(shape)
    form = d.draw.choice(forms)
    return d.emit(form.format(x=x, y=f"{y}.astype({x}.dtype)", b=(shape[0], 2, *shape[1:]), k=max(1, shape[-1] // 2)))


def dropout(d: Draft) -> str:
    """Draw dropout with a constant key."""
    x = d.pick(least=1)
    keep = d.emit(f"jax.random.bernoulli(jax.random.key({d.draw.randrange(9)}), 0.7, {d.shape(x)})")
    return d.emit(f"jnp.where({keep}, {x} / 0.7, 0)")


#: Blocks, and how often they are drawn.
BLOCKS: dict[Callable[[Any], str], int] = {
    activation: 3, arithmetic: 3, combination: 4, linear: 4, bilinear: 3, einsum: 5, outer: 5, reduction: 4, norm: 4, transformer: 4,
    attention: 3, experts: 3, recurrence: 3, control: 2, loop: 3, loss: 4, embedding: 2, convolution: 3, update: 2, quantised: 2,
    statistics: 3, indexing: 4, cumulative: 2, view: 4, dropout: 1,
}  # fmt: skip
