"""Expressions with control flow, derivatives and batches at any depth, and calls whose rules are intricate, for `transforms.py`.

`nested` draws an expression of the shape of its operands, whose parts are such expressions; a block draws one statement. Both write texts
that have one meaning in volta_fn and in JAX: `jax`, `jnp`, `lax`, `np` and `T`, the functions of `helpers`.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol


class Draft(Protocol):
    """A program under construction."""

    draw: random.Random

    def new(self, shape: tuple[int, ...]) -> str:
        """Return a new input of normal numbers."""

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> str:
        """Return a new int32 input of numbers from `low` up to but without `high`."""

    def pick(self, rank: int | None = None, least: int = 1) -> str:
        """Return a floating-point variable of a rank, or at least of one."""

    def like(self, name: str) -> str:
        """Return another variable of the same shape, or a new input."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a variable."""


def helpers(jax: Any) -> SimpleNamespace:
    """Return functions with derivatives of their own, of volta_fn's or JAX's transformations."""
    jnp, lax = jax.numpy, jax.lax

    @jax.custom_vjp
    def scaled(x: Any, y: Any) -> Any:
        return x * jnp.sin(y)

    scaled.defvjp(lambda x, y: (scaled(x, y), (x, y)), lambda r, g: (0.5 * g * jnp.sin(r[1]), g * r[0] * jnp.cos(r[1])))

    @jax.custom_vjp
    def of_pair(pair: dict[str, Any], count: Any) -> tuple[Any, Any]:
        return pair["a"] * count.astype(pair["a"].dtype), pair["b"] + pair["a"]

    def pair_back(pair: dict[str, Any], g: tuple[Any, Any]) -> tuple[Any, None]:
        return {"a": 2 * g[0] + g[1], "b": g[1] * jnp.tanh(pair["b"])}, None

    of_pair.defvjp(lambda pair, count: (of_pair(pair, count), pair), pair_back)

    @jax.custom_jvp
    def bent(x: Any, y: Any) -> Any:
        return jnp.tanh(x) * y

    @bent.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x, y), (s, t) = primals, tangents
        return bent(x, y), 0.9 * s * y * (1 - jnp.tanh(x) ** 2) + jnp.tanh(x) * t

    bent_by_parts = jax.custom_jvp(lambda x, y: jnp.sin(x) * y)
    bent_by_parts.defjvps(lambda s, out, x, y: s * out, None)

    def root(f: Any, guess: Any) -> Any:
        """Return where the increasing function f(x) is zero, by Newton's steps from near it."""

        def newton(f: Any, x: Any) -> Any:
            for _ in range(5):
                value, slope = jax.jvp(f, (x,), (jnp.ones_like(x),))
                x = x - value / slope
            return x

        return lax.custom_root(f, guess, newton, lambda g, y: y / g(jnp.ones_like(y)))

    def solved(a: Any, b: Any, symmetric: bool) -> Any:
        """Return b divided by a diagonal, as a solution of a linear system."""
        divide = lambda matvec, v: v / (2 + a * a)
        return lax.custom_linear_solve(lambda v: v * (2 + a * a), b, divide, divide, symmetric=symmetric)

    policies = jax.checkpoint_policies
    named = getattr(jax, "ad_checkpoint", None) or importlib.import_module("jax.ad_checkpoint")
    return SimpleNamespace(
        scaled=scaled,
        of_pair=of_pair,
        bent=bent,
        bent_by_parts=bent_by_parts,
        root=root,
        solved=solved,
        name=named.checkpoint_name,
        policies={
            "nothing": policies.nothing_saveable,
            "everything": policies.everything_saveable,
            "dots": policies.dots_saveable,
            "named": policies.save_only_these_names("a"),
            "others": policies.save_anything_except_these_names("a"),
        },
    )


_TERMS = (
    "jnp.sin({a}) * {b}",
    "{a} * 0.5 + {b}",
    "{a}[..., ::-1] - {b}",
    "jnp.where({a} > 0, {a}, {b} * 0.3)",
    "jnp.exp(-{a} * {a}) + {b}",
    "{a} / (1 + {b} * {b})",
    "({a} * {b}).sum(-1, keepdims=True) * 0.1 + {a}",
    "{a}.at[..., 0].add({b}[..., -1])",
    "{b}",
    "{a}",
    "jnp.tanh({a} + {b})",
    "jnp.cumsum({a}, -1) * 0.2 + {b}",
    "jnp.maximum({a}, {b})",
    "{a} * lax.stop_gradient({b})",
    "jnp.tanh(jnp.outer({a}, {b}) @ {b}) if {a}.ndim == 1 else jnp.tanh({a} @ {b}.T @ {a})",
    "{a} - {b}.mean()",
    "{a} ** 2 * 0.3 - {b}",
    "{a}.at[..., 0].set({b}[..., 0] * 2)",
    "lax.dynamic_update_slice_in_dim({a}, {b}[..., :1] * 3, {i}, -1)",
    "jnp.take({a}, jnp.arange({a}.shape[-1])[::-1], -1) + {b}",
    "lax.dynamic_index_in_dim({a}, {i}, -1) * {b}",
    "jnp.sort({a}, -1) + {b}",
    "T.scaled({a}, {b})",
    "T.bent({a}, {b})",
    "T.bent_by_parts({a}, {b})",
    "T.root(lambda z: z + 0.3 * jnp.tanh(z) - {a}, {b} * 0)",
    "T.solved({a}, {b}, True)",
    "T.solved({a}, {b}, False)",
    "T.name(jnp.sin({a}), 'a') * {b}",
    "lax.optimization_barrier(({a}, {b}))[0] * {b}",
    "sum(T.of_pair({{'a': {a}, 'b': {b}}}, jnp.arange({a}.shape[-1])))",
    "T.scaled({a}, 0.5 * {a})",
    "jnp.zeros_like({a})",
)

