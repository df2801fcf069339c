"""Modules of WGSL as modules of LLVM IR: statements, functions, and the kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from volta_fn.targets.nvidia.translation import expressions
from volta_fn.targets.nvidia.translation.expressions import Expressions, Names, Signature, hidden_texts
from volta_fn.targets.nvidia.translation.syntax import (
    Alias,
    Assignment,
    Block,
    CallStatement,
    Declaration,
    Expression,
    Function,
    If,
    Jump,
    Loop,
    Name,
    Return,
    Statement,
    StructDeclaration,
    Switch,
    Unary,
    Variable,
    fault,
    parse,
)
from volta_fn.targets.nvidia.translation.values import (
    CONSTANT,
    GLOBAL,
    OWN,
    SHARED,
    U32,
    Array,
    Place,
    Scalar,
    Structure,
    Type,
    Value,
    Vector,
    concrete,
    constant,
    element_of,
    is_constant,
    memory_type,
    zero,
)

#: Workgroups of more invocations than this, and of at most twice as many, have so few registers that a multiprocessor has room for two: one
#: computes while the other waits at a barrier. Larger ones have as few anyhow.
_LARGE = 256

# Statements.


class _Exits(NamedTuple):
    """Where `break` and `continue` go."""

    after: str
    following: str


class Body(Expressions):
    """The body of one function, whose result has a type or is None."""

    def __init__(self, names: Names, result: Type | None = None) -> None:
        super().__init__(names)
        self._result = result
        self._exits: list[_Exits] = []

    def write(self, block: Block) -> None:
        """Append the statements of the whole function, and its end."""
        self._block(block)
        if not self.is_terminated:
            self.end("ret void" if self._result is None else "unreachable")

    @property
    def text(self) -> str:
        """The instructions, those that allocate variables first."""
        return "\n".join(["entry:", *self.variables, *self.lines])

    def _block(self, block: Block) -> None:
        self.scopes.append({})
        for statement in block.statements:
            self._statement(statement)
        self.scopes.pop()

    def _statement(self, statement: Statement) -> None:
        self.line = statement.line
        match statement:
            case Block():
                self._block(statement)
            case Declaration():
                self._declaration(statement)
            case Assignment():
                self._assignment(statement)
            case CallStatement():
                self.call(statement.call)
            case If():
                self._branch(statement)
            case Loop():
                self._loop(statement)
            case Switch():
                self._switch(statement)
            case Jump(_, kind):
                self._jump(kind)
            case Return(_, None):
                self.end("ret void")
            case Return(_, value) if value is not None:
                result = concrete(self.value(value), self._result if isinstance(self._result, Scalar) else None)
                if result.type != self._result:
                    raise self.fault(f"a result of type {result.type.llvm}")
                self.end(f"ret {result}")

    def _declaration(self, statement: Declaration) -> None:
        if statement.kind == "let" and isinstance(statement.value, Unary) and statement.value.operator == "&":
            self.scopes[-1][statement.name] = self.operand(statement.value)  # a place is a pointer
            return
        type_ = None if statement.type is None else self.type_of(statement.type)
        value: Value | None = None
        if statement.value is not None:
            value = self.value(statement.value)
            if statement.kind != "const" or type_ is not None:
                value = concrete(value, type_ if isinstance(type_, Scalar) else None)
            if type_ is not None and value.type != type_:
                raise self.fault(f"a value of type {value.type.llvm} for {statement.name}")
        if statement.kind != "var":
            if value is None:
                raise self.fault(f"{statement.name} has no value")
            self.scopes[-1][statement.name] = value
            return
        type_ = type_ or (value.type if value is not None else None)
        if type_ is None:
            raise self.fault(f"{statement.name} has no type")
        place = self.variable(type_)
        self.store(place, zero(type_) if value is None else value)
        self.scopes[-1][statement.name] = place

    def _assignment(self, statement: Assignment) -> None:
        if statement.target is None:
            self.value(statement.value)
            return
        target, operator = self.operand(statement.target), statement.operator.removesuffix("=")
        before = self.load(target) if operator else None  # before the right side, which may change it
        value = self.value(statement.value)
        self.store(target, value if before is None else self.binary(operator, before, value))

    def _branch(self, statement: If) -> None:
        condition = self.condition(statement.condition)
        body, alternative, end = self.fresh("then"), self.fresh("else"), self.fresh("end")
        self.end(f"br i1 {condition.text}, label %{body}, label %{end if statement.alternative is None else alternative}")
        self.begin(body)
        self._block(statement.body)
        if statement.alternative is not None:
            if not self.is_terminated:
                self.end(f"br label %{end}")
            self.begin(alternative)
            self._statement(statement.alternative)
        self.begin(end)

    def _loop(self, statement: Loop) -> None:
        head, body, following, end = [self.fresh(name) for name in ("head", "body", "next", "end")]
        self.scopes.append({})
        if statement.initial is not None:
            self._statement(statement.initial)
        self.begin(head)
        if statement.condition is not None:
            self.end(f"br i1 {self.condition(statement.condition).text}, label %{body}, label %{end}")
        self.begin(body)
        self._exits.append(_Exits(end, following))
        self._block(statement.body)
        self._exits.pop()
        self.begin(following)
        if statement.update is not None:
            self._statement(statement.update)
        self.end(f"br label %{head}")
        self.begin(end)
        self.scopes.pop()

    def _switch(self, statement: Switch) -> None:
        selector = concrete(self.value(statement.selector))
        end = default = self.fresh("end")
        labels = [self.fresh("case") for _ in statement.clauses]
        cases = []
        for label, clause in zip(labels, statement.clauses, strict=True):
            for expression in clause.selectors:
                if expression is None:
                    default = label
                else:
                    cases.append(f"{concrete(self.value(expression), element_of(selector.type))}, label %{label}")
        self.end(f"switch {selector}, label %{default} [{' '.join(cases)}]")
        self._exits.append(_Exits(end, self._exits[-1].following if self._exits else ""))
        for label, clause in zip(labels, statement.clauses, strict=True):
            self.begin(label)
            self._block(clause.body)
            if not self.is_terminated:
                self.end(f"br label %{end}")
        self._exits.pop()
        self.begin(end)

    def _jump(self, kind: str) -> None:
        label = (self._exits[-1].after if kind == "break" else self._exits[-1].following) if self._exits else ""
        if not label:
            raise self.fault(f"{kind} outside of a loop")
        self.end(f"br label %{label}")


# Modules.

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


class _Module:
    """A module, its names, and the translation of its functions."""

    def __init__(self, source: str, *, is_checked: bool) -> None:
        self._items = parse(source)
        self._functions = {item.name: item for item in self._items if isinstance(item, Function)}
        if "main" not in self._functions or not self._functions["main"].workgroup:
            raise fault(1, "a module needs an entry point main")
        x, y, z = (*self._functions["main"].workgroup, 1, 1)[:3]
        self._threads = x, y, z
        self._names = Names(x * y * z, is_checked)
        self._bindings: list[Variable] = []
        self._privates: list[Variable] = []
        #: The definitions of variables in workgroup memory, and of tables.
        self._memory: list[str] = []
        #: The values of tables in constant memory.
        self._tables: dict[str, Value] = {}
        self._constants = Body(self._names)

    def translated(self) -> TranslatedShader:
        """Translate the module."""
        for item in self._items:
            self._constants.line = item.line
            match item:
                case Alias(_, name, type_):
                    self._names.types[name] = self._constants.type_of(type_)
                case StructDeclaration(_, name, members):
                    types = [(member, self._constants.type_of(type_)) for member, type_ in members]
                    self._names.types[name] = Structure(name, tuple(types))
                case Variable():
                    self._declare(item)
        self._bindings.sort(key=lambda variable: variable.binding)
        for function in self._functions.values():
            self._names.signatures[function.name] = self._signature(function)
        bodies = {name: self._body(function) for name, function in self._functions.items() if name in self._reached["main"]}
        kernel = self._kernel()
        outlined = _outlined(kernel, bodies)
        functions = [self._definition(name, body, "noinline" if name in outlined else "alwaysinline") for name, body in bodies.items()]
        common = "nounwind convergent" if any(body.is_convergent for body in (kernel, *bodies.values())) else "nounwind"
        residents = 2 if _LARGE < math.prod(self._threads) <= 2 * _LARGE else 1
        launch = f'"nvvm.reqntid"="{",".join(map(str, self._threads))}" "nvvm.minctasm"="{residents}"'
        attributes = [f"attributes #0 = {{ {common} {launch} }}", f"attributes #1 = {{ {common} }}"]
        parameters = f"define ptx_kernel void @main({', '.join(self._kernel_parameters())}) #0"
        lines = ['target triple = "nvptx64-nvidia-cuda"', *self._names.intrinsics.values(), *self._memory, *functions]
        return TranslatedShader("\n".join([*lines, f"{parameters} {{\n{kernel.text}\n}}", *attributes, ""]), self._threads)

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
                self._names.operands[name] = Place(type_, f"%b.{name}", GLOBAL)
            case "workgroup":
                alignment = max(type_.alignment, _ALIGNMENT)
                self._memory.append(f"@w.{name} = internal addrspace({SHARED}) global {memory_type(type_)} undef, align {alignment}")
                self._names.operands[name] = Place(type_, f"@w.{name}", SHARED)
            case "private" if name in self._assigned:
                self._privates.append(variable)
                self._names.operands[name] = Place(type_, f"%p.{name}", OWN)
            case "private":  # it is only read
                self._define_constant(name, zero(type_) if variable.value is None else self._initial(variable.value, type_))
            case _:
                raise fault(variable.line, f"a variable in {variable.space}")

    @cached_property
    def _assigned(self) -> frozenset[str]:
        return frozenset(name for function in self._functions.values() for name in function.assigned)

    def _initial(self, expression: Expression, type_: Type | None) -> Value:
        """Return the value of a constant expression."""
        if isinstance(expression, Name) and expression.name in self._tables:
            return self._tables[expression.name]
        value = concrete(self._constants.value(expression), type_ if isinstance(type_, Scalar) else None)
        if self._constants.lines or not is_constant(value) or type_ not in (None, value.type):
            raise fault(self._constants.line, "a constant expression")
        return value

    def _define_constant(self, name: str, value: Value) -> None:
        """Name a constant; arrays lie in constant memory."""
        innermost = value.type
        while isinstance(innermost, Array):
            innermost = innermost.element
        if not isinstance(innermost, Scalar | Vector):
            raise fault(self._constants.line, f"a constant of type {value.type.llvm}")
        if innermost == value.type:
            self._names.operands[name] = value
            return
        alignment = max(value.type.alignment, _ALIGNMENT)
        self._tables[name] = value
        self._memory.append(f"@t.{name} = internal addrspace({CONSTANT}) constant {value}, align {alignment}")
        self._names.operands[name] = Place(value.type, f"@t.{name}", CONSTANT)

    # functions

    @cached_property
    def _reached(self) -> dict[str, set[str]]:
        """The functions that each function may call, those that they call included."""
        reached: dict[str, set[str]] = {}

        def visit(name: str) -> set[str]:
            if name not in reached:
                reached[name] = set()
                for word in self._functions[name].words:
                    if word in self._functions and word not in reached[name]:
                        reached[name] |= {word} | visit(word)
            return reached[name]

        for name in self._functions:
            visit(name)
        return reached

    def _signature(self, function: Function) -> Signature:
        """Return how a function is called.

        Bindings and private variables that it uses are further parameters.
        """
        self._constants.line = function.line
        parameters = tuple(self._constants.type_of(parameter.type) for parameter in function.parameters)
        result = None if function.result is None else self._constants.type_of(function.result)
        bodies = [self._functions[name] for name in (function.name, *self._reached[function.name])]
        words = {word for body in bodies for word in body.words}
        assigned = {name for body in bodies for name in body.assigned}
        hidden: list[tuple[str, Place | Value]] = []
        for variable in (*self._bindings, *self._privates):
            place = self._names.operands[variable.name]
            assert isinstance(place, Place)
            if variable.name in words:
                is_value = place.space == OWN and variable.name not in assigned
                hidden.append((variable.name, Value(place.type, place.pointer) if is_value else place))
        return Signature(parameters, result, tuple(hidden))

    def _body(self, function: Function) -> Body:
        signature = self._names.signatures[function.name]
        body = Body(self._names, signature.result)
        body.scopes[0].update(signature.hidden)
        names = [parameter.name for parameter in function.parameters]
        body.scopes.append({name: Value(type_, f"%a.{name}") for name, type_ in zip(names, signature.parameters, strict=True)})
        body.write(function.body)
        return body

    def _definition(self, name: str, body: Body, inlining: str) -> str:
        signature = self._names.signatures[name]
        parameters = [str(value) for value in body.scopes[1].values()]
        for _, operand in signature.hidden:
            parameters += hidden_texts(operand)
        result = "void" if signature.result is None else signature.result.llvm
        return f"define internal {result} @f.{name}({', '.join(parameters)}) {inlining} #1 {{\n{body.text}\n}}"

    def _kernel(self) -> Body:
        main, body = self._functions["main"], Body(self._names)
        _return_from_empty_grid(body)
        for variable in self._privates:
            place = self._names.operands[variable.name]
            assert isinstance(place, Place)
            body.variables.append(f"  {place.pointer} = alloca {memory_type(place.type)}, align {place.type.alignment}")
            body.store(place, zero(place.type) if variable.value is None else self._initial(variable.value, place.type))
        body.scopes.append({parameter.name: _builtin(body, parameter.builtin, self._threads) for parameter in main.parameters})
        body.write(main.body)
        return body

    def _kernel_parameters(self) -> list[str]:
        """Return the parameters that `TranslatedShader` describes.

        WGSL forbids that a range that is written overlaps another.
        """
        names = [f"%b.{variable.name}" for variable in self._bindings]
        access = ["" if variable.access == "read_write" else " readonly" for variable in self._bindings]
        pointers = [f"ptr addrspace({GLOBAL}) noalias{a} {name}" for a, name in zip(access, names, strict=True)]
        return [*pointers, *[f"i64 {name}.bytes" for name in names], f"ptr addrspace({GLOBAL}) %grid"]


# Functions are inlined, which keeps values in registers, unless the whole would grow beyond what compiles in a moment.

#: Instructions of a kernel beyond which long functions that are called more than once are not inlined, and of a long function.
_MOST_INLINED, _LONG = 6000, 25


def _outlined(kernel: Body, bodies: Mapping[str, Body]) -> set[str]:
    """Return the functions that are not inlined."""
    sites = sum([body.calls for body in (kernel, *bodies.values())], Counter())

    def size(body: Body, outlined: set[str] | None, sizes: dict[str, int]) -> int:
        total = len(body.lines)
        for name, count in body.calls.items():
            if name not in sizes:
                sizes[name] = size(bodies[name], outlined, sizes)
                if outlined is not None and sizes[name] > _LONG and sites[name] > 1:
                    outlined.add(name)
                    sizes[name] = 1
            total += count * sizes[name]
        return total

    outlined: set[str] = set()
    if size(kernel, None, {}) > _MOST_INLINED:
        size(kernel, outlined, {})
    return outlined


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
            return expressions.Subgroup(body, invocations).lane()
        case "subgroup_id":
            return body.binary("/", local_index(), constant(U32, expressions.SUBGROUP))
        case "subgroup_size":
            return constant(U32, expressions.SUBGROUP)
        case "num_subgroups":
            return constant(U32, -(-invocations // expressions.SUBGROUP))
    raise body.fault(f"the built-in value {name}")


def translate(source: str, *, is_checked: bool = False) -> TranslatedShader:
    """Translate a WGSL module with the entry point `main`.

    If `is_checked`, an index out of the range of its array ends the kernel, which the driver reports as an error. Raises `CompilerError`
    for text beyond the subset.
    """
    return _Module(source, is_checked=is_checked).translated()
