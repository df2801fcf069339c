"""Where elements are: what the lanes' libraries know of strides, of windows at index vectors, and of sliding windows."""
