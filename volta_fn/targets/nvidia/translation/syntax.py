"""The syntax of WGSL: tokens, a tree, and its parser.

The grammar is that of compute shaders: no textures, no overridable constants, no pointers except in arguments of built-in functions.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from volta_fn.errors import CompilerError

STAGE = "WGSL to LLVM IR"


def fault(line: int, problem: str) -> CompilerError:
    """Return the error of a line that cannot be translated."""
    return CompilerError.of(STAGE, f"line {line}: {problem}")


# The tree. An expression that names a type is a call of it: `vec2<f32>(x, y)`, `bitcast<u32>(x)`.


class TypeName(NamedTuple):
    """A type or a function, with template arguments: types, or numbers of elements."""

    name: str
    arguments: tuple[TypeName | Expression, ...] = ()


class Literal(NamedTuple):
    """A number or a truth value; without a suffix, a number has no type yet."""

    value: int | float | bool
    suffix: str


class Name(NamedTuple):
    """A variable or a constant."""

    name: str


class Unary(NamedTuple):
    """An operator and its operand."""

    operator: str
    operand: Expression


class Binary(NamedTuple):
    """An operator between two operands."""

    operator: str
    left: Expression
    right: Expression


class Call(NamedTuple):
    """A call of a function, or a value of a type."""

    callee: TypeName
    arguments: tuple[Expression, ...]


class Index(NamedTuple):
    """An element of an array, or a component of a vector."""

    base: Expression
    subscript: Expression


class Member(NamedTuple):
    """A member of a structure, or components of a vector."""

    base: Expression
    name: str


Expression = Literal | Name | Unary | Binary | Call | Index | Member


class Declaration(NamedTuple):
    """A `let`, `var` or `const` within a function."""

    line: int
    kind: str
    name: str
    type: TypeName | None
    value: Expression | None


class Assignment(NamedTuple):
    """An assignment by any operator; the target of `_ = …` is None."""

    line: int
    target: Expression | None
    operator: str
    value: Expression


class CallStatement(NamedTuple):
    """A call whose result is ignored."""

    line: int
    call: Call


class Block(NamedTuple):
    """Statements with a scope of their own."""

    line: int
    statements: tuple[Statement, ...]


class If(NamedTuple):
    """A branch; `alternative` is the block after `else`, or another branch."""

    line: int
    condition: Expression
    body: Block
    alternative: Statement | None


class Loop(NamedTuple):
    """Any loop, which ends if `condition` is false; `update` ends an iteration."""

    line: int
    initial: Statement | None
    condition: Expression | None
    body: Block
    update: Statement | None


class Clause(NamedTuple):
    """A case of a switch; None is the default."""

    selectors: tuple[Expression | None, ...]
    body: Block


class Switch(NamedTuple):
    """A choice between clauses by an integer."""

    line: int
    selector: Expression
    clauses: tuple[Clause, ...]


class Jump(NamedTuple):
    """A `break` or a `continue`."""

    line: int
    kind: str


class Return(NamedTuple):
    """The end of a function."""

    line: int
    value: Expression | None


Statement = Declaration | Assignment | CallStatement | Block | If | Loop | Switch | Jump | Return


class Variable(NamedTuple):
    """A variable or a constant of the module; a constant's `space` is "const"."""

    line: int
    space: str
    access: str
    name: str
    type: TypeName | None
    value: Expression | None
    #: The number of the binding of a variable in storage.
    binding: int


class StructDeclaration(NamedTuple):
    """A structure and the types of its members."""

    line: int
    name: str
    members: tuple[tuple[str, TypeName], ...]


class Alias(NamedTuple):
    """Another name of a type."""

    line: int
    name: str
    type: TypeName


class Parameter(NamedTuple):
    """A parameter; of the entry point, with the built-in value that it receives."""

    name: str
    type: TypeName
    builtin: str


