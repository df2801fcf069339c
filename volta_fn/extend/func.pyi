"""Functions of a module that is built by operations (`volta_fn.extend.ir`)."""

from volta_fn.extend.ir import CallOp as CallOp
from volta_fn.extend.ir import FuncOp as FuncOp
from volta_fn.extend.ir import func as func
