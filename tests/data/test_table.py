"""CSV files: dtypes of columns, missing values, errors with line and column."""

from __future__ import annotations

import csv
import gzip
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_files import data_dir
from volta_fn import data
from volta_fn.data.files import read_idx
from volta_fn.errors import ArgumentError, CorruptFileError, DataError, DTypeError


@pytest.fixture
def table(tmp_path):
    """Reads a table from its text."""

    def read(text, *args, **options):
        path = tmp_path / "table.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return data.CSV(path, *args, **options)

    return read


HOUSES = "price,rooms,city\n1.5,3,Rome\n\n-2e3,4,Oslo\ninf,-5,Rome\n"


@pytest.mark.parametrize("encode", [str.encode, lambda text: gzip.compress(text.encode()), lambda text: text.encode("utf-8-sig")])
def test_types_are_inferred(table, encode):
    houses = table(encode(HOUSES))
    assert {name: (a.dtype.name, a.tolist()) for name, a in houses.arrays.items()} == {
        "price": ("float32", [1.5, -2000, math.inf]),
        "rooms": ("int32", [3, 4, -5]),
        "city": ("int32", [1, 0, 1]),
    }
    assert houses.categories == {"city": ("Oslo", "Rome")}
    assert houses[1] == {"price": -2000, "rooms": 4, "city": 0}


def test_columns_are_chosen_and_typed(table):
    houses = table(HOUSES, {"city": ["Rome", "Oslo", "Bern"], "rooms": "float64"})
    assert list(houses.arrays) == ["city", "rooms"]
    assert houses.arrays["rooms"].dtype == np.float64
    assert houses.arrays["city"].tolist() == [0, 1, 0]
    assert table(HOUSES, {"rooms": "category"}).categories == {"rooms": ("-5", "3", "4")}


def test_headers_delimiters_and_quotes(table):
    assert table("1;2\n3;4\n", header=False, delimiter=";").arrays["1"].tolist() == [2, 4]
    assert table("1,2\n3,4\n", header=["a", "b"]).arrays["b"].tolist() == [2, 4]
    quoted = table('name,n\n"a, ""b""\nc",1\nd,2\n')
    assert quoted.categories["name"] == ('a, "b"\nc', "d")


