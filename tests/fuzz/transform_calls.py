"""Calls of transformations that people write by hand, for `transforms.py`: named axes, shards, Jacobians, callbacks, rules for batches.

Each block draws a statement, with expressions of `transform_blocks.py` within. Named axes have no meaning in plain Python, where such
programs are compared with themselves in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.fuzz.transform_blocks import Draft, Nesting

#: Devices of a mesh; those that a process lacks are others of it.
DEVICES = 4


def call_helpers(jax: Any) -> SimpleNamespace:
    """Return functions that call Python, or that have rules for batches, of volta_fn's or JAX's transformations."""
    jnp = jax.numpy

    def called(x: Any, method: str) -> Any:
        """Return sin x, which Python computes."""

        @jax.custom_jvp
        def sine(x: Any) -> Any:
            return jax.pure_callback(lambda a: np.sin(np.asarray(a)), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method=method)

        sine.defjvp(lambda primals, tangents: (sine(*primals), tangents[0] * jnp.cos(primals[0])))
        return sine(x)

    @jax.custom_batching.custom_vmap
    def ruled(x: Any, y: Any) -> Any:
        return jnp.sin(x) * y

    @ruled.def_vmap
    def _(size: int, batched: Any, x: Any, y: Any) -> tuple[Any, bool]:
        x, y = [v if is_batched else jnp.broadcast_to(v, (size, *v.shape)) for v, is_batched in zip((x, y), batched, strict=True)]
        return ruled(x, y), True

    sequential = jax.custom_batching.sequential_vmap(lambda x, y: jnp.tanh(x) * y + x.sum())

    def power(x: Any, exponent: int) -> Any:
        """Return a power, whose rule has the exponent as an argument that is no array."""
        function = jax.custom_vjp(lambda x, n: x**n, nondiff_argnums=(1,))
        function.defvjp(lambda x, n: (x**n, {"x": x}), lambda n, r, g: (n * g * r["x"] ** (n - 1),))
        return function(x, exponent)

    @jax.custom_jvp
    def by_zeros(x: Any, y: Any) -> Any:
        return x * jnp.tanh(y)

    def by_zeros_rule(primals: Any, tangents: Any) -> Any:
        (x, y), out = primals, by_zeros(*primals)
        zeros = [isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents]
        parts = [0 if zeros[0] else tangents[0] * jnp.tanh(y), 0 if zeros[1] else tangents[1] * x * (1 - jnp.tanh(y) ** 2)]
        return out, (out * 0 + sum(parts)).astype(out.dtype)

    by_zeros.defjvp(by_zeros_rule, symbolic_zeros=True)

    def total(tree: Any) -> Any:
        """Return the sum of a tree's numbers by weights that tell its leaves and their elements apart."""
        leaves = [x for x in jax.tree.leaves(tree) if x.dtype.kind not in "biu"]
        weights = [(k + 1) * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for k, x in enumerate(leaves)]
        return sum([(x * w).sum() for x, w in zip(leaves, weights, strict=True)], start=jnp.zeros((), leaves[0].dtype))

    def shards(function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        mesh = jax.sharding.Mesh(np.resize(np.array(jax.devices("cpu")), DEVICES), ("d",))
        return jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=outputs)

    return SimpleNamespace(
        called=called,
        ruled=ruled,
        sequential=sequential,
        power=power,
        by_zeros=by_zeros,
        total=total,
        shards=shards,
        stack=lambda x: jnp.stack([x, 0.5 * x, jnp.roll(x, 1)]),
    )


def _policy(d: Draft) -> str:
    policy = d.draw.choice(("", "nothing", "everything", "dots", "named", "others"))
    return f", policy=T.policies['{policy}']" if policy else ""


def _rows(d: Draft) -> str:
    """Return a matrix, with rows."""
    x = d.pick(2)
    return x if 0 not in d.shape(x) else d.new((2, 3))


