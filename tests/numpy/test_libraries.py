"""scikit-learn and SciPy compute with arrays, and give NumPy's results.

They run in a process of their own: SciPy reads SCIPY_ARRAY_API when it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COMMON = """
import contextlib
import numpy as np
import volta_fn.numpy as vnp

def check(name, got, wanted, tolerance):
    assert isinstance(got, vnp.ndarray), (name, type(got))
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=tolerance, atol=tolerance, err_msg=name)
"""

SCIKIT_LEARN = """
import sklearn
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

numbers, classes = make_classification(n_samples=60, n_features=6, n_informative=4, random_state=0)
randomized = dict(svd_solver="randomized", power_iteration_normalizer="QR", random_state=0)
cases = [
    (PCA(3, svd_solver="full"), ["transform"], None), (PCA(3, svd_solver="covariance_eigh"), ["transform"], None),
    (PCA(3, **randomized), ["transform"], None), (Ridge(solver="svd"), ["predict"], numbers[:, 0] * classes),
    (LinearDiscriminantAnalysis(), ["predict", "transform", "predict_proba"], classes),
]
for dtype, integer, tolerance in ((np.float32, np.int32, 1e-4), (np.float64, np.int64, 1e-12)):
    x = numbers.astype(dtype)
    for estimator, methods, labels in cases:
        y = None if labels is None else labels.astype(integer if labels is classes else dtype)
        wanted = sklearn.clone(estimator).fit(x, y)
        with sklearn.config_context(array_api_dispatch=True), vnp.allow_assignment():
            fitted = sklearn.clone(estimator).fit(vnp.asarray(x), None if y is None else vnp.asarray(y))
            for method in methods:
                got = getattr(fitted, method)(vnp.asarray(x))
                assert method == "predict" or got.dtype == dtype
                check(f"{estimator} {method}", got, getattr(wanted, method)(x), tolerance)
"""

SCIPY = """
from scipy import cluster, fft, integrate, ndimage, signal, special, stats
from scipy.optimize import elementwise
from scipy.spatial.transform import Rotation

#: By whether they assign to elements.
cases = {
    False: [
        lambda x: special.softmax(x, axis=1), special.erf, special.gammaln, stats.skew, stats.gmean, stats.sem,
        fft.rfft, fft.dct,
        lambda x: stats.ttest_ind(x, 2 * x).statistic, lambda x: signal.fftconvolve(x, x), lambda x: integrate.trapezoid(x, dx=0.1),
        lambda x: ndimage.gaussian_filter(x, 1.0), lambda x: Rotation.from_quat(x[:, :4]).as_matrix(), lambda x: cluster.vq.vq(x, x[:3])[1],
    ],
    True: [
        lambda x: special.logsumexp(x, axis=1), stats.zscore, lambda x: stats.pearsonr(x[:, 0], x[:, 1]).statistic, signal.hilbert,
        lambda x: integrate.tanhsinh(lambda t: t**2, 0 * x[0], x[0]).integral,
        lambda x: elementwise.find_root(lambda t, c: t**3 - c, (0 * x - 9, 0 * x + 9), args=(x,)).x,
    ],
}
x = np.random.default_rng(0).uniform(0.2, 3, (9, 6))
for assigns, functions in cases.items():
    for number, function in enumerate(functions):
        with vnp.allow_assignment() if assigns else contextlib.nullcontext():
            got, wanted = function(vnp.asarray(x)), function(x)
        if wanted.dtype.kind == "c":
            got, wanted = got.imag, wanted.imag
        check(f"{assigns} {number}", got, wanted, 1e-12)
"""


def test_results_are_numpys() -> None:
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "VOLTA_DEVICE": "cpu", "VOLTA_NATIVE": "0"}
    script = COMMON + SCIKIT_LEARN + SCIPY
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
