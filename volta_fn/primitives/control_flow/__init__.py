"""Control flow as primitives that hold sub-programs.

`bodies` writes functions down as sub-programs, `carry` is what loops hand on; `conditionals`, `scan` and `loops` have the primitives, and
`associative` and `reduce` scan and reduce by a function that is associative.
"""
