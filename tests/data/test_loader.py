"""The loader's batches: the right examples, order and device, reproducibly."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta_fn as vf
from volta_fn import data, random
from volta_fn.core.devices.device import Device
from volta_fn.errors import ArgumentError, ArgumentTypeError, DataError, DeviceError, DTypeError

WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])


def numbers(count: int) -> data.ArrayDataset:
    return data.ArrayDataset(np.arange(count, dtype=np.int32))


def test_a_stream_is_no_data_set() -> None:
    with pytest.raises(ArgumentTypeError, match=r"list_iterator has no length.*make a list of it"):
        data.DataLoader(iter([1, 2]), 2)


def contents(batches) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in batches]


def joined(batches) -> list[int]:
    return [number for batch in contents(batches) for number in batch]


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
@given(count=st.integers(1, 20), batch_size=st.integers(1, 8))
def test_batches_are_slices(workers, drop_last, count, batch_size):
    if drop_last and count < batch_size:
        with pytest.raises(DataError, match=f"{count} examples, batch_size={batch_size}, drop_last=True"):
            data.DataLoader(numbers(count), batch_size, drop_last=True)
        return
    loader = data.DataLoader(numbers(count), batch_size, workers=workers, drop_last=drop_last)
    stop = count - count % batch_size if drop_last else count
    expected = [list(range(i, min(i + batch_size, count))) for i in range(0, stop, batch_size)]
    assert contents(loader) == expected
    assert len(loader) == len(expected)


def test_a_batch_is_the_examples_pytree():
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    tree = {"x": x, "rest": (np.arange(6) > 2, x.astype(np.float16))}
    for batch in data.DataLoader(data.ArrayDataset(tree), 3, workers=1):
        assert vf.tree.structure(batch) == vf.tree.structure(tree)
        assert all(isinstance(leaf, vf.Array) for leaf in vf.tree.leaves(batch))
        assert [leaf.dtype for leaf in vf.tree.leaves(batch)] == [leaf.dtype for leaf in vf.tree.leaves(tree)]
    np.testing.assert_array_equal(batch["x"], x[3:])
    plain = next(iter(data.DataLoader([(1, 0.5), (2, 1.5)], 2)))
    assert [(leaf.dtype, leaf.tolist()) for leaf in plain] == [(np.int32, [1, 2]), (np.float32, [0.5, 1.5])]


@pytest.mark.wide
def test_array_datasets_are_not_asked_for_single_examples():
    class NoSingles(data.ArrayDataset):
        def __getitem__(self, index):
            raise AssertionError("one at a time")

    assert contents(data.DataLoader(NoSingles(np.arange(4)), 2)) == [[0, 1], [2, 3]]
    nested = data.Subset(data.ConcatDataset(NoSingles(np.arange(4)), NoSingles(np.arange(4))), [7, 0, 3])
    assert contents(data.DataLoader(nested.map(lambda x: -x, batched=True), 3)) == [[-3, 0, -3]]


def test_collate_gets_examples():
    words = ["a", "bcd", "ef"]
    padded = lambda examples: np.array([[ord(c) for c in word.ljust(3)] for word in examples], np.uint8)
    batches = contents(data.DataLoader(words, 2, collate=padded, workers=1))
    assert batches == [[[97, 32, 32], [98, 99, 100]], [[101, 102, 32]]]
    with pytest.raises(DTypeError, match="is of type str"):
        list(data.DataLoader(words, 2))


# order


@WORKERS
def test_orders_depend_on_seed_and_epoch_only(workers):
    make = lambda key, **options: data.DataLoader(numbers(23), 5, shuffle=True, key=key, **options)
    reference = [contents(make(3).epoch(e)) for e in range(3)]
    loader = make(vf.random.key(3), workers=workers)
    assert [contents(loader) for _ in range(3)] == reference
    assert contents(loader.epoch(1)) == reference[1]
    flat = [joined(batches) for batches in reference]
    assert all(sorted(order) == list(range(23)) for order in flat)
    assert len({tuple(order) for order in [*flat, joined(make(4))]}) == 4
    assert [len(batch) for batch in reference[0]] == [5, 5, 5, 5, 3]


def test_the_batch_size_does_not_change_the_order():
    orders = [joined(data.DataLoader(numbers(12), size, shuffle=True, key=0)) for size in (1, 5, 12)]
    assert orders[0] == orders[1] == orders[2]


@WORKERS
def test_augmentation_has_a_key_for_each_batch(workers):
    noise = lambda key, x: (x, vf.random.bits(key, (len(x),)))
    loader = data.DataLoader(numbers(12), 3, key=5, augment=noise, workers=workers)
    epochs = [[np.asarray(bits).tolist() for _, bits in loader] for _ in range(2)]
    single = data.DataLoader(numbers(12), 3, key=5, augment=noise)
    assert epochs == [[np.asarray(bits).tolist() for _, bits in single.epoch(e)] for e in range(2)]
    assert len({bits for batches in epochs for batch in batches for bits in batch}) == 24


# position


@given(count=st.integers(1, 15), batch_size=st.integers(1, 5), epoch=st.integers(0, 2), data_=st.data(), workers=st.sampled_from([0, 2]))
def test_restored_loaders_have_exactly_the_rest(count, batch_size, epoch, data_, workers):
    make = lambda workers: data.DataLoader(numbers(count), batch_size, shuffle=True, key=9, workers=workers)
    loader = make(workers)
    stop = data_.draw(st.integers(0, len(loader)))
    for _ in range(epoch):
        list(loader)
    rest = contents(make(0).epoch(epoch, start=stop))
    state = loader.state()
    for taken, _ in enumerate(loader, 1):
        if taken == stop:
            state = loader.state()
            break
    state = json.loads(json.dumps(state)) if stop else state
    assert (state["epoch"], state["batch"]) == (epoch, stop)
    other = make(2 - workers)
    other.restore(state)
    assert other.state() == state
    assert contents(other) == rest
    assert (other.state()["epoch"], other.state()["batch"]) == (epoch + 1, 0)
    assert contents(other) == contents(make(0).epoch(epoch + 1))


def test_states_survive_as_arrays():
    loader = data.DataLoader(numbers(8), 3)
    next(iter(loader))
    state = vf.tree.map(vf.numpy.asarray, loader.state())
    other = data.DataLoader(numbers(8), 3)
    other.restore(state)
    assert contents(other) == [[3, 4, 5], [6, 7]]


def test_an_iteration_that_was_left_is_not_taken_up():
    loader = data.DataLoader(numbers(6), 2, shuffle=True, key=0)
    assert contents([next(iter(loader))]) == contents(loader.epoch(0))[:1]
    assert contents(loader) == contents(loader.epoch(1))
    iter(loader)  # asked for nothing, so the epoch is still to come
    assert contents(loader) == contents(loader.epoch(2))


@pytest.mark.parametrize(
    ("options", "name"),
    [({"batch_size": 3}, "batch_size"), ({"count": 9}, "length"), ({"key": 1}, "seed"), ({"shuffle": False}, "shuffle")],
)
def test_states_of_other_loaders_are_refused(options, name):
    settings = {"count": 8, "batch_size": 2, "shuffle": True, "key": 0}
    make = lambda count, batch_size, **rest: data.DataLoader(numbers(count), batch_size, **rest)
    state = make(**settings).state()
    with pytest.raises(ArgumentError, match=f"another loader.*{name}"):
        make(**(settings | options)).restore(state)


def test_positions_that_do_not_exist_are_refused():
    loader = data.DataLoader(numbers(8), 3)
    for wrong in ({"batch": 4}, {"batch": -1}, {"epoch": -1}):
        with pytest.raises(ArgumentError, match="an epoch has 3 batches"):
            loader.restore(loader.state() | wrong)
    with pytest.raises(ArgumentError, match="a state has epoch, batch"):
        loader.restore({"epoch": 0, "batch": 0})
    with pytest.raises(ArgumentError, match="no batch 4 of epoch 0"):
        loader.epoch(0, start=4)


# device


@WORKERS
def test_arrays_are_on_the_device_of_the_consumer(workers):
    elsewhere = Device("cpu", 7, "another", vf.devices("cpu")[0].backend)
    with vf.default_device(elsewhere):
        assert {batch.device for batch in data.DataLoader(numbers(5), 2, workers=workers)} == {elsewhere}
    assert {batch.device for batch in data.DataLoader(numbers(5), 2, workers=workers, device=elsewhere)} == {elsewhere}
    assert {str(batch.device) for batch in data.DataLoader(numbers(5), 2, workers=workers, device="cpu")} == {"cpu:0"}


def test_an_unknown_device_is_refused_at_once():
    with pytest.raises(DeviceError, match="tpu"):
        data.DataLoader(numbers(5), 2, device="tpu")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ArgumentError, "batch_size is an integer, at least 1, got 0"),
        ({"batch_size": 2.5}, ArgumentError, "batch_size is an integer, at least 1, got 2.5"),
        ({"workers": -1}, ArgumentError, "workers is an integer, at least 0"),
        ({"prefetch": 0}, ArgumentError, "prefetch is an integer, at least 1"),
        ({"shuffle": True}, ArgumentError, "give a key"),
        ({"augment": lambda key, x: x}, ArgumentError, "give a key"),
        ({"dataset": []}, DataError, "0 examples"),
        ({"dataset": data.ArrayDataset(np.zeros((0, 3)))}, DataError, "0 examples"),
    ],
)
def test_arguments_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        data.DataLoader(**({"dataset": numbers(5), "batch_size": 2} | options))


def test_training_is_the_same_with_and_without_workers():
    x = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
    dataset = data.ArrayDataset(x, x @ np.float32([1, -2, 0.5]))
    step = vf.jit(lambda w, x, y: w - 0.1 * vf.grad(lambda w: vf.numpy.mean((x @ w - y) ** 2))(w))
    results = []
    for workers in (0, 2):
        w = vf.numpy.zeros(3)
        loader = data.DataLoader(dataset, 16, shuffle=True, key=2, workers=workers)
        for _ in range(3):
            for batch in loader:
                w = step(w, *batch)
        results.append(np.asarray(w).tobytes())
    assert results[0] == results[1]


@WORKERS
def test_plain_iteration_begins_with_the_first_epoch_asked_for(workers):
    make = lambda **options: data.DataLoader(numbers(11), 4, shuffle=True, key=3, **options)
    uninterrupted = make()
    epochs = [contents(uninterrupted) for _ in range(4)]
    resumed = make(first_epoch=2, workers=workers)
    assert [contents(resumed), contents(resumed)] == epochs[2:]
    assert make(first_epoch=2).state() == {**make().state(), "epoch": 2}
    with pytest.raises(ArgumentError, match="first_epoch"):
        make(first_epoch=-1)


@pytest.mark.wide
def test_the_repr_has_the_types_of_a_batch():
    loader = data.DataLoader(data.ArrayDataset({"x": np.ones((5, 3)), "y": np.ones(5, np.int32)}), 2)
    assert "of" not in repr(loader).split("batches")[-1]
    list(loader)
    assert repr(loader).endswith("3 batches of {'x': f64[2,3], 'y': i32[2]})")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_of_batches_join_to_the_batches(count: int) -> None:
    dataset = data.ArrayDataset(np.arange(20, dtype=np.int32))
    options: dict[str, Any] = {"shuffle": True, "key": 3}
    whole = [np.asarray(batch) for batch in data.DataLoader(dataset, 8, **options)]
    parts = [[np.asarray(batch) for batch in data.DataLoader(dataset, 8, shard=(i, count), **options)] for i in range(count)]
    for batch, *batch_parts in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(np.concatenate(batch_parts), batch)
        assert len({len(part) for part in batch_parts}) == 1


def test_parts_have_random_transforms_of_their_own_and_one_position() -> None:
    dataset = data.ArrayDataset(np.zeros(8, np.float32))
    noise = lambda key, batch: batch + random.normal(key, batch.shape)
    first, second = [data.DataLoader(dataset, 4, augment=noise, key=0, shard=(i, 2)) for i in range(2)]
    a, b = next(iter(first)), next(iter(second))
    assert not np.array_equal(a, b)
    second.restore(first.state())
    data.DataLoader(dataset, 4, augment=noise, key=0).restore(first.state())


def test_parts_must_be_equal() -> None:
    dataset = data.ArrayDataset(np.arange(10))
    with pytest.raises(ArgumentError, match=r"batches of \[4, 2\] examples do not divide into 4 equal shards"):
        data.DataLoader(dataset, 4, shard=(0, 4))
    assert len(data.DataLoader(dataset, 4, shard=(0, 4), drop_last=True)) == 2
    with pytest.raises(ArgumentError, match="0 <= index < count"):
        data.DataLoader(dataset, 4, shard=(2, 2))
