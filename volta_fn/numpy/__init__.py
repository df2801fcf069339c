"""The array API: `jax.numpy`'s names and meanings, which are NumPy's, for immutable arrays that can be traced and differentiated.

>>> import volta_fn.numpy as jnp
>>> jnp.linspace(0.0, 1.0, 3) + jnp.array([1, 2, 3])
Array([1. , 2.5, 4. ], dtype=float32)
"""

import sys
from typing import TYPE_CHECKING

import numpy as np

from volta_fn import on_demand as _on_demand
from volta_fn.core.array import Array as Array
from volta_fn.dtypes import can_cast as can_cast
from volta_fn.dtypes import finfo as finfo
from volta_fn.dtypes import iinfo as iinfo
from volta_fn.dtypes import isdtype as isdtype
from volta_fn.dtypes import issubdtype as issubdtype
from volta_fn.dtypes import promote_types as promote_types
from volta_fn.dtypes import result_type as result_type
from volta_fn.numpy import methods as _methods
from volta_fn.numpy.arithmetic import absolute as absolute
from volta_fn.numpy.arithmetic import add as add
from volta_fn.numpy.arithmetic import angle as angle
from volta_fn.numpy.arithmetic import cbrt as cbrt
from volta_fn.numpy.arithmetic import ceil as ceil
from volta_fn.numpy.arithmetic import clip as clip
from volta_fn.numpy.arithmetic import conjugate as conjugate
from volta_fn.numpy.arithmetic import copysign as copysign
from volta_fn.numpy.arithmetic import divmod as divmod
from volta_fn.numpy.arithmetic import fabs as fabs
from volta_fn.numpy.arithmetic import float_power as float_power
from volta_fn.numpy.arithmetic import floor as floor
from volta_fn.numpy.arithmetic import floor_divide as floor_divide
from volta_fn.numpy.arithmetic import fmax as fmax
from volta_fn.numpy.arithmetic import fmin as fmin
from volta_fn.numpy.arithmetic import fmod as fmod
from volta_fn.numpy.arithmetic import frexp as frexp
from volta_fn.numpy.arithmetic import heaviside as heaviside
from volta_fn.numpy.arithmetic import hypot as hypot
from volta_fn.numpy.arithmetic import imag as imag
from volta_fn.numpy.arithmetic import ldexp as ldexp
from volta_fn.numpy.arithmetic import maximum as maximum
from volta_fn.numpy.arithmetic import minimum as minimum
from volta_fn.numpy.arithmetic import modf as modf
from volta_fn.numpy.arithmetic import multiply as multiply
from volta_fn.numpy.arithmetic import nan_to_num as nan_to_num
from volta_fn.numpy.arithmetic import negative as negative
from volta_fn.numpy.arithmetic import nextafter as nextafter
from volta_fn.numpy.arithmetic import positive as positive
from volta_fn.numpy.arithmetic import power as power
from volta_fn.numpy.arithmetic import real as real
from volta_fn.numpy.arithmetic import reciprocal as reciprocal
from volta_fn.numpy.arithmetic import remainder as remainder
from volta_fn.numpy.arithmetic import rint as rint
from volta_fn.numpy.arithmetic import round as round
from volta_fn.numpy.arithmetic import sign as sign
from volta_fn.numpy.arithmetic import signbit as signbit
from volta_fn.numpy.arithmetic import spacing as spacing
from volta_fn.numpy.arithmetic import sqrt as sqrt
from volta_fn.numpy.arithmetic import square as square
from volta_fn.numpy.arithmetic import subtract as subtract
from volta_fn.numpy.arithmetic import true_divide as true_divide
from volta_fn.numpy.arithmetic import trunc as trunc
from volta_fn.numpy.creation import arange as arange
from volta_fn.numpy.creation import array as array
from volta_fn.numpy.creation import asarray as asarray
from volta_fn.numpy.creation import astype as astype
from volta_fn.numpy.creation import copy as copy
from volta_fn.numpy.creation import empty as empty
from volta_fn.numpy.creation import empty_like as empty_like
from volta_fn.numpy.creation import eye as eye
from volta_fn.numpy.creation import from_dlpack as from_dlpack
from volta_fn.numpy.creation import frombuffer as frombuffer
from volta_fn.numpy.creation import fromiter as fromiter
from volta_fn.numpy.creation import full as full
from volta_fn.numpy.creation import full_like as full_like
from volta_fn.numpy.creation import geomspace as geomspace
from volta_fn.numpy.creation import identity as identity
from volta_fn.numpy.creation import linspace as linspace
from volta_fn.numpy.creation import logspace as logspace
from volta_fn.numpy.creation import ones as ones
from volta_fn.numpy.creation import ones_like as ones_like
from volta_fn.numpy.creation import zeros as zeros
from volta_fn.numpy.creation import zeros_like as zeros_like
from volta_fn.numpy.cumulative import cumprod as cumprod
from volta_fn.numpy.cumulative import cumsum as cumsum
from volta_fn.numpy.cumulative import cumulative_prod as cumulative_prod
from volta_fn.numpy.cumulative import cumulative_sum as cumulative_sum
from volta_fn.numpy.cumulative import diff as diff
from volta_fn.numpy.cumulative import ediff1d as ediff1d
from volta_fn.numpy.cumulative import gradient as gradient
from volta_fn.numpy.cumulative import trapezoid as trapezoid
from volta_fn.numpy.cumulative import unwrap as unwrap
from volta_fn.numpy.diagonals import diag as diag
from volta_fn.numpy.diagonals import diag_indices as diag_indices
from volta_fn.numpy.diagonals import diag_indices_from as diag_indices_from
from volta_fn.numpy.diagonals import diagflat as diagflat
from volta_fn.numpy.diagonals import diagonal as diagonal
from volta_fn.numpy.diagonals import fill_diagonal as fill_diagonal
from volta_fn.numpy.diagonals import mask_indices as mask_indices
from volta_fn.numpy.diagonals import trace as trace
from volta_fn.numpy.diagonals import tri as tri
from volta_fn.numpy.diagonals import tril as tril
from volta_fn.numpy.diagonals import tril_indices as tril_indices
from volta_fn.numpy.diagonals import tril_indices_from as tril_indices_from
from volta_fn.numpy.diagonals import triu as triu
from volta_fn.numpy.diagonals import triu_indices as triu_indices
from volta_fn.numpy.diagonals import triu_indices_from as triu_indices_from
from volta_fn.numpy.indexing import argwhere as argwhere
from volta_fn.numpy.indexing import choose as choose
from volta_fn.numpy.indexing import compress as compress
from volta_fn.numpy.indexing import extract as extract
from volta_fn.numpy.indexing import flatnonzero as flatnonzero
from volta_fn.numpy.indexing import nonzero as nonzero
from volta_fn.numpy.indexing import piecewise as piecewise
from volta_fn.numpy.indexing import place as place
from volta_fn.numpy.indexing import put as put
from volta_fn.numpy.indexing import put_along_axis as put_along_axis
from volta_fn.numpy.indexing import ravel_multi_index as ravel_multi_index
from volta_fn.numpy.indexing import select as select
from volta_fn.numpy.indexing import take as take
from volta_fn.numpy.indexing import take_along_axis as take_along_axis
from volta_fn.numpy.indexing import unravel_index as unravel_index
from volta_fn.numpy.indexing import where as where
from volta_fn.numpy.logic import allclose as allclose
from volta_fn.numpy.logic import array_equal as array_equal
from volta_fn.numpy.logic import array_equiv as array_equiv
from volta_fn.numpy.logic import equal as equal
from volta_fn.numpy.logic import greater as greater
from volta_fn.numpy.logic import greater_equal as greater_equal
from volta_fn.numpy.logic import isclose as isclose
from volta_fn.numpy.logic import iscomplex as iscomplex
from volta_fn.numpy.logic import iscomplexobj as iscomplexobj
from volta_fn.numpy.logic import isfinite as isfinite
from volta_fn.numpy.logic import isinf as isinf
from volta_fn.numpy.logic import isnan as isnan
from volta_fn.numpy.logic import isneginf as isneginf
from volta_fn.numpy.logic import isposinf as isposinf
from volta_fn.numpy.logic import isreal as isreal
from volta_fn.numpy.logic import isrealobj as isrealobj
from volta_fn.numpy.logic import isscalar as isscalar
from volta_fn.numpy.logic import less as less
from volta_fn.numpy.logic import less_equal as less_equal
from volta_fn.numpy.logic import logical_and as logical_and
from volta_fn.numpy.logic import logical_not as logical_not
from volta_fn.numpy.logic import logical_or as logical_or
from volta_fn.numpy.logic import logical_xor as logical_xor
from volta_fn.numpy.logic import not_equal as not_equal
from volta_fn.numpy.products import cross as cross
from volta_fn.numpy.products import dot as dot
from volta_fn.numpy.products import inner as inner
from volta_fn.numpy.products import kron as kron
from volta_fn.numpy.products import matmul as matmul
from volta_fn.numpy.products import matvec as matvec
from volta_fn.numpy.products import outer as outer
from volta_fn.numpy.products import tensordot as tensordot
from volta_fn.numpy.products import vdot as vdot
from volta_fn.numpy.products import vecdot as vecdot
from volta_fn.numpy.products import vecmat as vecmat
from volta_fn.numpy.reductions import all as all
from volta_fn.numpy.reductions import any as any
from volta_fn.numpy.reductions import argmax as argmax
from volta_fn.numpy.reductions import argmin as argmin
from volta_fn.numpy.reductions import count_nonzero as count_nonzero
from volta_fn.numpy.reductions import max as max
from volta_fn.numpy.reductions import mean as mean
from volta_fn.numpy.reductions import min as min
from volta_fn.numpy.reductions import minmax as minmax
from volta_fn.numpy.reductions import prod as prod
from volta_fn.numpy.reductions import ptp as ptp
from volta_fn.numpy.reductions import std as std
from volta_fn.numpy.reductions import sum as sum
from volta_fn.numpy.reductions import var as var
from volta_fn.numpy.scalar_types import bfloat16 as bfloat16
from volta_fn.numpy.scalar_types import bool_ as bool_
from volta_fn.numpy.scalar_types import cdouble as cdouble
from volta_fn.numpy.scalar_types import complex64 as complex64
from volta_fn.numpy.scalar_types import complex128 as complex128
from volta_fn.numpy.scalar_types import complex_ as complex_
from volta_fn.numpy.scalar_types import complexfloating as complexfloating
from volta_fn.numpy.scalar_types import csingle as csingle
from volta_fn.numpy.scalar_types import double as double
from volta_fn.numpy.scalar_types import float16 as float16
from volta_fn.numpy.scalar_types import float32 as float32
from volta_fn.numpy.scalar_types import float64 as float64
from volta_fn.numpy.scalar_types import float_ as float_
from volta_fn.numpy.scalar_types import floating as floating
from volta_fn.numpy.scalar_types import generic as generic
from volta_fn.numpy.scalar_types import half as half
from volta_fn.numpy.scalar_types import inexact as inexact
from volta_fn.numpy.scalar_types import int8 as int8
from volta_fn.numpy.scalar_types import int16 as int16
from volta_fn.numpy.scalar_types import int32 as int32
from volta_fn.numpy.scalar_types import int64 as int64
from volta_fn.numpy.scalar_types import int_ as int_
from volta_fn.numpy.scalar_types import integer as integer
from volta_fn.numpy.scalar_types import number as number
from volta_fn.numpy.scalar_types import signedinteger as signedinteger
from volta_fn.numpy.scalar_types import single as single
from volta_fn.numpy.scalar_types import uint as uint
from volta_fn.numpy.scalar_types import uint8 as uint8
from volta_fn.numpy.scalar_types import uint16 as uint16
from volta_fn.numpy.scalar_types import uint32 as uint32
from volta_fn.numpy.scalar_types import uint64 as uint64
from volta_fn.numpy.scalar_types import unsignedinteger as unsignedinteger
from volta_fn.numpy.searching import digitize as digitize
from volta_fn.numpy.searching import searchsorted as searchsorted
from volta_fn.numpy.shapes import atleast_1d as atleast_1d
from volta_fn.numpy.shapes import atleast_2d as atleast_2d
from volta_fn.numpy.shapes import atleast_3d as atleast_3d
from volta_fn.numpy.shapes import broadcast_arrays as broadcast_arrays
from volta_fn.numpy.shapes import broadcast_shapes as broadcast_shapes
from volta_fn.numpy.shapes import broadcast_to as broadcast_to
from volta_fn.numpy.shapes import expand_dims as expand_dims
from volta_fn.numpy.shapes import flip as flip
from volta_fn.numpy.shapes import fliplr as fliplr
from volta_fn.numpy.shapes import flipud as flipud
from volta_fn.numpy.shapes import matrix_transpose as matrix_transpose
from volta_fn.numpy.shapes import moveaxis as moveaxis
from volta_fn.numpy.shapes import ndim as ndim
from volta_fn.numpy.shapes import permute_dims as permute_dims
from volta_fn.numpy.shapes import ravel as ravel
from volta_fn.numpy.shapes import repeat as repeat
from volta_fn.numpy.shapes import reshape as reshape
from volta_fn.numpy.shapes import resize as resize
from volta_fn.numpy.shapes import roll as roll
from volta_fn.numpy.shapes import rollaxis as rollaxis
from volta_fn.numpy.shapes import rot90 as rot90
from volta_fn.numpy.shapes import shape as shape
from volta_fn.numpy.shapes import size as size
from volta_fn.numpy.shapes import squeeze as squeeze
from volta_fn.numpy.shapes import swapaxes as swapaxes
from volta_fn.numpy.shapes import tile as tile
from volta_fn.numpy.shapes import transpose as transpose
from volta_fn.numpy.shapes import unstack as unstack
from volta_fn.numpy.sorting import argpartition as argpartition
from volta_fn.numpy.sorting import argsort as argsort
from volta_fn.numpy.sorting import lexsort as lexsort
from volta_fn.numpy.sorting import partition as partition
from volta_fn.numpy.sorting import sort as sort
from volta_fn.numpy.sorting import sort_complex as sort_complex
from volta_fn.numpy.sorting import top_k as top_k

