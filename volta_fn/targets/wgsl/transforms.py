"""Transformations of shaders: horizontal fusion, parts of dispatches, bindings."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from volta_fn.targets.wgsl.shader import (
    Binding,
    Builtin,
    Declaration,
    ShaderModule,
    WorkgroupVariable,
    accesses,
    closing,
    renamed,
    skip_space,
    tokenize,
)

# Fuse shaders horizontally: independent dispatches become one.
#
# Each shader has some of the workgroups. A dispatch of few workgroups leaves much of a GPU idle, and WebGPU runs the dispatches of a
# pass one after the other where memory that was used before is written, even if they are independent. Equal shaders that follow each
# other share their statements, which select their buffers by number (`_switched`).

#: The built-in values that a shader may use: it sees its own workgroups as if they were alone in the grid.
_GROUP = "workgroup_id"
_LOCAL = "local_invocation_index"
_FUSIBLE_BUILTINS = frozenset({_GROUP, _LOCAL, "subgroup_id", "subgroup_size", "subgroup_invocation_id", "num_subgroups"})


@functools.lru_cache(maxsize=4096)
def is_fusible(shader: ShaderModule) -> bool:
    """Return whether a shader can be fused.

    It is WGSL, declares no types, and sees no more of the grid than its workgroup's index.
    """
    return shader.is_rewritable and {b.value for b in shader.builtins} <= _FUSIBLE_BUILTINS and not shader.has_types


def fused_size(shaders: Sequence[ShaderModule]) -> int:
    """Return the workgroup size of the fused shader; 0 if they cannot be fused.

    Where a shader has fewer invocations, the rest of a workgroup is idle, so that shader must have no barriers.
    """
    size = max(shader.invocations for shader in shaders)
    return size if all(is_fusible(s) and (s.invocations == size or not s.synchronises) for s in shaders) else 0


def fused_memory(shaders: Sequence[ShaderModule]) -> int:
    """Return the bytes of workgroup memory of the fused shader."""
    memory = _WorkgroupMemory()
    for shader in shaders:
        memory.names(shader)
    return sum(variable.bytes for variable in memory.variables.values())


@functools.lru_cache(maxsize=1024)
def fused(shaders: Sequence[ShaderModule], counts: Sequence[int]) -> ShaderModule:
    """Fuse shaders that each have a grid of `counts` workgroups along x.

    Their buffers follow each other.
    """
    first, size = 0, fused_size(shaders)
    memory = _WorkgroupMemory()
    declarations: list[Declaration] = []
    builtins, branches = {_GROUP: "vec3<u32>", _LOCAL: "u32"}, []
    for number, (shader, count, times) in enumerate(_repeated(shaders, counts)):
        builtins |= {b.value: b.type for b in shader.builtins}
        shader = _with_own_names(shader, number, memory)
        group = f"let p{number}_{_GROUP} = _{_GROUP} - vec3<u32>({first}u, 0u, 0u);"
        if times > 1:
            selected = f"p{number}_which"
            shader = _switched(shader, times, selected)
            # y and z are no literals: shaders make an opaque 1 of z, and with a known 1 compilers cancel the large number that is added
            # and subtracted for rounding.
            group = f"let p{number}_{_GROUP} = vec3<u32>((_{_GROUP}.x - {first}u) % {count}u, _{_GROUP}.yz);"
            group += f"\n  {selected} = (_{_GROUP}.x - {first}u) / {count}u;"
        declarations += shader.declarations
        first += count * times
        body = shader.body
        if shader.invocations < size:
            body = f"  if (_{_LOCAL} < {shader.invocations}u) {{\n{body}  }}\n"
        branches.append(f"if (_{_GROUP}.x < {first}u) {{\n  {group}\n{body}}}")
    parameters = tuple([Builtin(value, f"_{value}", type_) for value, type_ in builtins.items()])
    return ShaderModule((*declarations, *memory.variables.values()), size, parameters, " else ".join(branches) + "\n")


def _repeated(shaders: Sequence[ShaderModule], counts: Sequence[int]) -> Iterator[tuple[ShaderModule, int, int]]:
    """Yield each shader with its count and how often it is repeated.

    Shaders that cannot be switched are repeated once each.
    """
    for (shader, count), same in itertools.groupby(zip(shaders, counts, strict=True)):
        times = len([*same])
        if times > 1 and _is_switchable(shader):
            yield shader, count, times
        else:
            yield from [(shader, count, 1)] * times


def _with_own_names(shader: ShaderModule, number: int, memory: _WorkgroupMemory) -> ShaderModule:
    """Give a shader unique names, and its workgroup variables to `memory`."""
    names = {name: f"p{number}_{name}" for name in shader.names} | memory.names(shader)
    names |= {b.parameter: f"p{number}_{_GROUP}" if b.value == _GROUP else f"_{b.value}" for b in shader.builtins}
    declarations: list[Declaration] = []
    for declaration in shader.declarations:
        if isinstance(declaration, Binding):
            declarations.append(declaration._replace(name=names[declaration.name]))
        elif isinstance(declaration, str):
            declarations.append(renamed(declaration, names))
    return ShaderModule(tuple(declarations), shader.invocations, (), renamed(shader.statements, names))


class _WorkgroupMemory:
    """Workgroup memory that all shaders share, since each workgroup runs only one.

    Its size is the largest that any of them needs.
    """

    def __init__(self) -> None:
        self.variables: dict[str, WorkgroupVariable] = {}

    def names(self, shader: ShaderModule) -> dict[str, str]:
        """Assign shared variables to those of a shader, by name."""
        names: dict[str, str] = {}
        for name, element, length in shader.workgroup_variables:
            kind = "".join([c if c.isalnum() else "_" for c in (f"{element}s" if length else element)])
            room = next(r for k in itertools.count() if (r := f"shared{k}_{kind}") not in names.values())
            variable = self.variables.get(room)
            self.variables[room] = WorkgroupVariable(room, element, max(length, variable.length if variable else 0))
            names[name] = room
        return names


# equal shaders with a choice of buffers


@functools.lru_cache(maxsize=4096)
def _is_switchable(shader: ShaderModule) -> bool:
    """Return whether a shader only loads and stores entire elements by index."""
    if "atomic" in shader.text:
        return False
    names = frozenset(b.name for b in shader.bindings)
    texts = [shader.statements, *[d for d in shader.declarations if isinstance(d, str)]]
    return all(_is_plain(tokenize(text), names) for text in texts)


def _is_plain(tokens: Sequence[str], names: frozenset[str]) -> bool:
    for position, token in enumerate(tokens):
        if token not in names or not accesses(tokens, position):
            continue
        if tokens[position - 1] == "&":
            return False
        end = closing(tokens, position + 1)
        if "[" in tokens[position + 2 : end] or _assigns_component(tokens, end + 1):
            return False
    return True


def _assigns_component(tokens: Sequence[str], position: int) -> bool:
    """Return whether a component of the element before `position` is assigned."""
    if position >= len(tokens) or tokens[position] not in ("[", "."):
        return False
    after = skip_space(tokens, closing(tokens, position) + 1 if tokens[position] == "[" else position + 2)
    return tokens[after] == "=" and tokens[after + 1] != "="


def _switched(shader: ShaderModule, count: int, selected: str) -> ShaderModule:
    """Give a shader `count` sets of its buffers; the variable `selected` tells which."""
    head: list[Declaration] = [f"var<private> {selected}: u32;\n"]
    for k in range(count):
        head += [binding._replace(name=f"{binding.name}_{k}") for binding in shader.bindings]
    for binding in shader.bindings:
        head += _accessors(binding, count, selected)
    names = frozenset(b.name for b in shader.bindings)
    rest = [_by_accessors(tokenize(d), names) for d in shader.declarations if isinstance(d, str)]
    return ShaderModule((*head, *rest), shader.invocations, (), _by_accessors(tokenize(shader.body), names))


def _accessors(binding: Binding, count: int, selected: str) -> list[str]:
    """Return the functions that load and store an element of the selected buffer."""
    name, type_ = binding.name, binding.element
    cases = [(f"case {k}u" if k + 1 < count else "default", f"{name}_{k}[i]") for k in range(count)]
    loads = " ".join([f"{case}: {{ return {element}; }}" for case, element in cases])
    stores = " ".join([f"{case}: {{ {element} = x; }}" for case, element in cases])
    functions = [f"fn {name}_get(i: u32) -> {type_} {{ switch {selected} {{ {loads} }} }}\n"]
    return [*functions, *([f"fn {name}_set(i: u32, x: {type_}) {{ switch {selected} {{ {stores} }} }}\n"] if binding.written else [])]


def _by_accessors(tokens: Sequence[str], names: frozenset[str]) -> str:
    """Replace loads and stores of buffers by calls of their accessors."""
    result: list[str] = []
    position = 0
    while position < len(tokens):
        name = tokens[position]
        if name not in names or not accesses(tokens, position):
            result.append(name)
            position += 1
            continue
        end = closing(tokens, position + 1)
        index = "".join(tokens[position + 2 : end])
        operator = skip_space(tokens, end + 1)
        if tokens[operator] == "=" and tokens[operator + 1] != "=":
            stop = tokens.index(";", operator)
            value = _by_accessors(tokens[skip_space(tokens, operator + 1) : stop], names)
            result.append(f"{name}_set({index}, {value});")
            position = stop + 1
        else:
            result.append(f"{name}_get({index})")
            position = end + 1
    return "".join(result)


# Run some of a shader's workgroups at a time.


def can_run_in_portions(shader: ShaderModule) -> bool:
    """Return whether `portion` can change the index of a shader's workgroup."""
    return shader.group is not None


