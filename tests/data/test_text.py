"""Characters to numbers and back, windows of text, and text files."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_files import data_dir
from volta_fn import data
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, DataError, OutOfBoundsError

ANY_TEXT = st.text(st.characters(), min_size=1)  # lone surrogates and all


@given(ANY_TEXT)
def test_decode_undoes_encode(text):
    vocabulary = data.Vocabulary.of(text)
    numbers = vocabulary.encode(text)
    assert numbers.dtype == np.int32
    assert [vocabulary.symbols[i] for i in numbers] == list(text)
    assert vocabulary.decode(numbers) == text
    assert vocabulary.encode("").shape == (0,)
    assert vocabulary.decode([]) == ""


@given(st.permutations("abcdefg"), st.text("abcdefg"))
def test_symbols_keep_their_order(symbols, text):
    assert data.Vocabulary(symbols).encode(text).tolist() == [symbols.index(c) for c in text]


def test_what_is_not_in_the_vocabulary():
    letters = data.Vocabulary("ab")
    for text, message in (("abxa", "'x' at position 2"), ("\U0001f600", "at position 0"), ("a\0", "at position 1")):
        with pytest.raises(DataError, match=message):
            letters.encode(text)
    for number in (2, -1):
        with pytest.raises(OutOfBoundsError):
            letters.decode([0, number])
    with pytest.raises(ArgumentTypeError, match="integers"):
        letters.decode([0.0])


@pytest.mark.parametrize("symbols", ["", "aa", ["ab"], ["a", ""]])
def test_symbols_are_different_single_characters(symbols):
    with pytest.raises(ArgumentError, match="different single characters"):
        data.Vocabulary(symbols)


def test_vocabularies_are_values():
    assert data.Vocabulary("ab") == data.Vocabulary(["a", "b"]) != data.Vocabulary("ba")
    assert len({data.Vocabulary("ab"), data.Vocabulary("ab")}) == 1


@given(st.text("abc", min_size=2, max_size=30), st.integers(1, 10), st.integers(1, 12))
def test_windows_are_slices(text, length, stride):
    if len(text) <= length:
        with pytest.raises(DataError, match=f"need {length + 1}, got {len(text)}"):
            data.CharDataset(text, length, stride=stride)
        return
    windows = data.CharDataset(text, length, stride=stride)
    starts = range(0, len(text) - length, stride)
    expected = [(text[i : i + length], text[i + 1 : i + length + 1]) for i in starts]
    decode = windows.vocabulary.decode
    assert [(decode(x), decode(y)) for x, y in windows] == expected
    inputs, targets = windows.gather(np.arange(len(expected))[::-1])
    assert inputs.shape == targets.shape == (len(expected), length)
    assert [(decode(x), decode(y)) for x, y in zip(inputs, targets, strict=True)] == expected[::-1]


def test_numbers_and_shared_vocabularies():
    letters = data.Vocabulary("cab")
    assert data.CharDataset("abc", 2, vocabulary=letters)[0][0].tolist() == [1, 2]
    windows = data.CharDataset(np.array([5, 6, 7], np.int64), 2)
    assert (windows.vocabulary, windows[0][1].tolist(), windows[0][1].dtype) == (None, [6, 7], np.int32)
    with pytest.raises(DataError, match="'d' at position 1"):
        data.CharDataset("ad", 1, vocabulary=letters)
    with pytest.raises(DataError, match="got 0"):
        data.CharDataset("", 1)
    with pytest.raises(ArgumentError, match="a row of integers"):
        data.CharDataset(np.zeros(5), 2)
    with pytest.raises(ArgumentError, match="at least 1"):
        data.CharDataset("abc", 0)


def test_read_text(tmp_path):
    path = tmp_path / "text"
    for content in ("ä\r\nb\rc\n".encode("utf-8-sig"), gzip.compress("ä\nb\nc\n".encode())):
        path.write_bytes(content)
        assert data.read_text(path) == "ä\nb\nc\n"
    path.write_bytes("ab\xe4".encode("latin-1"))
    assert data.read_text(path, "latin-1") == "abä"
    with pytest.raises(CorruptFileError, match="not utf-8-sig text: .* at byte 2"):
        data.read_text(path)


def test_shakespeare():
    path = data_dir("text/tinyshakespeare.txt")
    text = data.read_text(path)
    windows = data.CharDataset(text, 64)
    assert (len(windows), len(windows.vocabulary)) == (1_115_394 - 64, 65)
    inputs, targets = windows.gather([0, 1_000_000])
    raw = path.read_bytes()
    assert windows.vocabulary.decode(inputs).encode() == raw[:64] + raw[1_000_000:1_000_064]
    assert windows.vocabulary.decode(targets).encode() == raw[1:65] + raw[1_000_001:1_000_065]
