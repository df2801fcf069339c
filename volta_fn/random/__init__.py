"""Random numbers from explicit keys, with `jax.random`'s names and values.

Bits come from the counter-based generator Threefry-2x32, element i of an array from counter i, so they depend on neither the device,
nor batching, nor anything else that runs.

>>> import volta_fn as vf
>>> key = vf.random.key(0)
>>> key, subkey = vf.random.split(key)
>>> vf.random.normal(subkey, (2, 3)).shape
(2, 3)
"""

from volta_fn.random.continuous import cauchy as cauchy
from volta_fn.random.continuous import exponential as exponential
from volta_fn.random.continuous import gumbel as gumbel
from volta_fn.random.continuous import laplace as laplace
from volta_fn.random.continuous import logistic as logistic
from volta_fn.random.continuous import pareto as pareto
from volta_fn.random.continuous import rayleigh as rayleigh
from volta_fn.random.continuous import triangular as triangular
from volta_fn.random.continuous import wald as wald
from volta_fn.random.continuous import weibull_min as weibull_min
from volta_fn.random.discrete import binomial as binomial
from volta_fn.random.discrete import geometric as geometric
from volta_fn.random.discrete import multinomial as multinomial
from volta_fn.random.discrete import poisson as poisson
from volta_fn.random.gamma import ball as ball
from volta_fn.random.gamma import beta as beta
from volta_fn.random.gamma import chisquare as chisquare
from volta_fn.random.gamma import dirichlet as dirichlet
from volta_fn.random.gamma import f as f
from volta_fn.random.gamma import gamma as gamma
from volta_fn.random.gamma import generalized_normal as generalized_normal
from volta_fn.random.gamma import loggamma as loggamma
from volta_fn.random.gamma import t as t
from volta_fn.random.keys import PRNGKey as PRNGKey
from volta_fn.random.keys import PRNGKeyArray as PRNGKeyArray
from volta_fn.random.keys import clone as clone
from volta_fn.random.keys import fold_in as fold_in
from volta_fn.random.keys import key as key
from volta_fn.random.keys import key_data as key_data
from volta_fn.random.keys import key_dtype as key_dtype
from volta_fn.random.keys import key_impl as key_impl
from volta_fn.random.keys import split as split
from volta_fn.random.keys import wrap_key_data as wrap_key_data
from volta_fn.random.normal import double_sided_maxwell as double_sided_maxwell
from volta_fn.random.normal import lognormal as lognormal
from volta_fn.random.normal import maxwell as maxwell
from volta_fn.random.normal import multivariate_normal as multivariate_normal
from volta_fn.random.normal import normal as normal
from volta_fn.random.normal import orthogonal as orthogonal
from volta_fn.random.normal import truncated_normal as truncated_normal
from volta_fn.random.selection import categorical as categorical
from volta_fn.random.selection import choice as choice
from volta_fn.random.selection import permutation as permutation
from volta_fn.random.uniform import bernoulli as bernoulli
from volta_fn.random.uniform import bits as bits
from volta_fn.random.uniform import rademacher as rademacher
from volta_fn.random.uniform import randint as randint
from volta_fn.random.uniform import uniform as uniform