_STEPS = (0, 1, 1, 2, 3, 4)


class Nesting:
    """Expressions of one shape, with names for their own variables."""

    def __init__(self, draw: random.Random, rank: int) -> None:
        self.draw, self._rank, self._count = draw, rank, 0

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}_"

    def term(self, scope: Sequence[str]) -> str:
        """Return an elementary expression of variables."""
        a, b = [self.draw.choice(scope[-3:] if self.draw.random() < 0.6 else scope) for _ in range(2)]
        return "(" + self.draw.choice(_TERMS).format(a=a, b=b, i=self.draw.choice((0, -1, 1, 7, f"jnp.argmax({b}.reshape(-1))"))) + ")"

    def expression(self, scope: Sequence[str], depth: int) -> str:
        """Return an expression of variables of one shape, with that shape."""
        if depth == 0 or self.draw.random() < 0.25:
            return self.term(scope)
        forms = [
            self.scan,
            self.scan,
            self.mixed_scan,
            self.fori,
            self.loop,
            self.branch,
            self.branch,
            self.call,
            self.call,
            self.derivative,
        ]
        forms += [self.derivative, self.associative, self.batch] if self._rank == 2 else [self.associative]
        text = self.draw.choice(forms)(scope, depth - 1)
        return f"({text})" if self.draw.random() < 0.6 else f"({text} * 0.7 + {self.term(scope)})"

    def _start(self, scope: Sequence[str]) -> str:
        return self.draw.choice((self.draw.choice(scope), self.term(scope), f"jnp.zeros_like({scope[0]})"))

    def _rows(self, scope: Sequence[str]) -> str:
        steps = self.draw.choice(_STEPS)
        chosen = [self.draw.choice(scope) for _ in range(steps)]
        return f"jnp.stack([{', '.join(chosen)}])" if steps else f"{scope[-1]}[None][:0]"

    def _options(self) -> str:
        unroll = self.draw.choice(("", "", "", ", unroll=2", ", unroll=True", ", unroll=3"))
        return unroll + self.draw.choice(("", ", reverse=True"))

    def scan(self, scope: Sequence[str], depth: int) -> str:
        """Draw a scan whose last carry, or the sum of whose stacked values, is the result."""
        c, r = self._name("c"), self._name("r")
        inner = [*scope, r, c]
        step, out = self.expression(inner, depth), self.term(inner)
        if self.draw.random() < 0.2:
            body = f"jax.checkpoint(lambda {c}, {r}: ({step}, {out}){self._policy()})"
        else:
            body = f"lambda {c}, {r}: ({step}, {out})"
        last = self.draw.choice(("[0]", "[1].sum(0)", "[1].sum(0)"))
        if self.draw.random() < 0.2:
            body = body.replace(f"lambda {c}, {r}:", f"lambda {c}, {r}_: (lambda {r}:", 1) + f")({scope[-1]} * 0.9)"
            if "checkpoint" in body:
                return self.term(scope)
            return f"lax.scan({body}, {self._start(scope)}, None, {self.draw.choice(_STEPS)}{self._options()}){last}"
        return f"lax.scan({body}, {self._start(scope)}, {self._rows(scope)}{self._options()}){last}"

    def mixed_scan(self, scope: Sequence[str], depth: int) -> str:
        """Draw a scan over a carry of several dtypes and values that steps leave, exchange or ignore."""
        c, r = self._name("c"), self._name("r")
        inner = [*scope, f"{c}[0]", f"{c}[1]['v']", f"{r}[0]", f"({r}[1] * {c}[0])"]
        values = [self.draw.choice((f"{c}[0]", f"{c}[1]['v']", self.expression(inner, depth), self.term(inner))) for _ in range(2)]
        count = f"{c}[1]['k']{self.draw.choice((' + 1', '', ' * 2'))}"
        flag = self.draw.choice((f"{c}[2] & ({values[0]}.sum() > -1)", f"~{c}[2]", f"{c}[2]"))
        most = f"jnp.maximum({c}[3], {values[1]}.max().astype('float32'))"
        out = self.draw.choice(
            (self.term(inner), f"jnp.where({c}[2], {c}[0], {r}[0])", f"{c}[0] * {c}[1]['k']", f"{c}[0] * {c}[3].astype({c}[0].dtype)")
        )
        start = f"({self._start(scope)}, {{'k': 1, 'v': {self._start(scope)}}}, jnp.array(True), jnp.float32(-2))"
        body = f"lambda {c}, {r}: (({values[0]}, {{'k': {count}, 'v': {values[1]}}}, {flag}, {most}), ({out}, {c}[1]['k']))"
        rows, last = self._rows(scope), self.draw.choice(("[0][0]", "[0][1]['v']", "[1][0].sum(0)"))
        return f"(lambda rows: lax.scan({body}, {start}, (rows, jnp.arange(rows.shape[0])){self._options()}){last})({rows})"

    def fori(self, scope: Sequence[str], depth: int) -> str:
        """Draw a loop with a number, over one carry or two."""
        i, c = self._name("i"), self._name("c")
        bounds = f"{self.draw.choice((0, 0, 1, 5))}, {self.draw.choice((0, 2, 3, 5))}"
        if self.draw.random() < 0.15:
            bounds = f"0, jnp.argmax({scope[-1]}.reshape(-1)) % 4"
        if self.draw.random() < 0.5:
            step = self.expression([*scope, c], depth) + self.draw.choice(("", f" * ({i} % 2)", f" + {i} * {c}"))
            return f"lax.fori_loop({bounds}, lambda {i}, {c}: {step}, {self._start(scope)})"
        inner = [*scope, f"{c}[0]", f"{c}[1]"]
        pair = self.draw.choice(
            (f"({c}[1], {self.expression(inner, depth)})", f"({self.expression(inner, depth)}, {c}[1])", f"({c}[1], {c}[0])")
        )
        return f"lax.fori_loop({bounds}, lambda {i}, {c}: {pair}, ({self._start(scope)}, {self._start(scope)}))[{self.draw.randrange(2)}]"

    def loop(self, scope: Sequence[str], depth: int) -> str:
        """Draw a while loop that a number or the carry ends."""
        c = self._name("c")
        condition = f"{c}[0] < {self.draw.choice((0, 1, 3))}"
        condition = self.draw.choice(
            (condition, f"({condition}) & ({c}[1].sum() < 2)", f"({condition}) & ({self.draw.choice(scope)}.sum() < 1)")
        )
        step = self.expression([*scope, f"{c}[1]"], depth)
        start = f"lax.stop_gradient({self._start(scope)})" if self.draw.random() < 0.4 else self._start(scope)
        step = f"lax.stop_gradient({step})" if start.startswith("lax.stop") else step
        return f"lax.while_loop(lambda {c}: {condition}, lambda {c}: ({c}[0] + 1, {step}), (0, {start}))[1]"

    def branch(self, scope: Sequence[str], depth: int) -> str:
        """Draw a conditional or a switch, with operands or without, whose branches may share nothing."""
        a = self._name("a")
        form = self.draw.randrange(4)
        predicate = self.draw.choice(
            (f"{scope[-1]}.sum() > 0", f"{scope[0]}.reshape(-1)[0] > {scope[-1]}.reshape(-1)[-1]", "True", "jnp.array(False)")
        )
        branches = [
            self.expression([*scope, a], depth),
            self.term([*scope, a]),
            self.draw.choice((a, f"jnp.zeros_like({a})", self.term([a]))),
        ]
        self.draw.shuffle(branches)
        if form == 0:
            return f"lax.cond({predicate}, lambda {a}: {branches[0]}, lambda {a}: {branches[1]}, {self.term(scope)})"
        if form == 1:
            first, second = self.expression(scope, depth), self.term(scope)
            return f"lax.cond({predicate}, lambda: {first}, lambda: {second})"
        if form == 2:
            index = self.draw.choice((f"jnp.argmax({scope[-1]}.reshape(-1)) % 3", f"jnp.int32({scope[0]}.sum() * 2)", "1"))
            return f"lax.switch({index}, [{', '.join([f'lambda {a}: {b}' for b in branches])}], {self._start(scope)})"
        pair = f"lambda {a}: ({branches[0]}, {a}.sum() > 0)", f"lambda {a}: ({branches[1]}, False)"
        return f"(lambda p: jnp.where(p[1], p[0], 2 * p[0]))(lax.cond({predicate}, {pair[0]}, {pair[1]}, {self.term(scope)}))"

    def _policy(self) -> str:
        policy = self.draw.choice(("", "nothing", "everything", "dots", "named", "others"))
        return f", policy=T.policies['{policy}']" if policy else ""

    def call(self, scope: Sequence[str], depth: int) -> str:
        """Draw a call of a compiled, recomputed or batched function."""
        a = self._name("a")
        body = self.expression([*scope, a], depth)
        form = self.draw.randrange(3)
        if form == 0:
            return f"jax.jit(lambda {a}: {body})({self.term(scope)})"
        if form == 1:
            return f"jax.checkpoint(lambda {a}: {body}{self._policy()})({self.term(scope)})"
        stack = f"jnp.stack([{self.term(scope)}, {self.draw.choice(scope)}], {(axis := self.draw.choice((0, -1)))})"
        return f"jax.vmap(lambda {a}: {body}, {axis}, {(out := self.draw.choice((0, 1, -1)))})({stack}).sum({out})"

    def derivative(self, scope: Sequence[str], depth: int) -> str:
        """Draw a derivative of an expression."""
        a = self._name("a")
        function, point, other = f"lambda {a}: {self.expression([*scope, a, a], depth)}", self.term(scope), self.draw.choice(scope)
        forms = (
            "jax.grad(lambda v: (({f})(v) * {o}).sum())({p})",
            "jax.jvp({f}, ({p},), ({o},))[1]",
            "jax.vjp({f}, {p})[1]({o})[0]",
            "jax.linearize({f}, {p})[1]({o})",
            "jax.jvp(jax.grad(lambda v: ({f})(v).sum()), ({p},), ({o},))[1]",
            "jax.vmap(jax.vjp({f}, {p})[1])(jnp.stack([{o}, 2 * {o}]))[0].sum(0)",
            "jax.vmap(lambda t: jax.jvp({f}, ({p},), (t,))[1])(jnp.stack([{o}, 2 * {o}])).sum(0)",
            "jax.value_and_grad(lambda v: (lambda r: (r.sum(), r))(({f})(v)), has_aux=True)({p})[0][1]",
        )
        return self.draw.choice(forms).format(f=function, p=point, o=other)

    def associative(self, scope: Sequence[str], depth: int) -> str:
        """Draw an associative scan of affine functions, or of one value."""
        a, b = self._name("a"), self._name("b")
        axis, reverse = self.draw.randrange(self._rank), self.draw.choice(("", ", reverse=True"))
        gate, term = self.term(scope), self.expression(scope, depth)
        operator = f"lambda {a}, {b}: ({a}[0] * {b}[0], {b}[0] * {a}[1] + {b}[1])"
        return f"lax.associative_scan({operator}, (jnp.tanh{gate}, {term}), axis={axis}{reverse})[1]"

    def batch(self, scope: Sequence[str], depth: int) -> str:
        """Draw a function of rows or columns, mapped over them."""
        a, b = self._name("a"), self._name("b")
        rows, axis = Nesting(self.draw, 1), self.draw.choice((0, 0, 1))
        rows._count = self._count + 50
        x, y = self.term(scope), self.draw.choice(scope)
        row = f"{y}[0]" if axis == 0 else f"{y}[:, 0]"
        body = rows.expression([row, b, a], depth)
        self._count = rows._count
        if axis == 0 and self.draw.random() < 0.3:
            return f"lax.map(lambda {a}: (lambda {b}: {body})({a} * 2), {x}, batch_size={self.draw.choice((None, 2, 3))})"
        second = self.draw.choice((f"({axis}, None)", f"({axis}, {axis})"))
        other = row if "None" in second else y
        return f"jax.vmap(lambda {a}, {b}: {body}, {second}, {axis})({x}, {other})"


