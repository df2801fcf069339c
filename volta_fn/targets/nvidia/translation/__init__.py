"""The translation of compute shaders: WGSL to LLVM IR for NVIDIA's GPUs."""

from __future__ import annotations

from volta_fn.targets.nvidia.translation.module import TranslatedShader, translate

__all__ = ["TranslatedShader", "translate"]