class Function(NamedTuple):
    """A function; of the entry point, `workgroup` is the workgroup's size."""

    line: int
    name: str
    parameters: tuple[Parameter, ...]
    result: TypeName | None
    body: Block
    workgroup: tuple[int, ...]
    #: All words of the body.
    words: tuple[str, ...]
    #: The names of variables that the body assigns to, or whose address it takes.
    assigned: frozenset[str]


ModuleItem = Variable | StructDeclaration | Alias | Function


# Tokens.

_TOKEN = re.compile(
    r"(?:\s|//[^\n]*)*(?:(0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*(?:[pP][+-]?\d+)?(?:l[uif]|[iufh])?"
    r"|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?:l[uif]|[iufh])?"
    r"|[A-Za-z_]\w*"
    r"|<<=|>>=|->|&&|\|\||==|!=|<=|>=|<<|>>|\+=|-=|\*=|/=|%=|&=|\|=|\^=|\+\+|--|[-+*/%&|^!~=<>(){}\[\].,:;@])"
    r"|(\S)|$)"
)
_SUFFIX = re.compile(r"(l[uif]|[iufh])$")
_LINE_END = re.compile("\n")


def _literal(token: str) -> Literal:
    """Return the value of a number's text."""
    is_hexadecimal = token[:2].lower() == "0x"
    suffix = _SUFFIX.search(token)
    kind = suffix[1] if suffix else ""
    if is_hexadecimal and kind in ("f", "lf") and "p" not in token.lower():
        kind = ""  # a digit
    digits = token[: len(token) - len(kind)]
    if is_hexadecimal:
        is_float = "." in digits or "p" in digits.lower()
        return Literal(float.fromhex(digits) if is_float else int(digits, 16), kind)
    is_float = kind in ("f", "h", "lf") or any(c in digits for c in ".eE")
    return Literal(float(digits) if is_float else int(digits), kind)


# The parser.

#: Binary operators, those that bind least first.
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"), ("*", "/", "%"))
_PRECEDENCE = {operator: level for level, operators in enumerate(_LEVELS) for operator in operators}
_ASSIGNMENTS = frozenset(["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="])
#: Names that template arguments may follow, in expressions.
_TEMPLATES = frozenset(["vec2", "vec3", "vec4", "array", "atomic", "bitcast"])


