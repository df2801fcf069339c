"""A dtype of every sample of a primitive that has a routine: the routine gives what the primitive means."""

from __future__ import annotations

import zlib

import pytest

from tests.samples import all_samples
from tests.samples.sample import Sample
from tests.targets.reference import calls
from tests.targets.wgsl.library.checking import check
from volta_fn import dtypes
from volta_fn.targets.wgsl.library import ROUTINES

#: Others have results that are right with other signs, too.
_NAMES = [name for name in ROUTINES if name not in ("eigh", "svd")]
#: What may sum or multiply in another order than NumPy, or has functions of its own.
_ROUNDS = {"cumsum", "cumlogsumexp", "reduce_window_sum", "select_and_scatter_add", "triangular_solve", "lu", "qr"}


def dtype_of(sample: Sample) -> str:
    """Return one of the sample's dtypes, the same in every run."""
    return sample.dtypes[(zlib.crc32(str(sample).encode()) + 1) % len(sample.dtypes)]


_SAMPLES = [sample for sample in all_samples() if set(sample.primitives) & {*_NAMES}]


@pytest.mark.parametrize("sample", _SAMPLES, ids=str)
def test_samples(sample: Sample) -> None:
    for name, inputs, params in calls(sample, dtypes.as_dtype(dtype_of(sample)), _NAMES):
        check(name, inputs, params, exact=name not in _ROUNDS)
