"""The primitives as functions, under the names that `jax.lax` gives them. Strict about dtypes; `volta_fn.numpy` promotes."""

from typing import TYPE_CHECKING

from volta_fn import on_demand as _on_demand
from volta_fn.primitives.arithmetic import abs as abs
from volta_fn.primitives.arithmetic import add as add
from volta_fn.primitives.arithmetic import ceil as ceil
from volta_fn.primitives.arithmetic import div as div
from volta_fn.primitives.arithmetic import floor as floor
from volta_fn.primitives.arithmetic import integer_pow as integer_pow
from volta_fn.primitives.arithmetic import max as max
from volta_fn.primitives.arithmetic import min as min
from volta_fn.primitives.arithmetic import mul as mul
from volta_fn.primitives.arithmetic import neg as neg
from volta_fn.primitives.arithmetic import nextafter as nextafter
from volta_fn.primitives.arithmetic import pow as pow
from volta_fn.primitives.arithmetic import rem as rem
from volta_fn.primitives.arithmetic import round as round
from volta_fn.primitives.arithmetic import sign as sign
from volta_fn.primitives.arithmetic import sub as sub
from volta_fn.primitives.barriers import optimization_barrier as optimization_barrier
from volta_fn.primitives.barriers import stop_gradient as stop_gradient
from volta_fn.primitives.cast import bitcast_convert_type as bitcast_convert_type
from volta_fn.primitives.cast import convert_element_type as convert_element_type
from volta_fn.primitives.comparison import bitwise_and as bitwise_and
from volta_fn.primitives.comparison import bitwise_not as bitwise_not
from volta_fn.primitives.comparison import bitwise_or as bitwise_or
from volta_fn.primitives.comparison import bitwise_xor as bitwise_xor
from volta_fn.primitives.comparison import clz as clz
from volta_fn.primitives.comparison import eq as eq
from volta_fn.primitives.comparison import ge as ge
from volta_fn.primitives.comparison import gt as gt
from volta_fn.primitives.comparison import is_finite as is_finite
from volta_fn.primitives.comparison import le as le
from volta_fn.primitives.comparison import lt as lt
from volta_fn.primitives.comparison import ne as ne
from volta_fn.primitives.comparison import population_count as population_count
from volta_fn.primitives.comparison import shift_left as shift_left
from volta_fn.primitives.comparison import shift_right_arithmetic as shift_right_arithmetic
from volta_fn.primitives.comparison import shift_right_logical as shift_right_logical
from volta_fn.primitives.complex_parts import complex as complex
from volta_fn.primitives.complex_parts import conj as conj
from volta_fn.primitives.complex_parts import imag as imag
from volta_fn.primitives.complex_parts import real as real
from volta_fn.primitives.contraction import DotDimensionNumbers as DotDimensionNumbers
from volta_fn.primitives.contraction import Precision as Precision
from volta_fn.primitives.contraction import batch_matmul as batch_matmul
from volta_fn.primitives.contraction import dot as dot
from volta_fn.primitives.contraction import dot_general as dot_general
from volta_fn.primitives.declare import broadcast_shapes as broadcast_shapes
from volta_fn.primitives.dynamic_slicing import dynamic_index_in_dim as dynamic_index_in_dim
from volta_fn.primitives.dynamic_slicing import dynamic_slice as dynamic_slice
from volta_fn.primitives.dynamic_slicing import dynamic_slice_in_dim as dynamic_slice_in_dim
from volta_fn.primitives.dynamic_slicing import dynamic_update_index_in_dim as dynamic_update_index_in_dim
from volta_fn.primitives.dynamic_slicing import dynamic_update_slice as dynamic_update_slice
from volta_fn.primitives.dynamic_slicing import dynamic_update_slice_in_dim as dynamic_update_slice_in_dim
from volta_fn.primitives.exponential import cbrt as cbrt
from volta_fn.primitives.exponential import exp as exp
from volta_fn.primitives.exponential import exp2 as exp2
from volta_fn.primitives.exponential import expm1 as expm1
from volta_fn.primitives.exponential import log as log
from volta_fn.primitives.exponential import log1p as log1p
from volta_fn.primitives.exponential import log2 as log2
from volta_fn.primitives.exponential import logistic as logistic
from volta_fn.primitives.exponential import rsqrt as rsqrt
from volta_fn.primitives.exponential import sqrt as sqrt
from volta_fn.primitives.gather import gather as gather
from volta_fn.primitives.gather import index_take as index_take
from volta_fn.primitives.geometry import padtype_to_pads as padtype_to_pads
from volta_fn.primitives.indexing import GatherDimensionNumbers as GatherDimensionNumbers
from volta_fn.primitives.indexing import GatherScatterMode as GatherScatterMode
from volta_fn.primitives.indexing import ScatterDimensionNumbers as ScatterDimensionNumbers
from volta_fn.primitives.joining import concatenate as concatenate
from volta_fn.primitives.joining import pad as pad
from volta_fn.primitives.movement import broadcast as broadcast
from volta_fn.primitives.movement import broadcast_in_dim as broadcast_in_dim
from volta_fn.primitives.movement import broadcasted_iota as broadcasted_iota
from volta_fn.primitives.movement import expand_dims as expand_dims
from volta_fn.primitives.movement import iota as iota
from volta_fn.primitives.movement import reshape as reshape
from volta_fn.primitives.movement import rev as rev
from volta_fn.primitives.movement import squeeze as squeeze
from volta_fn.primitives.movement import transpose as transpose
from volta_fn.primitives.reduction import reduce_and as reduce_and
from volta_fn.primitives.reduction import reduce_max as reduce_max
from volta_fn.primitives.reduction import reduce_min as reduce_min
from volta_fn.primitives.reduction import reduce_or as reduce_or
from volta_fn.primitives.reduction import reduce_prod as reduce_prod
from volta_fn.primitives.reduction import reduce_sum as reduce_sum
from volta_fn.primitives.reduction import reduce_xor as reduce_xor
from volta_fn.primitives.scatter import scatter as scatter
from volta_fn.primitives.scatter import scatter_add as scatter_add
from volta_fn.primitives.scatter import scatter_apply as scatter_apply
from volta_fn.primitives.scatter import scatter_max as scatter_max
from volta_fn.primitives.scatter import scatter_min as scatter_min
from volta_fn.primitives.scatter import scatter_mul as scatter_mul
from volta_fn.primitives.scatter import scatter_sub as scatter_sub
from volta_fn.primitives.selection import clamp as clamp
from volta_fn.primitives.selection import select as select
from volta_fn.primitives.selection import select_n as select_n
from volta_fn.primitives.shorthand import broadcast_like as broadcast_like
from volta_fn.primitives.shorthand import broadcast_to_rank as broadcast_to_rank
from volta_fn.primitives.shorthand import collapse as collapse
from volta_fn.primitives.shorthand import empty as empty
from volta_fn.primitives.shorthand import full as full
from volta_fn.primitives.shorthand import full_like as full_like
from volta_fn.primitives.shorthand import reciprocal as reciprocal
from volta_fn.primitives.shorthand import split as split
from volta_fn.primitives.shorthand import square as square
from volta_fn.primitives.shorthand import stack as stack
from volta_fn.primitives.shorthand import tile as tile
from volta_fn.primitives.shorthand import unstack as unstack
from volta_fn.primitives.slicing import index_in_dim as index_in_dim
from volta_fn.primitives.slicing import slice as slice
from volta_fn.primitives.slicing import slice_in_dim as slice_in_dim

