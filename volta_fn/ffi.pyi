"""Foreign functions with XLA's interface, which run on the host; see `volta_fn.compat.foreign_functions`."""

from volta_fn.compat.foreign_functions import ffi_call as ffi_call
from volta_fn.compat.foreign_functions import ffi_lowering as ffi_lowering
from volta_fn.compat.foreign_functions import include_dir as include_dir
from volta_fn.compat.foreign_functions import pycapsule as pycapsule
from volta_fn.compat.foreign_functions import register_ffi_target as register_ffi_target
from volta_fn.compat.foreign_functions import register_ffi_target_as_batch_partitionable as register_ffi_target_as_batch_partitionable
from volta_fn.compat.foreign_functions import register_ffi_type as register_ffi_type
from volta_fn.compat.foreign_functions import register_ffi_type_id as register_ffi_type_id
from volta_fn.compat.refused import build_ffi_lowering_function as build_ffi_lowering_function
