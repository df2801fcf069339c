"""One text for equal shaders that stand side by side: it chooses its buffers by a number.

An element of a buffer is read, and written, by functions that do so in the buffer of that number.
"""

from __future__ import annotations

import re
from functools import lru_cache

from volta_fn.targets.wgsl.shader_layout import BOUND, bound

#: An element of a buffer, by an index in which there are no others.
_ELEMENT = r"(?<![\w.&]){name}\[([^\[\]]*)\]"


@lru_cache(maxsize=4096)
def may_choose(source: str) -> bool:
    """Whether a shader does nothing with its buffers but read elements, and write whole ones."""
    if "atomic" in source:
        return False
    for _, _, name, _ in BOUND.findall(source):
        element = _ELEMENT.format(name=name)
        used = len(re.findall(rf"(?<![\w.]){name}\[|&{name}\b", source))
        if used != len(re.findall(element, source)) or re.search(rf"{element}(\[[^\]]*\]|\.\w+) *=[^=]", source):
            return False
    return True


def with_one_of(count: int, which: str, declarations: str, body: str) -> tuple[str, str]:
    """Declarations with `count` times the buffers, one set after the other, and the body: they use those that `which` says."""
    buffers = BOUND.findall(declarations)
    head = [f"var<private> {which}: u32;\n"]
    for k in range(count):
        for n, (_, access, name, type_) in enumerate(buffers, k * len(buffers)):
            head.append(bound(n, access, f"{name}_{k}", type_))
    texts = [BOUND.sub("", declarations), body]
    for _, access, name, type_ in buffers:
        head += _accessors(count, which, name, type_, written=access == "read_write")
        texts = [_by_accessors(text, name) for text in texts]
    return "".join([*head, texts[0]]), texts[1]


def _accessors(count: int, which: str, name: str, type_: str, *, written: bool) -> list[str]:
    """The functions that read, and write, an element of one of a buffer's likes."""
    cases = [(f"case {k}u" if k + 1 < count else "default", f"{name}_{k}[i]") for k in range(count)]
    reads = " ".join(f"{case}: {{ return {element}; }}" for case, element in cases)
    writes = " ".join(f"{case}: {{ {element} = x; }}" for case, element in cases)
    found = [f"fn {name}_get(i: u32) -> {type_} {{ switch {which} {{ {reads} }} }}\n"]
    return [*found, *([f"fn {name}_set(i: u32, x: {type_}) {{ switch {which} {{ {writes} }} }}\n"] if written else [])]


def _by_accessors(text: str, name: str) -> str:
    element = _ELEMENT.format(name=name)
    text = re.sub(rf"{element} = ([^=;][^;]*);", rf"{name}_set(\1, \2);", text)
    return re.sub(element, rf"{name}_get(\1)", text)
