"""Arrays as columns of pyarrow and polars, and back."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.core.arrays import array
from volta_fn.errors import DTypeError, ShapeError

pyarrow = pytest.importorskip("pyarrow")

DTYPES = ["bool", "int8", "uint16", "int32", "float16", "float32"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (0,), (4, 3), (2, 3, 4), (0, 3)])
def test_columns_have_the_arrays_elements(dtype: str, shape: tuple[int, ...]) -> None:
    x = (np.arange(np.prod(shape)).reshape(shape) % 3).astype(dtype)
    column = pyarrow.array(vf.numpy.asarray(x))
    assert column.to_pylist() == x.tolist()
    element = column.type
    for size in shape[1:]:
        assert element.list_size == size
        element = element.value_type
    assert element == pyarrow.from_numpy_dtype(x.dtype)
    if len(shape) == 1:
        np.testing.assert_array_equal(vf.numpy.asarray(column), x)


def test_elements_are_shared_and_outlive_the_array() -> None:
    x = vf.numpy.arange(1000.0)
    column = pyarrow.array(x)
    assert column.buffers()[1].address == np.asarray(x).ctypes.data
    del x
    vf.numpy.zeros(1000).block_until_ready()
    assert column[999].as_py() == 999.0


def test_a_type_is_cast_to() -> None:
    column = pyarrow.array(vf.numpy.arange(3), type=pyarrow.int64())
    assert (column.type, column.to_pylist()) == (pyarrow.int64(), [0, 1, 2])
    table = pyarrow.table({"x": vf.numpy.ones((2, 3)), "y": vf.numpy.arange(2)})
    assert table.num_rows == 2


def test_what_arrow_has_not() -> None:
    with pytest.raises(ShapeError, match="needs an axis"):
        pyarrow.array(vf.numpy.array(1.0))
    with pytest.raises(ShapeError, match="at least one element"):
        pyarrow.array(vf.numpy.ones((3, 0)))
    for dtype in ("bfloat16", "complex64"):
        with pytest.raises(DTypeError, match=f"no elements of {dtype}"):
            pyarrow.array(vf.numpy.ones(3, dtype))


def test_polars_makes_series() -> None:
    polars = pytest.importorskip("polars")
    x = vf.numpy.arange(6.0)
    assert polars.Series(x).to_list() == x.tolist()
    assert polars.Series("x", x.reshape(2, 3)).to_list() == [[0, 1, 2], [3, 4, 5]]
    assert polars.DataFrame({"x": x, "even": x % 2 == 0}).dtypes == [polars.Float32, polars.Boolean]
    np.testing.assert_array_equal(vf.numpy.asarray(polars.Series([1.5, 2.5])), [1.5, 2.5])


def test_without_pyarrow_there_is_no_such_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array, "is_installed", lambda name: False)
    assert not hasattr(vf.numpy.ones(3), "__arrow_c_array__")
