"""The statements of random programs: texts of calls that volta_fn and JAX have by the same names."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

FLOATS = ("float32", "float64", "float16", "bfloat16")
WIDE = ("float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
ALL = (*FLOATS, *INTEGERS, *COMPLEX, "bool")

_UNARY = """sin cos tanh exp log log1p expm1 sqrt rsqrt cbrt abs neg sign floor ceil square logistic erf erfc asin acos atan sinh
cosh asinh acosh atanh exp2 tan lgamma digamma erf_inv round reciprocal is_finite""".split()
_FUNCTIONS = (
    "t * 0.5 + 1",
    "jnp.tanh(t)",
    "jnp.sin(t) * t",
    "jnp.maximum(t, 0)",
    "t * t - 1",
    "jnp.where(t > 0, t, -t)",
    "jnp.abs(t) + 0.5",
)


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


Statement = Callable[[Pool], str]
STATEMENTS: list[Statement] = []


def statement(make: Statement) -> Statement:
    """Register how a statement is drawn."""
    STATEMENTS.append(make)
    return make


def _axis(pool: Pool, name: str) -> int:
    return pool.draw.randrange(len(pool.shape(name)))


def _axes(pool: Pool, name: str) -> object:
    rank = len(pool.shape(name))
    return pool.draw.choice([None, *range(-rank, rank), tuple(pool.draw.sample(range(rank), pool.draw.randint(0, rank)))])


def _indices(pool: Pool, size: int, count: int) -> list[int]:
    return [pool.draw.randrange(-size, size) for _ in range(count)]


@statement
def elementwise(pool: Pool) -> str:
    return f"lax.{pool.draw.choice(_UNARY)}({pool.pick(FLOATS)})"


@statement
def of_integers(pool: Pool) -> str:
    return f"lax.{pool.draw.choice('neg abs sign bitwise_not population_count clz'.split())}({pool.pick(INTEGERS)})"


@statement
def of_complex(pool: Pool) -> str:
    names = "real imag conj abs exp sin cos tanh sqrt log neg sign square reciprocal sinh cosh".split()
    return f"lax.{pool.draw.choice(names)}({pool.pick(COMPLEX)})"


@statement
def tests_of_floats(pool: Pool) -> str:
    return f"jnp.{pool.draw.choice('nan_to_num isnan isinf signbit trunc rint sinc square real imag conj'.split())}({pool.pick(FLOATS)})"


@statement
def powers(pool: Pool) -> str:
    return f"lax.integer_pow({pool.pick((*FLOATS, *INTEGERS, *COMPLEX))}, {pool.draw.choice([0, 1, 2, 3, 4])})"


@statement
def of_two_floats(pool: Pool) -> str:
    x = pool.pick(FLOATS)
    return f"lax.{pool.draw.choice('add sub mul div max min pow atan2 nextafter rem add mul'.split())}({x}, {pool.like(x)})"


@statement
def of_two_integers(pool: Pool) -> str:
    x = pool.pick(INTEGERS)
    names = "add sub mul div rem max min bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic shift_right_logical".split()
    return f"lax.{pool.draw.choice(names)}({x}, {pool.like(x)})"


@statement
def of_two_bools(pool: Pool) -> str:
    x = pool.pick(("bool",))
    return f"lax.{pool.draw.choice('bitwise_and bitwise_or bitwise_xor max min'.split())}({x}, {pool.like(x)})"


@statement
def of_two_complex(pool: Pool) -> str:
    x = pool.pick(COMPLEX)
    return f"lax.{pool.draw.choice('add sub mul div'.split())}({x}, {pool.like(x)})"


@statement
def comparison(pool: Pool) -> str:
    x = pool.pick((*FLOATS, *INTEGERS, "bool"))
    return f"lax.{pool.draw.choice('eq ne lt le gt ge'.split())}({x}, {pool.like(x)})"


@statement
def promotion(pool: Pool) -> str:
    x = pool.pick()
    return f"{x} {pool.draw.choice('+*')} {pool.like(x, pool.draw.choice(ALL))}"


@statement
def of_numbers(pool: Pool) -> str:
    x = pool.pick((*FLOATS, *COMPLEX))
    return f"{x} {pool.draw.choice('+-*/')} {pool.draw.choice(['2', '0.5', '-1.5', 'True', '1e-3'])}"


@statement
def of_integers_with_numbers(pool: Pool) -> str:
    x = pool.pick(INTEGERS)
    return f"jnp.{pool.draw.choice('floor_divide remainder maximum minimum power'.split())}({x}, {pool.draw.choice([1, 2, 3])})"


@statement
def of_numpy(pool: Pool) -> str:
    x = pool.pick(WIDE)
    names = "floor_divide remainder fmod maximum fmin copysign hypot logaddexp heaviside arctan2 less".split()
    return f"jnp.{pool.draw.choice(names)}({x}, {pool.like(x)})"


@statement
def choice(pool: Pool) -> str:
    x = pool.pick()
    return f"jnp.where({pool.like(x, 'bool')}, {x}, {pool.like(x)})"


@statement
def clipping(pool: Pool) -> str:
    x = pool.pick((*FLOATS, *INTEGERS))
    return pool.draw.choice([f"lax.clamp({pool.like(x)}, {x}, {pool.like(x)})", f"jnp.clip({x}, 0, 2)", f"jnp.clip({x}, None, 1)"])


@statement
def cast(pool: Pool) -> str:
    return f"{pool.pick()}.astype({pool.draw.choice(ALL)!r})"


@statement
def reshaping(pool: Pool) -> str:
    x = pool.pick(least=1)
    order = list(range(len(pool.shape(x))))
    pool.draw.shuffle(order)
    forms = [
        f"{x}.reshape(-1)",
        f"{x}.reshape({tuple(reversed(pool.shape(x)))})",
        f"jnp.transpose({x}, {tuple(order)})",
        f"{x}[None]",
        f"{x}[..., None]",
    ]
    return pool.draw.choice(forms)


@statement
def broadcasting(pool: Pool) -> str:
    x = pool.pick()
    return f"jnp.broadcast_to({x}, {(pool.draw.choice([1, 2, 3]), *pool.shape(x))})"


@statement
def joining(pool: Pool) -> str:
    x = pool.pick(least=1)
    return f"jnp.{pool.draw.choice(['stack', 'concatenate'])}([{x}, {pool.like(x)}], {_axis(pool, x)})"


@statement
def repeating(pool: Pool) -> str:
    x = pool.pick(least=1)
    axis = _axis(pool, x)
    return pool.draw.choice([f"jnp.tile({x}, 2)", f"jnp.repeat({x}, 2, {axis})", f"jnp.flip({x}, {axis})", f"jnp.roll({x}, -1, {axis})"])


@statement
def padding(pool: Pool) -> str:
    x = pool.pick(least=1)
    sizes = [(pool.draw.randint(-1, 2), pool.draw.randint(-1, 2), pool.draw.choice([0, 0, 1])) for _ in pool.shape(x)]
    return f"lax.pad({x}, jnp.zeros((), {x}.dtype), {sizes})"


@statement
def slicing(pool: Pool) -> str:
    x = pool.pick(least=1)
    parts = [pool.draw.choice(["::2", "::-1", ":", f"{n // 2}:", f"{pool.draw.randrange(n)}", "None, :"]) for n in pool.shape(x)]
    return f"{x}[{', '.join(parts[: pool.draw.randint(1, len(parts))])}]"


@statement
def gathering(pool: Pool) -> str:
    x = pool.pick(least=1)
    axis, size = _axis(pool, x), pool.shape(x)[0]
    rows, mode = [*_indices(pool, pool.shape(x)[axis], 2), 99], pool.draw.choice(["clip", "wrap", "fill"])
    forms = [
        f"{x}[jnp.array({_indices(pool, size, 3)})]",
        f"jnp.take({x}, jnp.array({rows}), {axis}, mode={mode!r})",
        f"lax.dynamic_slice_in_dim({x}, {pool.new('int32', (), most=9)}, 1, {axis})",
        f"lax.dynamic_index_in_dim({x}, {pool.new('int32', (), most=pool.shape(x)[axis] - 1)}, {axis}, keepdims=False)",
    ]
    return pool.draw.choice(forms)


@statement
def scattering(pool: Pool) -> str:
    x = pool.pick((*FLOATS, *INTEGERS), least=1)
    operation, count = pool.draw.choice(["add", "multiply", "min", "max", "set"]), pool.draw.randint(1, 3)
    rows = pool.draw.sample(range(pool.shape(x)[0]), min(count, pool.shape(x)[0]))  # distinct, so that the order does not matter
    update = pool.new(pool.dtype(x), (len(rows), *pool.shape(x)[1:]))
    return f"{x}.at[jnp.array({rows})].{operation}({update})"


@statement
def reduction(pool: Pool) -> str:
    x = pool.pick(FLOATS)
    names = "sum prod max min mean var std any all nansum".split()
    return f"jnp.{pool.draw.choice(names)}({x}, axis={_axes(pool, x)}, keepdims={pool.draw.choice([True, False])})"


@statement
def reduction_of_integers(pool: Pool) -> str:
    x = pool.pick(INTEGERS)
    return f"jnp.{pool.draw.choice(['sum', 'prod', 'max', 'min', 'any', 'all'])}({x}, axis={_axes(pool, x)})"


@statement
def position(pool: Pool) -> str:
    x = pool.pick((*FLOATS, *INTEGERS), least=1)
    return f"jnp.{pool.draw.choice(['argmax', 'argmin'])}({x}, axis={_axis(pool, x)}).astype('int32')"


@statement
def cumulation(pool: Pool) -> str:
    x = pool.pick((*FLOATS, *INTEGERS), least=1)
    name = pool.draw.choice(["cumsum", "cumprod", "cummax", "cummin"])
    return f"lax.{name}({x}, axis={_axis(pool, x)}, reverse={pool.draw.choice([True, False])})"


@statement
def sorting(pool: Pool) -> str:
    x = pool.pick((*FLOATS, *INTEGERS, "bool"), least=1)
    axis = _axis(pool, x)
    forms = [
        f"jnp.sort({x}, axis={axis})",
        f"jnp.argsort({x}, axis={axis}, stable=True).astype('int32')",
        f"jnp.unique({x}, size=5, fill_value=0)",
    ]
    return pool.draw.choice(forms)


@statement
def product(pool: Pool) -> str:
    x = pool.pick((*FLOATS, *INTEGERS, *COMPLEX), least=1)
    size = pool.shape(x)[-1]
    forms = [
        f"{x} @ {pool.new(pool.dtype(x), (size, 3))}",
        f"jnp.dot({x}, {pool.new(pool.dtype(x), (size,))})",
        f"jnp.tensordot({x}, {pool.like(x)}, ([0], [0]))",
    ]
    return pool.draw.choice(forms)


@statement
def convolution(pool: Pool) -> str:
    dtype, groups = pool.draw.choice(FLOATS), pool.draw.choice([1, 2])
    x, w = pool.new(dtype, (2, 2 * groups, 6, 5)), pool.new(dtype, (2 * groups, 2, 3, 2))
    strides, padding_, dilation = (
        pool.draw.choice(["(1, 1)", "(2, 1)"]),
        pool.draw.choice(["'SAME'", "'VALID'", "[(1, 0), (0, 2)]"]),
        pool.draw.choice([1, 2]),
    )
    return f"lax.conv_general_dilated({x}, {w}, {strides}, {padding_}, rhs_dilation=({dilation}, 1), feature_group_count={groups})"


@statement
def windows(pool: Pool) -> str:
    x = pool.pick(WIDE, least=1)
    sizes = tuple([min(2, n) for n in pool.shape(x)])
    name, start = pool.draw.choice([("add", "0"), ("max", "-jnp.inf"), ("min", "jnp.inf")])
    return f"lax.reduce_window({x}, jnp.asarray({start}, {x}.dtype), lax.{name}, {sizes}, {(1,) * len(sizes)}, 'VALID')"


@statement
def branches(pool: Pool) -> str:
    x, one, other = pool.pick(FLOATS), *pool.draw.sample(_FUNCTIONS, 2)
    if pool.draw.random() < 0.5:
        return f"lax.cond({pool.new('bool', ())}, lambda t: {one}, lambda t: {other}, {x})"
    return f"lax.switch({pool.new('int32', (), most=3)}, [lambda t: {one}, lambda t: {other}, lambda t: t + 1], {x})"


@statement
def loops(pool: Pool) -> str:
    x, body = pool.pick(FLOATS, least=1), pool.draw.choice(_FUNCTIONS[:4])
    forms = [
        f"lax.fori_loop(0, {pool.draw.choice([0, 1, 3])}, lambda i, t: {body}, {x})",
        f"lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, (lambda t: {body})(c[1])), (0, {x}))[1]",
        f"lax.scan(lambda c, t: (c * 0.5 + t, {body}), {x}[0], {x}, reverse={pool.draw.choice([True, False])})[{pool.draw.choice([0, 1])}]",
        f"lax.associative_scan(jnp.add, {x})",
        f"lax.map(lambda t: {body}, {x})",
    ]
    return pool.draw.choice(forms)


@statement
def transforms(pool: Pool) -> str:
    x, body = pool.pick(WIDE, least=1), pool.draw.choice(_FUNCTIONS)
    forms = [
        f"jax.grad(lambda t: jnp.sum({body}))({x})",
        f"jax.jvp(lambda t: {body}, ({x},), ({pool.like(x)},))[1]",
        f"jax.vmap(jax.grad(lambda t: jnp.sum({body})))({x})",
        f"jax.vjp(lambda t: {body}, {x})[1]({pool.like(x)})[0]",
    ]
    return pool.draw.choice(forms)


@statement
def fourier(pool: Pool) -> str:
    x = pool.pick((*WIDE, *COMPLEX), least=1)
    return f"jnp.fft.{pool.draw.choice(['fft', 'ifft'])}({x}, axis={_axis(pool, x)})"


@statement
def matrices(pool: Pool) -> str:
    x = pool.new(pool.draw.choice(WIDE), (3, 3))
    forms = [
        f"jnp.linalg.det({x} + 4 * jnp.eye(3, dtype={x}.dtype))",
        f"jnp.linalg.inv({x} + 9 * jnp.eye(3, dtype={x}.dtype))",
        f"jnp.tril({x})",
    ]
    return pool.draw.choice(forms)


@statement
def randomness(pool: Pool) -> str:
    name = pool.draw.choice(["uniform", "normal"])
    return f"jax.random.{name}(jax.random.key({pool.draw.randrange(99)}), (3, 2), {pool.draw.choice(WIDE)!r})"
