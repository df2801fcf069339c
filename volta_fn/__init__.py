"""volta_fn: immutable arrays, pure functions, and transforms of functions: `grad`, `jit`, `vmap` and their kin.

>>> import volta_fn as vf
>>> loss = lambda w, x: vf.numpy.sum((x * w) ** 2)
>>> vf.jit(vf.grad(loss))(2.0, vf.numpy.arange(3.0))
Array(20., dtype=float32)
"""

from typing import TYPE_CHECKING

from volta_fn import dtypes as dtypes
from volta_fn import errors as errors
from volta_fn import numpy as numpy
from volta_fn import on_demand as _on_demand
from volta_fn import tree as tree
from volta_fn.core.array import Array as Array
from volta_fn.core.array import typeof as typeof
from volta_fn.core.aval import ShapeDtypeStruct as ShapeDtypeStruct
from volta_fn.core.device import Device as Device
from volta_fn.core.device import default_backend as default_backend
from volta_fn.core.device import default_device as default_device
from volta_fn.core.device import device_count as device_count
from volta_fn.core.device import device_memory_stats as device_memory_stats
from volta_fn.core.device import device_work_stats as device_work_stats
from volta_fn.core.device import devices as devices
from volta_fn.core.device import free_memory as free_memory
from volta_fn.core.device import set_default_device as set_default_device
from volta_fn.core.device import set_memory_limit as set_memory_limit
from volta_fn.core.device import synchronize as synchronize
from volta_fn.core.transfer import block_until_ready as block_until_ready
from volta_fn.core.transfer import device_get as device_get
from volta_fn.core.transfer import device_put as device_put
from volta_fn.jit import jit as jit
from volta_fn.primitives import array_updates as _array_updates  # noqa: F401  # attaches x[…] and x.at
from volta_fn.primitives import operators as _operators  # noqa: F401  # attaches the operators

if TYPE_CHECKING:
    from volta_fn import data as data
    from volta_fn import debug as debug
    from volta_fn import io as io
    from volta_fn import lax as lax
    from volta_fn import linalg as linalg
    from volta_fn import nn as nn
    from volta_fn import optim as optim
    from volta_fn import random as random
    from volta_fn import special as special
    from volta_fn import test_util as test_util
    from volta_fn import tree_util as tree_util
    from volta_fn.core.check import check_jaxpr as check_jaxpr
    from volta_fn.primitives.callbacks import pure_callback as pure_callback
    from volta_fn.transforms.checkpoint import checkpoint as checkpoint
    from volta_fn.transforms.checkpoint import checkpoint_name as checkpoint_name
    from volta_fn.transforms.checkpoint import checkpoint_policies as checkpoint_policies
    from volta_fn.transforms.checkpoint import remat as remat
    from volta_fn.transforms.closures import closure_convert as closure_convert
    from volta_fn.transforms.closures import custom_gradient as custom_gradient
    from volta_fn.transforms.custom_jvp import custom_jvp as custom_jvp
    from volta_fn.transforms.custom_vjp import custom_vjp as custom_vjp
    from volta_fn.transforms.grad import grad as grad
    from volta_fn.transforms.grad import jvp as jvp
    from volta_fn.transforms.grad import linearize as linearize
    from volta_fn.transforms.grad import value_and_grad as value_and_grad
    from volta_fn.transforms.grad import vjp as vjp
    from volta_fn.transforms.jacobian import hessian as hessian
    from volta_fn.transforms.jacobian import jacfwd as jacfwd
    from volta_fn.transforms.jacobian import jacobian as jacobian
    from volta_fn.transforms.jacobian import jacrev as jacrev
    from volta_fn.transforms.jacobian import linear_transpose as linear_transpose
    from volta_fn.transforms.program import eval_shape as eval_shape
    from volta_fn.transforms.program import make_jaxpr as make_jaxpr
    from volta_fn.transforms.vectorize import vmap as vmap
else:
    __getattr__, __dir__ = _on_demand.exports(
        __name__,
        ".data .debug .io .lax .linalg .nn .optim .random .special .test_util .tree_util",
        {
            ".core.check": "check_jaxpr",
            ".primitives.callbacks": "pure_callback",
            ".transforms.checkpoint": "checkpoint checkpoint_name checkpoint_policies remat",
            ".transforms.closures": "closure_convert custom_gradient",
            ".transforms.custom_jvp": "custom_jvp",
            ".transforms.custom_vjp": "custom_vjp",
            ".transforms.grad": "grad jvp linearize value_and_grad vjp",
            ".transforms.vectorize": "vmap",
            ".transforms.jacobian": "hessian jacfwd jacobian jacrev linear_transpose",
            ".transforms.program": "eval_shape make_jaxpr",
        },
    )

__version__ = "0.1.0"
