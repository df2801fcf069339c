"""Mutable references: `new_ref`, `freeze`, and functions to read and write."""

from volta_fn.core.refs import AbstractRef as AbstractRef
from volta_fn.core.refs import Ref as Ref
from volta_fn.core.refs import addupdate as addupdate
from volta_fn.core.refs import empty_ref as empty_ref
from volta_fn.core.refs import free_ref as free_ref
from volta_fn.core.refs import freeze as freeze
from volta_fn.core.refs import get as get
from volta_fn.core.refs import new_ref as new_ref
from volta_fn.core.refs import set as set
from volta_fn.core.refs import swap as swap