class _Parser:
    """A recursive descent through the tokens of a module."""

    def __init__(self, source: str) -> None:
        self._tokens: list[str] = []
        #: Where tokens and lines begin in the source.
        self._offsets: list[int] = []
        self._lines = [0, *[match.end() for match in _LINE_END.finditer(source)]]
        self._position = 0
        self._assigned: set[str] = set()
        for match in _TOKEN.finditer(source):
            token, stray = match.groups()
            if stray:
                raise fault(bisect_right(self._lines, match.start(2)), f"{stray!r} begins no token")
            if token:
                self._tokens.append(token)
                self._offsets.append(match.start(1))
        self._tokens += ["", ""]  # after the last, as far as the parser looks ahead
        self._offsets += [len(source)] * 2

    # tokens

    @property
    def _line(self) -> int:
        """The number of the current token's line."""
        return bisect_right(self._lines, self._offsets[self._position])

    def _peek(self, ahead: int = 0) -> str:
        """Return a token; that after the last is empty."""
        return self._tokens[self._position + ahead]

    def _take(self, expected: str = "") -> str:
        token = self._peek()
        if expected == ">" and token in (">>", ">=", ">>="):  # array<vec4<f32>>
            self._tokens[self._position] = token[1:]
            return ">"
        if not token or (expected and token != expected):
            raise fault(self._line, f"expected {expected or 'more'!r}, found {token or 'the end'!r}")
        self._position += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._tokens[self._position] != token:
            return False
        self._position += 1
        return True

    def _name(self) -> str:
        name = self._take()
        if not name.isidentifier():
            raise fault(self._line, f"expected a name, found {name!r}")
        return name

    # declarations

    def module(self) -> tuple[ModuleItem, ...]:
        """Parse a module."""
        items = []
        while self._peek():
            item = self._module_item()
            if item is not None:
                items.append(item)
        return tuple(items)

    def _module_item(self) -> ModuleItem | None:
        attributes = self._attributes()
        line, keyword = self._line, self._take()
        match keyword:
            case ";":
                return None
            case "enable" | "requires" | "diagnostic":
                while self._take() != ";":
                    pass
                return None
            case "alias":
                name = self._name()
                self._take("=")
                alias = Alias(line, name, self._type())
                self._take(";")
                return alias
            case "struct":
                return self._structure(line)
            case "var" | "const":
                return self._variable(line, keyword, attributes)
            case "fn":
                return self._function(line, attributes)
        raise fault(line, f"{keyword!r} begins no declaration")

    def _attributes(self) -> dict[str, list[str]]:
        attributes: dict[str, list[str]] = {}
        while self._accept("@"):
            arguments = attributes.setdefault(self._name(), [])
            if self._accept("("):
                while not self._accept(")"):
                    arguments.append(self._take())
                    self._accept(",")
        return attributes

    def _structure(self, line: int) -> StructDeclaration:
        name, members = self._name(), []
        self._take("{")
        while not self._accept("}"):
            if self._peek() == "@":
                raise fault(self._line, "members of structures have no attributes")
            member = self._name()
            self._take(":")
            members.append((member, self._type()))
            self._accept(",")
        return StructDeclaration(line, name, tuple(members))

    def _variable(self, line: int, keyword: str, attributes: dict[str, list[str]]) -> Variable:
        space, access = keyword, ""
        if keyword == "var":
            self._take("<")
            space = self._name()
            access = self._name() if self._accept(",") else ""
            self._take(">")
        name = self._name()
        type_ = self._type() if self._accept(":") else None
        value = self._expression() if self._accept("=") else None
        self._take(";")
        binding = int(_literal(attributes["binding"][0]).value) if "binding" in attributes else -1
        return Variable(line, space, access, name, type_, value, binding)

    def _function(self, line: int, attributes: dict[str, list[str]]) -> Function:
        name, parameters = self._name(), []
        self._take("(")
        while not self._accept(")"):
            builtin = self._attributes().get("builtin", [""])[0]
            parameter = self._name()
            self._take(":")
            parameters.append(Parameter(parameter, self._type(), builtin))
            self._accept(",")
        result = self._type() if self._accept("->") else None
        workgroup = tuple(int(_literal(token).value) for token in attributes.get("workgroup_size", []))
        self._assigned, first = set(), self._position
        body = self._block()
        words = tuple(token for token in self._tokens[first : self._position] if token.isidentifier())
        return Function(line, name, tuple(parameters), result, body, workgroup, words, frozenset(self._assigned))

    def _type(self) -> TypeName:
        name, arguments = self._name(), []
        if self._accept("<"):
            while True:
                is_type = self._peek().isidentifier()
                arguments.append(self._type() if is_type else self._operand())
                if not self._accept(","):
                    break
            self._take(">")
        return TypeName(name, tuple(arguments))

    # statements

    def _block(self) -> Block:
        line, statements = self._line, []
        self._take("{")
        while not self._accept("}"):
            statement = self._statement()
            if statement is not None:
                statements.append(statement)
        return Block(line, tuple(statements))

    def _statement(self) -> Statement | None:
        line = self._line
        match self._peek():
            case ";":
                self._take()
                return None
            case "{":
                return self._block()
            case "if":
                return self._branch()
            case "for":
                return self._for()
            case "while":
                self._take()
                return Loop(line, None, self._expression(), self._block(), None)
            case "loop":
                self._take()
                return Loop(line, None, None, self._block(), None)
            case "switch":
                return self._switch()
            case "break" | "continue":
                statement: Statement = Jump(line, self._take())
            case "return":
                self._take()
                statement = Return(line, None if self._peek() == ";" else self._expression())
            case _:
                statement = self._simple()
        self._take(";")
        return statement

    def _simple(self) -> Statement:
        """Parse a declaration, an assignment or a call, without a semicolon."""
        line = self._line
        if self._peek() in ("let", "var", "const"):
            kind, name = self._take(), self._name()
            type_ = self._type() if self._accept(":") else None
            return Declaration(line, kind, name, type_, self._expression() if self._accept("=") else None)
        if self._peek() == "_" and self._peek(1) == "=":
            self._position += 2
            return Assignment(line, None, "=", self._expression())
        target = self._unary()
        operator = self._peek()
        if operator in ("++", "--"):
            self._take()
            self._record_assignment(target)
            return Assignment(line, target, f"{operator[0]}=", Literal(1, ""))
        if operator in _ASSIGNMENTS:
            self._take()
            self._record_assignment(target)
            return Assignment(line, target, operator, self._expression())
        if not isinstance(target, Call):
            raise fault(line, "an expression is no statement")
        return CallStatement(line, target)

    def _record_assignment(self, target: Expression) -> None:
        while isinstance(target, Index | Member):
            target = target.base
        if isinstance(target, Name):
            self._assigned.add(target.name)

    def _branch(self) -> If:
        line = self._line
        self._take("if")
        condition, body = self._expression(), self._block()
        alternative: Statement | None = None
        if self._accept("else"):
            alternative = self._branch() if self._peek() == "if" else self._block()
        return If(line, condition, body, alternative)

    def _for(self) -> Loop:
        line = self._line
        self._take("for")
        self._take("(")
        initial = None if self._peek() == ";" else self._simple()
        self._take(";")
        condition = None if self._peek() == ";" else self._expression()
        self._take(";")
        update = None if self._peek() == ")" else self._simple()
        self._take(")")
        return Loop(line, initial, condition, self._block(), update)

    def _switch(self) -> Switch:
        line = self._line
        self._take("switch")
        selector, clauses = self._expression(), []
        self._take("{")
        while not self._accept("}"):
            selectors: list[Expression | None] = []
            if self._accept("default"):
                selectors.append(None)
            else:
                self._take("case")
                while self._peek() not in (":", "{"):
                    selectors.append(None if self._accept("default") else self._expression())
                    self._accept(",")
            self._accept(":")
            clauses.append(Clause(tuple(selectors), self._block()))
        return Switch(line, selector, tuple(clauses))

    # expressions

    def _expression(self, level: int = 0) -> Expression:
        left = self._unary()
        while (precedence := _PRECEDENCE.get(self._peek(), -1)) >= level:
            operator = self._take()
            left = Binary(operator, left, self._expression(precedence + 1))
        return left

    def _unary(self) -> Expression:
        if self._peek() not in ("-", "!", "~", "&", "*"):
            return self._operand()
        operator, operand = self._take(), self._unary()
        if operator == "&":
            self._record_assignment(operand)
        return Unary(operator, operand)

    def _operand(self) -> Expression:
        operand = self._primary()
        while True:
            if self._accept("["):
                operand = Index(operand, self._expression())
                self._take("]")
            elif self._accept("."):
                operand = Member(operand, self._name())
            else:
                return operand

    def _primary(self) -> Expression:
        token = self._peek()
        if self._accept("("):
            inner = self._expression()
            self._take(")")
            return inner
        if token[:1].isdigit() or (token[:1] == "." and token[1:2].isdigit()):
            return _literal(self._take())
        if token in ("true", "false"):
            return Literal(self._take() == "true", "bool")
        callee = self._type() if token in _TEMPLATES else TypeName(self._name())
        if not self._accept("("):
            return Name(callee.name)
        arguments = []
        while not self._accept(")"):
            arguments.append(self._expression())
            if self._peek() != ")":
                self._take(",")
        return Call(callee, tuple(arguments))


def parse(source: str) -> tuple[ModuleItem, ...]:
    """Return the declarations of a module, in order.

    Raises `CompilerError` for text beyond the grammar.
    """
    return _Parser(source).module()