FLOATS, INTS = st.floats(width=32, allow_nan=False), st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(FLOATS, INTS, TEXTS), min_size=1, max_size=5))
def test_reads_what_the_standard_library_wrote(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "written.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([("f", "i", "s"), *rows])
    read = data.CSV(path, {"f": float, "i": int, "s": "category"}, missing_values=())
    np.testing.assert_array_equal(read.arrays["f"], np.array([f for f, _, _ in rows], np.float32))
    assert read.arrays["i"].tolist() == [i for _, i, _ in rows]
    as_lines = [s.replace("\r\n", "\n").replace("\r", "\n") for _, _, s in rows]
    assert [read.categories["s"][code] for code in read.arrays["s"]] == as_lines


GAPS = "a,b,c\n1,,x\n,2,y\n3,NA,\n4,5,z\n"


def test_missing_values_are_dropped_or_filled(table):
    gaps = {"missing_values": ("", "NA")}
    assert table(GAPS, missing="drop", **gaps).arrays["a"].tolist() == [4]
    assert table(GAPS, {"a": int}, missing="drop", **gaps).arrays["a"].tolist() == [1, 3, 4]
    filled = table(GAPS, missing={"a": 0, "b": math.nan, "c": "?"}, **gaps)
    assert filled.arrays["a"].tolist() == [1, 0, 3, 4]
    assert filled.categories["c"] == ("?", "x", "y", "z")
    with pytest.raises(DataError, match=r"line 2, column 'b': the value is missing, and nan, .* is no int"):
        table(GAPS, {"b": int}, missing=math.nan, **gaps)
    np.testing.assert_array_equal(table(GAPS, {"b": float}, missing=math.nan, **gaps).arrays["b"], np.float32([np.nan, 2, np.nan, 5]))
    mixed = table(GAPS, {"a": float, "b": float}, missing={"a": "drop", "b": 7}, **gaps)
    assert (mixed.arrays["a"].tolist(), mixed.arrays["b"].tolist()) == ([1, 3, 4], [7, 7, 5])


@pytest.mark.parametrize(
    ("text", "arguments", "error", "message"),
    [
        ("", {}, DataError, "has no rows of data"),
        ("a,b\n", {}, DataError, "has no rows of data"),
        ("a,a\n1,2\n", {}, DataError, "two columns have the same name"),
        ("a,b\n1,2\n\n3\n", {}, CorruptFileError, r"line 4: 1 fields for 2 columns \(a, b\)"),
        ("a,b\n1,2,3\n", {}, CorruptFileError, "line 2: 3 fields for 2 columns"),
        ('a\n1\n"2', {}, CorruptFileError, "line 3: unexpected end of data"),
        ('a\n"1"2\n', {}, CorruptFileError, "line 2: "),
        (b"a\n\xff\n", {}, CorruptFileError, "at byte 2"),
        ("a\n1\nx\n", {"columns": {"a": float}}, DataError, "line 3, column 'a': 'x' is not a number"),
        ('b,a\n"\n",1\nz,1.5\n', {"columns": {"a": int}}, DataError, "line 4, column 'a': '1.5' is not an integer"),
        ("a\n1_000\n", {"columns": {"a": int}}, DataError, "'1_000' is not an integer"),
        ("a\n1_000\n", {"columns": {"a": float}}, DataError, "'1_000' is not a number"),
        ("a\n1e39\n", {}, DataError, "line 2, column 'a': 1e[+]39 does not fit float32"),
        ("a\n3000000000\n", {}, DataError, "3000000000 does not fit int32; .*'int64'"),
        ("a\n-1\n", {"columns": {"a": "uint8"}}, DataError, "-1 does not fit uint8"),
        ("a\nx\n", {"columns": {"a": ["y", "z"]}}, DataError, r"'x' is not one of \['y', 'z'\]"),
        ("a,b\n1,2\n3,\n", {}, DataError, "line 3, column 'b': the value is missing; missing={'b': 'drop'}"),
        ("a,b\n,2\n", {"missing": "drop"}, DataError, r"every row lacks a value of \['a', 'b'\]"),
        ("a\n1\n", {"columns": {"b": float}}, ArgumentError, r"columns names \['b'\], .* columns \['a'\]"),
        ("a\n1\n", {"missing": {"b": 0}}, ArgumentError, r"missing names \['b'\]"),
        ("a\n1\n", {"columns": {"a": bool}}, ArgumentError, "should be of bool"),
        ("a\n1\n", {"columns": {"a": "words"}}, DTypeError, "words"),
    ],
)
def test_what_is_wrong_is_named(table, text, arguments, error, message):
    with pytest.raises(error, match=message):
        table(text, **arguments)


def test_dropped_rows_keep_their_lines(table):
    with pytest.raises(DataError, match="line 3, column 'b': 'x' is not a number"):
        table("a,b\n,1\n2,x\n", {"a": float, "b": float}, missing={"a": "drop"})


@given(st.text('a1,"\n\r. -', max_size=30))
def test_any_text_gives_a_table_or_a_typed_error(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzzed.csv"
    path.write_text(text, newline="")
    try:
        assert len(data.CSV(path)) > 0
    except (CorruptFileError, DataError) as error:
        assert str(path) in str(error)


def test_california_housing():
    path = data_dir("tabular/california_housing.csv")
    houses = data.CSV(path, missing={"total_bedrooms": math.nan})
    numbers = np.genfromtxt(path, delimiter=",", skip_header=1, usecols=range(9), dtype=np.float32)
    assert numbers.shape == (20640, 9)
    for i, name in enumerate(list(houses.arrays)[:9]):
        np.testing.assert_array_equal(houses.arrays[name], numbers[:, i])
    words = [line.rpartition(",")[2] for line in path.read_text().splitlines()[1:]]
    places = houses.categories["ocean_proximity"]
    assert [places[code] for code in houses.arrays["ocean_proximity"]] == words
    assert len(data.CSV(path, missing="drop")) == np.isfinite(numbers).all(axis=1).sum() == 20640 - 207
    with pytest.raises(DataError, match="line 292, column 'total_bedrooms': the value is missing"):
        data.CSV(path)


@pytest.mark.parametrize("field", ["1e999", "-1e999", "9" * 5000])
def test_numbers_beyond_all_floats_are_refused(table, field):
    for kind in (float, "float64", None):
        with pytest.raises(DataError, match="line 3, column 'a': .* does not fit float"):
            table(f"a\n1.5\n{field}\n", None if kind is None else {"a": kind})


def test_infinity_by_its_name(table):
    result = table("a\ninf\n-Infinity\n", {"a": float}).arrays["a"]
    np.testing.assert_array_equal(result, np.array([np.inf, -np.inf], np.float32))


@pytest.mark.parametrize("read", [data.CSV, read_idx])
def test_a_file_that_expands_a_thousand_times_is_refused(tmp_path, read):
    path = tmp_path / "bomb.gz"
    header = b"\0\0\x08\1" + (1 << 26).to_bytes(4, "big") if read is read_idx else b"a\n"
    path.write_bytes(gzip.compress(header + b"0\n" * (1 << 25), 1))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFileError, match="expands to more than 64 times its size"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()
