"""Tables from CSV files: columns are arrays, and missing values are never guessed."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.data.dataset import ArrayDataset
from volta_fn.data.files import Path, read_text
from volta_fn.errors import ArgumentError, CorruptFileError, DataError


class CSV(ArrayDataset):
    r"""A table from a CSV file, plain or gzipped.

    Examples are dicts from column names to numbers.

    `arrays` has the columns. `categories` has, for each column of categories, the names of its numbers (int32).
    Empty lines are skipped; ends of lines within quotes are read as ``\n``.

    Args:
        path: the file.
        columns: names to types, for the columns that are wanted: `float`, `int` or any dtype of theirs, "category" for names that
            are numbered in sorted order, or the sequence of the names. By default all columns, each of ints if all its values
            are, else of floats if all are, else of categories.
        missing: how to treat missing values: "error", "drop" (the row), or a value to use, such as `math.nan`; or a mapping
            from column names to one of those, with "error" for the rest.
        missing_values: the fields that mean a missing value.
        header: whether the first line has the names; or the names, if it has none.
        delimiter: the character between fields.
        encoding: of the file; the default is UTF-8, with or without a byte order mark.

    Raises:
        CorruptFileError: too many or too few fields in a line, broken quotes, bytes that are not of the encoding.
        DataError: a field that is not of its column's type, a missing value, no rows at all; the message names line and column.

    >>> import tempfile, volta_fn as vf
    >>> with tempfile.NamedTemporaryFile("w+", suffix=".csv") as file:
    ...     _ = file.write("price,rooms,city\n1.5,3,Rome\n,2,Oslo\n")
    ...     file.flush()
    ...     table = vf.data.CSV(file.name, missing={"price": 0.0})
    >>> table[1], table.categories
    ({'price': np.float32(0.0), 'rooms': np.int32(2), 'city': np.int32(0)}, {'city': ('Oslo', 'Rome')})
    """

    categories: dict[str, tuple[str, ...]]

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, Any] | None = None,
        *,
        missing: Any = "error",
        missing_values: Collection[str] = ("",),
        header: bool | Sequence[str] = True,
        delimiter: str = ",",
        encoding: str = "utf-8-sig",
    ) -> None:
        table = _read(path, header, delimiter, encoding, frozenset(missing_values))
        kinds: Mapping[str, Any] = dict.fromkeys(table) if columns is None else columns
        fills = dict(missing) if isinstance(missing, Mapping) else dict.fromkeys(kinds, missing)
        _check_names(path, "columns", kinds, table)
        _check_names(path, "missing", fills, kinds)
        chosen = _drop_rows([table[name] for name in kinds], {name for name in kinds if fills.get(name) == "drop"})
        self.categories = {}
        arrays = {column.name: self._array(column, kinds[column.name], fills.get(column.name, "error")) for column in chosen}
        super().__init__(arrays)

    def _array(self, column: _Column, kind: Any, fill: Any) -> np.ndarray:
        """Convert a column to numbers, and record the names of its categories."""
        kind = _inferred(column, fill) if kind is None else kind
        if not isinstance(kind, (list, tuple)) and kind != "category":
            return _numbers(column, dtypes.as_dtype(kind), fill)
        names = column.filled(fill, str)
        self.categories[column.name] = tuple(sorted(set(names)) if kind == "category" else kind)
        codes = {name: code for code, name in enumerate(self.categories[column.name])}
        return np.array([column.parse(codes.__getitem__, i, name, f"one of {kind}") for i, name in enumerate(names)], np.int32)


@dataclass(frozen=True)
class _Column:
    """A column's fields, with None for missing values, and their line numbers."""

    path: str
    name: str
    fields: list[str | None]
    line_numbers: list[int]

    def error(self, row: int, message: str) -> DataError:
        return DataError(f"{self.path}, line {self.line_numbers[row]}, column {self.name!r}: {message}")

    def filled(self, fill: Any, kind: type) -> list[Any]:
        """Return the fields, with `fill`, which must be of that kind, for missing ones."""
        if None not in self.fields:
            return self.fields
        row = self.fields.index(None)
        if isinstance(fill, str) and fill == "error":
            raise self.error(row, f"the value is missing; missing={{{self.name!r}: 'drop'}} drops such rows, any other value replaces it")
        if not isinstance(fill, kind):
            raise self.error(row, f"the value is missing, and {fill!r}, which should replace it, is no {kind.__name__}")
        return [fill if field is None else field for field in self.fields]

    def parse(self, parser: Callable[[Any], Any], row: int, field: Any, expected: str) -> Any:
        """Return `parser(field)`; its error becomes a `DataError` with the position."""
        try:
            return parser(field)
        except (ValueError, KeyError):
            raise self.error(row, f"{field!r} is not {expected}") from None