if TYPE_CHECKING:
    from volta_fn.numpy import fft as fft
    from volta_fn.numpy import linalg as linalg
    from volta_fn.numpy.applying import apply_along_axis as apply_along_axis
    from volta_fn.numpy.applying import apply_over_axes as apply_over_axes
    from volta_fn.numpy.applying import fromfunction as fromfunction
    from volta_fn.numpy.applying import vectorize as vectorize
    from volta_fn.numpy.einstein import einsum as einsum
    from volta_fn.numpy.einstein import einsum_path as einsum_path
    from volta_fn.numpy.files import fromfile as fromfile
    from volta_fn.numpy.files import fromstring as fromstring
    from volta_fn.numpy.files import load as load
    from volta_fn.numpy.files import save as save
    from volta_fn.numpy.files import savez as savez
    from volta_fn.numpy.fitting import polyfit as polyfit
    from volta_fn.numpy.fitting import roots as roots
    from volta_fn.numpy.grids import c_ as c_
    from volta_fn.numpy.grids import index_exp as index_exp
    from volta_fn.numpy.grids import indices as indices
    from volta_fn.numpy.grids import ix_ as ix_
    from volta_fn.numpy.grids import meshgrid as meshgrid
    from volta_fn.numpy.grids import mgrid as mgrid
    from volta_fn.numpy.grids import ogrid as ogrid
    from volta_fn.numpy.grids import r_ as r_
    from volta_fn.numpy.grids import s_ as s_
    from volta_fn.numpy.histograms import bincount as bincount
    from volta_fn.numpy.histograms import histogram as histogram
    from volta_fn.numpy.histograms import histogram2d as histogram2d
    from volta_fn.numpy.histograms import histogram_bin_edges as histogram_bin_edges
    from volta_fn.numpy.histograms import histogramdd as histogramdd
    from volta_fn.numpy.integers import bitwise_and as bitwise_and
    from volta_fn.numpy.integers import bitwise_count as bitwise_count
    from volta_fn.numpy.integers import bitwise_invert as bitwise_invert
    from volta_fn.numpy.integers import bitwise_left_shift as bitwise_left_shift
    from volta_fn.numpy.integers import bitwise_not as bitwise_not
    from volta_fn.numpy.integers import bitwise_or as bitwise_or
    from volta_fn.numpy.integers import bitwise_right_shift as bitwise_right_shift
    from volta_fn.numpy.integers import bitwise_xor as bitwise_xor
    from volta_fn.numpy.integers import gcd as gcd
    from volta_fn.numpy.integers import invert as invert
    from volta_fn.numpy.integers import lcm as lcm
    from volta_fn.numpy.integers import left_shift as left_shift
    from volta_fn.numpy.integers import packbits as packbits
    from volta_fn.numpy.integers import right_shift as right_shift
    from volta_fn.numpy.integers import unpackbits as unpackbits
    from volta_fn.numpy.interpolation import interp as interp
    from volta_fn.numpy.joining import append as append
    from volta_fn.numpy.joining import array_split as array_split
    from volta_fn.numpy.joining import block as block
    from volta_fn.numpy.joining import column_stack as column_stack
    from volta_fn.numpy.joining import concat as concat
    from volta_fn.numpy.joining import concatenate as concatenate
    from volta_fn.numpy.joining import delete as delete
    from volta_fn.numpy.joining import dsplit as dsplit
    from volta_fn.numpy.joining import dstack as dstack
    from volta_fn.numpy.joining import hsplit as hsplit
    from volta_fn.numpy.joining import hstack as hstack
    from volta_fn.numpy.joining import insert as insert
    from volta_fn.numpy.joining import split as split
    from volta_fn.numpy.joining import stack as stack
    from volta_fn.numpy.joining import trim_zeros as trim_zeros
    from volta_fn.numpy.joining import vsplit as vsplit
    from volta_fn.numpy.joining import vstack as vstack
    from volta_fn.numpy.nan_reductions import nanargmax as nanargmax
    from volta_fn.numpy.nan_reductions import nanargmin as nanargmin
    from volta_fn.numpy.nan_reductions import nancumprod as nancumprod
    from volta_fn.numpy.nan_reductions import nancumsum as nancumsum
    from volta_fn.numpy.nan_reductions import nanmax as nanmax
    from volta_fn.numpy.nan_reductions import nanmean as nanmean
    from volta_fn.numpy.nan_reductions import nanmin as nanmin
    from volta_fn.numpy.nan_reductions import nanprod as nanprod
    from volta_fn.numpy.nan_reductions import nanstd as nanstd
    from volta_fn.numpy.nan_reductions import nansum as nansum
    from volta_fn.numpy.nan_reductions import nanvar as nanvar
    from volta_fn.numpy.padding import pad as pad
    from volta_fn.numpy.polynomials import poly as poly
    from volta_fn.numpy.polynomials import polyadd as polyadd
    from volta_fn.numpy.polynomials import polyder as polyder
    from volta_fn.numpy.polynomials import polydiv as polydiv
    from volta_fn.numpy.polynomials import polyint as polyint
    from volta_fn.numpy.polynomials import polymul as polymul
    from volta_fn.numpy.polynomials import polysub as polysub
    from volta_fn.numpy.polynomials import polyval as polyval
    from volta_fn.numpy.polynomials import vander as vander
    from volta_fn.numpy.printing import array_repr as array_repr
    from volta_fn.numpy.printing import array_str as array_str
    from volta_fn.numpy.printing import get_printoptions as get_printoptions
    from volta_fn.numpy.printing import printoptions as printoptions
    from volta_fn.numpy.printing import set_printoptions as set_printoptions
    from volta_fn.numpy.quantiles import median as median
    from volta_fn.numpy.quantiles import nanmedian as nanmedian
    from volta_fn.numpy.quantiles import nanpercentile as nanpercentile
    from volta_fn.numpy.quantiles import nanquantile as nanquantile
    from volta_fn.numpy.quantiles import percentile as percentile
    from volta_fn.numpy.quantiles import quantile as quantile
    from volta_fn.numpy.sets import intersect1d as intersect1d
    from volta_fn.numpy.sets import isin as isin
    from volta_fn.numpy.sets import setdiff1d as setdiff1d
    from volta_fn.numpy.sets import setxor1d as setxor1d
    from volta_fn.numpy.sets import union1d as union1d
    from volta_fn.numpy.sets import unique as unique
    from volta_fn.numpy.sets import unique_all as unique_all
    from volta_fn.numpy.sets import unique_counts as unique_counts
    from volta_fn.numpy.sets import unique_inverse as unique_inverse
    from volta_fn.numpy.sets import unique_values as unique_values
    from volta_fn.numpy.signals import bartlett as bartlett
    from volta_fn.numpy.signals import blackman as blackman
    from volta_fn.numpy.signals import convolve as convolve
    from volta_fn.numpy.signals import correlate as correlate
    from volta_fn.numpy.signals import hamming as hamming
    from volta_fn.numpy.signals import hanning as hanning
    from volta_fn.numpy.signals import kaiser as kaiser
    from volta_fn.numpy.statistics import average as average
    from volta_fn.numpy.statistics import corrcoef as corrcoef
    from volta_fn.numpy.statistics import cov as cov
    from volta_fn.numpy.transcendental import acos as acos
    from volta_fn.numpy.transcendental import acosh as acosh
    from volta_fn.numpy.transcendental import arccos as arccos
    from volta_fn.numpy.transcendental import arccosh as arccosh
    from volta_fn.numpy.transcendental import arcsin as arcsin
    from volta_fn.numpy.transcendental import arcsinh as arcsinh
    from volta_fn.numpy.transcendental import arctan as arctan
    from volta_fn.numpy.transcendental import arctan2 as arctan2
    from volta_fn.numpy.transcendental import arctanh as arctanh
    from volta_fn.numpy.transcendental import asin as asin
    from volta_fn.numpy.transcendental import asinh as asinh
    from volta_fn.numpy.transcendental import atan as atan
    from volta_fn.numpy.transcendental import atan2 as atan2
    from volta_fn.numpy.transcendental import atanh as atanh
    from volta_fn.numpy.transcendental import cos as cos
    from volta_fn.numpy.transcendental import cosh as cosh
    from volta_fn.numpy.transcendental import deg2rad as deg2rad
    from volta_fn.numpy.transcendental import degrees as degrees
    from volta_fn.numpy.transcendental import exp as exp
    from volta_fn.numpy.transcendental import exp2 as exp2
    from volta_fn.numpy.transcendental import expm1 as expm1
    from volta_fn.numpy.transcendental import i0 as i0
    from volta_fn.numpy.transcendental import log as log
    from volta_fn.numpy.transcendental import log1p as log1p
    from volta_fn.numpy.transcendental import log2 as log2
    from volta_fn.numpy.transcendental import log10 as log10
    from volta_fn.numpy.transcendental import logaddexp as logaddexp
    from volta_fn.numpy.transcendental import logaddexp2 as logaddexp2
    from volta_fn.numpy.transcendental import rad2deg as rad2deg
    from volta_fn.numpy.transcendental import radians as radians
    from volta_fn.numpy.transcendental import sin as sin
    from volta_fn.numpy.transcendental import sinc as sinc
    from volta_fn.numpy.transcendental import sinh as sinh
    from volta_fn.numpy.transcendental import tan as tan
    from volta_fn.numpy.transcendental import tanh as tanh