def nested(d: Draft) -> str:
    """Draw control flow, derivatives and batches within each other, with variables of the program as operands and closures."""
    x = d.pick(d.draw.choice((1, 1, 2)))
    if 0 in d.shape(x):
        return f"jnp.tanh({x})"
    return Nesting(d.draw, len(d.shape(x))).expression([d.like(x), d.like(x), x], d.draw.choice((1, 2, 2, 3)))


def indices(d: Draft) -> str:
    """Draw gathers and scatters by every mode, with batch axes, windows, and indices beyond the array."""
    x = d.pick(least=1)
    n, *rest = d.shape(x)
    k = d.draw.choice((0, 1, 2, 4))
    low, high = d.draw.choice(((0, n), (-n, n), (-2 * n - 1, 2 * n + 2)))
    index, update = d.integers((k,), low, high), d.new((k, *rest))
    distinct = f"jnp.argsort({d.new((n,))})[: {k}]"
    mode = d.draw.choice(("clip", "drop", "fill", "promise_in_bounds" if high == n and low == 0 else "drop"))
    name = d.draw.choice(("add", "mul", "max", "min", "add", "subtract", "divide"))
    sizes = tuple([d.draw.randint(min(1, m), m) for m in d.shape(x)])
    starts = ", ".join([d.integers((), -2, m + 2) for m in d.shape(x)])
    forms = [
        f"{x}.at[{index}].get(mode='{mode}')",
        f"{x}.at[{index}].get(mode='fill', fill_value=0.5, wrap_negative_indices=False)",
        f"{x}.at[{index}].{name}(1 + {update} ** 2, mode='{mode}')",
        f"{x}.at[{distinct}].set({update}[: min({k}, {n})])",
        f"{x}.at[{distinct}].{name}(2 + {update}[: min({k}, {n})], unique_indices=True)",
        f"jnp.take({x}, {index}, 0, mode='{d.draw.choice(('wrap', 'clip', 'fill'))}')",
        f"lax.dynamic_slice({x}, ({starts},), {sizes})",
        f"lax.dynamic_update_slice({x}, {d.new(sizes)}, ({starts},))",
        f"jnp.take_along_axis({x}, jnp.argsort(-{x}, -1), -1) * {x}",
        f"jnp.take_along_axis({x}, {d.integers((max(k, 1), *rest), -n, n)}, 0)",
        f"jax.ops.segment_{d.draw.choice(('sum', 'max', 'min', 'prod'))}(2 + {update} * {update}, {index}, {n + 1})",
        f"jax.ops.segment_sum({update}, jnp.sort({index}), {n}, indices_are_sorted=True, mode='{d.draw.choice(('drop', 'clip'))}')",
        f"jnp.put_along_axis({x}, jnp.argmax({x}, 0, keepdims=True), 0.5, 0, inplace=False)",
        f"{x}.at[{distinct}].apply(jnp.sin, mode='{mode}')",
        f"{x}.at[{index}].power(2, mode='{mode}')",
    ]
    if k and n:
        rows = d.integers((n, k), -n, n)
        forms += [
            f"jax.vmap(lambda v, i: v.at[i].get(mode='{mode}'), (None, 0))({x}, {rows})",
            f"jax.vmap(lambda i, u: {x}.at[i].{name}(2 + u, mode='{mode}'))({rows}, {d.new((n, k, *rest))})",
            f"jax.vmap(lambda v, i: lax.dynamic_slice_in_dim(v, i, 1, -1), (0, None))({x}[:, None], {d.integers((), -2, 3)})",
            f"jax.vmap(lambda v, i, u: lax.dynamic_update_slice_in_dim(v, u, i, 0), (None, 0, {d.draw.choice((0, None))}))"
            f"({x}, {rows}[:, 0], {d.new((n, 1, *rest))})",
        ]
    if rest:
        columns = d.integers((k,), -rest[0], rest[0])
        forms += [
            f"{x}.at[{index}, {columns}].get(mode='{mode}')",
            f"{x}.at[{index}, {columns}].{name}(1.5, mode='{mode}')",
            f"{x}.at[:, {columns}].multiply(0.5)",
            f"{x}[{index} % {n}][:, {columns}]",
            f"{x}.at[{index}[:, None], {columns}].add({x}.sum(), mode='drop')",
            f"{x}.at[1:, {columns}].add(0.25)",
        ]
    return d.draw.choice(forms)


