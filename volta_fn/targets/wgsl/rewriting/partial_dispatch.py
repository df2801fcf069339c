"""Some of a shader's workgroups at a time."""

from __future__ import annotations

import functools

from volta_fn.targets.wgsl.shader_layout import GROUP, bound


def may_be_portioned(source: str) -> bool:
    """Whether a shader numbers its workgroups in the way that can be changed."""
    return GROUP in source


@functools.lru_cache(maxsize=64)
def portion(source: str, binding: int, groups: int) -> str:
    """A shader that does `groups` workgroups: those of the portion whose number is in a further buffer, which has the number `binding`."""
    return bound(binding, "read", "portion", "u32") + source.replace(GROUP, GROUP.replace("= ", f"= portion[0] * {groups}u + "))
