"""Gather, scatter and dynamic slices against loops over the definition, and against JAX."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from volta_fn.primitives.data_movement.gather import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.targets.numpy.indexing import dynamic_slice, dynamic_update_slice, gather, scatter

DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "int64", "float16", "float32", "float64", "complex64", ml_dtypes.bfloat16]
CLIP, FILL, PROMISE = GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS
COMBINE = {"set": lambda old, new: new, "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def make(shape, dtype, seed):
    """Small whole numbers, exact in every dtype."""
    least = 0 if np.dtype(dtype).kind in "bu" else -4
    return np.asarray(np.random.default_rng(seed).integers(least, 2 if dtype == "bool" else 5, shape)).astype(dtype)


@st.composite
def problems(draw):
    """Return an operand's shape, indices, window sizes, and the roles of the dimensions."""
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    rank = len(shape)
    roles = [draw(st.sampled_from(["batching", "collapsed", "addressed", "addressed and collapsed", "free"])) for _ in shape]
    batching = tuple(d for d in range(rank) if roles[d] == "batching")[:2]
    collapsed = tuple(d for d in range(rank) if "collapsed" in roles[d])
    addressed = tuple(draw(st.permutations([d for d in range(rank) if "addressed" in roles[d]])))
    sizes = tuple(1 if d in batching + collapsed else draw(st.sampled_from([1, n, draw(st.integers(0, n))])) for d, n in enumerate(shape))
    batch = [*draw(st.lists(st.integers(0, 3), max_size=2))]
    partners = []
    for d in batching:
        at = draw(st.integers(0, len(batch)))
        partners = [p + (p >= at) for p in partners] + [at]
        batch.insert(at, shape[d])
    indices = np.random.default_rng(draw(st.integers(0, 99))).integers(-2, 5, (*batch, len(addressed)))
    if (dtype := draw(st.sampled_from(["int8", "int32", "uint8", "uint64"])))[0] == "u":
        indices = abs(indices)
    window = [sizes[d] for d in range(rank) if d not in batching + collapsed]
    where = tuple(sorted(draw(st.permutations(range(len(batch) + len(window))))[: len(window)]))
    return shape, indices.astype(dtype), sizes, where, collapsed, addressed, batching, tuple(partners)


def starts_of(problem):
    """Yield the start of the window along each dimension of the operand, for every place of the batch."""
    shape, indices, _, _, _, addressed, batching, partners = problem
    for place in np.ndindex(*indices.shape[:-1]):
        start = dict.fromkeys(range(len(shape)), 0)
        start |= {d: place[p] for d, p in zip(batching, partners, strict=True)} | {
            d: int(i) for d, i in zip(addressed, indices[place], strict=False)
        }
        yield place, [start[d] for d in range(len(shape))]


def window_of(problem, start, mode):
    """Return the window's slices, or None if it is left out."""
    shape, sizes = problem[0], problem[2]
    if mode is CLIP:
        start = [min(max(s, 0), n - size) for s, n, size in zip(start, shape, sizes, strict=True)]
    if any(s < 0 or s + size > n for s, n, size in zip(start, shape, sizes, strict=True)):
        return None
    return tuple(slice(s, s + size) for s, size in zip(start, sizes, strict=True))


def within(where, rank, place):
    """Selects the window at a place of the batch from a result or from updates."""
    rest = iter(place)
    return tuple(slice(None) if d in where else next(rest) for d in range(rank))


def result_shape(problem):
    _, indices, sizes, where, collapsed, _, batching, _ = problem
    window = iter([size for d, size in enumerate(sizes) if d not in collapsed + batching])
    batch = iter(indices.shape[:-1])
    return tuple(next(window) if d in where else next(batch) for d in range(len(where) + indices.ndim - 1))


def naive_gather(problem, operand, mode, fill):
    _, _, _, where, collapsed, _, batching, _ = problem
    out = np.full(result_shape(problem), fill, operand.dtype)
    for place, start in starts_of(problem):
        if (window := window_of(problem, start, mode)) is not None:
            out[within(where, out.ndim, place)] = operand[window].squeeze(collapsed + batching)
    return out


def naive_scatter(problem, operand, updates, mode, combine):
    _, _, _, where, collapsed, _, batching, _ = problem
    out = operand.copy()
    for place, start in starts_of(problem):
        if (window := window_of(problem, start, mode)) is not None:
            update = np.expand_dims(updates[within(where, updates.ndim, place)], collapsed + batching)
            out[window] = COMBINE[combine](out[window], update)
    return out


def gather_numbers(problem):
    _, _, _, where, collapsed, addressed, batching, partners = problem
    return GatherDimensionNumbers(where, collapsed, addressed, batching, partners)