def orders(d: Draft) -> str:
    """Draw sorts of several operands, with ties, largest elements, cumulative operations from either end, and order statistics."""
    x = d.pick(least=1)
    y, axis, n = d.like(x), d.draw.randrange(len(d.shape(x))), d.shape(x)[-1]
    reverse = d.draw.choice((True, False))
    tied = d.draw.choice((x, f"jnp.round({x})"))
    method = d.draw.choice(("linear", "lower", "midpoint", "nearest"))
    forms = (
        f"(lambda a, b, c: a * 0.5 + b * c)(*lax.sort((jnp.round({x}), {y}, {x}), dimension={axis}, num_keys={d.draw.choice((1, 2, 3))}))",
        f"(lambda i, v: i * v)(*lax.sort((({tied} * 2).astype(jnp.int32), {y}), dimension={axis}, is_stable=True))",
        f"jnp.argsort({tied}, {axis}, stable=True, descending={reverse}) * {y}",
        f"lax.top_k({x}, {min(n, 2)})[0].sum(-1)",
        f"(lambda v, i: v * (i + 1))(*lax.top_k({tied}, {min(n, 3)}))",
        f"lax.approx_max_k({x}, {min(n, 1)}, recall_target=1.0)[0]",
        f"lax.cumsum({x}, {axis}, reverse={reverse}) * {y}",
        f"lax.cumprod({x}, {axis}, reverse={reverse})",
        f"lax.cummax({tied}, {axis}, reverse={reverse})",
        f"lax.cummin({x}, {axis}, reverse={reverse}) * {x}",
        f"lax.cumlogsumexp({x}, {axis}, reverse={reverse})",
        f"jnp.cumprod(jnp.round({x}), {axis})",
        f"{x}.prod({axis})",
        f"jnp.round({x}).prod({axis}) * {x}.sum({axis})",
        f"{tied}.max({axis})",
        f"{x}.min()",
        f"jnp.median({x}, {axis})",
        f"jnp.quantile({x}, jnp.array([0.2, 0.7], {x}.dtype), axis={axis}, method='{method}')",
        f"jnp.sort({x}, {axis}, descending={reverse}) * {y}",
        f"jnp.take_along_axis({y}, jnp.argsort({tied}, {axis}), {axis})",
        f"jnp.partition({x}, {n // 2}, -1).sum(-1)",
        f"lax.argmax({tied}, {axis}, 'int32') * {x}.sum({axis})",
        f"jnp.maximum({tied}, jnp.round({y}))",
        f"lax.clamp({x}.min(), {y}, jnp.abs({x}).max())",
        f"jnp.clip({y}, -0.5, {x})",
        f"lax.reduce({x}, jnp.zeros((), {x}.dtype), lax.add, ({axis},))",
        f"lax.reduce({x}, jnp.full((), -jnp.inf, {x}.dtype), lax.max, ({axis},))",
        f"jnp.unwrap({x} * 5, axis={axis})",
        f"jnp.logaddexp.reduce({x}, axis={axis})",
        f"jnp.interp({y}, jnp.sort({x}.reshape(-1)), {x}.reshape(-1))",
        f"jax.nn.logsumexp({x}, {axis}, b={y})",
        f"jax.nn.softmax({x}, {axis}, where={y} > -1)",
        f"jnp.std({x}, {axis}, ddof={d.draw.choice((0, 1)) if d.shape(x)[axis] > 1 else 0})",
        f"jnp.var({x}, where={y} > -9)",
        f"jnp.linalg.norm({x}, {d.draw.choice((1, 2, 3, 'jnp.inf'))}, {axis})",
        f"jnp.nanmean(jnp.where({y} > 3, jnp.nan, {x}), {axis})",
        f"jnp.ptp({x}, {axis})",
        f"jnp.convolve({x}.reshape(-1), {y}.reshape(-1)[: 3], mode='{d.draw.choice(('full', 'same', 'valid'))}')",
        f"jnp.trapezoid({x}, axis={axis})",
    )
    return d.draw.choice(forms)


