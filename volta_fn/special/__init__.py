"""Special functions with the names of `jax.scipy.special`.

Integers become floats; all functions but those of `exponential` and `softmax` (sums of exponentials) are elementwise.

>>> import volta_fn as vf
>>> vf.vmap(vf.grad(vf.special.gammaln))(vf.numpy.array([3.0])).round(4)
Array([0.9228], dtype=float32)
"""

from volta_fn.special.bessel import i0 as i0
from volta_fn.special.bessel import i0e as i0e
from volta_fn.special.bessel import i1 as i1
from volta_fn.special.bessel import i1e as i1e
from volta_fn.special.entropy import boxcox as boxcox
from volta_fn.special.entropy import boxcox1p as boxcox1p
from volta_fn.special.entropy import entr as entr
from volta_fn.special.entropy import expit as expit
from volta_fn.special.entropy import kl_div as kl_div
from volta_fn.special.entropy import logit as logit
from volta_fn.special.entropy import rel_entr as rel_entr
from volta_fn.special.entropy import xlog1py as xlog1py
from volta_fn.special.entropy import xlogy as xlogy
from volta_fn.special.error import erf as erf
from volta_fn.special.error import erfc as erfc
from volta_fn.special.error import erfinv as erfinv
from volta_fn.special.error import log_ndtr as log_ndtr
from volta_fn.special.error import ndtr as ndtr
from volta_fn.special.error import ndtri as ndtri
from volta_fn.special.exponential import logsumexp as logsumexp
from volta_fn.special.exponential_integrals import erfcx as erfcx
from volta_fn.special.exponential_integrals import exp1 as exp1
from volta_fn.special.exponential_integrals import expi as expi
from volta_fn.special.exponential_integrals import expn as expn
from volta_fn.special.gamma import beta as beta
from volta_fn.special.gamma import betaln as betaln
from volta_fn.special.gamma import comb as comb
from volta_fn.special.gamma import digamma as digamma
from volta_fn.special.gamma import factorial as factorial
from volta_fn.special.gamma import gamma as gamma
from volta_fn.special.gamma import gammaln as gammaln
from volta_fn.special.gamma import gammasgn as gammasgn
from volta_fn.special.gamma import loggamma as loggamma
from volta_fn.special.gamma import multigammaln as multigammaln
from volta_fn.special.gamma import poch as poch
from volta_fn.special.gamma import polygamma as polygamma
from volta_fn.special.gamma import zeta as zeta
from volta_fn.special.incomplete_beta import betainc as betainc
from volta_fn.special.incomplete_gamma import gammainc as gammainc
from volta_fn.special.incomplete_gamma import gammaincc as gammaincc
from volta_fn.special.softmax import log_softmax as log_softmax
from volta_fn.special.softmax import softmax as softmax
