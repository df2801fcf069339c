"""Where elements are: what the lanes' libraries know of `strides`, of windows at index vectors (`window_offsets`), of sliding `windows`,
and of lines that are accumulated along (`cumulative`).
"""