def _around(d: Draft, form: str, a: str) -> str:
    """Return an expression of a variable, within control flow or a transformation; `form` has {v} for its operand."""
    inner = form.format(v="z_")
    ways = (
        f"({form.format(v=a)})",
        f"({form.format(v=a)})",
        f"jax.jit(lambda z_: {inner})({a})",
        f"jax.checkpoint(lambda z_: {inner}{_policy(d)})({a})",
        f"lax.scan(lambda z_, _: (0.5 * {inner}, None), {a}, None, length=2)[0]",
        f"lax.fori_loop(0, 2, lambda i_, z_: 0.5 * {inner}, {a})",
        f"lax.cond({d.draw.choice(('True', 'jnp.array(False)'))}, lambda z_: {inner}, lambda z_: 2 * z_, {a})",
        f"jax.grad(lambda z_: (jnp.sin({inner}) * {a}).sum())({a})",
        f"jax.jvp(lambda z_: {inner} * z_, ({a},), ({a},))[1]",
        f"jax.vjp(lambda z_: {inner} * z_, {a})[1]({a})[0]",
        f"jax.linearize(lambda z_: {inner} * z_, {a})[1]({a})",
        f"jax.vmap(lambda z_: {inner})(T.stack({a})).sum(0)",
        f"jax.vmap(jax.grad(lambda z_: (jnp.cos({inner}) * z_).sum()), 1, 1)(jnp.stack([{a}, 2 * {a}], 1)).sum(1)",
    )
    return d.draw.choice(ways)


def _collective(d: Draft, axis: str, size: int) -> str:
    """Return a collective over an axis of `size`, of a vector {v}."""
    k = d.draw.randrange(1, 4)
    pairs = [(i, (i + k) % size) for i in range(size)][: d.draw.choice((size, size, max(1, size - 1)))]
    forms = (
        f"lax.psum({{v}}, {axis})",
        f"lax.pmean({{v}}, {axis})",
        f"lax.all_gather({{v}}, {axis}).sum(0)",
        f"lax.all_gather({{v}}, {axis}, axis=0, tiled=True)[-{{v}}.shape[0]:]",
        f"lax.all_gather({{v}}, {axis}, axis=1)[:, 0]",
        f"lax.ppermute({{v}}, {axis}, {pairs})",
        f"({{v}} * lax.axis_index({axis}))",
        f"({{v}} / lax.axis_size({axis}))",
        f"lax.psum_scatter(jnp.outer(jnp.arange(1, {size + 1}).astype({{v}}.dtype), {{v}}), {axis})",
        f"lax.psum_scatter(jnp.tile({{v}}, {size}), {axis}, tiled=True)",
        f"lax.all_to_all(jnp.outer(jnp.arange(1, {size + 1}).astype({{v}}.dtype), {{v}}), {axis}, 0, 0)[{size - 1}]",
        f"lax.all_to_all(jnp.outer({{v}}, jnp.arange(1, {size + 1}).astype({{v}}.dtype)), {axis}, 1, 0)[0].sum() * {{v}}",
        f"lax.pmax(lax.stop_gradient({{v}}), {axis})",
        f"lax.psum(2, {axis}) * {{v}}",
        f"({{v}} - lax.psum(lax.stop_gradient({{v}}), {axis}))",
    )
    return d.draw.choice(forms)


def collectives(d: Draft) -> str:
    """Draw collectives over named axes of batches, alone, nested, and within control flow and derivatives."""
    x = _rows(d)
    n = d.shape(x)[0]
    body = _around(d, _collective(d, "'i'", n), "r_")
    body = f"{body} + {Nesting(d.draw, 1).term(['r_'])}"
    if d.draw.random() < 0.3:
        both = d.draw.choice(("lax.psum({v}, ('i', 'j'))", "lax.pmean({v}, 'j')", "lax.psum(lax.all_gather({v}, 'j')[1], 'i')"))
        inner = f"jax.vmap(lambda r_: {body} + {both.format(v='r_')}, axis_name='j')(T.stack(q_)).sum(0)"
        return f"jax.vmap(lambda q_: {inner}, axis_name='i')({x})"
    options = d.draw.choice(("", "", f", axis_size={n}", ", spmd_axis_name='s'"))
    if d.draw.random() < 0.2:
        return f"jax.vmap(lambda r_, s_: {body} * s_['k'], (0, {{'k': None}}), axis_name='i'{options})({x}, {{'k': {x}[0]}})"
    return f"jax.vmap(lambda r_: {body}, axis_name='i'{options})({x})"