if TYPE_CHECKING:
    from volta_fn.primitives import linalg as linalg
    from volta_fn.primitives.collective import all_gather as all_gather
    from volta_fn.primitives.collective import all_to_all as all_to_all
    from volta_fn.primitives.collective import axis_index as axis_index
    from volta_fn.primitives.collective import axis_size as axis_size
    from volta_fn.primitives.collective import pmax as pmax
    from volta_fn.primitives.collective import pmean as pmean
    from volta_fn.primitives.collective import pmin as pmin
    from volta_fn.primitives.collective import ppermute as ppermute
    from volta_fn.primitives.collective import pshuffle as pshuffle
    from volta_fn.primitives.collective import psum as psum
    from volta_fn.primitives.collective import psum_scatter as psum_scatter
    from volta_fn.primitives.collective import pswapaxes as pswapaxes
    from volta_fn.primitives.control_flow.associative import associative_scan as associative_scan
    from volta_fn.primitives.control_flow.conditionals import cond as cond
    from volta_fn.primitives.control_flow.conditionals import switch as switch
    from volta_fn.primitives.control_flow.loops import fori_loop as fori_loop
    from volta_fn.primitives.control_flow.loops import while_loop as while_loop
    from volta_fn.primitives.control_flow.reduce import reduce as reduce
    from volta_fn.primitives.control_flow.scan import scan as scan
    from volta_fn.primitives.convolution import ConvDimensionNumbers as ConvDimensionNumbers
    from volta_fn.primitives.convolution import conv_dimension_numbers as conv_dimension_numbers
    from volta_fn.primitives.convolution import conv_general_dilated as conv_general_dilated
    from volta_fn.primitives.convolution_forms import conv as conv
    from volta_fn.primitives.convolution_forms import conv_general_dilated_patches as conv_general_dilated_patches
    from volta_fn.primitives.convolution_forms import conv_transpose as conv_transpose
    from volta_fn.primitives.convolution_forms import conv_with_general_padding as conv_with_general_padding
    from volta_fn.primitives.cumulative import cumlogsumexp as cumlogsumexp
    from volta_fn.primitives.cumulative import cummax as cummax
    from volta_fn.primitives.cumulative import cummin as cummin
    from volta_fn.primitives.cumulative import cumprod as cumprod
    from volta_fn.primitives.cumulative import cumsum as cumsum
    from volta_fn.primitives.fourier import FftType as FftType
    from volta_fn.primitives.fourier import fft as fft
    from volta_fn.primitives.sorting import approx_max_k as approx_max_k
    from volta_fn.primitives.sorting import approx_min_k as approx_min_k
    from volta_fn.primitives.sorting import argmax as argmax
    from volta_fn.primitives.sorting import argmin as argmin
    from volta_fn.primitives.sorting import sort as sort
    from volta_fn.primitives.sorting import sort_key_val as sort_key_val
    from volta_fn.primitives.sorting import top_k as top_k
    from volta_fn.primitives.special import bessel_i0e as bessel_i0e
    from volta_fn.primitives.special import bessel_i1e as bessel_i1e
    from volta_fn.primitives.special import digamma as digamma
    from volta_fn.primitives.special import erf as erf
    from volta_fn.primitives.special import erf_inv as erf_inv
    from volta_fn.primitives.special import erfc as erfc
    from volta_fn.primitives.special import gelu as gelu
    from volta_fn.primitives.special import lgamma as lgamma
    from volta_fn.primitives.special import ndtr as ndtr
    from volta_fn.primitives.special import polygamma as polygamma
    from volta_fn.primitives.special import zeta as zeta
    from volta_fn.primitives.trigonometric import acos as acos
    from volta_fn.primitives.trigonometric import acosh as acosh
    from volta_fn.primitives.trigonometric import asin as asin
    from volta_fn.primitives.trigonometric import asinh as asinh
    from volta_fn.primitives.trigonometric import atan as atan
    from volta_fn.primitives.trigonometric import atan2 as atan2
    from volta_fn.primitives.trigonometric import atanh as atanh
    from volta_fn.primitives.trigonometric import cos as cos
    from volta_fn.primitives.trigonometric import cosh as cosh
    from volta_fn.primitives.trigonometric import sin as sin
    from volta_fn.primitives.trigonometric import sinh as sinh
    from volta_fn.primitives.trigonometric import tan as tan
    from volta_fn.primitives.trigonometric import tanh as tanh
    from volta_fn.primitives.window import reduce_window as reduce_window
    from volta_fn.special.incomplete_beta import betainc as betainc
    from volta_fn.special.incomplete_gamma import igamma as igamma
    from volta_fn.special.incomplete_gamma import igammac as igammac
    from volta_fn.special.incomplete_gamma import random_gamma_grad as random_gamma_grad
    from volta_fn.transforms.sequential import map as map
