"""Where the cotangents of `VJP.with_refs` go; JAX's `jax.ad`."""

from volta_fn.transforms.grad import DidntWant as DidntWant
from volta_fn.transforms.grad import DontWant as DontWant
from volta_fn.transforms.grad import GradRef as GradRef
from volta_fn.transforms.grad import GradValue as GradValue
from volta_fn.transforms.grad import NotNeeded as NotNeeded