def call_scatter(problem, operand, updates, mode, combine):
    numbers = ScatterDimensionNumbers(*gather_numbers(problem))
    return scatter(operand, problem[1], updates, dimension_numbers=numbers, mode=mode, combine=combine)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(DTYPES), st.sampled_from([CLIP, FILL]), st.booleans())
def test_gather_reads_each_window(problem, dtype, mode, ordered):
    operand = make(problem[0], dtype, 0)
    operand = operand if ordered else np.array(operand, order="F")
    got = gather(operand, problem[1], dimension_numbers=gather_numbers(problem), slice_sizes=problem[2], mode=mode, fill_value=1)
    assert got.dtype == operand.dtype
    np.testing.assert_array_equal(got, naive_gather(problem, operand, mode, 1))


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(DTYPES), st.sampled_from([CLIP, FILL, PROMISE]), st.sampled_from(list(COMBINE)), st.booleans())
def test_scatter_combines_each_window_in_order(problem, dtype, mode, combine, ordered):
    operand, updates = make(problem[0], dtype, 0), make(result_shape(problem), dtype, 1)
    operand = operand if ordered else np.array(operand, order="F")
    before = operand.copy()
    got = call_scatter(problem, operand, updates, mode, combine)
    assert got.dtype == operand.dtype
    if dtype == "float16" or dtype is ml_dtypes.bfloat16:
        expected = naive_scatter(problem, operand.astype("float32"), updates.astype("float32"), mode, combine).astype(dtype)
    else:
        expected = naive_scatter(problem, operand, updates, mode, combine)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(operand, before)


@settings(max_examples=8, deadline=None)
@given(problems(), st.sampled_from([CLIP, FILL]), st.sampled_from(list(COMBINE)))
def test_gather_and_scatter_agree_with_jax(problem, mode, combine):
    lax = pytest.importorskip("jax").lax
    assume(problem[1].size)  # XLA 0.10 fails inside on scatters whose index vectors are empty.
    jax_mode = lax.GatherScatterMode.CLIP if mode is CLIP else lax.GatherScatterMode.FILL_OR_DROP
    operand, updates = make(problem[0], "float32", 0), make(result_shape(problem), "float32", 1)
    indices, numbers = problem[1].astype("int32"), gather_numbers(problem)
    expected = lax.gather(operand, indices, lax.GatherDimensionNumbers(*numbers), problem[2], mode=jax_mode)
    np.testing.assert_array_equal(gather(operand, problem[1], dimension_numbers=numbers, slice_sizes=problem[2], mode=mode), expected)
    names = {"set": "scatter"}
    scatter_jax = getattr(lax, names.get(combine, f"scatter_{combine}"))
    expected = scatter_jax(operand, indices, updates, lax.ScatterDimensionNumbers(*numbers), mode=jax_mode)
    got = call_scatter(problem, operand, updates, mode, combine)
    if combine != "set":  # JAX leaves open which of several updates stays.
        np.testing.assert_array_equal(got, expected)


ROWS = GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))


@pytest.mark.parametrize("dtype", DTYPES)
def test_invalid_windows_are_filled_as_jax_fills_them(dtype):
    jnp = pytest.importorskip("jax.numpy")
    expected = np.asarray(jnp.zeros(2, dtype if np.dtype(dtype).itemsize < 8 else "float32").at[5].get(mode="fill"))
    got = gather(np.zeros((2, 1), dtype), np.array([[5]]), dimension_numbers=ROWS, slice_sizes=(1, 1), mode=FILL)
    assert got.dtype == dtype
    if np.dtype(dtype).itemsize == 8 and np.dtype(dtype).kind in "iu":
        expected = np.iinfo(dtype).min if dtype == "int64" else np.iinfo(dtype).max
    if dtype is ml_dtypes.bfloat16:
        got, expected = got.astype("float32"), expected.astype("float32")
    np.testing.assert_array_equal(got, np.full((1, 1), expected))


def test_an_index_beyond_every_integer_is_out_of_range():
    huge = np.array([[2**64 - 1], [1]], np.uint64)
    operand = np.arange(4.0).reshape(2, 2)
    got = gather(operand, huge, dimension_numbers=ROWS, slice_sizes=(1, 2), mode=FILL, fill_value=-1)
    np.testing.assert_array_equal(got, [[-1, -1], [2, 3]])


@pytest.mark.parametrize("size", [0, 1])
def test_windows_along_an_axis_keep_their_dimension(size):
    numbers = GatherDimensionNumbers((0,), (), (1,), (0,), (0,))
    x, indices = make((2, 3), "float32", 0), np.array([[[6]], [[1]]])
    result = gather(x, indices, dimension_numbers=numbers, slice_sizes=(1, size), mode=CLIP)
    np.testing.assert_array_equal(result, np.array([x[0, 2], x[1, 1]])[None, :, None][:size])


