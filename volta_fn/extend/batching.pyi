"""Batching rules of primitives, by the names of `jax.interpreters.batching`."""

from volta_fn.extend.interpreters import BatchTrace as BatchTrace
from volta_fn.extend.interpreters import BatchTracer as BatchTracer
from volta_fn.extend.interpreters import NotMapped as NotMapped
from volta_fn.extend.interpreters import axis_primitive_batchers as axis_primitive_batchers
from volta_fn.extend.interpreters import bdim_at_front as bdim_at_front
from volta_fn.extend.interpreters import broadcast as broadcast
from volta_fn.extend.interpreters import defbroadcasting as defbroadcasting
from volta_fn.extend.interpreters import defreducer as defreducer
from volta_fn.extend.interpreters import defvectorized as defvectorized
from volta_fn.extend.interpreters import fancy_primitive_batchers as fancy_primitive_batchers
from volta_fn.extend.interpreters import not_mapped as not_mapped
from volta_fn.extend.interpreters import primitive_batchers as primitive_batchers
from volta_fn.extend.interpreters import register_vmappable as register_vmappable
from volta_fn.extend.interpreters import unregister_vmappable as unregister_vmappable