def convolution(d: Draft) -> str:
    """Draw a convolution with strides, gaps, groups of channels or images, and any padding, in one to three dimensions."""
    axes, groups, kind = d.draw.choice((1, 1, 2, 2, 3)), d.draw.choice((1, 2, 3)), d.draw.choice(("feature", "batch"))
    batch, inputs, outputs = d.draw.choice((1, 2)), d.draw.choice((1, 2, 3)), d.draw.choice((1, 2))
    window = [d.draw.choice((1, 2, 3)) for _ in range(axes)]
    sizes = [d.draw.choice((1, 2, 4, 5) if axes < 3 else (1, 2, 3)) for _ in window]
    strides, gaps, spread = [[d.draw.choice(options) for _ in window] for options in ((1, 2, 3), (1, 1, 2, 3), (1, 1, 2))]
    padding = [(d.draw.randint(-2, 3), d.draw.randint(-2, 3)) for _ in window]
    letters = "DHW"[-axes:]
    layout = d.draw.choice((("NC" + letters, "OI" + letters), ("N" + letters + "C", letters + "IO"), (letters + "NC", "I" + letters + "O")))
    dims = {
        "N": batch * (groups if kind == "batch" else 1),
        "C": inputs * (groups if kind == "feature" else 1),
        "O": outputs * groups,
        "I": inputs,
    }
    images = tuple([dims[c] if c in dims else sizes[letters.index(c)] for c in layout[0]])
    weights = tuple([dims[c] if c in dims else window[letters.index(c)] for c in layout[1]])
    options = (
        f"lhs_dilation={tuple(spread)}, rhs_dilation={tuple(gaps)}, {kind}_group_count={groups}, dimension_numbers={(*layout, layout[0])}"
    )
    edges = d.draw.choice((padding, padding, padding, repr("SAME"), repr("VALID"), repr("SAME_LOWER")))
    return f"lax.conv_general_dilated({d.new(images)}, {d.new(weights)}, {tuple(strides)}, {edges}, {options})"


