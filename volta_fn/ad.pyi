"""Where the cotangents of `VJP.with_refs` go; JAX's `jax.ad`."""

from volta_fn.transforms.gradient_refs import DidntWant as DidntWant
from volta_fn.transforms.gradient_refs import DontWant as DontWant
from volta_fn.transforms.gradient_refs import GradRef as GradRef
from volta_fn.transforms.gradient_refs import GradValue as GradValue
