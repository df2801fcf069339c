from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentTypeError
from volta_fn.experimental import sparse

draw = np.random.default_rng(5)


def thin(*shape: int) -> np.ndarray:
    """Return an array of which about a third is not zero."""
    return (draw.integers(-4, 5, shape) * (draw.random(shape) < 0.35)).astype("float32")


CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 1, 10), (1, 1, 5), {"window_strides": (1,), "padding": "SAME"}),
    ((1, 1, 5), (1, 1, 10), {"window_strides": (1,), "padding": [(3, 3)]}),
    ((1, 1, 5), (1, 1, 10), {"window_strides": (1,), "padding": "VALID"}),
    ((2, 3, 9), (4, 3, 3), {"window_strides": (2,), "padding": "SAME"}),
    ((2, 3, 6, 5), (4, 3, 3, 2), {"window_strides": (1, 2), "padding": [(1, 2), (0, 1)], "rhs_dilation": (2, 1)}),
    ((2, 3, 4), (2, 3, 3), {"window_strides": (1,), "padding": [(2, 1)], "lhs_dilation": (3,)}),
    ((2, 4, 7), (6, 2, 3), {"window_strides": (1,), "padding": "VALID", "feature_group_count": 2}),
    ((4, 3, 7), (6, 3, 3), {"window_strides": (1,), "padding": "VALID", "batch_group_count": 2}),
    ((2, 7, 3), (3, 3, 4), {"window_strides": (1,), "padding": "SAME", "dimension_numbers": ("NHC", "HIO", "NHC")}),
    ((2, 3, 6), (4, 3, 2), {"window_strides": (1,), "padding": [(-1, -2)]}),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("which", ["both", "left", "right"])
def test_convolutions_are_those_of_dense_arrays(case: Any, which: str) -> None:
    lhs, rhs, options = thin(*case[0]), thin(*case[1]), case[2]
    expected = vf.lax.conv_general_dilated(lhs, rhs, **options)
    x: Any = lhs if which == "right" else sparse.BCOO.fromdense(lhs, nse=int((lhs != 0).sum()) + 2)
    y: Any = rhs if which == "left" else sparse.BCOO.fromdense(rhs)
    sparsified = sparse.sparsify(lambda x, y: vf.lax.conv_general_dilated(x, y, **options))
    for result in (sparse.bcoo_conv_general_dilated(x, y, **options), sparsified(x, y)):
        assert isinstance(result, sparse.BCOO)
        np.testing.assert_array_equal(result.todense(), expected)


def test_the_first_dimensions_of_size_one_are_batch_dimensions() -> None:
    m = sparse.BCOO.fromdense(thin(1, 1, 6), n_batch=2, nse=4)
    result = sparse.bcoo_conv_general_dilated(m, thin(1, 1, 3), window_strides=(1,), padding="VALID")
    assert (result.shape, result.n_batch) == ((1, 1, 4), 2)


def test_gradients_of_convolutions_and_dense_operands() -> None:
    lhs, rhs = thin(1, 2, 6), thin(3, 2, 3)
    m = sparse.BCOO.fromdense(lhs)

    def total(data: Any, window: Any) -> Any:
        out = sparse.bcoo_conv_general_dilated(m.replace_data(data), window, window_strides=(1,), padding="SAME")
        return (out.todense() ** 2).sum()

    by_data, by_window = vf.jit(vf.grad(total, (0, 1)))(m.data, vnp.asarray(rhs))
    dense = vf.grad(lambda x, y: (vf.lax.conv_general_dilated(x, y, (1,), "SAME") ** 2).sum(), (0, 1))(lhs, rhs)
    np.testing.assert_allclose(by_data, dense[0][lhs != 0], rtol=1e-5)
    np.testing.assert_allclose(by_window, dense[1], rtol=1e-5)
    with pytest.raises(ArgumentTypeError, match="two dense"):
        sparse.bcoo_conv_general_dilated(lhs, rhs, window_strides=(1,), padding="SAME")
