"""Datasets return the right rows, singly and in batches, and refuse misfits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta_fn as vf
from volta_fn import data
from volta_fn.errors import ArgumentError, ArgumentTypeError, DataError, DTypeError, OutOfBoundsError, TreeError

X, Y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10, dtype=np.int32)


class OneByOne:
    """A dataset with nothing but the two methods, which counts its calls."""

    def __init__(self, examples):
        self.examples, self.calls = examples, 0

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        self.calls += 1
        return self.examples[index]


def assert_same(left, right):
    assert vf.tree.structure(left) == vf.tree.structure(right)
    for a, b in zip(vf.tree.leaves(left), vf.tree.leaves(right), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


# arrays


@pytest.mark.parametrize("arrays", [(X,), (X, Y), ({"x": X, "more": [Y]},), (vf.numpy.asarray(X), Y)], ids=["one", "two", "tree", "ours"])
def test_examples_are_rows_and_batches_are_gathered(arrays):
    dataset = data.ArrayDataset(*arrays)
    tree = arrays[0] if len(arrays) == 1 else arrays
    host = vf.tree.map(np.asarray, tree)
    assert len(dataset) == 10
    assert_same(dataset[3], vf.tree.map(lambda a: a[3], host))
    assert_same(dataset[-1], vf.tree.map(lambda a: a[9], host))
    assert_same(dataset.gather([7, 7, -10]), vf.tree.map(lambda a: a[[7, 7, 0]], host))
    assert_same(dataset.gather([]), vf.tree.map(lambda a: a[:0], host))
    assert [int(np.ravel(vf.tree.leaves(example)[-1])[0]) for example in dataset] == [int(np.ravel(r)[0]) for r in vf.tree.leaves(host)[-1]]


def test_arrays_are_shared_and_cannot_be_written_to():
    dataset = data.ArrayDataset(X)
    assert np.shares_memory(dataset.arrays, X)
    with pytest.raises(ValueError, match="read-only"):
        dataset[0][:] = 0
    assert X.flags.writeable


@pytest.mark.parametrize("index", [10, -11])
def test_rows_that_do_not_exist(index):
    with pytest.raises(OutOfBoundsError, match=f"no example {index} among 10"):
        data.ArrayDataset(X)[index]
    with pytest.raises(OutOfBoundsError, match=f"no example {index} among 10"):
        data.ArrayDataset(X).gather([0, index])
    with pytest.raises(OutOfBoundsError, match="no example 18446744073709551615 among 10"):
        data.ArrayDataset(X).gather(np.uint64([2**64 - 1]))


@pytest.mark.parametrize("indices", [[0.5], [[1]], np.array([True, False])])
def test_numbers_of_rows_are_integers(indices):
    with pytest.raises(ArgumentTypeError, match="a sequence of integers"):
        data.ArrayDataset(X).gather(indices)


def test_arrays_that_do_not_fit():
    with pytest.raises(DataError, match=r"lengths differ: \{'\[0\]': 10, '\[1\]': 9\}"):
        data.ArrayDataset(X, Y[:9])
    with pytest.raises(DataError, match=r"\['a'\]\[0\] is a scalar.*np.asarray"):
        data.ArrayDataset({"a": [1, 2]})
    with pytest.raises(ArgumentError, match="no arrays"):
        data.ArrayDataset()
    with pytest.raises(DTypeError):
        data.ArrayDataset(np.array(["a", "b"]))


# stacking


def test_stack_is_numpys_per_leaf():
    examples = [{"x": X[i], "y": i, "z": (float(i), i > 1)} for i in range(3)]
    expected = {"x": X[:3], "y": np.arange(3, dtype=np.int32), "z": (np.arange(3, dtype=np.float32), np.array([False, False, True]))}
    assert_same(data.stack(examples), expected)


@pytest.mark.wide
def test_stack_keeps_dtypes_and_takes_our_arrays():
    for dtype in ("bfloat16", "float16", "float64", "uint8", "complex64", "bool"):
        stacked = data.stack([vf.numpy.ones(2, dtype), vf.numpy.zeros(2, dtype)])
        assert_same(stacked, np.array([[1, 1], [0, 0]], vf.dtypes.as_dtype(dtype)))


@pytest.mark.parametrize(
    ("examples", "error", "message"),
    [
        ([], DataError, "no examples"),
        ([np.zeros(2), np.zeros(3)], DataError, r"example 1 has float64 of shape \(3,\), example 0 has float64 of shape \(2,\)"),
        ([(1, 1), (1, 1.5)], DataError, r"example 1 has float32 of shape \(\) at \[1\], example 0 has int32"),
        ([{"a": 1}, {"b": 1}], TreeError, "example 1"),
        ([{"a": "text"}], DTypeError, r"example 0 at \['a'\] is of type str"),
        ([(1, object())], DTypeError, "type object"),
    ],
)
def test_examples_that_cannot_be_stacked(examples, error, message):
    with pytest.raises(error, match=message):
        data.stack(examples)


# any object with a length and examples


def test_any_sequence_is_a_dataset():
    source = OneByOne([(X[i], i) for i in range(10)])
    assert_same(data.gather(source, [4, 2]), (X[[4, 2]], np.array([4, 2], np.int32)))
    assert source.calls == 2
    assert_same(data.Subset(source, [5, 6, 7]).gather([2]), (X[[7]], np.array([7], np.int32)))


def test_a_class_that_forgets_a_method_is_told():
    class Forgetful(data.Dataset):
        pass

    with pytest.raises(ArgumentTypeError, match="Forgetful does not define __len__"):
        len(Forgetful())
    with pytest.raises(ArgumentTypeError, match="Forgetful does not define __getitem__"):
        Forgetful()[0]


# map


def test_map_by_example_and_by_batch_agree():
    dataset = data.ArrayDataset(X, Y)
    calls = []

    def double(example):
        calls.append(np.shape(example[1]))
        return {"x": 2 * example[0], "y": example[1]}

    single, batched = dataset.map(double), dataset.map(double, batched=True)
    assert_same(single.gather([8, 1]), {"x": 2 * X[[8, 1]], "y": Y[[8, 1]]})
    assert calls == [(), ()]
    assert_same(batched.gather([8, 1]), single.gather([8, 1]))
    assert calls[2] == (2,)
    assert_same(batched[-2], single[-2])
    assert len(batched) == len(single) == 10


def test_maps_compose_and_wrap_any_dataset():
    words = data.Mapped(["a", "bb", "ccc"], len).map(lambda n: n + 1)
    assert list(words) == [2, 3, 4]
    assert_same(words.gather([2, 0]), np.array([4, 2], np.int32))


# subsets, joins, splits


@given(st.lists(st.integers(-10, 9)), st.data())
def test_subset_is_indexing(indices, draw):
    subset = data.Subset(data.ArrayDataset(X, Y), indices)
    assert len(subset) == len(indices)
    assert [int(y) for _, y in subset] == [Y[i] for i in indices]
    if indices:
        rows = draw.draw(st.lists(st.integers(0, len(indices) - 1)))
        assert_same(subset.gather(rows)[1], Y[np.array(indices)[np.array(rows, int)]])


def test_subset_checks_when_made():
    with pytest.raises(OutOfBoundsError, match="no example 10 among 10"):
        data.Subset(data.ArrayDataset(X), [3, 10])
    with pytest.raises(OutOfBoundsError, match="no example 2 among 2"):
        data.Subset(data.ArrayDataset(X), [3, 4])[2]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.data())
def test_concatenation_is_numpys(lengths, draw):
    ends = np.cumsum(lengths)
    values = np.arange(ends[-1], dtype=np.int64)
    subsets = [data.ArrayDataset({"v": subset}) for subset in np.split(values, ends[:-1])]
    joined = data.ConcatDataset(*subsets)
    assert len(joined) == len(values)
    assert [int(example["v"]) for example in joined] == values.tolist()
    rows = draw.draw(st.lists(st.integers(-len(values), len(values) - 1))) if len(values) else []
    assert_same(joined.gather(rows), {"v": values[np.array(rows, int)]})


def test_concatenation_gathers_once_from_each_dataset():
    subsets = [OneByOne(list(range(5))), OneByOne(list(range(5, 8)))]
    assert data.ConcatDataset(*subsets).gather([7, 0, 6, 1]).tolist() == [7, 0, 6, 1]
    assert [subset.calls for subset in subsets] == [2, 2]


def test_concatenation_of_what_is_not_alike():
    joined = data.ConcatDataset(data.ArrayDataset(X), data.ArrayDataset(X.astype(np.float64)))
    with pytest.raises(DataError, match=r"float32 of shape \(2,\) and float64 of shape \(2,\)"):
        joined.gather([0, 19])
    with pytest.raises(TreeError):
        data.ConcatDataset(data.ArrayDataset({"x": X}), data.ArrayDataset(X)).gather([0, 19])
    with pytest.raises(ArgumentError, match="no datasets"):
        data.ConcatDataset()


@given(st.integers(0, 50), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 2**31 - 1))
def test_random_split_divides(total, weights, seed):
    fractions = [weight / sum(weights) for weight in weights]
    subsets = data.random_split(seed, range(total), fractions)
    assert sorted(i for subset in subsets for i in subset) == list(range(total))
    for subset, fraction in zip(subsets, fractions, strict=True):
        assert abs(len(subset) - total * fraction) <= 1
    again = data.random_split(vf.random.key(seed), range(total), [len(subset) for subset in subsets])
    assert [list(subset) for subset in again] == [list(subset) for subset in subsets]


def test_random_split_depends_on_the_key():
    assert list(data.random_split(0, range(100), [50, 50])[0]) != list(data.random_split(1, range(100), [50, 50])[0])
    assert [len(subset) for subset in data.random_split(0, range(100), [0.29, 0.71])] == [29, 71]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([5, 4], "sum to 9, but there are 10"), ([0.5, 0.4], "sum to 0.9"), ([-1, 11], "not negative"), ([float("nan"), 0.5], "not negative")],
)
def test_lengths_that_do_not_divide(lengths, message):
    with pytest.raises(ArgumentError, match=message):
        data.random_split(0, range(10), lengths)


def test_the_repr_of_arrays_has_their_types() -> None:
    assert repr(data.ArrayDataset(np.ones((3, 2)))) == "ArrayDataset(3 examples of f64[2])"
    dataset = data.ArrayDataset({"x": np.ones((1000, 2), np.float32), "y": np.arange(1000, dtype=np.int32)})
    assert repr(dataset) == "ArrayDataset(1,000 examples of {'x': f32[2], 'y': i32[]})"
    assert repr(data.DataLoader(dataset, 10)).startswith("DataLoader(ArrayDataset(1,000 examples of {'x': f32[2]")
    assert repr(data.DataLoader([1, 2, 3], 2)) == "DataLoader(list of 3 examples, batch_size=2: 2 batches)"