def sharded(d: Draft) -> str:
    """Draw a function of shards, with collectives between them."""
    x, w = d.new((d.draw.choice((1, 2)) * DEVICES, 3)), d.new((3,))
    body = f"{_around(d, _collective(d, repr('d'), DEVICES), 'r_[0]')} + w_ * 2"
    call = d.draw.choice(
        (
            f"T.shards(lambda r_, w_: r_ * ({body}), (jax.P('d'), jax.P()), jax.P('d'))({{x}}, {w})",
            f"T.shards(lambda r_, w_: lax.psum({body}, 'd'), (jax.P('d'), jax.P()), jax.P())({{x}}, {w})",
        )
    )
    ways = (
        call.format(x=x),
        f"jax.grad(lambda y_: (jnp.sin({call.format(x='y_')})).sum())({x})",
        f"jax.jvp(lambda y_: {call.format(x='y_')}, ({x},), ({x} * 0.5,))[1]",
        f"jax.vmap(lambda y_: {call.format(x='y_')})(T.stack({x}))",
        f"lax.scan(lambda c_, _: (c_ * 0.5, {call.format(x='c_')}), {x}, None, length=2)[1]",
        f"jax.checkpoint(lambda y_: {call.format(x='y_')}{_policy(d)})({x})",
    )
    return d.draw.choice(ways)


def recomputed(d: Draft) -> str:
    """Draw functions that are recomputed in the backward pass, of functions with rules, mapped over some leaves of trees."""
    x = _rows(d)
    y, n = d.like(x), d.shape(x)[0]
    nest = Nesting(d.draw, 1)
    rule = d.draw.choice(
        (
            "T.scaled({v}, p_['w'])", "T.bent(p_['w'], {v})", "T.power({v}, 3)", "T.by_zeros({v}, p_['w'])", "T.by_zeros(p_['w'], {v})",
            "T.bent_by_parts({v}, p_['b'])", "T.called({v}, 'sequential')", "T.ruled({v}, p_['w'])",
        )
    )  # fmt: skip
    body = f"{_around(d, rule, 'a_')} + T.name({nest.term(['a_', 'p_[' + repr('b') + ']'])}, 'a')"
    function = f"jax.checkpoint(lambda p_, a_: {body}{_policy(d)})"
    axes = d.draw.choice(("({'w': 0, 'b': None}, 0)", "({'w': None, 'b': 0}, None)", "(None, 0)", "({'w': 0, 'b': 0}, None)"))
    part = lambda name, value: f"{value}" if f"'{name}': 0" in axes else f"{value}[0]"
    tree = f"{{'w': {part('w', x)}, 'b': {part('b', y)}}}"
    out, last = d.draw.choice((0, 1, -1)), "" if axes.endswith(", 0)") else "[-1]"
    mapped = lambda v: f"jax.vmap({function}, in_axes={axes}, axis_size={n}, out_axes={out})({tree}, {v}{last})"
    ways = (
        mapped(y),
        f"jax.grad(lambda v_: ({mapped('v_')} ** 2).sum())({y})",
        f"T.total(jax.grad(lambda v_: (jax.vmap({function}, ({{'w': 0, 'b': None}}, 0))(v_[0], v_[1]) ** 2).sum())"
        f"(({{'w': {x}, 'b': {y}[0]}}, {y})))",
        f"jax.vmap(lambda v_: {mapped('v_')})(T.stack({y}))",
        f"jax.vmap(jax.grad(lambda v_: T.total({mapped('v_')})))(T.stack({y}))",
    )
    return d.draw.choice(ways)


_LINEAR = (
    "({v} * 2.5)",
    "{v}[..., ::-1]",
    "jnp.cumsum({v}, -1)",
    "({v} * {y})",
    "({v} - {v}.mean(0))",
    "lax.scan(lambda c_, r_: (0.5 * c_ + r_, c_), 0 * {v}[0], {v})[1]",
    "lax.scan(lambda c_, r_: (0.5 * c_ + r_, c_ - r_), 0 * {v}[0], {v}, reverse=True)[1]",
    "lax.cond({y}.sum() > 0, lambda u_: 2 * u_, lambda u_: u_[::-1], {v})",
    "jax.jit(lambda u_: u_ - 3 * u_[:1])({v})",
    "jax.checkpoint(lambda u_: u_ - 3 * u_[:1])({v})",
    "lax.fori_loop(0, 3, lambda i_, c_: c_ * 0.5 + {v}, {v})",
    "{v}.at[0].add({v}[-1])",
    "jnp.tensordot({y}, jnp.tensordot({y}, {v}, {v}.ndim), 0)",
    "jax.vmap(lambda u_, w_: u_ * w_.sum())({v}, {y})",
    "lax.associative_scan(jnp.add, {v}, reverse=True)",
    "jnp.where({y} > 0, {v}, 0.0)",
    "lax.dynamic_update_slice({v}, 2 * {v}[:1], (jnp.argmax({y}.reshape(-1)),) + (0,) * ({v}.ndim - 1))",
)


