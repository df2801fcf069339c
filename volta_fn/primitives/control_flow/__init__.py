"""Control flow as primitives that hold sub-programs.

`bodies` traces functions to sub-programs, checks the carries of loops, and runs loops and branches under `disable_jit`. `scan` has
loops of known length, also by an associative function; `loops` has conditionals, other loops, and reductions by a user's function.
"""
