"""Control flow as primitives that hold sub-programs: `cond`, `scan`, `while`, and the functions of `jax.lax` made of them."""
