"""Statements of WGSL as blocks of instructions: a function's body."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.targets.nvidia.translation.expressions import Expressions, Names
from volta_fn.targets.nvidia.translation.syntax import (
    Assignment,
    Block,
    CallStatement,
    Declaration,
    If,
    Jump,
    Loop,
    Return,
    Statement,
    Switch,
    Unary,
)
from volta_fn.targets.nvidia.translation.types import Scalar, Type, element_of
from volta_fn.targets.nvidia.translation.values import Value, concrete, zero


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
        self.scopes.append({})  # `continuing` sees the variables of the body
        for inner in statement.body.statements:
            self._statement(inner)
        self._exits.pop()
        self.begin(following)
        if statement.continuing is not None:
            for inner in statement.continuing.statements:
                self._statement(inner)
        if statement.break_if is None:
            self.end(f"br label %{head}")
        else:
            self.end(f"br i1 {self.condition(statement.break_if).text}, label %{end}, label %{head}")
        self.begin(end)
        del self.scopes[-2:]

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
