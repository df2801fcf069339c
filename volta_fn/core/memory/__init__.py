"""Who owns the memory of arrays.

`transfer` (between host and devices), `dlpack` (shared with other libraries), `donations` (results that take an argument's memory) and
`gone` (the buffer of arrays that were donated or deleted).
"""
