"""Bind arrays that are larger than one binding several times.

A buffer that is too large for one binding is bound in *sections*. A load ``b[i]`` becomes a call of a function that finds the section of
the element, a store one statement for each section, and an atomic operation a call. Shaders access storage in no other form.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from volta_fn.targets.wgsl.shader_module import Binding, Declaration, ShaderModule
from volta_fn.targets.wgsl.tokens import accesses, closing, skip_space, tokenize

#: Bytes of types; of vectors, of a component.
_BYTES = {"u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8}

#: Characters before the = of compound assignments.
_OPERATORS = frozenset("-+*/&|^")


@functools.lru_cache(maxsize=256)
def split_bindings(shader: ShaderModule, counts: tuple[int, ...], size: int) -> ShaderModule:
    """Bind the buffers of a shader in `counts` sections each, of `size` bytes."""
    declarations: list[Declaration] = []
    number = 0
    splits = []
    for declaration in shader.declarations:
        if not isinstance(declaration, Binding):
            continue
        count, number = counts[number], number + 1
        if count == 1:
            declarations.append(declaration)
            continue
        declarations += [declaration._replace(name=f"{declaration.name}_{k}") for k in range(count)]
        splits.append(_Split(declaration.name, declaration.element, count, size // _bytes(declaration.element)))

    def change(text: str) -> str:
        for split in splits:
            text = split.rewritten(tokenize(text))
        return text

    rest = [change(d) if isinstance(d, str) else d for d in shader.declarations if not isinstance(d, Binding)]
    body = change(shader.body)
    declarations += [f"{function}\n" for split in splits for function in split.functions.values()]
    return replace(shader, declarations=(*declarations, *rest), body=body)


def _bytes(type_: str) -> int:
    """Return the size of an element such as u32, vec4<f32> or atomic<u32>."""
    inner = type_[type_.find("<") + 1 :].rstrip(">")
    return _BYTES[inner] * (int(type_[3]) if type_.startswith("vec") else 1)


class _Split:
    """An array in sections of `length` elements."""

    def __init__(self, name: str, type_: str, count: int, length: int) -> None:
        self.name = name
        self.type = type_
        self.sections = [f"{name}_{k}[{{i}}{f' - {k * length}u' if k else ''}]" for k in range(count)]
        self.length = length
        #: The WGSL of functions by their names.
        self.functions: dict[str, str] = {}

    def rewritten(self, tokens: Sequence[str]) -> str:
        """Replace all accesses to the array."""
        result: list[str] = []
        position = 0
        while position < len(tokens):
            if tokens[position] != self.name or not accesses(tokens, position):
                result.append(tokens[position])
                position += 1
            elif result and result[-1] == "&":
                position = self._by_address(tokens, position, result)
            else:
                position = self._by_index(tokens, position, result)
        return "".join(result)

    def _by_address(self, tokens: Sequence[str], position: int, result: list[str]) -> int:
        """Replace ``operation(&name[index], …)`` or ``arrayLength(&name)``.

        Its beginning is in `result`. Returns the position after it.
        """
        _, _, operation = result.pop(), result.pop(), result.pop()
        end = closing(tokens, position, depth=1)
        if operation == "arrayLength":
            lengths = [f"arrayLength(&{section[: section.index('[')]})" for section in self.sections]
            result.append(f"({' + '.join(lengths)})")
            return end + 1
        last = closing(tokens, position + 1)
        index = self.rewritten(tokens[position + 2 : last])
        result.append(self._atomic(operation, index, self.rewritten(tokens[last + 1 : end]).removeprefix(",").strip()))
        return end + 1

    def _by_index(self, tokens: Sequence[str], position: int, result: list[str]) -> int:
        """Replace a load or a store of ``name[index]``; return the position after it."""
        end = closing(tokens, position + 1)
        index = self.rewritten(tokens[position + 2 : end])
        component = end + 1
        while component < len(tokens) and tokens[component] in ("[", "."):
            component = closing(tokens, component) + 1 if tokens[component] == "[" else component + 2
        operator = skip_space(tokens, component)
        after = operator + (operator < len(tokens) and tokens[operator] in _OPERATORS)
        if after >= len(tokens) or tokens[after] != "=" or tokens[after + 1] == "=":
            result.append(self._load(index))
            return end + 1
        stop = tokens.index(";", after)
        value = self.rewritten(tokens[skip_space(tokens, after + 1) : stop])
        result.append(self._store(index, self.rewritten(tokens[end + 1 : component]), "".join(tokens[operator : after + 1]), value))
        return stop + 1

    def _load(self, index: str) -> str:
        """Return a call that gives an element."""
        name = f"{self.name}_at"
        self.functions[name] = self._function(f"fn {name}(i: u32) -> {self.type}", [f"return {section};" for section in self.sections])
        return f"{name}({index})"

    def _atomic(self, operation: str, index: str, value: str) -> str:
        """Return a call of an atomic operation."""
        word, name = self.type[7:-1], f"{self.name}_{operation}"
        returned, keyword = ("", "") if operation == "atomicStore" else (f" -> {word}", "return ")
        given, passed = (f", value: {word}", ", value") if value else ("", "")
        bodies = [f"{keyword}{operation}(&{section}{passed});" for section in self.sections]
        self.functions[name] = self._function(f"fn {name}(i: u32{given}){returned}", bodies)
        return f"{name}({index}{', ' + value if value else ''})"

    def _function(self, head: str, bodies: list[str]) -> str:
        """Return a function of the index i, with a body for each section."""
        return f"{head} {{ {self._choice([body.format(i='i') for body in bodies])} }}"

    def _store(self, index: str, component: str, operator: str, value: str) -> str:
        """Return a statement that assigns to an element, or to a component of it."""
        name = f"index_in_{self.name}"
        bodies = [f"{section.format(i=name)}{component} {operator} {value};" for section in self.sections]
        return f"{{ let {name} = {index}; {self._choice(bodies, name)} }}"

    def _choice(self, bodies: list[str], index: str = "i") -> str:
        """Return the body for the section of the index.

        The last ``return`` stands outside of all braces, since functions must end with it.
        """
        last = len(bodies) - 1
        if bodies[0].startswith("return"):
            tests = [f"if ({index} < {(k + 1) * self.length}u) {{ {body} }} " for k, body in enumerate(bodies[:last])]
            return "".join(tests) + bodies[last]
        tests = [f"if ({index} < {(k + 1) * self.length}u) {{ {body} }} else " for k, body in enumerate(bodies[:last])]
        return f"{''.join(tests)}{{ {bodies[last]} }}"