def _read(path: Path, header: bool | Sequence[str], delimiter: str, encoding: str, missing_values: frozenset[str]) -> dict[str, _Column]:
    line_numbers, rows = _read_rows(path, delimiter, encoding)
    if header is True and rows:
        names, line_numbers, rows = rows[0], line_numbers[1:], rows[1:]
    elif isinstance(header, bool):
        names = [str(i) for i in range(len(rows[0]))] if rows else []
    else:
        names = list(header)
    if not rows:
        raise DataError(f"{os.fspath(path)} has no rows of data")
    if len(set(names)) < len(names):
        raise DataError(f"{os.fspath(path)}: two columns have the same name: {names}")
    for line_no, row in zip(line_numbers, rows, strict=True):
        if len(row) != len(names):
            raise CorruptFileError(f"{os.fspath(path)}, line {line_no}: {len(row)} fields for {len(names)} columns ({', '.join(names)})")
    present = [[None if field in missing_values else field for field in fields] for fields in zip(*rows, strict=True)]
    return {name: _Column(os.fspath(path), name, fields, line_numbers) for name, fields in zip(names, present, strict=True)}


def _read_rows(path: Path, delimiter: str, encoding: str) -> tuple[list[int], list[list[str]]]:
    """Return the line numbers and fields of the rows that are not empty."""
    reader = csv.reader(io.StringIO(read_text(path, encoding)), delimiter=delimiter, strict=True)
    line_numbers, rows, line_no = [], [], 1
    try:
        for row in reader:
            if row:
                line_numbers.append(line_no)
                rows.append(row)
            line_no = reader.line_num + 1
    except csv.Error as error:
        raise CorruptFileError(f"{os.fspath(path)}, line {line_no}: {error}") from error
    return line_numbers, rows


def _check_names(path: Path, argument: str, given: Collection[str], known: Collection[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ArgumentError(f"CSV: {argument} names {unknown}, but {os.fspath(path)} is read for the columns {list(known)}")


def _drop_rows(columns: list[_Column], needed: set[str]) -> list[_Column]:
    """Drop the rows in which one of the `needed` columns has no value."""
    lacking = {row for column in columns if column.name in needed for row, field in enumerate(column.fields) if field is None}
    if not lacking:
        return columns
    keep = [row for row in range(len(columns[0].fields)) if row not in lacking]
    if not keep:
        raise DataError(f"{columns[0].path}: every row lacks a value of {sorted(needed)}, so none is left")
    return [_Column(c.path, c.name, [c.fields[row] for row in keep], [c.line_numbers[row] for row in keep]) for c in columns]


def _inferred(column: _Column, fill: Any) -> Any:
    """Return the narrowest of int, float and category for the fields and the `fill`."""
    fields = [str(fill) if field is None else field for field in column.fields if field is not None or fill not in ("error", "drop")]
    for kind, parser in ((int, _integer), (float, _real)):
        try:
            for field in fields:
                parser(field)
        except ValueError:
            continue
        return kind
    return "category"


def _numbers(column: _Column, dtype: np.dtype, fill: Any) -> np.ndarray:
    if dtype in dtypes.FLOATS:
        return _reals(column, dtype, fill)
    if dtype not in dtypes.INTEGERS:
        raise ArgumentError(f"CSV: a column is of floats, ints or categories, but {column.name!r} should be of {dtype}")
    limits = np.iinfo(dtype)
    values = [column.parse(_integer, i, field, "an integer") for i, field in enumerate(column.filled(fill, int))]
    for row, value in enumerate(values):
        if not limits.min <= value <= limits.max:
            raise column.error(row, f"{value} does not fit {dtype}; columns={{{column.name!r}: 'int64'}} has 64 bits")
    return np.array(values, dtype)


def _reals(column: _Column, dtype: np.dtype, fill: Any) -> np.ndarray:
    fill = float(fill) if isinstance(fill, int) else fill
    values = [column.parse(_real, i, field, "a number") for i, field in enumerate(column.filled(fill, float))]
    fields = column.filled(fill, float)
    wide = np.array(values, np.float64)
    for row in np.flatnonzero(np.isinf(wide)).tolist():
        if isinstance(fields[row], str) and "n" not in fields[row].lower():  # digits, and not the word "inf" or "infinity"
            raise column.error(row, f"{fields[row]:.40} does not fit {dtype}")
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    overflown = np.flatnonzero(np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64)))
    if overflown.size:
        raise column.error(int(overflown[0]), f"{values[overflown[0]]} does not fit {dtype}")
    return narrow


def _real(field: str | float) -> float:
    """Convert like Python's `float`, without underscores between digits."""
    if isinstance(field, str) and "_" in field:
        raise ValueError
    return float(field)


def _integer(field: str | int) -> int:
    """Convert like Python's `int`, without underscores between digits."""
    if isinstance(field, str) and "_" in field:
        raise ValueError
    return int(field)