else:
    __getattr__, __dir__ = _on_demand.exports(
        __name__,
        "volta_fn.primitives.linalg",
        {
            "volta_fn.primitives.collective": (
                "all_gather all_to_all axis_index axis_size pmax pmean pmin ppermute pshuffle psum psum_scatter pswapaxes"
            ),
            "volta_fn.primitives.control_flow.associative": "associative_scan",
            "volta_fn.primitives.control_flow.conditionals": "cond switch",
            "volta_fn.primitives.control_flow.loops": "fori_loop while_loop",
            "volta_fn.primitives.control_flow.reduce": "reduce",
            "volta_fn.primitives.control_flow.scan": "scan",
            "volta_fn.primitives.convolution": "ConvDimensionNumbers conv_dimension_numbers conv_general_dilated",
            "volta_fn.primitives.convolution_forms": "conv conv_general_dilated_patches conv_transpose conv_with_general_padding",
            "volta_fn.primitives.cumulative": "cumlogsumexp cummax cummin cumprod cumsum",
            "volta_fn.primitives.fourier": "FftType fft",
            "volta_fn.primitives.sorting": "approx_max_k approx_min_k argmax argmin sort sort_key_val top_k",
            "volta_fn.primitives.special": "bessel_i0e bessel_i1e digamma erf erf_inv erfc gelu lgamma ndtr polygamma zeta",
            "volta_fn.primitives.trigonometric": "acos acosh asin asinh atan atan2 atanh cos cosh sin sinh tan tanh",
            "volta_fn.primitives.window": "reduce_window",
            "volta_fn.special.incomplete_beta": "betainc",
            "volta_fn.special.incomplete_gamma": "igamma igammac random_gamma_grad",
            "volta_fn.transforms.sequential": "map",
        },
    )