def windows(d: Draft) -> str:
    """Draw reductions of windows, their arguments, transposed convolutions, patches and resized images."""
    x = d.pick(least=1)
    shape = d.shape(x)
    sizes, strides = [tuple([d.draw.choice((1, 2, 3)) for _ in shape]) for _ in range(2)]
    resized, method = tuple([d.draw.choice((n, n + 1, max(1, n - 1), 2 * n)) for n in shape]), d.draw.choice(("linear", "nearest", "cubic"))
    base, dilation = [tuple([d.draw.choice((1, 1, 2)) for _ in shape]) for _ in range(2)]
    edges = d.draw.choice(("'SAME'", "'VALID'", str([(d.draw.randint(0, 2), d.draw.randint(0, 2)) for _ in shape])))
    start, name = d.draw.choice((("0.0", "add"), ("-jnp.inf", "max"), ("jnp.inf", "min")))
    pads = [(d.draw.randint(-1, 2), d.draw.randint(-1, 2), d.draw.choice((0, 0, 1, 2))) for _ in shape]
    c, k = d.draw.choice((1, 2)), d.draw.choice((1, 2, 3))
    padding = d.draw.choice(("'SAME'", "'VALID'", [(1, 2), (0, 1)]))
    transposed = f"{d.new((1, 4, 3, c))}, {d.new((k, 2, c, 2))}, ({d.draw.choice((1, 2, 3))}, 2), {padding}"
    window = f"{x}, {start}, lax.{name}, {sizes}, {strides}, {edges}"
    mode = d.draw.choice(("edge", "reflect", "symmetric", "wrap", "mean", "linear_ramp", "maximum"))
    forms = [
        f"jnp.nan_to_num(lax.reduce_window({window}, base_dilation={base}, window_dilation={dilation}), posinf=0, neginf=0)",
        f"jnp.nan_to_num(lax.reduce_window({window}), posinf=0, neginf=0)",
        f"lax.pad({x}, {x}.sum(), {pads})",
        f"jnp.pad({x}, 1, mode='{mode}')" if min(shape) > 1 else f"jnp.pad({x}, 1)",
        f"lax.conv_transpose({transposed}, transpose_kernel={d.draw.choice((True, False)) if c == 2 else False})",
        f"lax.conv_general_dilated_patches({d.new((1, 2, 4, 3))}, (2, {k}), ({d.draw.choice((1, 2))}, 1), 'SAME')",
        f"jax.image.resize({x}, {resized}, '{method}')",
        f"jnp.roll({x}, {d.integers((), -5, 5)}, -1) * {x}",
        f"lax.rev({x}, ({len(shape) - 1},)) - {x}",
        f"jnp.repeat({x}, {d.draw.choice((0, 1, 3))}, 0)",
        f"jnp.repeat({x}, jnp.arange({shape[0]}), 0, total_repeat_length={shape[0] + 1})",
        f"jnp.tile({x}, (2, 1))[..., ::-2]",
        f"lax.conv_general_dilated_local({d.new((1, 2, 4))}, {d.new((2, 4, 3))}, (1,), 'VALID', (2,))",
    ]
    return d.draw.choice(forms)