def linear(d: Draft) -> str:
    """Draw transposes and linear parts of functions, of compositions of linear ones and of any."""
    x = d.pick(d.draw.choice((1, 2)))
    if 0 in d.shape(x):
        return f"jnp.tanh({x})"
    y, o = d.like(x), d.like(x)
    text = "v_"
    for _ in range(d.draw.choice((1, 2, 3))):
        text = f"(lambda v_: {d.draw.choice(_LINEAR).format(v='v_', y=y)})({text})"
    f, g = f"lambda v_: {text}", f"lambda v_: jnp.sin({text}) * {Nesting(d.draw, len(d.shape(x))).expression([y, 'v_'], 1)}"
    forms = (
        f"jax.linear_transpose({f}, {x})({o})[0]",
        f"jax.linear_transpose(lambda u_: jax.linear_transpose({f}, u_)(u_)[0], {x})({o})[0]",
        f"jax.vmap(jax.linear_transpose({f}, {x}))(T.stack({o}))[0]",
        f"jax.linear_transpose(jax.vmap({f}), T.stack({x}))(T.stack({o}))[0]",
        f"jax.linear_transpose(jax.linearize({g}, {x})[1], {x})({o})[0]",
        f"jax.linearize({g}, {x})[1]({o})",
        f"jax.vmap(jax.linearize({g}, {x})[1])(T.stack({o})).sum(0)",
        f"jax.vmap(lambda u_: jax.linearize({g}, u_)[1]({o}))(T.stack({x}))",
        f"jax.grad(lambda u_: jax.linearize({g}, u_)[1]({o}).sum())({x})",
        f"jax.jit(jax.linearize({g}, {x})[1])({o})",
        f"jax.linearize(lambda u_: (({g})(u_), u_.sum()), {x}, has_aux=True)[1]({o})",
    )
    return d.draw.choice(forms)


def jacobians(d: Draft) -> str:
    """Draw Jacobians and Hessians by trees, with auxiliary results, within batches and each other."""
    w, a = d.new((2,)), d.new((2,))
    nest = Nesting(d.draw, 1)
    body = nest.expression(["p_['w']", "a_", "p_['b'] * a_"], d.draw.choice((0, 1)))
    pair = f"lambda p_, a_: {{'u': {body}, 'v': (p_['b'] ** 2, (p_['w'] * a_).sum())}}"
    tree = f"{{'w': {w}, 'b': {a}[0]}}"
    scalar = f"lambda p_, a_: ({body}).sum() * p_['b']"
    with_aux = f"lambda p_, a_: (({pair})(p_, a_), {{'k': a_ * 2}})"
    outer, inner = d.draw.choice(("jacfwd", "jacrev")), d.draw.choice(("jacfwd", "jacrev"))
    numbers = d.draw.choice(("", ", argnums=1", ", argnums=(0, 1)", ", argnums=(1,)"))
    forms = (
        f"T.total(jax.{outer}({pair}{numbers})({tree}, {a}))",
        f"T.total(jax.{outer}({with_aux}{numbers}, has_aux=True)({tree}, {a}))",
        f"T.total(jax.{outer}(jax.{inner}({pair}{numbers}){numbers})({tree}, {a}))",
        f"T.total(jax.hessian({scalar}{numbers})({tree}, {a}))",
        f"T.total(jax.hessian(lambda p_, a_: (({scalar})(p_, a_), a_){numbers}, has_aux=True)({tree}, {a}))",
        f"T.total(jax.vmap(jax.{outer}({pair}{numbers}), (None, 0))({tree}, T.stack({a})))",
        f"T.total(jax.vmap(jax.hessian({scalar}{numbers}), ({{'w': 0, 'b': None}}, None))({{'w': T.stack({w}), 'b': {a}[0]}}, {a}))",
        f"T.total(jax.value_and_grad(lambda p_, a_: (({scalar})(p_, a_), {{'k': a_}}), has_aux=True{numbers})({tree}, {a}))",
        f"T.total(jax.jit(jax.{outer}({pair}{numbers}))({tree}, {a}))",
    )
    return d.draw.choice(forms)


