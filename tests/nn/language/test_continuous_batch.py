"""Texts that are generated together beside each of them alone, and the pages that they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.language.test_generation import MODEL, SLIDING
from volta_fn import nn
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.language import continuous_batch
from volta_fn.nn.language.layers import Placement
from volta_fn.nn.layers.multi_head_attention import KeysValues


def drain(batch: nn.ContinuousBatch) -> dict[int, list[int]]:
    texts: dict[int, list[int]] = {}
    for new in batch:
        texts.setdefault(new.text, []).append(new.token)
    return texts


@pytest.mark.parametrize("model", [MODEL, SLIDING], ids=["full", "sliding"])
def test_texts_are_those_of_each_alone(model: nn.CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come and go at different times, in rows and pages that others had before."""
    monkeypatch.setattr(continuous_batch, "CHUNK", 4)
    prompts = [np.random.default_rng(i).integers(0, 40, n).tolist() for i, n in enumerate((5, 1, 9, 3, 2, 6))]
    counts = [4, 9, 2, 7, 1, 5]
    batch = nn.ContinuousBatch(model, pages=16, page_size=3, rows=3)
    tokens: dict[int, list[int]] = {}
    waiting = list(range(6))
    while waiting or len(batch):
        while waiting and batch.has_room(prompts[waiting[0]], counts[waiting[0]]):
            number = waiting.pop(0)
            assert batch.add(prompts[number], counts[number]) == number
        for new in batch.step():
            tokens.setdefault(new.text, []).append(new.token)
            assert new.is_last == (len(tokens[new.text]) == counts[new.text])
    assert batch.free_pages == 16
    for number in range(6):
        assert tokens[number] == nn.generate(model, prompts[number], counts[number]).tolist()


def test_stop_tokens_and_samplers() -> None:
    expected = nn.generate(MODEL, [3, 1], 9).tolist()
    batch = nn.ContinuousBatch(MODEL, pages=8, rows=2, stop_tokens=[expected[3]])
    batch.add([3, 1], 9)
    assert drain(batch)[0] == expected[: expected.index(expected[3]) + 1]
    assert batch.free_pages == 8

    def run(seed: int) -> Any:
        batch = nn.ContinuousBatch(MODEL, pages=8, rows=2, sampler=nn.Sampler(temperature=3.0), key=vf.random.key(seed))
        batch.add([3, 1], 9)
        return drain(batch)

    assert run(0) == run(0)
    assert run(0) != run(1)


def test_room() -> None:
    batch = nn.ContinuousBatch(MODEL, pages=4, page_size=2, rows=2)
    assert batch.has_room([1, 2], 6)
    assert not batch.has_room([1, 2], 7)
    batch.add([1, 2], 4)
    assert batch.free_pages == 3  # one of which it takes later, as it does another
    assert not batch.has_room([1], 3)
    assert batch.has_room([1], 1)
    with pytest.raises(ArgumentError, match="no room for 1 \\+ 3 tokens: 1 of 2 rows"):
        batch.add([1], 3)
    batch.add([1], 1)
    assert len(batch) == 1
    assert {text: len(tokens) for text, tokens in drain(batch).items()} == {0: 4, 1: 1}


def test_pages_hold_what_their_tables_say() -> None:
    """Padding, rows without pages and tokens beyond a row's pages write nothing."""
    rng = np.random.default_rng(0)
    cache = nn.PagedCache.empty(5, 2, 2, 3, "float32")
    table = np.array([[4, 1, -1], [0, -1, -1], [-1, -1, -1]], np.int32)
    new = KeysValues(*[vnp.asarray(rng.standard_normal((3, 2, 4, 3)), "float32") for _ in range(2)])
    placement = Placement(vnp.array([1, 0, 0]), vnp.array([2, 4, 4]), vnp.asarray(table))
    cache, read, slots = vf.jit(lambda cache, new, placement: cache.update(new, placement))(cache, new, placement)
    for array, rows, values in zip(cache, new, read, strict=True):
        expected = np.zeros((5, 2, 2, 3), np.float32)
        expected[4, :, 1], expected[1, :, 0] = rows[0, :, 0], rows[0, :, 1]
        expected[0, :, 0], expected[0, :, 1] = rows[1, :, 0], rows[1, :, 1]
        np.testing.assert_array_equal(np.asarray(array), expected)
        np.testing.assert_array_equal(np.asarray(values)[0, :, 1:3], np.asarray(rows)[0, :, :2])
    assert slots.tolist() == list(range(6))


def test_no_row_reads_values_of_another() -> None:
    """They may be NaN: in a page that no table has, in that of a row beside it, and in what a row before left in a page."""
    rng = np.random.default_rng(0)
    cache = nn.PagedCache(*[vnp.full((4, 1, 2, 3), vnp.nan, "float32") for _ in range(2)])
    arrays = rng.standard_normal((2, 3, 1, 1, 3)).astype(np.float32)
    arrays[:, 1] = np.nan
    placement = Placement(vnp.array([0, 0, 0]), vnp.array([1, 1, 0]), vnp.array([[2, 3], [0, -1], [-1, -1]]))
    new = KeysValues(*map(vnp.asarray, arrays))
    _, read, slots = vf.jit(lambda cache, new, placement: cache.update(new, placement))(cache, new, placement)
    seen = (slots == 0)[None, None, None, :]
    out = nn.attention.attend(vnp.ones((3, 1, 1, 3)), *read, masks=[seen])
    np.testing.assert_array_equal(np.asarray(out)[0], arrays[1, 0])
    assert np.isnan(np.asarray(out)[1]).all()
    np.testing.assert_array_equal(np.asarray(read.values)[2], 0)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="positive"):
        nn.ContinuousBatch(MODEL, pages=0)
    with pytest.raises(ArgumentError, match="page_size"):
        nn.ContinuousBatch(MODEL, pages=1, page_size=-1)
    batch = nn.ContinuousBatch(MODEL, pages=4)
    with pytest.raises(ArgumentError, match="one prompt"):
        batch.add([[1], [2]], 1)
    with pytest.raises(ArgumentError, match="positive max_new_tokens"):
        batch.add([1], 0)
    with pytest.raises(ShapeError, match="at least one token"):
        batch.add([], 1)
