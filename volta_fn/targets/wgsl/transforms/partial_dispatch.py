"""Run some of a shader's workgroups at a time."""

from __future__ import annotations

from dataclasses import replace

from volta_fn.targets.wgsl.shader_module import Binding, ShaderModule


def can_run_in_portions(shader: ShaderModule) -> bool:
    """Return whether a shader computes its workgroup's index in a way we can change."""
    return shader.group is not None


def portion(shader: ShaderModule, groups: int) -> ShaderModule:
    """Make a shader run `groups` workgroups of one portion.

    A further buffer, the last one, tells the number of the portion.
    """
    added = Binding("portion", "u32")
    return replace(shader, declarations=(*shader.declarations, added), group=f"portion[0] * {groups}u + {shader.group}")