def called(d: Draft) -> str:
    """Draw callbacks, rules for batches, and converted closures, in batches, derivatives and control flow."""
    x = _rows(d)
    y = d.like(x)
    method = d.draw.choice(("sequential", "expand_dims", "broadcast_all", "sequential_unrolled"))
    form = d.draw.choice(
        (
            f"T.called({{v}}, '{method}')",
            f"T.called({{v}}, '{method}')",
            "T.ruled({v}, {v} * 0.5)",
            f"T.ruled({{v}}, {y}[0])",
            "T.sequential({v}, {v} * 0.5)",
            f"T.sequential({y}[0], {{v}})",
            f"(lambda c_: c_[0]({{v}}, *c_[1]))(jax.closure_convert(lambda b_: jnp.sin(b_) * {y}[0], {{v}}))",
            "(lambda c_: c_[0]({v}, *c_[1]))((lambda e_: jax.closure_convert(lambda b_: b_ * jnp.cos(e_), e_))({v}))",
        )
    )
    body = _around(d, form, "r_")
    axis = d.draw.choice((0, 1)) if d.shape(x)[0] == d.shape(x)[1] else 0
    forms = (
        f"jax.vmap(lambda r_: {body}, {axis}, {axis})({x})",
        f"jax.vmap(jax.vmap(lambda r_: {body}))(T.stack({x}))",
        f"(lambda r_: {body})({x}[0])",
        f"jax.grad(lambda v_: jax.vmap(lambda r_: ({body}) ** 2)(v_).sum())({x})",
        f"jax.vmap(jax.grad(lambda r_: (({body}) ** 2).sum()))({x})",
        f"lax.map(lambda r_: {body}, {x}, batch_size={d.draw.choice((1, 2))})",
    )
    return d.draw.choice(forms)


def weak(d: Draft) -> str:
    """Draw Python's numbers as carries, branches and operands, whose dtypes arrays decide."""
    x = d.pick(least=1)
    forms = (
        "lax.scan(lambda c_, r_: (c_ * 2, r_ * c_), 1.0, {x})[1]",
        "lax.scan(lambda c_, r_: (c_ + 1, r_ * c_), 0, {x})[1]",
        "lax.scan(lambda c_, r_: (c_ + r_.sum(), c_), 0.0, {x})[1]",
        "lax.scan(lambda c_, r_: (c_, 2.0), 1, {x})[1] * {x}.sum()",
        "lax.scan(lambda c_, _: (c_ * 1.5, c_), jnp.asarray(1.0, {x}.dtype), None, length=3)[1]",
        "lax.while_loop(lambda c_: c_[0] < 3, lambda c_: (c_[0] + 1, c_[1] * {x}.mean()), (0, 1.0))[1] * {x}",
        "lax.while_loop(lambda c_: c_ < 3.0, lambda c_: c_ + 1, 0.0) * {x}",
        "lax.fori_loop(0, 3, lambda i_, c_: c_ * 1.5, 1.0) * {x}",
        "lax.fori_loop(0, 3, lambda i_, c_: c_ + i_, 1) * {x}",
        "lax.fori_loop(0, 3, lambda i_, c_: c_ + {x}.sum(), 1.0)",
        "lax.cond({x}.sum() > 0, lambda: 1.0, lambda: 2.0) * {x}",
        "lax.cond({x}.sum() > 0, lambda v_: v_ * 2, lambda v_: 1.0 - v_, {x})",
        "lax.cond({x}.sum() > 0, lambda v_: v_ * 2, lambda v_: v_ + 1, 3.0) * {x}",
        "lax.switch(1, [lambda: 1, lambda: 2, lambda: 3]) * {x}",
        "lax.switch(jnp.argmax({x}.reshape(-1)), [lambda v_: v_ * 2.0, lambda v_: v_, lambda v_: 1 - v_], 0.5) * {x}",
        "jnp.where({x} > 0, 1, 2.0) * {x}",
        "jax.jit(lambda v_, k_: v_ * k_)({x}, 2)",
        "jax.jit(lambda k_: k_ * 2)(1.5) * {x}",
        "jax.vmap(lambda r_, k_: r_ * k_, (0, None))({x}, 1.5)",
        "jax.vmap(lambda r_: 1.0)({x}) * {x}.sum()",
        "jax.vmap(lambda r_: (r_, 2))({x})[1] * {x}.sum()",
        "jax.jvp(lambda k_: k_ * {x}, (2.0,), (1.0,))[1]",
        "jax.checkpoint(lambda k_: k_ * {x})(2.0)",
        "jax.value_and_grad(lambda k_: k_ ** 2)(3.0)[1] * {x}",
        "jnp.stack([{x}.sum(), 1.0, 2])",
        "jnp.asarray(1.5) * {x}",
        "jnp.full_like({x}, 2) + lax.while_loop(lambda c_: c_ < 3, lambda c_: c_ + 1, 0)",
        "lax.scan(lambda c_, r_: ((c_[1], c_[0] * 2.0), r_), (1.0, jnp.ones((), {x}.dtype)), {x})[0][0]",
        "lax.associative_scan(lambda a_, b_: a_ * b_ + 0.5 * a_, {x}, reverse=True)",
        "lax.reduce({x}, 0.0, lambda a_, b_: a_ + b_, (0,))",
        "lax.map(lambda r_: 2.0, {x}) * {x}.sum()",
        "jax.lax.custom_root(lambda z_: z_ ** 3 - 8.0, 2.5, lambda f_, z_: z_, lambda g_, y_: y_ / g_(1.0)) * {x}",
        "sum([{x}, 1, 2.0, True])",
        "jnp.maximum({x}, 0) ** 2 + jnp.exp(1)",
        "jnp.einsum('...,->...', {x}, 2.0)",
        "(lambda i_: jax.lax.cond(i_ > 1, lambda: i_ * 1.0, lambda: 2.0))(jnp.argmax({x}.reshape(-1))) * {x}",
    )
    text = d.draw.choice(forms).format(x=x)
    return d.draw.choice((text, text, f"jax.jit(lambda: {text})()", f"jax.checkpoint(lambda: {text})()"))


