"""Kernels: loops over scalar operations, the form in which every backend gets programs. See `volta_fn.compiler.kernels.ir`."""
