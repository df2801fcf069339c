"""Kernels as shaders: `routine`."""

from volta_fn.backends.wgsl.loops.routine import routine as routine