def compiled(d: Draft) -> str:
    """Draw compiled functions with static and donated arguments, within batches within scans within compiled functions."""
    x = _rows(d)
    y = d.like(x)
    body = Nesting(d.draw, 1).expression([f"{y}[0]", "b_", "b_"], d.draw.choice((1, 2)))
    forms = (
        f"jax.jit(lambda s_: lax.scan(lambda c_, _: (jax.vmap(jax.jit(lambda b_: {body}))(jnp.tanh(c_)), c_), s_, None, length=2)[0])({x})",
        f"jax.jit(lambda s_: lax.scan(lambda c_, r_: (jax.vmap(jax.jit(lambda b_: {body}), 0, 0)(c_) * 0.5, r_), s_, {y})[0])({x})",
        f"jax.jit(lambda a_, n_, m_: a_ * n_ + (a_[::-1] if m_ == 'r' else a_), static_argnums=1, static_argnames='m_')({x}, 3, m_='r')",
        f"jax.vmap(lambda b_: jax.jit(lambda n_, b_: {body} * n_, static_argnums=0)(2, b_))({x})",
        f"jax.jit(lambda a_, b_: a_ * 2 + b_, donate_argnums=(0, 1))({x} + 0, {y} * 2)",
        f"jax.jit(lambda a_, b_: (a_.at[0].set(b_[-1]), b_ * a_), donate_argnames=('a_',))({x} + 0, {y})[1]",
        f"jax.jit(jax.vmap(jax.checkpoint(lambda b_: {body}{_policy(d)})))({x})",
        f"jax.grad(lambda s_: jax.jit(lambda s_: lax.scan(lambda c_, r_: (jax.vmap(jax.jit(lambda b_: {body}))(c_ * 0.5), r_.sum()), "
        f"s_, s_)[0])(s_).sum())({x})",
        f"lax.while_loop(lambda c_: c_[0] < 2, lambda c_: (c_[0] + 1, jax.vmap(jax.jit(lambda b_: {body}))(c_[1])), (0, {x}))[1]",
        f"jax.jvp(lambda s_: lax.while_loop(lambda c_: c_[0] < 2, lambda c_: (c_[0] + 1, jax.vmap(jax.jit(lambda b_: {body}))(c_[1])), "
        f"(0, s_))[1], ({x},), ({y},))[1]",
        f"jax.jacfwd(lambda s_: lax.while_loop(lambda c_: c_[0].sum() < 9, lambda c_: (c_[0] + 4, jnp.sin(c_[1])), (0 * s_, s_))[1])"
        f"({x}[0])",
    )
    return d.draw.choice(forms)


#: Blocks, and how often they are drawn.
CALL_BLOCKS: dict[Callable[[Any], str], int] = {
    collectives: 3, sharded: 1, recomputed: 4, linear: 3, jacobians: 2, called: 3, weak: 3, compiled: 3,
}  # fmt: skip
