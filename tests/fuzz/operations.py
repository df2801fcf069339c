"""The statements of random programs: texts of calls that volta_fn and JAX have by the same names.

A rule is a template, or several of which one is drawn. Its placeholders are filled from left to right: `{x}` is a variable of the rule's
dtypes, `{y}`, `{z}` and `{b}` (of bools) have its shape, and the others are in `_DRAWN`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

FLOATS = ("float32", "float64", "float16", "bfloat16")
WIDE = ("float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
BOOL = ("bool",)
INEXACT = (*FLOATS, *COMPLEX)
REAL = (*FLOATS, *INTEGERS)
NUMBERS = (*REAL, *COMPLEX)
ALL = (*NUMBERS, *BOOL)


class Pool(Protocol):
    """The variables of a program under construction."""

    draw: random.Random

    def pick(self, dtypes: tuple[str, ...] = ALL, *, rank: int | None = None, least: int = 0) -> str:
        """Return a variable of one of these dtypes, with `rank` axes or at least `least`."""

    def new(self, dtype: str, shape: tuple[int, ...], *, most: int | None = None) -> str:
        """Return a new input; integers are from 0 to `most` if it is given."""

    def like(self, name: str, dtype: str | None = None) -> str:
        """Return a variable of the same shape."""

    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> str: ...


class Rule(NamedTuple):
    """How a statement is drawn: templates, the dtypes and the least rank of `{x}`, and names of which `{f}` is one."""

    templates: tuple[str, ...]
    dtypes: tuple[str, ...] = ALL
    least: int = 0
    functions: tuple[str, ...] = ()


def _rule(templates: str | list[str], dtypes: tuple[str, ...] = ALL, least: int = 0, functions: str = "") -> Rule:
    return Rule((templates,) if isinstance(templates, str) else tuple(templates), dtypes, least, tuple(functions.split()))


#: Functions of one variable t.
_BODIES = (
    "t * 0.5 + 1",
    "jnp.tanh(t)",
    "jnp.sin(t) * t",
    "jnp.maximum(t, 0)",
    "t * t - 1",
    "jnp.where(t > 0, t, -t)",
    "jnp.abs(t) + 0.5",
)


def _axes(pool: Pool, rank: int) -> object:
    return pool.draw.choice([None, *range(-rank, rank), tuple(pool.draw.sample(range(rank), pool.draw.randint(0, rank)))])


def _slices(pool: Pool, x: str) -> str:
    shape = pool.shape(x)
    parts = [pool.draw.choice(["::2", "::-1", ":", f"{n // 2}:", f"{pool.draw.randrange(n)}", "None, :"]) for n in shape]
    return ", ".join(parts[: pool.draw.randint(1, len(parts))])


def _rows(pool: Pool, size: int, count: int) -> list[int]:
    return [pool.draw.randrange(-size, size) for _ in range(count)]


def _scattered(pool: Pool, x: str) -> str:
    size = pool.shape(x)[0]
    rows = pool.draw.sample(range(size), min(pool.draw.randint(1, 3), size))  # distinct, so that the order does not matter
    update = pool.new(pool.dtype(x), (len(rows), *pool.shape(x)[1:]))
    return f"{x}.at[jnp.array({rows})].{pool.draw.choice(['add', 'multiply', 'min', 'max', 'set'])}({update})"


def _padding(pool: Pool, x: str) -> str:
    return str([(pool.draw.randint(-1, 2), pool.draw.randint(-1, 2), pool.draw.choice([0, 0, 1])) for _ in pool.shape(x)])


def _window(pool: Pool, x: str) -> str:
    name, start = pool.draw.choice([("add", "0"), ("max", "-jnp.inf"), ("min", "jnp.inf")])
    sizes = tuple([min(2, n) for n in pool.shape(x)])
    return f"jnp.asarray({start}, {x}.dtype), lax.{name}, {sizes}, {(1,) * len(sizes)}, 'VALID'"


def _convolved(pool: Pool, x: str) -> str:
    dtype, groups = pool.draw.choice(FLOATS), pool.draw.choice([1, 2])
    images, kernels = pool.new(dtype, (2, 2 * groups, 6, 5)), pool.new(dtype, (2 * groups, 2, 3, 2))
    strides, edges = pool.draw.choice(["(1, 1)", "(2, 1)"]), pool.draw.choice(["'SAME'", "'VALID'", "[(1, 0), (0, 2)]"])
    return f"{images}, {kernels}, {strides}, {edges}, rhs_dilation=({pool.draw.choice([1, 2])}, 1), feature_group_count={groups}"


def _permutation(pool: Pool, x: str) -> str:
    axes = range(len(pool.shape(x)))
    return str(tuple(pool.draw.sample(axes, len(axes))))


#: What fills a placeholder, of the pool and the variable x, which is empty in rules that have none.
_DRAWN: dict[str, Callable[[Pool, str], object]] = {
    "y": lambda pool, x: pool.like(x),
    "z": lambda pool, x: pool.like(x),
    "b": lambda pool, x: pool.like(x, "bool"),
    "any": lambda pool, x: pool.like(x, pool.draw.choice(ALL)),
    "dtype": lambda pool, x: repr(pool.draw.choice(ALL)),
    "wide": lambda pool, x: repr(pool.draw.choice(WIDE)),
    "number": lambda pool, x: pool.draw.choice(["2", "0.5", "-1.5", "True", "1e-3"]),
    "small": lambda pool, x: pool.draw.choice([1, 2, 3]),
    "power": lambda pool, x: pool.draw.choice([0, 1, 2, 3, 4]),
    "times": lambda pool, x: pool.draw.choice([0, 1, 3]),
    "seed": lambda pool, x: pool.draw.randrange(99),
    "bit": lambda pool, x: pool.draw.choice([0, 1]),
    "flag": lambda pool, x: pool.draw.choice([True, False]),
    "body": lambda pool, x: pool.draw.choice(_BODIES),
    "body2": lambda pool, x: pool.draw.choice(_BODIES),
    "carry": lambda pool, x: pool.draw.choice(_BODIES[:4]),
    "axis": lambda pool, x: pool.draw.randrange(len(pool.shape(x))),
    "axes": lambda pool, x: _axes(pool, len(pool.shape(x))),
    "order": _permutation,
    "reversed": lambda pool, x: tuple(reversed(pool.shape(x))),
    "larger": lambda pool, x: (pool.draw.choice([1, 2, 3]), *pool.shape(x)),
    "padding": _padding,
    "slices": _slices,
    "rows": lambda pool, x: _rows(pool, pool.shape(x)[0], 3),
    "some": lambda pool, x: [*_rows(pool, min(pool.shape(x)), 2), 99],
    "mode": lambda pool, x: repr(pool.draw.choice(["clip", "wrap", "fill"])),
    "start": lambda pool, x: pool.new("int32", (), most=9),
    "index": lambda pool, x: pool.new("int32", (), most=min(pool.shape(x)) - 1),
    "case": lambda pool, x: pool.new("int32", (), most=3),
    "predicate": lambda pool, x: pool.new("bool", ()),
    "scattered": _scattered,
    "window": _window,
    "matrix": lambda pool, x: pool.new(pool.dtype(x), (pool.shape(x)[-1], 3)),
    "vector": lambda pool, x: pool.new(pool.dtype(x), (pool.shape(x)[-1],)),
    "square": lambda pool, x: pool.new(pool.draw.choice(WIDE), (3, 3)),
    "convolved": _convolved,
}

RULES: dict[str, Rule] = {
    "elementwise": _rule(
        "lax.{f}({x})",
        FLOATS,
        functions="""sin cos tanh exp log log1p expm1 sqrt rsqrt cbrt abs neg sign floor ceil square logistic erf erfc asin acos atan sinh
        cosh asinh acosh atanh exp2 tan lgamma digamma erf_inv round reciprocal is_finite""",
    ),
    "of integers": _rule(["lax.{f}({x})", "jnp.abs({x})"], INTEGERS, functions="neg sign bitwise_not population_count clz"),
    "of complex numbers": _rule(
        "lax.{f}({x})", COMPLEX, functions="real imag conj abs exp sin cos tanh sqrt log neg sign square reciprocal sinh cosh"
    ),
    "tests of floats": _rule("jnp.{f}({x})", FLOATS, functions="nan_to_num isnan isinf signbit trunc rint sinc square real imag conj"),
    "powers": _rule("lax.integer_pow({x}, {power})", NUMBERS),
    "of two floats": _rule("lax.{f}({x}, {y})", FLOATS, functions="add sub mul div max min pow atan2 nextafter rem add mul"),
    "of two integers": _rule(
        "lax.{f}({x}, {y})",
        INTEGERS,
        functions="""add sub mul div rem max min bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic
        shift_right_logical""",
    ),
    "of two bools": _rule("lax.{f}({x}, {y})", BOOL, functions="bitwise_and bitwise_or bitwise_xor max min"),
    "of two complex numbers": _rule("lax.{f}({x}, {y})", COMPLEX, functions="add sub mul div"),
    "comparison": _rule("lax.{f}({x}, {y})", (*REAL, *BOOL), functions="eq ne lt le gt ge"),
    "promotion": _rule("{x} {f} {any}", functions="+ *"),
    "of numbers": _rule("{x} {f} {number}", INEXACT, functions="+ - * /"),
    "of integers with numbers": _rule("jnp.{f}({x}, {small})", INTEGERS, functions="floor_divide remainder maximum minimum power"),
    "of NumPy": _rule(
        "jnp.{f}({x}, {y})",
        WIDE,
        functions="floor_divide remainder fmod maximum fmin copysign hypot logaddexp heaviside arctan2 less",
    ),
    "choice": _rule("jnp.where({b}, {x}, {y})"),
    "clipping": _rule(["lax.clamp({y}, {x}, {z})", "jnp.clip({x}, 0, 2)", "jnp.clip({x}, None, 1)"], REAL),
    "cast": _rule("{x}.astype({dtype})"),
    "reshaping": _rule(
        ["{x}.reshape(-1)", "{x}.reshape({reversed})", "jnp.transpose({x}, {order})", "{x}[None]", "{x}[..., None]"], least=1
    ),
    "broadcasting": _rule("jnp.broadcast_to({x}, {larger})"),
    "joining": _rule("jnp.{f}([{x}, {y}], {axis})", least=1, functions="stack concatenate"),
    "repeating": _rule(["jnp.tile({x}, 2)", "jnp.repeat({x}, 2, {axis})", "jnp.flip({x}, {axis})", "jnp.roll({x}, -1, {axis})"], least=1),
    "padding": _rule("lax.pad({x}, jnp.zeros((), {x}.dtype), {padding})", least=1),
    "slicing": _rule("{x}[{slices}]", least=1),
    "gathering": _rule(
        [
            "{x}[jnp.array({rows})]",
            "jnp.take({x}, jnp.array({some}), {axis}, mode={mode})",
            "lax.dynamic_slice_in_dim({x}, {start}, 1, {axis})",
            "lax.dynamic_index_in_dim({x}, {index}, {axis}, keepdims=False)",
        ],
        least=1,
    ),
    "scattering": _rule("{scattered}", REAL, least=1),
    "reduction": _rule("jnp.{f}({x}, axis={axes}, keepdims={flag})", FLOATS, functions="sum prod max min mean var std any all nansum"),
    "reduction of integers": _rule("jnp.{f}({x}, axis={axes}).astype({x}.dtype)", INTEGERS, functions="sum prod max min any all"),
    "position": _rule("jnp.{f}({x}, axis={axis}).astype('int32')", REAL, least=1, functions="argmax argmin"),
    "cumulation": _rule("lax.{f}({x}, axis={axis}, reverse={flag})", REAL, least=1, functions="cumsum cumprod cummax cummin"),
    "sorting": _rule(
        [
            "jnp.sort({x}, axis={axis})",
            "jnp.argsort({x}, axis={axis}, stable=True).astype('int32')",
            "jnp.unique({x}, size=5, fill_value=0)",
        ],
        (*REAL, *BOOL),
        least=1,
    ),
    "product": _rule(["{x} @ {matrix}", "jnp.dot({x}, {vector})", "jnp.tensordot({x}, {y}, ([0], [0]))"], NUMBERS, least=1),
    "convolution": _rule("lax.conv_general_dilated({convolved})", ()),
    "windows": _rule("lax.reduce_window({x}, {window})", WIDE, least=1),
    "branches": _rule(
        [
            "lax.cond({predicate}, lambda t: {body}, lambda t: {body2}, {x})",
            "lax.switch({case}, [lambda t: {body}, lambda t: {body2}, lambda t: t + 1], {x})",
        ],
        FLOATS,
    ),
    "loops": _rule(
        [
            "lax.fori_loop(0, {times}, lambda i, t: {carry}, {x})",
            "lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, (lambda t: {carry})(c[1])), (0, {x}))[1]",
            "lax.scan(lambda c, t: (c * 0.5 + t, {carry}), {x}[0], {x}, reverse={flag})[{bit}]",
            "lax.associative_scan(jnp.add, {x})",
            "lax.map(lambda t: {carry}, {x})",
        ],
        FLOATS,
        least=1,
    ),
    "transforms": _rule(
        [
            "jax.grad(lambda t: jnp.sum({body}))({x})",
            "jax.jvp(lambda t: {body}, ({x},), ({y},))[1]",
            "jax.vmap(jax.grad(lambda t: jnp.sum({body})))({x})",
            "jax.vjp(lambda t: {body}, {x})[1]({y})[0]",
        ],
        WIDE,
        least=1,
    ),
    "Fourier": _rule("jnp.fft.{f}({x}, axis={axis})", (*WIDE, *COMPLEX), least=1, functions="fft ifft"),
    "matrices": _rule(
        [
            "jnp.linalg.det({square} + 9 * np.eye(3, dtype='float32'))",
            "jnp.linalg.inv({square} + 9 * np.eye(3, dtype='float32'))",
            "jnp.tril({square})",
        ],
        (),
    ),
    "randomness": _rule("jax.random.{f}(jax.random.key({seed}), (3, 2), {wide})", (), functions="uniform normal"),
}
_PLACEHOLDERS = re.compile(r"\{(\w+)\}")


def statement(pool: Pool, rule: Rule) -> str:
    """Return the text of a statement that follows a rule."""
    filled = {"x": pool.pick(rule.dtypes, least=rule.least)} if rule.dtypes else {"x": ""}
    if rule.functions:
        filled["f"] = pool.draw.choice(rule.functions)

    def fill(result: re.Match[str]) -> str:
        name = result[1]
        return filled[name] if name in filled else str(_DRAWN[name](pool, filled["x"]))

    return _PLACEHOLDERS.sub(fill, pool.draw.choice(rule.templates))