def algebra(d: Draft) -> str:
    """Draw factors, solutions, products with several kinds of axes, and transforms to frequencies."""
    n, batch = d.draw.choice((1, 2, 3, 4)), d.draw.choice(((), (2,), (0,)))
    a, b = d.new((*batch, n, n)), d.new((*batch, n, d.draw.choice((1, 2))))
    big, spd = f"({a} * 0.3 + jnp.diag(2.0 + jnp.arange({n})).astype({a}.dtype))", f"({a} @ {a}.mT + {n} * jnp.eye({n}, dtype={a}.dtype))"
    x, y = d.pick(least=1), d.pick(least=1)
    m, groups = d.shape(x)[-1], d.draw.choice(([1, 0, 3], [2, 2, 0], [1, 1, 1], [0, 0, 0]))
    flags = (
        f"lower={d.draw.choice((True, False))}, transpose_a={d.draw.choice((True, False))}, unit_diagonal={d.draw.choice((True, False))}"
    )
    forms = [
        f"jnp.linalg.solve({big}, {b})",
        f"jnp.linalg.inv({big})",
        f"jnp.linalg.cholesky({spd})",
        f"jnp.linalg.det({a})",
        f"jnp.linalg.slogdet({big})[1]",
        f"lax.linalg.triangular_solve({big}, {b}, left_side=True, {flags})",
        f"lax.linalg.triangular_solve({big}, {b}.mT, left_side=False, {flags})",
        f"jnp.linalg.qr({big})[1] ** 2",
        f"jnp.linalg.eigh({spd} + jnp.diag(3.0 * jnp.arange({n})).astype({a}.dtype))[0]",
        f"jnp.linalg.svd({big}, compute_uv=False)",
        f"(lambda u, s, v: (u * jnp.sin(s)[..., None, :]) @ v)(*jnp.linalg.svd({big}, full_matrices=False))",
        f"jax.scipy.linalg.expm({a} * 0.2)" if not batch else f"jnp.linalg.pinv({big})",
        f"jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({spd}), True), {b})",
        f"jnp.linalg.matrix_power({a}, 3)",
        f"jax.scipy.linalg.lu({big})[2]",
        f"jnp.linalg.pinv({d.new((*batch, n + 1, n))})" if batch != (0,) else f"{a} @ {b}",
        f"jnp.real(jnp.fft.ifft(jnp.fft.fft({x}) * jnp.exp(1j * {x})))",
        f"jnp.fft.irfft(jnp.fft.rfft({x}) * 2, {d.draw.choice((m, m + 1, max(1, m - 1)))})" if m > 1 else f"{x} * 2",
        f"jnp.abs(jnp.fft.fftn({x}) + 9)",
        f"jnp.real(lax.complex({x}, {x} * 0.5) ** 2 / (lax.complex({x}, 1 + 0 * {x})))",
        f"jnp.angle(lax.complex({x}, 2 + jnp.sin({x})))",
        f"jnp.einsum('...i,...j->...ij', {x}, {x})",
        f"jnp.tensordot({x}, {y}, 0)",
        f"jnp.kron({x}.reshape(-1), {y}.reshape(-1)[:3])",
        f"lax.dot_general({d.new((2, n, 3))}, {d.new((3, 2, 2))}, (((2,), (0,)), ((0,), (1,))))",
        f"lax.dot_general({d.new((2, n, 3))}, {d.new((3, n, 2))}, (((2, 1), (0, 1)), ((), ())))",
        f"lax.ragged_dot({d.new((4, n))}, {d.new((3, n, 2))}, jnp.array({groups}, 'int32'))",
        f"jnp.einsum('bij,bjk,bk->bi', {d.new((2, n, 3))}, {d.new((2, 3, n))}, {d.new((2, n))})",
        f"jnp.vander({x}.reshape(-1)[:3], 3)",
        f"jnp.polyval({x}.reshape(-1)[:3], {y})",
    ]
    return d.draw.choice(forms)


def functions(d: Draft) -> str:
    """Draw special functions, whose derivatives have formulas of their own, of numbers in their domains."""
    x = d.pick(least=1)
    y = d.like(x)
    p, q, u = f"(jnp.abs({x}) + 0.3)", f"(jnp.abs({y}) + 0.3)", f"(0.8 * jnp.tanh({x}))"
    forms = (
        "jax.scipy.special.gammaln({p})",
        "jax.scipy.special.digamma({p})",
        "jax.scipy.special.gammainc({p}, {q})",
        "jax.scipy.special.betainc({p}, {q}, 0.5 + 0.5 * {u})",
        "jax.scipy.special.erfinv({u})",
        "jax.scipy.special.ndtri(0.5 + 0.5 * {u})",
        "jax.scipy.special.i0e({x})",
        "jax.scipy.special.i1({x})",
        "jnp.sinc({x})",
        "jnp.arctan2({x}, {y})",
        "jnp.hypot({x}, {y})",
        "jnp.power({p}, {y})",
        "{x} ** 3",
        "jnp.logaddexp({x}, {y})",
        "jnp.logaddexp2({x}, {y})",
        "jnp.arcsin({u})",
        "jnp.arctanh({u})",
        "jnp.arccosh(1 + {p})",
        "jnp.cbrt({p})",
        "jnp.log1p({p})",
        "jnp.expm1({x})",
        "jnp.remainder({x}, {q})",
        "jnp.fmod({x}, {q})",
        "jnp.nextafter({x}, {y})",
        "jnp.copysign({x}, {y})",
        "jnp.ldexp({x}, 2)",
        "jnp.float_power({p}, 2.0)",
        "jnp.heaviside({x}, 0.5) * {x}",
        "jnp.fmax({x}, {y})",
        "jax.nn.gelu({x}, approximate=False)",
        "jax.nn.celu({x})",
        "jax.nn.selu({x})",
        "jax.nn.softplus({x})",
        "jax.nn.log_sigmoid({x})",
        "jax.nn.standardize({x}) if {x}.shape[-1] > 1 else {x}",
        "jax.nn.glu(jnp.concatenate([{x}, {y}], -1))",
        "jax.nn.squareplus({x})",
        "jax.nn.mish({x})",
        "lax.integer_pow({x}, -2)",
        "lax.rsqrt({p})",
        "jnp.frexp({x})[0]",
        "jnp.modf({x})[0]",
        "jax.scipy.special.xlogy({p}, {q})",
        "jax.scipy.special.entr({p})",
        "jax.scipy.special.kl_div({p}, {q})",
        "jax.scipy.special.zeta(1.5 + {p}, {q})",
        "jax.scipy.special.polygamma(1, {p})",
        "jax.scipy.special.logsumexp(jnp.stack([{x}, {y}]), 0)",
        "jax.scipy.stats.norm.logcdf({x})",
        "jax.scipy.stats.t.logpdf({x}, {q})",
        "jax.scipy.special.expi({p})",
        "jax.scipy.special.bessel_jn({x}.reshape(-1)[:1] + 2, v=2)[1]",
    )
    return d.draw.choice(forms).format(x=x, y=y, p=p, q=q, u=u)


