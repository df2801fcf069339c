"""Translate compute shaders: WGSL to LLVM IR for NVIDIA's GPUs.

The subset is what the package writes: no textures, no overridable constants, no pointers except as arguments of built-in functions.
Workgroup memory holds anything when a workgroup begins, where WGSL has zeros: shaders write what they read.

In the order in which to read: `syntax` (tokens, the tree, the parser), `values` (types and their layout in memory, and what operators and
conversions become), `expressions` (also WGSL's functions), and `module` (statements, memory, functions, the kernel).
"""

from volta_fn.targets.nvidia.translation.module import TranslatedShader as TranslatedShader
from volta_fn.targets.nvidia.translation.module import translate as translate
