"""Where elements are: what the lanes' libraries know of `strides`, of windows at index vectors (`starts`), of sliding `windows`, and of
lines that are accumulated along (`accumulations`).
"""
