"""Programs of other kinds of numbers for `transforms.py`: complex ones, integers that overflow, codes, and layers of such; and raw indices.

Each block draws a statement of texts that have one meaning in volta_fn and in JAX, but for `quantised` and `layers`, of which JAX has none.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.transform_blocks import Draft

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
_MODES = ("clip", "drop", "fill")


def complexes(d: Draft) -> str:
    """Draw functions of complex numbers, and what is real of them, or those themselves."""
    x = d.pick(least=1)
    y, n = d.like(x), d.shape(x)[-1]
    z, w = f"({x} + 1j * {y})", f"(1.5 + jnp.abs({x}) - 0.5j * {y})"
    matrix = f"({d.new((n, n))} * 0.3 + 1j * {d.new((n, n))} * 0.3 + jnp.diag(2.0 + jnp.arange({n})).astype({x}.dtype))"
    hermitian = f"(lambda m_: m_ @ m_.conj().T + jnp.diag(1 + 3.0 * jnp.arange({n})).astype({x}.dtype))({matrix})"
    forms = (
        f"{z} * {w}",
        f"{z} / {w}",
        f"jnp.conj({z}) * {z}",
        f"{z} ** 2 - {z} ** 3",
        f"{w} ** {z}",
        f"jnp.exp({z}) * {y}",
        f"jnp.log({w})",
        f"jnp.sqrt({w})",
        f"jnp.sin({z}) + jnp.cos({w})",
        f"jnp.tanh({z})",
        f"jnp.arctan(0.3 * {z})",
        f"jnp.arcsinh({w})",
        f"lax.rsqrt({w})",
        f"jnp.log1p(0.4 * {z})",
        f"jnp.expm1({z})",
        f"jnp.square({z})",
        f"jnp.reciprocal({w})",
        f"lax.integer_pow({w}, -3)",
        f"jnp.sinc(0.5 * {w})",
        f"jax.nn.sigmoid(0.5 * {z})",
        f"{z}.sum({d.draw.choice((None, 0, -1))})",
        f"{z}.mean()",
        f"{z}.prod(-1)",
        f"jnp.cumsum({z}, -1)",
        f"jnp.cumprod({w}, 0)",
        f"lax.cumsum({z}, 0, reverse=True)",
        f"jnp.var({z}, -1)",
        f"jnp.linalg.norm({z})",
        f"{z}.at[0].set({w}[-1])" if d.shape(x)[0] else z,
        f"{z}.at[..., jnp.array([0, 0])].add({w}[..., :1])",
        f"{z}.at[0].multiply({w}[-1])" if d.shape(x)[0] else z,
        f"jnp.take({z}, {d.integers((3,), -n, n)}, -1)",
        f"jnp.where({x} > 0, {z}, {w})",
        f"lax.dynamic_slice_in_dim({z}, {d.integers((), -2, n + 1)}, {min(1, n)}, -1)",
        f"jnp.einsum('...i,...i->...', {z}, {w})",
        f"{z} @ {matrix}",
        f"jnp.vdot({z}, {w})",
        f"jnp.inner({x}, {z})",
        f"jnp.tensordot({z}, {y}, 0)",
        f"jnp.linalg.solve({matrix}, {z}.reshape(-1, {n}).T)" if n else z,
        f"jnp.linalg.inv({matrix})",
        f"jnp.linalg.det({matrix})",
        f"jnp.linalg.slogdet({matrix})[1]",
        f"jnp.linalg.cholesky({hermitian})",
        f"jnp.linalg.eigh({hermitian})[0]",
        f"jnp.abs(jnp.linalg.qr({matrix})[1])",
        f"jnp.linalg.svd({matrix}, compute_uv=False)",
        f"lax.linalg.triangular_solve({matrix}, {matrix}, left_side={d.draw.choice((True, False))}, transpose_a=True, conjugate_a=True)",
        f"jnp.fft.fft({z})",
        f"jnp.fft.ifft({z}, axis=0)",
        f"jnp.fft.fft2({z})" if len(d.shape(x)) > 1 else f"jnp.fft.fft({x})",
        f"jnp.fft.rfft({x})",
        f"jnp.fft.hfft({z})" if n > 1 else z,
        f"jnp.fft.fftshift({z})",
        f"jnp.sort({z}, -1)",
        f"lax.scan(lambda c_, r_: (c_ * 0.5j + r_, c_ * r_), {z}[0] * 0, {z})[1]",
        f"lax.fori_loop(0, 3, lambda i_, c_: c_ * c_.conj() * 0.1 + {z}, {w})",
        f"lax.cond({x}.sum() > 0, lambda z_: z_ * 1j, lambda z_: jnp.conj(z_), {z})",
        f"lax.associative_scan(jnp.multiply, {w})",
        f"lax.pad({z}, {z}.sum(), {[(d.draw.randint(-1, 1), 1, d.draw.choice((0, 1))) for _ in d.shape(x)]})",
        f"jnp.convolve({z}.reshape(-1), {w}.reshape(-1)[:2])",
        f"lax.reduce({z}, 0j + 0 * {z}.sum(), lax.add, (0,))",
        f"jax.checkpoint(lambda z_: jnp.sin(z_) * z_)({z})",
        f"jax.jvp(jnp.exp, ({z},), ({w},))[1]",
        f"jax.vjp(lambda z_: z_ * z_.conj() * z_, {z})[1]({w})[0]",
        f"jax.grad(lambda z_: jnp.real(z_ * z_ * {w}).sum())({z})",
        f"jax.grad(lambda z_: (jnp.sin(z_) * {w}).sum(), holomorphic=True)({z})",
        f"jax.linear_transpose(lambda z_: z_ * {w}, {z})({w})[0]",
        f"jax.vmap(lambda z_: z_ * z_.sum())({z})",
        f"jax.ops.segment_sum({z}, {d.integers((d.shape(x)[0],), -1, 3)}, 2)",
        f"jnp.repeat({z}, 2, 0)",
        f"jnp.roll({z}, 1, -1)",
        f"jnp.polyval({w}.reshape(-1)[:3], {z})",
        f"jnp.outer({z}, {w})",
        f"jnp.trace(jnp.outer({z}, {w}))",
        f"jnp.angle({w}) * {z}",
    )
    last = d.draw.choice(("{z}", "jnp.real({z})", "jnp.imag({z})", "jnp.abs({z} + 9)", "jnp.real({z}) * jnp.imag({z})"))
    return last.format(z=f"({d.draw.choice(forms)})")


def wholes(d: Draft) -> str:
    """Draw operations of integers that overflow, shifts by any amount, divisions by zero, and their orders, with floats beside them."""
    dtype, shape = d.draw.choice(_INTEGERS), d.draw.choice(((3,), (5,), (2, 3), (0, 2), (17,)))
    bits = int("".join(filter(str.isdigit, dtype)))
    values = lambda low=-(2**31), high=2**31 - 1: f"{d.integers(shape, low, high)}.astype('{dtype}')"
    a, b = values(), d.draw.choice((values(), values(-3, 4)))
    i, j, s = "a_", "b_", d.draw.choice((values(0, bits), values(-2, bits + 3)))
    n = shape[-1]
    other = d.draw.choice(_INTEGERS)
    forms = (
        f"{i} * {j} + {i}",
        f"{i} - {j}",
        f"-{i}",
        f"jnp.abs({i})",
        f"{i} // {j}",
        f"{i} % {j}",
        f"lax.div({i}, {j})",
        f"lax.rem({i}, {j})",
        f"{i} << {s}",
        f"lax.shift_left({i}, {s})",
        f"lax.shift_right_logical({i}, {s})",
        f"lax.shift_right_arithmetic({i}, {s})",
        f"{i} >> {s}",
        f"({i} & {j}) ^ ~{i} | {j}",
        f"lax.population_count({i}) + lax.clz({j})",
        f"{i} ** 3",
        f"lax.integer_pow({i}, 5)",
        f"jnp.power({i}, jnp.abs({j}) % 5)",
        f"{i}.sum({d.draw.choice((None, 0, -1))}, dtype='{dtype}')",
        f"{i}.prod(-1, dtype='{dtype}')",
        f"lax.cumsum({i}, {len(shape) - 1}, reverse=True)",
        f"lax.cumprod({i}, 0)",
        f"lax.cummax({i}, 0, reverse=True)",
        f"{i}.max(-1, initial=0) - {j}.min(0, initial=0)[..., None]" if len(shape) == 1 else f"jnp.sign({i})",
        f"jnp.sort({i}, -1) - {j}",
        f"jnp.argsort({i} % 3, -1, stable=True)",
        f"lax.sort(({i} % 3, {j}), num_keys=2)[1]",
        f"lax.top_k({i}, {min(2, n)})[0]",
        f"{i}.at[{d.integers((4,), -n, n)} % {max(1, shape[0])}].add(3)" if shape[0] else i,
        f"{i}.at[..., {d.integers((4,), -n - 2, n + 2)}].{d.draw.choice(('add', 'mul', 'min', 'max'))}(7, mode='{d.draw.choice(_MODES)}')",
        f"{i}.at[..., {d.integers((4,), -n - 2, n + 2)}].get(mode='fill')",
        f"jnp.dot({i}, {j}.T)" if len(shape) == 2 else f"jnp.dot({i}, {j})",
        f"lax.dot_general({i}, {j}, ((({len(shape) - 1},), ({len(shape) - 1},)), ((), ())), preferred_element_type='int32')",
        f"jnp.cumsum({i} > {j}, -1)",
        f"{i}.astype('{other}') + {j}.astype('{other}')",
        f"lax.bitcast_convert_type({i}, '{dtype.removeprefix('u') if dtype.startswith('u') else 'u' + dtype}') // 3",
        f"jnp.clip({i}, {j}, 9)",
        f"jnp.minimum({i}, {j}) + jnp.maximum({i}, {j})",
        f"lax.reduce_window({i}, jnp.zeros((), '{dtype}'), lax.add, {(1,) * (len(shape) - 1) + (2,)}, {(1,) * len(shape)}, 'SAME')",
        f"lax.reduce({i}, jnp.zeros((), '{dtype}'), lax.bitwise_xor, (0,))",
        f"jnp.bincount({i}.reshape(-1).astype('uint8') % 5, length=4)",
        f"jnp.searchsorted(jnp.sort({i}.reshape(-1)), {j})",
        f"jnp.unique({i}, size=4, fill_value=0)" if shape[0] else i,
        f"jnp.gcd({i} % 50, {j} % 50)",
        f"jnp.bitwise_count({i})",
        f"jnp.divmod({i}, {j})[1]",
        f"lax.scan(lambda c_, r_: (c_ * 5 + r_, c_ ^ r_), {i}[0], {i})[1]" if shape[0] else f"{i} * 2",
        f"lax.fori_loop(0, 5, lambda k_, c_: c_ * 3 + {j}, {i})",
        f"lax.while_loop(lambda c_: c_[0] < 3, lambda c_: (c_[0] + 1, c_[1] << 3), (0, {i}))[1]",
        f"lax.switch({i}.reshape(-1)[0].astype('int32') % 3, [lambda v_: v_ * 2, lambda v_: -v_, lambda v_: v_], {j})"
        if 0 not in shape
        else i,
        f"jnp.where({i} > {j}, {i}, {j})",
        f"lax.clamp(jnp.array(3, '{dtype}'), {i}, jnp.array(100, '{dtype}'))",
        f"lax.mulhi({i}, {j})" if bits == 32 else f"{i} * {i}",
        f"jnp.left_shift({i}, 1) + jnp.right_shift({j}, 1)",
        f"jax.ops.segment_{d.draw.choice(('sum', 'prod', 'max', 'min'))}({i}, {d.integers((shape[0],), -2, 4)}, 3)",
        f"jax.vmap(lambda u_, v_: u_ * v_ + v_.sum(dtype='{dtype}'))({i}, {j})",
        f"jax.vmap(lambda u_: lax.cumsum(u_ + {j}, {len(shape) - 1}))(jnp.stack([{i}, {j}]))",
        f"lax.rev({i}, (0,)) - {j}",
        f"jnp.packbits({i} > {j}, axis=-1)",
        f"jnp.unpackbits({i}.astype('uint8'), axis=-1)",
        f"lax.conv_general_dilated({i}.reshape(1, 1, -1), {j}.reshape(1, 1, -1)[..., :2], (1,), 'SAME', preferred_element_type='int32')"
        if 0 not in shape
        else i,
    )
    x = d.new(())
    wide = f"(lambda a_, b_: {d.draw.choice(forms)})({a}, {b})"
    return d.draw.choice(
        (f"{wide}.astype({x}.dtype) / {2.0 ** max(0, bits - 3)} * {x}", f"({wide} % 8 + {x}.astype(jnp.int32))", f"{wide} * ({x} > -9)")
    )


def raw(d: Draft) -> str:
    """Draw gathers and scatters by their dimension numbers, with axes of batches, windows, and indices beyond the array."""
    n, m, k, b = [d.draw.choice((1, 2, 3, 4)) for _ in range(4)]
    if d.draw.random() < 0.1:
        k = 0
    mode = d.draw.choice(_MODES)
    reach = d.draw.choice((0, 0, 2))
    form = d.draw.randrange(5)
    if form == 0:  # rows of a window
        h = d.draw.randint(1, n)
        x, index, window = d.new((n, m)), d.integers((k, 1), -reach, n - h + 1 + reach), (h, m)
        gather, scatter, shape = "(1, 2), (), (0,)", "(1, 2), (), (0,)", (k, h, m)
    elif form == 1:  # elements by both indices, in any order
        x, index, window = d.new((n, m)), d.integers((k, b, 2), -reach, min(n, m) + reach), (1, 1)
        order = d.draw.choice(("(0, 1)", "(1, 0)"))
        gather, scatter, shape = f"(), (0, 1), {order}", f"(), (0, 1), {order}", (k, b)
    elif form == 2:  # a batch of arrays, each by indices of its own
        x, index, window = d.new((b, n, m)), d.integers((b, k, 1), -reach, n + reach), (1, 1, m)
        gather, scatter, shape = "(2,), (1,), (1,), (0,), (0,)", "(2,), (1,), (1,), (0,), (0,)", (b, k, m)
    elif form == 3:  # part of the columns, windows before batches
        w = d.draw.randint(1, m)
        x, index, window = d.new((n, m)), d.integers((k, 2), -reach, min(n, max(1, m - w + 1)) + reach), (1, w)
        gather, scatter, shape = "(0,), (0,), (0, 1)", "(0,), (0,), (0, 1)", (w, k)
    else:  # batches whose axis in the indices is another
        x, index, window = d.new((n, b)), d.integers((k, b, 1), -reach, n + reach), (1, 1)
        gather, scatter, shape = "(), (0,), (0,), (1,), (1,)", "(), (0,), (0,), (1,), (1,)", (k, b)
    option = f"mode={mode!r}" + (f", fill_value={d.draw.choice(('0.5', 'None'))}" if mode == "fill" else "")
    # JAX's derivatives of the least and the largest do not clip indices.
    name = d.draw.choice(("add", "add", "mul", "sub", *(() if mode == "clip" else ("min", "max"))))
    updates = d.new(shape)
    gathered = f"lax.gather({{x}}, {{i}}, lax.GatherDimensionNumbers({gather}), {window}, {option})"
    scattered = f"lax.scatter_{name}({{x}}, {{i}}, {{u}}, lax.ScatterDimensionNumbers({scatter}), mode={mode!r})"
    text = d.draw.choice((gathered, scattered))
    plain = {"x": x, "i": index, "u": updates}
    ways: list[str] = [text.format(**plain)] * 3
    stack_i = f"jnp.stack([{index}, {index}[::-1], {index} + 1])"
    ways += [
        f"jax.vmap(lambda i_: {text.format(**{**plain, 'i': 'i_'})})({stack_i})",
        f"jax.vmap(lambda x_: {text.format(**{**plain, 'x': 'x_'})}, 1, 1)(jnp.stack([{x}, 2 * {x}], 1))",
        f"jax.vmap(lambda x_, i_: {text.format(**{**plain, 'x': 'x_', 'i': 'i_'})}, (0, -1))"
        f"(jnp.stack([{x}, {x} * 2, -{x}]), jnp.moveaxis({stack_i}, 0, -1))",
        f"jax.vmap(lambda u_: {text.format(**{**plain, 'u': 'u_'})}, -1)(jnp.stack([{updates}, 2 * {updates}], -1))",
        f"jax.vmap(lambda x_, i_, u_: {text.format(x='x_', i='i_', u='u_')})"
        f"(jnp.stack([{x}, {x} * 2, -{x}]), {stack_i}, jnp.stack([{updates}] * 3))",
        f"lax.scan(lambda c_, i_: (c_ * 0.5, {text.format(**{**plain, 'x': 'c_', 'i': 'i_'})}), {x}, {stack_i})[1]",
    ]
    return f"jnp.nan_to_num({d.draw.choice(ways)})" if mode == "fill" else d.draw.choice(ways)


def pairs(d: Draft) -> str:
    """Draw reductions, windows, sorts and scans of several operands at once, and of empty axes."""
    x = d.pick(least=1)
    y, shape = d.like(x), d.shape(x)
    axis, rank = d.draw.randrange(len(shape)), len(shape)
    sizes, strides = [tuple([d.draw.choice((1, 2, 3)) for _ in shape]) for _ in range(2)]
    edges = d.draw.choice(("'SAME'", "'VALID'", str([(d.draw.randint(0, 2), d.draw.randint(0, 2)) for _ in shape])))
    dilated = (
        f"base_dilation={tuple([d.draw.choice((1, 2)) for _ in shape])}, window_dilation={tuple([d.draw.choice((1, 2)) for _ in shape])}"
    )
    best = "lambda a_, b_: (jnp.where(a_[0] >= b_[0], a_[0], b_[0]), jnp.where(a_[0] >= b_[0], a_[1], b_[1]))"
    zero, low = f"jnp.zeros((), {x}.dtype)", f"jnp.full((), -1e4, {x}.dtype)"
    empty = d.new(d.draw.choice(((0,), (0, 3), (2, 0), (3, 0, 2))))
    forms = (
        f"lax.reduce(({x}, {y}), ({low}, {zero}), {best}, ({axis},))[1]",
        f"lax.reduce(({x}, {y}), ({zero}, {zero}), lambda a_, b_: (a_[0] + b_[0], a_[1] + b_[1]), ({axis},))[0]",
        f"lax.reduce_window(({x}, {y}), ({low}, {zero}), {best}, {sizes}, {strides}, {edges})[0]",
        f"lax.reduce_window({x}, {low}, lax.max, {sizes}, {strides}, {edges}, {dilated}) * 0.1",
        f"lax.reduce_window({x}, 1.0, lax.mul, {sizes}, {strides}, {edges}, {dilated})",
        f"lax.reduce_window({x}, 0.0, lax.add, {sizes}, {strides}, {edges}, {dilated})",
        f"lax.reduce_window(jnp.round({x}), {low}, lax.max, {sizes}, {strides}, {edges})",
        f"jax.grad(lambda v_: (lax.reduce_window(v_, -jnp.inf, lax.max, {sizes}, {strides}, 'SAME') ** 2).sum())({x})",
        f"jax.grad(lambda v_: (lax.reduce_window(v_, jnp.inf, lax.min, {sizes}, {strides}, 'SAME') ** 3).sum())({x})",
        f"jax.vmap(jax.grad(lambda v_: (lax.reduce_window(v_, -jnp.inf, lax.max, {sizes}, {strides}, 'SAME') * v_.sum()).sum()))"
        f"(jnp.stack([{x}, {y}]))",
        f"jax.jvp(lambda v_: lax.reduce_window(v_, -jnp.inf, lax.max, {sizes}, {strides}, 'SAME'), ({x},), ({y},))[1]",
        f"(lambda a_, b_, c_, e_: a_ + 2 * b_ - c_ * e_)"
        f"(*lax.sort((jnp.round({x}), jnp.round({y}), {x}, {y}), dimension={axis}, num_keys=2))",
        f"jax.vmap(lambda a_, b_: lax.sort((a_, b_), dimension={axis}, num_keys=1)[1], (0, None))(jnp.stack([{x}, {y}]), {y})",
        f"jax.vmap(lambda a_, b_: lax.sort((a_, b_), dimension={axis}, num_keys=1)[1], ({rank}, 0))"
        f"(jnp.stack([{x}, {y}], {rank}), jnp.stack([{y}, {x}]))",
        f"lax.sort((({x} > 0), {y}, {x}), dimension={axis}, num_keys=2)[2]",
        f"jnp.lexsort(({x}, jnp.round({y})), axis={axis}) * {x}",
        f"lax.associative_scan({best}, ({x}, {y}), axis={axis})[1]",
        f"lax.associative_scan({best}, ({x}, {y}), axis={axis}, reverse=True)[0]",
        f"{empty}.sum(0) + {x}.sum()",
        f"jnp.cumsum({empty}, -1)",
        f"jnp.sort({empty}, 0)",
        f"{empty}.prod() * {x}",
        f"{empty}.reshape(-1).dot({empty}.reshape(-1)) * {x}",
        f"jnp.concatenate([{empty}.reshape(-1), {x}.reshape(-1)])",
        f"jnp.einsum('...i,...j->ij', {empty}, {empty}) * {x}.sum()",
        f"jax.vmap(lambda v_: jnp.tanh(v_).sum())({empty})",
        f"lax.scan(lambda c_, r_: (c_ + r_.sum(), r_ * c_), {x}.sum(), {empty})[0]",
        f"jax.ops.segment_sum({empty}, jnp.zeros({empty}.shape[0], 'int32'), 2)",
        f"{x}.at[jnp.zeros((0,), 'int32')].add(1.0)",
        f"jnp.take({x}, jnp.zeros((2, 0), 'int32'), 0)",
        f"jnp.linalg.solve(jnp.zeros((0, 0), {x}.dtype), jnp.zeros((0, 2), {x}.dtype)).sum() + {x}",
        f"jnp.linalg.det(jnp.zeros((2, 0, 0), {x}.dtype)).sum() * {x}",
        f"jnp.linalg.inv({d.new((0, 3, 3))} * {x}.sum())",
        f"jnp.linalg.cholesky({d.new((0, 2, 2))} * {x}.sum())",
        f"lax.conv_general_dilated({d.new((0, 2, 4))}, {d.new((3, 2, 2))}, (1,), 'SAME').sum() + {x}",
        f"lax.conv_general_dilated({d.new((1, 2, 4))}, {d.new((3, 2, 0))}, (1,), 'VALID') + {x}.sum()",
        f"lax.conv_general_dilated({d.new((1, 0, 4))}, {d.new((3, 0, 2))}, (1,), 'SAME') + {x}.sum()",
        f"jax.nn.dot_product_attention({d.new((2, 0, 2, 3))}, {d.new((2, 4, 2, 3))}, {d.new((2, 4, 2, 3))})",
        f"jnp.fft.fft({d.new((0, 3))}).real.sum() + {x}",
        f"jnp.maximum({x}.min({axis}, initial=0.5), 0.1)",
        f"jnp.argmax({x}, {axis}) * {y}.sum({axis})",
    )
    return d.draw.choice(forms)


def quantised(d: Draft) -> str:
    """Draw products with quantised matrices, within derivatives and batches."""
    scheme = d.draw.choice(("int8", "int8", "int4", "nf4"))
    n, m, rows = d.draw.choice((8, 32, 40, 64)), d.draw.choice((1, 3, 5)), d.draw.choice((1, 2, 4))
    scales, data = f"(1 + 0.1 * jnp.abs({d.new((m, 1))}))", d.integers((m, n if scheme == "int8" else -(-n // 32) * 16), 0, 256)
    dtype = "int8" if scheme == "int8" else "uint8"
    q = (
        f"jax.nn.QuantizedArray({data}.astype('uint8').view('{dtype}'), {scales} * 0.01, None, '{scheme}', ({n},), {n}, "
        f"rows_last={{last}}, dtype={scales}.dtype)"
    )
    x, y, z = d.new((rows, n)), d.new((m, n)), d.new((rows, m))
    right, left = q.format(last=True), q.format(last=False)
    forms = (
        f"{x} @ {right}",
        f"jnp.tanh({x} @ {right}) @ {left}",
        f"{z} @ {left}",
        f"{left} @ {x}.T",
        f"{x} @ {left}.T",
        f"{left}.dequantize() * {y}",
        f"jax.vmap(lambda r_: r_ @ {right})({x})",
        f"jax.grad(lambda v_: (jnp.sin(v_ @ {right})).sum())({x})",
        f"lax.scan(lambda c_, r_: (0.5 * c_ + r_ @ {right}, c_), 0 * {z}[0], {x})[1]",
        f"{left}.take(jnp.array([0, {m - 1}, 0])) * 0.5",
        f"jax.vmap(lambda s_: {x} @ jax.nn.QuantizedArray({data}.astype('uint8').view('{dtype}'), s_, None, '{scheme}', ({n},), {n}, "
        f"rows_last=True, dtype=s_.dtype))(jnp.stack([{scales} * 0.01, {scales} * 0.02]))",
    )
    return d.draw.choice(forms)


#: Blocks, and how often they are drawn.
KIND_BLOCKS: dict[Callable[[Draft], str], int] = {complexes: 3, wholes: 3, raw: 3, pairs: 3, quantised: 1}