else:
    __getattr__, __dir__ = _on_demand.exports(
        __name__,
        ".fft .linalg",
        {
            ".applying": "apply_along_axis apply_over_axes fromfunction vectorize",
            ".einstein": "einsum einsum_path",
            ".files": "fromfile fromstring load save savez",
            ".fitting": "polyfit roots",
            ".grids": "c_ index_exp indices ix_ meshgrid mgrid ogrid r_ s_",
            ".histograms": "bincount histogram histogram2d histogram_bin_edges histogramdd",
            ".integers": (
                "bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or "
                "bitwise_right_shift bitwise_xor gcd invert lcm left_shift packbits right_shift unpackbits"
            ),
            ".interpolation": "interp",
            ".joining": (
                "append array_split block column_stack concat concatenate delete dsplit dstack hsplit hstack insert "
                "split stack trim_zeros vsplit vstack"
            ),
            ".nan_reductions": "nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmin nanprod nanstd nansum nanvar",
            ".padding": "pad",
            ".polynomials": "poly polyadd polyder polydiv polyint polymul polysub polyval vander",
            ".printing": "array_repr array_str get_printoptions printoptions set_printoptions",
            ".quantiles": "median nanmedian nanpercentile nanquantile percentile quantile",
            ".sets": ("intersect1d isin setdiff1d setxor1d union1d unique unique_all unique_counts unique_inverse unique_values"),
            ".signals": "bartlett blackman convolve correlate hamming hanning kaiser",
            ".statistics": "average corrcoef cov",
            ".transcendental": (
                "acos acosh arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh cos cosh "
                "deg2rad degrees exp exp2 expm1 i0 log log10 log1p log2 logaddexp logaddexp2 rad2deg radians sin sinc "
                "sinh tan tanh"
            ),
        },
    )

# The other names of some functions and types.
abs = absolute
conj = conjugate
divide = true_divide
mod = remainder
pow = power
around = round
amax = max
amin = min
bool = bool_
ndarray = Array

dtype = np.dtype
e, pi, euler_gamma = np.e, np.pi, np.euler_gamma
inf, nan = np.inf, np.nan
newaxis = None

_methods.register_namespace(sys.modules[__name__])
