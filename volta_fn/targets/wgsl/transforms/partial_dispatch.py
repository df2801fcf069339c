"""Run some of a shader's workgroups at a time."""

from __future__ import annotations

from dataclasses import replace

from volta_fn.targets.wgsl.shader_module import Binding, ShaderModule


def can_run_in_portions(shader: ShaderModule) -> bool:
    """Return whether a shader computes the index of its workgroup in a way that can be changed."""
    return shader.group is not None


def portion(shader: ShaderModule, groups: int) -> ShaderModule:
    """Make a shader of `groups` workgroups for the portion whose number is in a further buffer, the last one."""
    added = Binding("portion", "u32")
    return replace(shader, declarations=(*shader.declarations, added), group=f"portion[0] * {groups}u + {shader.group}")
