"""Control flow as primitives that hold sub-programs.

`bodies` traces functions to sub-programs, `carry` checks the values that iterations pass on; `conditionals`, `scan` and `loops` have the
primitives, and `associative` and `reduce` scan and reduce by an associative function. `in_python` runs them under `disable_jit`.
"""
