"""Memory layouts, as in `jax.experimental.layout`, which targets alone choose."""

from volta_fn.compat.refused import Format as Format
from volta_fn.compat.refused import Layout as Layout
from volta_fn.compat.refused import with_layout_constraint as with_layout_constraint
