"""Arrays larger than one binding, in the shaders of any routine.

A buffer that is too large for one binding is bound several times, a *section* each: a load ``b[i]`` becomes a call of a function that knows
which section the element is in, a store one statement for each section, and an atomic operation a call, too. All our shaders access
storage in these forms.
"""

from __future__ import annotations

import functools
import re

from volta_fn.targets.wgsl.shader_layout import BOUND, bound

_ASSIGNMENT = re.compile(r"((?:\[[^]]*\]|\.\w+)*) ([-+*/&|^]?=)(?!=) ?")

#: Bytes of types; of vectors, of a component.
_BYTES = {"u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8}


@functools.lru_cache(maxsize=256)
def split_text(source: str, counts: tuple[int, ...], size: int) -> str:
    """A shader whose bindings are so many sections each, of `size` bytes but for the last one."""
    first = [sum(counts[:k]) for k in range(len(counts))]
    text, added = BOUND.sub("", source), list[str]()
    for number, access, name, type_ in BOUND.findall(source):
        start, count = first[int(number)], counts[int(number)]
        if count == 1:
            added.append(bound(start, access, name, type_))
            continue
        added += [bound(start + k, access, f"{name}_{k}", type_) for k in range(count)]
        split = _Split(name, type_, count, size // _bytes(type_))
        text = split.rewritten(text)
        added += [f"{function}\n" for function in split.functions.values()]
    return "".join([*added, text])


def _bytes(type_: str) -> int:
    """Of an element: u32, vec4<f32>, atomic<u32>, …"""
    inner = type_[type_.find("<") + 1 :].rstrip(">")
    return _BYTES[inner] * (int(type_[3]) if type_.startswith("vec") else 1)


def _closing(text: str, opening: int) -> int:
    """The place of the bracket that closes the one at a place."""
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if not depth:
            return place
    raise ValueError(f"a bracket is not closed: {text[opening : opening + 80]}")


class _Split:
    """An array in sections of `length` elements."""

    def __init__(self, name: str, type_: str, count: int, length: int) -> None:
        self.name = name
        self.type = type_
        self.sections = [f"{name}_{k}[{{i}}{f' - {k * length}u' if k else ''}]" for k in range(count)]
        self.length = length
        #: Texts of functions by their names.
        self.functions: dict[str, str] = {}
        self.access = re.compile(rf"(\w+\(&)?\b{name}\[")

    def rewritten(self, text: str) -> str:
        """The text with all accesses to the array replaced."""
        lengths = " + ".join(f"arrayLength(&{section[: section.index('[')]})" for section in self.sections)
        text = text.replace(f"arrayLength(&{self.name})", f"({lengths})")
        result, position = "", 0
        while (found := self.access.search(text, position)) is not None:
            result += text[position : found.start()]
            end = _closing(text, found.end() - 1)
            index = self.rewritten(text[found.end() : end])
            if found[1]:
                position = _closing(text, found.start() + len(found[1]) - 2) + 1
                result += self.atomic(found[1][:-2], index, self.rewritten(text[end + 1 : position - 1].removeprefix(", ")))
            elif (assigned := _ASSIGNMENT.match(text, end + 1)) is not None:
                position = text.index(";", assigned.end()) + 1
                value = self.rewritten(text[assigned.end() : position - 1])
                result += self.store(index, self.rewritten(assigned[1]), assigned[2], value)
            else:
                position = end + 1
                result += self.load(index)
        return result + text[position:]

    def load(self, index: str) -> str:
        """A call that gives an element."""
        name = f"{self.name}_at"
        self.functions[name] = self.function(f"fn {name}(i: u32) -> {self.type}", [f"return {section};" for section in self.sections])
        return f"{name}({index})"

    def atomic(self, operation: str, index: str, value: str) -> str:
        """A call of an atomic operation."""
        word, name = self.type[7:-1], f"{self.name}_{operation}"
        returned, keyword = ("", "") if operation == "atomicStore" else (f" -> {word}", "return ")
        given, passed = (f", value: {word}", ", value") if value else ("", "")
        bodies = [f"{keyword}{operation}(&{section}{passed});" for section in self.sections]
        self.functions[name] = self.function(f"fn {name}(i: u32{given}){returned}", bodies)
        return f"{name}({index}{', ' + value if value else ''})"

    def function(self, head: str, bodies: list[str]) -> str:
        """A function of the index i, with a body for each section."""
        return f"{head} {{ {self.choice([body.format(i='i') for body in bodies])} }}"

    def store(self, index: str, component: str, operator: str, value: str) -> str:
        """A statement that assigns to an element, or to a component of it."""
        place = f"place_in_{self.name}"
        bodies = [f"{section.format(i=place)}{component} {operator} {value};" for section in self.sections]
        return f"{{ let {place} = {index}; {self.choice(bodies, place)} }}"

    def choice(self, bodies: list[str], index: str = "i") -> str:
        """The body for the section in which the index is. (The last one stands outside of all braces, as functions must end with it.)"""
        last = len(bodies) - 1
        if bodies[0].startswith("return"):
            tests = [f"if ({index} < {(k + 1) * self.length}u) {{ {body} }} " for k, body in enumerate(bodies[:last])]
            return "".join(tests) + bodies[last]
        tests = [f"if ({index} < {(k + 1) * self.length}u) {{ {body} }} else " for k, body in enumerate(bodies[:last])]
        return f"{''.join(tests)}{{ {bodies[last]} }}"