def attention(d: Draft) -> str:
    """Draw attention with shared keys, masks, biases, windows and lengths, and a decoder's step."""
    b, t, s, n, h = (
        d.draw.choice((1, 2)),
        d.draw.choice((1, 2, 5)),
        d.draw.choice((1, 3, 5)),
        d.draw.choice((1, 2, 4)),
        d.draw.choice((1, 2, 3)),
    )
    shared = d.draw.choice([k for k in (1, 2, 4) if n % k == 0])
    causal = d.draw.random() < 0.4
    s = t if causal else s
    options = [
        f"mask={d.new((d.draw.choice((1, b)), d.draw.choice((1, n)), t, s))} > -0.5",
        f"bias={d.new((d.draw.choice((1, b)), d.draw.choice((1, n)), t, s))}",
        "is_causal=True" if causal else "scale=0.5",
        f"key_value_seq_lengths={d.integers((b,), 1, s + 1)}",
        f"query_seq_lengths={d.integers((b,), 1, t + 1)}",
        f"local_window_size={d.draw.choice((1, (0, 2), (1, 0), 2))}",
    ]
    chosen = "".join([f", {option}" for option in d.draw.sample(options, d.draw.choice((0, 1, 1, 2, 3)))])
    return f"jax.nn.dot_product_attention({d.new((b, t, n, h))}, {d.new((b, s, shared, h))}, {d.new((b, s, shared, h))}{chosen})"


def updates(d: Draft) -> str:
    """Draw updates of parts of an array by others of its parts, one after another and in loops that exchange their carries."""
    x, y = d.new((4, 4)), d.new((4, 4))
    forms = (
        "{a}.at[{i}].set({b}[{j}])",
        "{a}.at[{i}].add({b}[{j}])",
        "{a}.at[1:].set({a}[:-1])",
        "{a}.at[:-1].add({a}[1:])",
        "{a}[::-1]",
        "{b}.T",
        "lax.dynamic_update_slice({a}, {a}[{j}:{j} + 2], ({k}, 0))",
        "lax.dynamic_update_slice({a}, {b}, ({k}, {k}))",
        "{a}.at[:, {i}].set({a}[{j}])",
        "{a}.at[jnp.array([0, 3])].add({a}[jnp.array([{j}, {i}])])",
        "jnp.where({b} > {k}, {a}, {b})",
        "jnp.concatenate([{a}[2:], {b}[:2]])",
        "lax.fori_loop(0, 3, lambda i, c: c.at[i].set(c[i + 1] + {b}[i]), {a})",
        "lax.fori_loop(0, 3, lambda i, c: (c[1].at[i].add(c[0][3 - i]), c[0]), ({a}, {b}))[{p}]",
        "lax.scan(lambda c, r: (c.at[0].set(r), c[1]), {a}, {b})[{p}]",
        "lax.scan(lambda c, r: ((c[1], c[0].at[1].add(r)), c[0]), ({a}, {a}), {b})[0][{p}]",
        "lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[2].at[s[0]].set(s[1][0]), s[1]), (0, {a}, {b}))[{p} + 1]",
        "lax.cond({b}.sum() > {k}, lambda x, y: x.at[0].set(y[1]), lambda x, y: y, {a}, {b})",
        "{a}.at[0].set({b}[0]).at[1].set({a}[0])",
    )
    steps, names = [], [x, y]
    for number in range(d.draw.choice((1, 2, 4, 6))):
        a, b = d.draw.choices(names[-3:], k=2)
        form = d.draw.choice(forms).format(
            a=a, b=b, i=d.draw.randrange(4), j=d.draw.randrange(3), k=d.draw.randrange(3), p=d.draw.randrange(2)
        )
        steps.append(f"u{number}_ := {form}")
        names.append(f"u{number}_")
    return f"({', '.join(steps)}, {' + '.join(d.draw.choices(names[-3:], k=2))})[-1]"


#: Blocks, and how often they are drawn.
BLOCKS: dict[Callable[[Any], str], int] = {
    nested: 10,
    indices: 4,
    orders: 4,
    convolution: 3,
    windows: 3,
    algebra: 3,
    functions: 2,
    attention: 2,
    updates: 3,
}
