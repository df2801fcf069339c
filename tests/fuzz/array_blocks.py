"""Blocks of array programs, beside the networks of `blocks.py`: windows, slices, batches of indices, sorts, bytes and bools, factors, loops
over several dtypes, functions with derivatives of their own, and transforms of parts of a program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.blocks import Draft, activation

_HALVES = ("bfloat16", "float16")


def _half(d: Draft) -> str:
    """Return the dtype of 16 bits of a draft, or any."""
    return d.half or d.draw.choice(_HALVES)


def _matrix(d: Draft) -> str:
    """Return a variable with two axes."""
    return d.pick(rank=2)


def half_parameters(d: Draft) -> str:
    """Draw a layer with parameters of 16 bits, whose normalisation is in float32 with parameters of its own."""
    x, half = d.pick(least=2), _half(d)
    n, m = d.shape(x)[-1], d.size()
    w, b, scale = d.array((n, m), half), d.array((m,), half), d.new((n,))
    f = d.emit(d.full(x))
    form = d.draw.randrange(3)
    if form == 0:
        f = d.emit(f"{f} * lax.rsqrt(jnp.mean({f} * {f}, -1, keepdims=True) + 1e-2) * {scale}")
    elif form == 1:
        f = d.emit(f"({f} - {f}.mean(-1, keepdims=True)) * lax.rsqrt({f}.var(-1, keepdims=True) + 1e-2) * {scale}")
    h = d.emit(f"{f}.astype('{half}') @ {w} * {max(1, n) ** -0.5:.3g}")
    h = d.emit(
        d.draw.choice(
            (
                "{h} + {b}",
                "{h} * nn.sigmoid({h} + {b})",
                "nn.gelu({h} + {b})",
                "({h} + {b}).astype('float32')",
            )
        ).format(h=h, b=b)
    )
    last = d.draw.randrange(4)
    if last == 0:
        return d.emit(f"{h}.astype('float32') - {h}.astype('float32').max(-1, keepdims=True)")
    if last == 1:
        return d.emit(f"{f} + ({h} @ {d.array((m, n), half)}).astype('float32') * {max(1, m) ** -0.5:.3g}")
    return h


def narrow_integers(d: Draft) -> str:
    """Draw features of bytes or bools: scaled, masked, counted, packed, multiplied with floats."""
    x = d.pick(least=1)
    shape = d.shape(x)
    dtype = d.draw.choice(("int8", "uint8", "bool", "int32"))
    i = d.array(shape, dtype)
    forms = [
        "({i} > 1) * {x}",
        "jnp.where({i} > 0, {x}, 0)",
        "{x} * {i}.astype({x}.dtype) / 16",
        "{x} + ({i} != 0).sum(-1, keepdims=True).astype({x}.dtype)",
        "jnp.where(({i} > 0).any(-1, keepdims=True), {x}, -{x})",
        "({i}.astype(jnp.int32).sum(-1)).astype({x}.dtype) * 0.1",
        "{x} * jnp.cumsum({i}.astype(jnp.int32), -1).astype({x}.dtype) * 0.01",
        "jnp.sum({x} * ({i} > 0), -1) / jnp.maximum(({i} > 0).sum(-1), 1).astype({x}.dtype)",
        "nn.one_hot({i}.astype(jnp.int32) % 3, 3, dtype={x}.dtype)",
        "jnp.where({i}.max(-1, keepdims=True) == {i}, {x}, 0)",
        "jnp.where(jnp.argmax({i}, -1)[..., None] == jnp.arange({n}), {x}, 0.5 * {x})",
    ]
    if dtype != "bool":
        forms += [
            "((({i} * 3 + 7) >> 1) & 31).astype({x}.dtype) * {x}",
            "({i} // 5).astype({x}.dtype) + {x}",
            "({i} % 7).astype({x}.dtype) * {x}",
            "jnp.clip(jnp.round({f} * 5), 0, 20).astype({i}.dtype).astype(jnp.float32) * 0.2 + {x}",
            "(-{i}).astype({x}.dtype) / 32 + {x}",
        ]
    if len(shape) >= 2:
        w = d.array((shape[-1], d.size()), d.draw.choice(("int8", "uint8", "bool")))
        forms += [f"{{x}} @ {w}.astype({{x}}.dtype) * {max(shape[-1], 1) ** -0.5 / 16:.3g}"] * 3
    return d.emit(d.draw.choice(forms).format(i=i, x=x, f=d.full(x), n=shape[-1]))


def windows(d: Draft) -> str:
    """Draw a reduction of windows that overlap, skip, spread, or reach beyond an edge, and what is computed of it."""
    x = d.pick(least=1)
    shape = d.shape(x)
    sizes = tuple([d.draw.choice((1, 2, 3)) if n >= 3 else 1 for n in shape])
    strides = tuple([d.draw.choice((1, 1, 2, 3)) for _ in shape])
    dilation = tuple([d.draw.choice((1, 1, 2)) if n >= 5 else 1 for n in shape])
    edges = tuple([(d.draw.randint(0, size - 1), d.draw.randint(0, size - 1)) for size in sizes])
    padding = d.draw.choice(("'SAME'", "'VALID'", str(edges)))
    start, name = d.draw.choice((("-jnp.inf", "max"), ("jnp.inf", "min"), ("0.0", "add"), ("0.0", "add")))
    y = d.emit(f"lax.reduce_window({x}, {start}, lax.{name}, {sizes}, {strides}, {padding}, window_dilation={dilation})")
    if name == "add":
        y = d.emit(f"{y} / lax.reduce_window(jnp.ones_like({x}), 0.0, lax.add, {sizes}, {strides}, {padding}, window_dilation={dilation})")
        y = d.emit(f"jnp.where(jnp.isfinite({y}), {y}, 0)")
    elif padding != "'VALID'" and name != "add":
        y = d.emit(f"jnp.where(jnp.isfinite({y}), {y}, 0)")
    return activation(d, y) if d.draw.random() < 0.4 else y


def spread_convolution(d: Draft) -> str:
    """Draw a convolution with groups, dilated windows or images, and uneven or negative padding, then a normalisation."""
    axes = d.draw.choice((1, 2, 2, 3))
    groups, batch = d.draw.choice((1, 1, 2, 3)), d.draw.choice((1, 2, 3))
    inputs, outputs = d.draw.choice((1, 2, 4)), d.draw.choice((1, 2, 3, 8))
    sizes = [d.draw.choice((3, 4, 5, 8, 9)) if axes < 3 else d.draw.choice((2, 3, 5)) for _ in range(axes)]
    window = [d.draw.choice((1, 2, 3)) for _ in range(axes)]
    dilation, spread = [d.draw.choice((1, 1, 2)) for _ in window], [d.draw.choice((1, 1, 1, 2)) for _ in window]
    padding = [(d.draw.randint(-1, 2), d.draw.randint(0, 3)) for _ in window]
    padding = [
        (low, max(high, (k - 1) * r + 1 - ((n - 1) * s + 1) - low))
        for (low, high), k, r, n, s in zip(padding, window, dilation, sizes, spread, strict=True)
    ]
    strides = [d.draw.choice((1, 1, 2, 3)) for _ in window]
    of_batch = axes == 2 and groups > 1 and d.draw.random() < 0.3
    x = d.new((batch * (groups if of_batch else 1), inputs * (1 if of_batch else groups), *sizes))
    w = d.new((outputs * groups, inputs, *window), (inputs * max(1, window[0])) ** -0.5)
    group = "batch_group_count" if of_batch else "feature_group_count"
    y = d.emit(
        f"lax.conv_general_dilated({d.low(x)}, {d.low(w)}, {tuple(strides)}, {padding}, lhs_dilation={tuple(spread)},"
        f" rhs_dilation={tuple(dilation)}, {group}={groups})"
    )
    form = d.draw.randrange(4)
    if form == 0:
        f = d.emit(f"{d.full(y)}.reshape({d.shape(y)[0]}, {groups}, {outputs}, *{d.shape(y)[2:]})")
        rest = tuple(range(2, axes + 3))
        f = d.emit(f"({f} - {f}.mean({rest}, keepdims=True)) * lax.rsqrt({f}.var({rest}, keepdims=True) + 1e-2)")
        return d.emit(f"{f}.reshape({d.shape(y)})")
    if form == 1:
        return d.emit(f"{y}.max({tuple(range(2, axes + 2))}) + {d.low(d.new((groups * outputs,)))}")
    if form == 2:
        return activation(d, d.emit(f"{y} * {d.low(d.new((groups * outputs, *[1] * axes)))}"))
    return y


def slices(d: Draft) -> str:
    """Draw slices that start where a number says, are clamped, skip or turn; padding that cuts and spreads; updates of them."""
    x = d.pick(least=1)
    shape = d.shape(x)
    rank = len(shape)
    if not all(shape):
        return activation(d, x)
    starts = ", ".join([d.integers((), -3, n + 3) for n in shape])
    sizes = tuple([max(1, n // d.draw.choice((1, 2, 3))) for n in shape])
    pads = [(d.draw.randint(-1, 2), d.draw.randint(-1, 2), d.draw.choice((0, 0, 1, 2))) if n > 2 else (0, 1, 1) for n in shape]
    steps = ", ".join([d.draw.choice((":", "::2", "::-1", "::-2", "1:", ":-1", f"{n // 2}:") if n > 1 else (":", "::-1")) for n in shape])
    axis = d.draw.randrange(rank)
    part, zero = "lax.dynamic_slice({x}, ({starts},), {sizes})", "jnp.zeros((), {x}.dtype)"
    forms = [
        part,
        "lax.dynamic_update_slice({x}, jnp.sin(" + part + "), ({others},))",
        "lax.pad({x}, " + zero + ", {pads})",
        "jnp.tanh(lax.pad({x}, " + zero + " + 1, {pads}))",
        "{x}[{steps}]",
        "{x}.at[{steps}].multiply(2)",
        "{x}.at[{steps}].add({x}[{steps}] * 0.5)",
        "lax.dynamic_update_slice(jnp.zeros_like({x}), " + part + ", ({starts},)) + {x}",
        "lax.rev({x}, ({axis},)) * {x}",
        "lax.dynamic_index_in_dim({x}, {index}, {axis}, keepdims=False)",
        "lax.dynamic_update_index_in_dim({x}, {row}, {index}, {axis})",
        "jnp.roll({x}, {index}, {axis}) - {x}",
        "jnp.pad({x}, 1, mode='edge')",
        "jnp.pad({x}, ((1, 2),) * {rank}, mode='wrap')",
        "jnp.pad({x}, 1, mode='symmetric')",
    ]
    if rank >= 2:
        forms += ["jax.vmap(lambda v, i: lax.dynamic_slice_in_dim(v, i, {size}, 0))({x}, {each})"] * 2
        forms += ["jax.vmap(lambda v, i: lax.dynamic_update_slice_in_dim(v, v[:{size}] * 2, i, 0))({x}, {each})"] * 2
    fields = {
        "x": x,
        "starts": starts,
        "sizes": sizes,
        "pads": pads,
        "steps": steps,
        "axis": axis,
        "rank": rank,
        "others": ", ".join([d.integers((), -3, n + 3) for n in shape]),
        "index": d.integers((), 0, shape[axis]),
        "row": f"{d.new(shape[:axis] + shape[axis + 1 :])}.astype({x}.dtype)",
        "size": max(1, shape[min(1, rank - 1)] // 2),
        "each": d.integers(shape[:1], -2, shape[min(1, rank - 1)] + 2),
    }
    return d.emit(d.draw.choice(forms).format(**fields))


def batched_indexing(d: Draft) -> str:
    """Draw gathers and scatters with an axis of examples, indices beyond an array, and several index arrays."""
    x = d.pick(least=2)
    b, n, *rest = d.shape(x)
    if not b or not n:
        return activation(d, x)
    k = d.draw.choice((1, 2, 3, 5))
    inside, beyond = d.integers((b, k), 0, n), d.integers((b, k), -2 * n, 2 * n)
    rows, columns = d.integers((k,), 0, b), d.integers((k,), 0, n)
    values = f"{d.new((b, k, *rest))}.astype({x}.dtype)"
    mode = d.draw.choice(("clip", "fill", "drop"))
    name = d.draw.choice(("add", "max", "min", "multiply", "add"))
    forms = [
        f"jax.vmap(lambda v, i: v[i])({x}, {inside})",
        f"jax.vmap(lambda v, i: jnp.take(v, i, 0, mode='{d.draw.choice(('clip', 'wrap'))}'))({x}, {beyond})",
        f"jax.vmap(lambda v, i: v.at[i].get(mode='fill', fill_value=1))({x}, {beyond})",
        f"jax.vmap(lambda v, i, u: v.at[i].{name}(u, mode='{mode if mode != 'fill' else 'drop'}'))({x}, {beyond}, {values})",
        f"jax.vmap(lambda v, i, u: v.at[i].{name}(u))({x}, {inside}, {values})",
        f"{x}[{rows}, {columns}]",
        f"{x}.at[{rows}, {columns}].add(1.5)",
        f"{x}.at[jnp.arange({b}), {d.integers((b,), 0, n)}].{d.draw.choice(('set', 'add', 'max'))}(0.5)",
        f"{x}[jnp.arange({b}), {d.integers((b,), 0, n)}]",
        f"{x}[:, {columns}]",
        f"{x}.at[:, {columns}].add({values})",
        f"jnp.zeros_like({x}).at[:, {columns}].max({values})",
        f"{x}[{rows}][:, {columns}]",
        f"{x}[{rows}[:, None], {columns}]",
        f"jax.vmap(lambda u, i: jax.ops.segment_sum(u, i, {n}))({values}, {inside})",
        f"jax.vmap(lambda v, i: jnp.take_along_axis(v, i, 0), (0, None))({x}, {d.integers((k, *rest), 0, n)})",
        f"jnp.take_along_axis({x}, jnp.argsort({x}, 1)[:, ::-1], 1)",
        f"jnp.take_along_axis({x}, jnp.argmax({x}, 1, keepdims=True), 1) * {x}",
    ]
    return d.emit(d.draw.choice(forms))


def graph(d: Draft) -> str:
    """Draw a layer of a graph network: messages along edges, softmax or means per node, extremes and products."""
    x = _matrix(d)
    n, _ = d.shape(x)
    if not n:
        return activation(d, x)
    edges = d.draw.choice((1, 4, 9, 33))
    source, target = d.integers((edges,), 0, n), d.integers((edges,), 0, n)
    message = d.emit(f"{x}[{source}] * nn.sigmoid({x}[{target}])" if d.draw.random() < 0.5 else f"{x}[{source}] - {x}[{target}]")
    form = d.draw.randrange(5)
    if form == 0:
        logit = d.emit(f"{message}.mean(-1)")
        logit = d.emit(f"jnp.exp({logit} - jax.ops.segment_max({logit}, {target}, {n})[{target}])")
        return d.emit(
            f"jax.ops.segment_sum(({logit} / jax.ops.segment_sum({logit}, {target}, {n})[{target}])[:, None] * {message}, {target}, {n})"
        )
    if form == 1:
        degree = d.emit(f"jnp.zeros({n}, {x}.dtype).at[{target}].add(1)")
        return d.emit(f"{x} + jnp.zeros_like({x}).at[{target}].add({message} * lax.rsqrt({degree}[{source}] + 1)[:, None])")
    if form == 2:
        return d.emit(f"jax.ops.segment_prod(1 + 0.1 * {message}, {target}, {n})")
    if form == 3:
        return d.emit(f"jnp.zeros_like({x}).at[{target}].max({message}) + jnp.zeros_like({x}).at[{source}].min({message})")
    return d.emit(
        f"jax.ops.segment_sum({message}, {target}, {n}) / jnp.maximum(jnp.bincount({target}, length={n}), 1)[:, None].astype({x}.dtype)"
    )


def sorting(d: Draft) -> str:
    """Draw a sort with values that move along, largest elements, ranks, and what is selected by them."""
    x = d.pick(least=1)
    shape = d.shape(x)
    axis = d.draw.randrange(len(shape))
    n = shape[-1]
    if not all(shape):
        return activation(d, x)
    y = d.like(x)
    k = d.draw.randint(1, min(n, 5))
    form = d.draw.randrange(9)
    if form == 0:
        keys, values = d.emit(f"lax.sort(({x}, {y}), dimension={axis}, num_keys=1)", 2)
        return d.emit(f"{values} - {keys}")
    if form == 1:
        values, index = d.emit(f"lax.top_k({x}, {k})", 2)
        return d.emit(f"jnp.zeros_like({x}) + (nn.one_hot({index}, {n}, dtype={x}.dtype) * nn.softmax({values})[..., None]).sum(-2)")
    if form == 2:
        return d.emit(f"jnp.where({x} >= lax.top_k({x}, {k})[0][..., -1:], {x}, 0)")
    if form == 3:
        order = d.emit(f"jnp.argsort({x}, {axis})")
        return d.emit(f"jnp.take_along_axis({y}, {order}, {axis})")
    if form == 4:
        row = tuple([-1 if i == axis else 1 for i in range(len(shape))])
        return d.emit(f"jnp.sort({x}, {axis}) * jnp.arange(1, {shape[axis]} + 1).reshape({row}) * 0.1")
    if form == 5:
        ranks = d.emit(f"jnp.argsort(jnp.argsort({x}, {axis}), {axis})")
        return d.emit(f"{y} * {ranks}.astype({y}.dtype) * 0.1")
    if form == 6:
        return d.emit(f"jnp.median({d.full(x)}, {axis}, keepdims=True) - {d.full(x)}")
    if form == 7:
        edges = d.emit(f"jnp.sort({d.new((4,))})")
        place = d.emit(f"jnp.searchsorted({edges}, {d.full(x)})")
        return d.emit(f"jnp.concatenate([{edges}, {edges}[-1:] + 1])[{place}] - {d.full(x)}")
    return d.emit(f"jnp.flip(jnp.sort({x}, {axis}), {axis})[..., :{k}] + {x}.max({axis}, keepdims=True)[..., :1]")


def selection(d: Draft) -> str:
    """Draw a selection by the place of an extreme, by bools with broadcasting, or one that keeps NaN out of derivatives."""
    x = d.pick(least=1)
    n = d.shape(x)[-1]
    y = d.like(x)
    forms = [
        "jnp.where({x} > 0, jnp.sqrt(jnp.where({x} > 0, {x}, 1)), 0) * {y}",
        "jnp.where({x} > 0.1, jnp.log(jnp.where({x} > 0.1, {x}, 1)), {y})",
        "jnp.where(jnp.abs({x}) > 0.1, {y} / jnp.where(jnp.abs({x}) > 0.1, {x}, 1), 0)",
        "jnp.where({b}, {x}, {y})",
        "jnp.where({b}, {x}, 0).sum(-1)",
        "(nn.one_hot(jnp.argmax({x}, -1), {n}, dtype={y}.dtype) * {y}).sum(-1)",
        "jnp.where(jnp.arange({n}) == jnp.argmin({x}, -1)[..., None], {x}, {y})",
        "jnp.select([{x} > 1, {x} > 0], [{x}, {x} * {y}], -{y})",
        "jnp.min(jnp.where({b}, {x}, 9), -1)",
        "lax.select({x} < {y}, {x} * {x}, -{y})",
        "lax.clamp(-jnp.abs({y}), {x}, jnp.abs({y}))",
        "jnp.maximum(jnp.maximum({x}, {y}), 0.3)",
        "{x} + lax.stop_gradient(jnp.round({x}) - {x})",
        "nn.one_hot(jnp.argmax({x}, -1), {n}, dtype={x}.dtype) - lax.stop_gradient(nn.softmax({x})) + nn.softmax({x})",
        "jnp.nan_to_num({x} / {x}) * {y}",
    ]
    b = d.array(d.draw.choice((d.shape(x), (n,), (*d.shape(x)[:-1], 1))), "bool")
    return d.emit(d.draw.choice(forms).format(x=x, y=y, n=n, b=b))


def joins(d: Draft) -> str:
    """Draw a concatenation or stack of broadcast, cut and reversed arrays, and what is computed along the new axis."""
    x = _matrix(d)
    n, m = d.shape(x)
    b, c = d.new((m,)), d.new((n, 1))
    parts = [
        x,
        f"jnp.broadcast_to({b}, ({n}, {m}))",
        f"{x}[:, ::-1]",
        f"{x} * {b}",
        f"jnp.zeros(({n}, {m}), {x}.dtype)",
        f"{x} + {c}",
        f"jnp.broadcast_to({c}, ({n}, {m}))",
        f"jnp.full(({n}, {m}), 0.5)",
        f"jnp.roll({x}, 1, 0)",
        f"{x}.max(1, keepdims=True) - {x}",
    ]
    drawn = [f"({part}).astype({x}.dtype)" for part in d.draw.choices(parts, k=d.draw.randint(2, 4))]
    axis = d.draw.choice((0, 1, -1))
    y = d.emit(f"jnp.{d.draw.choice(('concatenate', 'stack'))}([{', '.join(drawn)}], {axis})")
    form = d.draw.randrange(5)
    if form == 0:
        return d.emit(f"{y}.{d.draw.choice(('sum', 'max', 'mean'))}({axis})")
    if form == 1:
        return d.emit(f"({y} - {y}.mean({axis}, keepdims=True)) ** 2")
    if form == 2 and d.shape(y)[-1] > 1:
        left, right = d.emit(f"jnp.split({y}, [{d.shape(y)[-1] // 2}], -1)", 2)
        return d.emit(f"jnp.tanh({left}).sum(-1) * {right}.max(-1)")
    if form == 3:
        return d.emit(f"jnp.cumsum({y}, {axis})[..., ::-1]")
    return y


def several_axes(d: Draft) -> str:
    """Draw reductions along several axes, first, middle or last, whose results are broadcast into the next."""
    x = d.pick(rank=d.draw.choice((2, 3, 3)))
    rank = len(d.shape(x))
    axes = [tuple(sorted(d.draw.sample(range(rank), d.draw.randint(1, rank)))) for _ in range(2)]
    first, second = [d.draw.choice(("sum", "mean", "max", "min")) for _ in range(2)]
    s = d.emit(f"{x}.{first}({axes[0]}, keepdims=True)")
    t = d.emit(
        d.draw.choice(
            (
                "({x} * {s})",
                "({x} - {s})",
                "jnp.tanh({x} + {s})",
                "jnp.where({x} > {s}, {x}, 0.1 * {x})",
            )
        ).format(x=x, s=s)
    )
    u = d.emit(f"{t}.{second}({axes[1]}, keepdims={d.draw.choice((True, True, False))})")
    if d.draw.random() < 0.5 and len(d.shape(u)) == rank:
        return d.emit(
            d.draw.choice(
                (
                    "{t} * {u} + {s}",
                    "{t} / (1 + {u} * {u})",
                    "({s} - {u}) * {x}",
                    "jnp.maximum({t}, {u})",
                )
            ).format(t=t, u=u, s=s, x=x)
        )
    return d.emit(f"{u} * {s}") if len(d.shape(u)) == rank else u


def transposed(d: Draft) -> str:
    """Draw products with transposes, strided slices, reversals and joins between them."""
    x = d.pick(least=2)
    k, m = d.shape(x)[-1], d.size()
    h = d.emit(f"{d.low(x)} @ {d.low(d.new((k, m), max(1, k) ** -0.5))}")
    cut = d.emit(
        d.draw.choice(
            (
                "{h}[..., ::2]",
                "{h}[..., ::-1]",
                "{h}[..., ::2, :]",
                "jnp.concatenate([{h}, {h} * 2], -1)",
                "jnp.swapaxes({h}, -1, -2)",
                "{h}.mean(-1, keepdims=True) - {h}",
                "jnp.moveaxis({h}, -1, 0)",
                "{h}.T",
                "jnp.pad({h}, ((0, 1),) * {r})",
                "{h}.reshape({q}, -1).T",
            )
        ).format(h=h, r=len(d.shape(h)), q=d.shape(h)[0])
    )
    size = d.shape(cut)[-1]
    form = d.draw.randrange(4)
    if form == 0 and len(d.shape(cut)) >= 2:
        return d.emit(f"{cut} @ jnp.swapaxes({cut}, -1, -2) * {max(1, size) ** -0.5:.3g}")
    if form == 1 and len(d.shape(cut)) >= 2:
        return d.emit(f"jnp.swapaxes({cut}, -1, -2) @ {cut} * {max(1, d.shape(cut)[-2]) ** -0.5:.3g}")
    y = d.emit(f"{cut} @ {d.low(d.new((size, d.size()), max(1, size) ** -0.5))}")
    return activation(d, y) if form == 2 else y


def mixed_scan(d: Draft) -> str:
    """Draw a scan over carries of several dtypes, which stacks values of others, perhaps with a loop, a branch or a remat within."""
    x = d.pick(rank=d.draw.choice((2, 3)))
    if d.shape(x)[0] > 40 or not all(d.shape(x)):
        return activation(d, x)
    steps, *state = d.shape(x)
    n, half = state[-1], _half(d)
    w, u = d.new((n, n), n**-0.5), d.array((n, n), half)
    flags = d.array((steps,), "bool")
    rows = d.emit(d.full(x))
    forms = (
        f"jnp.tanh(h @ {w} + r)",
        "jnp.where(f, jnp.sin(h) + r, h)",
        f"(h.astype('{half}') @ {u} * {n**-0.5:.3g}).astype('float32') + r",
        f"lax.cond(f, lambda h, r: jnp.tanh(h @ {w}), lambda h, r: h - r, h, r)",
        f"jax.checkpoint(lambda h: nn.gelu(h @ {w}) @ {w}.T)(h) + r",
        "lax.fori_loop(0, 2, lambda i, v: 0.5 * v + r, h)",
        f"lax.scan(lambda v, t: (jnp.tanh(v * t) + r, None), h, {w}[:2, :1])[0]",
        "lax.switch(k % 3, [jnp.sin, lambda v: v[..., ::-1], lambda v: 0.5 * v], h + r)",
        "cells.straight_through(h) + 0.5 * r",
        "cells.clipped(h * 1.5 + r)",
        "lax.while_loop(lambda c: (c[0] < 3) & (jnp.abs(c[1]).max() < 2), lambda c: (c[0] + 1, c[1] * 1.5), (0, lax.stop_gradient(h)))[1]"
        " * 0.1 + h + r",
    )
    outputs = ("h", "jnp.argmax(h, -1)", "h.sum(-1)", "h > 0", f"h.astype('{half}')", "k", "m", "jnp.round(h * 9).astype(jnp.int8)")
    chosen = d.draw.sample(outputs, d.draw.randint(1, 3))
    most = d.draw.choice(("m", f"jnp.maximum(m, h.max(-1)).astype('{half}')"))
    step = (
        f"lambda c, s: (lambda h, m, k, r, f: ((h, {most}, k + f), ({', '.join(chosen)},)))"
        f"((lambda h, k, r, f: {d.draw.choice(forms)})(c[0], c[2], *s), c[1], c[2], *s)"
    )
    start = f"(jnp.zeros({tuple(state)}), jnp.full({tuple(state[:-1])}, -1, '{half}'), jnp.int32(0))"
    reverse = d.draw.choice(("", ", reverse=True"))
    results = d.emit(f"lax.scan({step}, {start}, ({rows}, {flags}){reverse})", 3 + len(chosen))
    floats = [results[0], *[r for r, text in zip(results[3:], chosen, strict=True) if text in ("h", "h.sum(-1)", f"h.astype('{half}')")]]
    return d.draw.choice(floats)


def associative(d: Draft) -> str:
    """Draw an associative scan: of products of matrices, of gates along any axis, of extremes, in reverse."""
    x = d.pick(rank=d.draw.choice((2, 3)))
    rank = len(d.shape(x))
    axis, reverse = d.draw.randrange(rank), d.draw.choice(("", ", reverse=True"))
    form = d.draw.randrange(3)
    if form == 0:
        m = d.emit(
            f"jnp.eye(2) + 0.2 * jnp.sin({d.full(x)}.reshape({d.shape(x)[0]}, -1)[:, :1, None] * jnp.arange(1.0, 5.0).reshape(2, 2))"
        )
        return d.emit(f"lax.associative_scan(lambda a, b: jnp.einsum('...ij,...jk->...ik', b, a), {m}{reverse})")
    if form == 1:
        return d.emit(f"lax.associative_scan({d.draw.choice(('jnp.add', 'jnp.maximum'))}, {x}, axis={axis}{reverse})")
    gate = d.emit(f"nn.sigmoid({x})")
    op = "lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])"
    return str(d.emit(f"lax.associative_scan({op}, ({gate}, {d.like(x)}.astype({x}.dtype)), axis={axis}{reverse})", 2)[1])


def derivatives(d: Draft) -> str:
    """Draw derivatives of a part: per example, Jacobians, tangents, by rules of its own."""
    x = d.pick(rank=2)
    b, n = d.shape(x)
    if not b or not n or n > 33:
        return activation(d, x)
    w = d.new((n, n), n**-0.5)
    x = d.emit(d.full(x))
    f = d.draw.choice((f"lambda r: jnp.tanh(r @ {w})", f"lambda r: nn.softmax(r @ {w}) * r", f"lambda r: jnp.sin(r) * (r @ {w}).sum()"))
    forms = [
        f"jax.vmap(jax.grad(lambda r: ({f})(r).sum()))({x})",
        f"jax.jvp({f}, ({x}[0],), ({x}[-1],))[1]",
        f"jax.vmap(lambda r: jax.vjp({f}, r)[1](r)[0])({x})",
        f"jax.vmap(jax.grad(lambda v, r: jnp.square(jnp.tanh(r @ v)).mean()), (None, 0))({w}, {x}).sum(0)",
        f"jax.linearize({f}, {x}[0])[1]({x}[0])",
        f"cells.straight_through({x} @ {w})",
        f"cells.clipped({x} @ {w}) * {x}",
        f"cells.safe_norm({x} @ {w})",
        f"jax.vmap(cells.safe_norm, 1)({x})",
    ]
    if n <= 9:
        forms += [
            f"jax.vmap(jax.jacrev({f}))({x})",
            f"jax.vmap(jax.jacfwd({f}))({x}).sum(0)",
            f"jax.hessian(lambda r: ({f})(r).sum())({x}[0])",
        ]
        forms += [f"jax.vmap(lambda r: jnp.trace(jax.jacfwd({f})(r)))({x})"]
    return d.emit(d.draw.choice(forms))


def matrices(d: Draft) -> str:
    """Draw factors of positive matrices of few rows, and solutions by them, as Gaussian processes and filters have them."""
    n, b = d.draw.choice((1, 2, 3, 5, 8)), d.draw.choice((1, 2, 3))
    x = d.new((b, n, n) if d.draw.random() < 0.5 else (n, n), 0.5)
    y = d.emit(f"{d.pick(least=1)}.mean()")
    s = d.emit(f"{x} @ jnp.swapaxes({x}, -1, -2) + (2 + jnp.tanh({y}).astype(jnp.float32)) * jnp.eye({n})")
    v = d.new((*d.shape(x)[:-1], d.draw.choice((1, 3))))
    form = d.draw.randrange(6)
    if form == 0:
        return d.emit(f"jnp.linalg.solve({s}, {v})")
    if form == 1:
        return d.emit(f"jnp.linalg.inv({s}) @ {v}")
    if form == 2:
        return d.emit(f"jnp.linalg.slogdet({s})[1]")
    factor = d.emit(f"jnp.linalg.cholesky({s})")
    if form == 3:
        return d.emit(f"jnp.log(jnp.diagonal({factor}, axis1=-2, axis2=-1)).sum(-1)")
    if form == 4:
        return d.emit(f"lax.linalg.triangular_solve({factor}, {v}, left_side=True, lower=True, transpose_a={d.draw.choice((True, False))})")
    return d.emit(f"jnp.square({factor} @ {v})")


def spectrum(d: Draft) -> str:
    """Draw a transform to frequencies, what is multiplied there, and the way back."""
    x = d.emit(d.full(d.pick(least=1)))
    n = d.shape(x)[-1]
    f = d.emit(f"jnp.fft.rfft({x})")
    form = d.draw.randrange(5)
    scale = max(1, n) ** -0.5
    if form == 0:
        return d.emit(f"(jnp.real({f}) ** 2 + jnp.imag({f}) ** 2) * {scale**2:.3g}")
    if form == 1:
        return d.emit(f"jnp.fft.irfft({f} * {d.new((n // 2 + 1,))}, {n})")
    if form == 2:
        return d.emit(f"jnp.fft.irfft({f} * (1j * jnp.arange({n // 2 + 1})) * {scale:.3g}, {n})")
    if form == 3:
        return d.emit(
            f"jnp.real(jnp.fft.ifft(jnp.fft.fft({x} + 1j * {x}[..., ::-1]) * jnp.conj(jnp.fft.fft({d.new((n,))})))) * {scale:.3g}"
        )
    g = d.emit(f"({f} * jnp.exp(1j * {d.new((n // 2 + 1,))})) * {scale:.3g}")
    return d.emit(f"jnp.log1p(jnp.real({g} * jnp.conj({g})))")


def rows_in_groups(d: Draft) -> str:
    """Draw products of rows with the matrix of their group."""
    x = _matrix(d)
    b, n = d.shape(x)
    g, m = d.draw.choice((1, 2, 3)), d.size()
    labels = d.emit(f"jnp.sort({d.integers((b,), 0, g)})")
    sizes = d.emit(f"jnp.bincount({labels}, length={g}).astype(jnp.int32)")
    w = d.new((g, n, m), max(1, n) ** -0.5)
    sums = d.draw.choice(("", ", preferred_element_type=jnp.float32"))
    y = d.emit(f"lax.ragged_dot({d.draw.choice((x, d.low(x)))}, {d.low(w)}, {sizes}{sums})")
    return activation(d, y) if d.draw.random() < 0.5 else y


#: Blocks, and how often they are drawn.
ARRAY_BLOCKS: dict[Callable[[Any], str], int] = {
    half_parameters: 4, narrow_integers: 3, windows: 3, spread_convolution: 3, slices: 4, batched_indexing: 4, graph: 3, sorting: 3,
    selection: 3, joins: 3, several_axes: 4, transposed: 3, mixed_scan: 4, associative: 2, derivatives: 3, matrices: 2, spectrum: 2,
    rows_in_groups: 2,
}  # fmt: skip