def portion(shader: ShaderModule, groups: int) -> ShaderModule:
    """Make a shader run `groups` workgroups of one portion.

    A further buffer, the last one, tells the number of the portion.
    """
    added = Binding("portion", "u32")
    return replace(shader, declarations=(*shader.declarations, added), group=f"portion[0] * {groups}u + {shader.group}")


# Bind arrays that are larger than one binding several times.
#
# A buffer that is too large for one binding is bound in *sections*. A load ``b[i]`` becomes a call of a function that finds the section
# of the element, a store one statement for each section, and an atomic operation a call. Shaders access storage in no other form.

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
        name = f"{self.name}_at"
        self.functions[name] = self._function(f"fn {name}(i: u32) -> {self.type}", [f"return {section};" for section in self.sections])
        return f"{name}({index})"

    def _atomic(self, operation: str, index: str, value: str) -> str:
        word, name = self.type[7:-1], f"{self.name}_{operation}"
        returned, keyword = ("", "") if operation == "atomicStore" else (f" -> {word}", "return ")
        parameter, passed = (f", value: {word}", ", value") if value else ("", "")
        bodies = [f"{keyword}{operation}(&{section}{passed});" for section in self.sections]
        self.functions[name] = self._function(f"fn {name}(i: u32{parameter}){returned}", bodies)
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
        """Return the body for the section of the index."""
        # The last `return` stands outside of all braces, since functions must end with it.
        last = len(bodies) - 1
        if bodies[0].startswith("return"):
            tests = [f"if ({index} < {(k + 1) * self.length}u) {{ {body} }} " for k, body in enumerate(bodies[:last])]
            return "".join(tests) + bodies[last]
        tests = [f"if ({index} < {(k + 1) * self.length}u) {{ {body} }} else " for k, body in enumerate(bodies[:last])]
        return f"{''.join(tests)}{{ {bodies[last]} }}"