def test_no_operand_is_copied_for_a_single_window():
    operand = np.arange(6.0).reshape(3, 2)
    row = gather(operand, np.array([1]), dimension_numbers=GatherDimensionNumbers((0,), (0,), (0,)), slice_sizes=(1, 2), mode=CLIP)
    np.testing.assert_array_equal(row, [2, 3])


def row_scatter(operand, rows, updates, combine="add"):
    numbers = ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    return scatter(operand, rows[:, None], updates, dimension_numbers=numbers, mode=FILL, combine=combine)


@pytest.mark.parametrize("width", [1, 7, 1023, 1024, 1500])
@pytest.mark.parametrize("combine", ["set", "add", "max"])
def test_rows_of_every_width_with_many_repeated_indices(width, combine):
    rng = np.random.default_rng(0)
    rows, updates = rng.integers(-1, 12, 400), rng.standard_normal((400, width)).astype(np.float32)
    operand = rng.standard_normal((10, width)).astype(np.float32)
    expected = operand.copy()
    for row, update in zip(rows, updates, strict=True):
        if 0 <= row < 10:
            expected[row] = COMBINE[combine](expected[row], update)
    np.testing.assert_array_equal(row_scatter(operand, rows, updates, combine), expected)


def test_half_precision_sums_keep_small_addends():
    ones = np.ones((4000, 1), np.float16)
    assert row_scatter(np.zeros((1, 1), np.float16), np.zeros(4000, int), ones)[0, 0] == 4000


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_spreads_through_min_and_max():
    got = row_scatter(np.zeros((2, 1)), np.array([0, 0, 1]), np.array([[np.nan], [1.0], [-2.0]]), "min")
    np.testing.assert_array_equal(got, [[np.nan], [-2]])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(-6, 6)), max_size=3),
    st.sampled_from(["int8", "int32", "uint64"]),
)
def test_dynamic_slices_clamp_their_start(dims, index_dtype):
    shape = tuple(n for n, _, _ in dims)
    sizes = tuple(min(n, size) for n, size, _ in dims)
    starts = [abs(s) if index_dtype == "uint64" else s for _, _, s in dims]
    block = tuple(slice(c := min(max(s, 0), n - size), c + size) for n, size, s in zip(shape, sizes, starts, strict=True))
    operand, update = make(shape, "float32", 0), make(sizes, "float32", 1)
    arrays = [np.array(s, index_dtype) for s in starts]
    expected = operand.copy()
    expected[block] = update
    sliced = dynamic_slice(operand, *arrays, slice_sizes=sizes)
    assert np.may_share_memory(sliced, operand) or not sliced.size
    np.testing.assert_array_equal(sliced, operand[block])
    np.testing.assert_array_equal(dynamic_update_slice(operand, update, *arrays), expected)


def test_dynamic_slices_agree_with_jax():
    lax = pytest.importorskip("jax").lax
    operand, update = make((3, 4), "int32", 0), make((2, 3), "int32", 1)
    for start in itertools.product([0, 1, 7], [0, 1, 9]):
        starts = [np.int32(s) for s in start]
        np.testing.assert_array_equal(dynamic_slice(operand, *starts, slice_sizes=(2, 3)), lax.dynamic_slice(operand, starts, (2, 3)))
        np.testing.assert_array_equal(dynamic_update_slice(operand, update, *starts), lax.dynamic_update_slice(operand, update, starts))


def test_an_operand_may_be_updated_itself():
    x, row = np.arange(12.0).reshape(4, 3), np.array([[9.0, 9, 9]])
    numbers = ScatterDimensionNumbers((1,), (0,), (0,))
    expected = x.copy()
    expected[2] = 9
    assert dynamic_update_slice(x, row, np.array(2), np.array(0), out=x) is x
    np.testing.assert_array_equal(x, expected)
    for rows in ([[0]], [[0], [1]]):
        expected[: len(rows)] += 9
        updates = np.repeat(row, len(rows), 0)
        assert scatter(x, np.array(rows), updates, dimension_numbers=numbers, mode=CLIP, combine="add", out=x) is x
        np.testing.assert_array_equal(x, expected)


def test_an_operand_that_is_read_while_it_is_updated_is_copied():
    x = np.arange(4.0)
    got = dynamic_update_slice(x, x[:3], np.array(1), out=x)
    np.testing.assert_array_equal(got, [0, 0, 1, 2])
    np.testing.assert_array_equal(x, [0, 1, 2, 3])
