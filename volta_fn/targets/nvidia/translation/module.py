"""Modules of WGSL as modules of LLVM IR: declarations, the functions, and the kernel with its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from volta_fn.targets.nvidia.translation import builtins
from volta_fn.targets.nvidia.translation.expressions import Signature
from volta_fn.targets.nvidia.translation.statements import Body
from volta_fn.targets.nvidia.translation.syntax import (
    Alias,
    Call,
    Expression,
    Function,
    Name,
    Variable,
    assigned_names,
    calls_and_names,
    fault,
    parse,
)
from volta_fn.targets.nvidia.translation.syntax import (
    Structure as StructureSyntax,
)
from volta_fn.targets.nvidia.translation.types import U32, Scalar, Structure, Type, Vector, memory_type
from volta_fn.targets.nvidia.translation.values import (
    CONSTANT,
    GLOBAL,
    OWN,
    SHARED,
    Operand,
    Place,
    Value,
    concrete,
    constant,
    is_constant,
    zero,
)

#: The alignment of arrays in workgroup memory and of tables, so that elements can be read in fours.
_ALIGNMENT = 16


class TranslatedShader(NamedTuple):
    """A shader as a kernel called `main`.

    Its parameters, 8 bytes each, are for n bindings, in the order of their numbers: n addresses, n sizes in bytes, and the address of the
    three words of an indirect grid, or null. Where the first of these words is 0, the kernel does nothing.
    """

    llvm_ir: str
    #: The dimensions of a workgroup.
    threads: tuple[int, int, int]


class Module:
    """The names of a module, and the translation of its functions."""

    def __init__(self, source: str) -> None:
        self.types: dict[str, Type] = {}
        self.operands: dict[str, Operand] = {}
        self.signatures: dict[str, Signature] = {}
        self.intrinsics: dict[str, str] = {}
        self.invocations = 1
        self._items = parse(source)
        self._bindings: list[Variable] = []
        self._privates: list[Variable] = []
        self._definitions: list[str] = []
        self._functions = {item.name: item for item in self._items if isinstance(item, Function)}
        #: The values of tables in constant memory.
        self._tables: dict[str, Value] = {}
        self._constants = Body(self)

    def translated(self) -> TranslatedShader:
        """Translate the module."""
        main = self._functions.get("main")
        if main is None or not main.workgroup:
            raise fault(1, "a module needs an entry point main")
        x, y, z = (*main.workgroup, 1, 1)[:3]
        self.invocations = x * y * z
        for item in self._items:
            self._constants.line = item.line
            match item:
                case Alias(_, name, type_):
                    self.types[name] = self._constants.type_of(type_)
                case StructureSyntax(_, name, members):
                    self.types[name] = Structure(name, tuple((member, self._constants.type_of(type_)) for member, type_ in members))
                case Variable():
                    self._declare(item)
        self._bindings.sort(key=lambda variable: variable.binding)
        variables = [v.name for v in (*self._bindings, *self._privates)]
        for function in self._functions.values():
            self._constants.line = function.line
            parameters = tuple(self._constants.type_of(parameter.type) for parameter in function.parameters)
            result = None if function.result is None else self._constants.type_of(function.result)
            used = self._names_within(function.name, set())
            self.signatures[function.name] = Signature(parameters, result, tuple(name for name in variables if name in used))
        reached = self._names_within("main", set())
        for function in self._functions.values():
            if function.name in reached and function is not main:
                self._function(function)
        self._kernel(main, (x, y, z))
        attributes = f'attributes #0 = {{ nounwind "nvvm.reqntid"="{x},{y},{z}" "nvvm.minctasm"="1" }}'
        lines = ['target triple = "nvptx64-nvidia-cuda"', *self.intrinsics.values(), *self._definitions, attributes]
        return TranslatedShader("\n".join(lines) + "\n", (x, y, z))

    def arguments(self, variable: str) -> Sequence[str]:
        """Return the arguments that pass a binding or a private variable to a function."""
        place = self.operands[variable]
        assert isinstance(place, Place)
        return [str(place)] if place.space == OWN else [str(place), f"i64 {place.pointer}.bytes"]

    def _names_within(self, function: str, names: set[str]) -> set[str]:
        """Add the names that a function, and all those that it calls, contain."""
        names.add(function)
        for name in self._own_names(function):
            if name in self._functions and name not in names:
                self._names_within(name, names)
            names.add(name)
        return names

    def _own_names(self, function: str) -> set[str]:
        nodes = calls_and_names(self._functions[function].body)
        return {node.callee.name if isinstance(node, Call) else node.name for node in nodes}

    # declarations of the module

    def _declare(self, variable: Variable) -> None:
        name = variable.name
        if variable.space == "const":
            assert variable.value is not None
            self._define_constant(name, self._initial(variable.value, variable.type and self._constants.type_of(variable.type)))
            return
        assert variable.type is not None
        type_ = self._constants.type_of(variable.type)
        match variable.space:
            case "storage":
                self._bindings.append(variable)
                self.operands[name] = Place(type_, f"%b.{name}", GLOBAL)
            case "workgroup":
                alignment = max(type_.alignment, _ALIGNMENT)
                self._definitions.append(f"@w.{name} = internal addrspace({SHARED}) global {memory_type(type_)} undef, align {alignment}")
                self.operands[name] = Place(type_, f"@w.{name}", SHARED)
            case "private" if name in self._assigned:
                self._privates.append(variable)
                self.operands[name] = Place(type_, f"%p.{name}", OWN)
            case "private":  # it is only read
                self._define_constant(name, zero(type_) if variable.value is None else self._initial(variable.value, type_))
            case _:
                raise fault(variable.line, f"a variable in {variable.space}")

    @cached_property
    def _assigned(self) -> frozenset[str]:
        return frozenset(name for function in self._functions.values() for name in assigned_names(function.body))

    def _initial(self, expression: Expression, type_: Type | None) -> Value:
        """Return the value of a constant expression."""
        if isinstance(expression, Name) and expression.name in self._tables:
            return self._tables[expression.name]
        value = concrete(self._constants.value(expression), type_ if isinstance(type_, Scalar) else None)
        if self._constants.lines or not is_constant(value) or type_ not in (None, value.type):
            raise fault(self._constants.line, "a constant expression")
        return value

    def _define_constant(self, name: str, value: Value) -> None:
        """Name a constant; other types than scalars and vectors are tables in constant memory."""
        if isinstance(value.type, Scalar | Vector):
            self.operands[name] = value
            return
        alignment = max(value.type.alignment, _ALIGNMENT)
        self._tables[name] = value
        self._definitions.append(f"@t.{name} = internal addrspace({CONSTANT}) constant {value}, align {alignment}")
        self.operands[name] = Place(value.type, f"@t.{name}", CONSTANT)

    # functions

    def _function(self, function: Function) -> None:
        """Define a function, which gets the bindings and private variables that it uses as further parameters."""
        signature = self.signatures[function.name]
        body = Body(self, signature.result)
        parameters = []
        for parameter, type_ in zip(function.parameters, signature.parameters, strict=True):
            value = Value(type_, f"%a.{parameter.name}")
            body.scopes[0][parameter.name] = value
            parameters.append(str(value))
        for variable in signature.variables:
            parameters += self.arguments(variable)
        body.write(function.body)
        result = "void" if signature.result is None else signature.result.llvm
        head = f"define internal {result} @f.{function.name}({', '.join(parameters)}) alwaysinline nounwind"
        self._definitions.append(f"{head} {{\n{body.text}\n}}")

    def _kernel(self, main: Function, threads: tuple[int, int, int]) -> None:
        """Define the kernel."""
        body = Body(self)
        _return_from_empty_grid(body)
        for variable in self._privates:
            place = self.operands[variable.name]
            assert isinstance(place, Place)
            body.variables.append(f"  {place.pointer} = alloca {memory_type(place.type)}, align {place.type.alignment}")
            body.store(place, zero(place.type) if variable.value is None else self._initial(variable.value, place.type))
        for parameter in main.parameters:
            body.scopes[0][parameter.name] = _builtin(body, parameter.builtin, threads)
        body.write(main.body)
        places = [self.operands[variable.name] for variable in self._bindings]
        pointers = [place.pointer for place in places if isinstance(place, Place)]
        access = ["" if variable.access == "read_write" else " readonly" for variable in self._bindings]
        parameters = [f"ptr addrspace({GLOBAL}) noalias{a} {p}" for a, p in zip(access, pointers, strict=True)]
        parameters += [f"i64 {p}.bytes" for p in pointers] + [f"ptr addrspace({GLOBAL}) %grid"]
        self._definitions.append(f"define ptx_kernel void @main({', '.join(parameters)}) #0 {{\n{body.text}\n}}")


def _return_from_empty_grid(body: Body) -> None:
    """Return if there is an indirect grid, and it is empty."""
    body.do(f"%grid.is_null = icmp eq ptr addrspace({GLOBAL}) %grid, null")
    body.end("br i1 %grid.is_null, label %run, label %indirect")
    body.begin("indirect")
    body.do(f"%grid.size = load i32, ptr addrspace({GLOBAL}) %grid, align 4")
    body.do("%grid.is_empty = icmp eq i32 %grid.size, 0")
    body.end("br i1 %grid.is_empty, label %skip, label %run")
    body.begin("skip")
    body.end("ret void")
    body.begin("run")


def _builtin(body: Body, name: str, threads: tuple[int, int, int]) -> Value:
    """Return a built-in value of the entry point."""

    def registers(prefix: str) -> Value:
        words = [body.intrinsic(U32, f"llvm.nvvm.read.ptx.sreg.{prefix}.{axis}") for axis in "xyz"]
        return body.composite(Vector(U32, 3), words)

    x, y, z = threads
    invocations = x * y * z

    def local_index() -> Value:
        index, *others = body.components(registers("tid"))
        for word, factor in zip(others, (x, x * y), strict=True):
            index = body.binary("+", index, body.binary("*", word, constant(U32, factor)))
        return index

    match name:
        case "workgroup_id":
            return registers("ctaid")
        case "num_workgroups":
            return registers("nctaid")
        case "local_invocation_id":
            return registers("tid")
        case "local_invocation_index":
            return local_index() if y * z > 1 else body.intrinsic(U32, "llvm.nvvm.read.ptx.sreg.tid.x")
        case "global_invocation_id":
            size = body.composite(Vector(U32, 3), [constant(U32, n) for n in threads])
            return body.binary("+", body.binary("*", registers("ctaid"), size), registers("tid"))
        case "subgroup_invocation_id":
            return builtins.Subgroup(body, invocations).lane()
        case "subgroup_id":
            return body.binary("/", local_index(), constant(U32, builtins.SUBGROUP))
        case "subgroup_size":
            return constant(U32, builtins.SUBGROUP)
        case "num_subgroups":
            return constant(U32, -(-invocations // builtins.SUBGROUP))
    raise body.fault(f"the built-in value {name}")


def translate(source: str) -> TranslatedShader:
    """Return a WGSL module with the entry point `main` as a kernel. Raises `CompilerError` for text beyond the subset that the package writes."""
    return Module(source).translated()
