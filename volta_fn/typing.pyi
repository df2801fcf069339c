"""Types for annotations, by the names of `jax.typing`."""

from volta_fn.numpy.arguments import ArrayLike as ArrayLike
from volta_fn.numpy.arguments import DTypeLike as DTypeLike
from volta_fn.numpy.arguments import PrecisionLike as PrecisionLike
from volta_fn.numpy.arguments import SupportsDType as SupportsDType
