"""Merge modules by subject: move code, rewrite imports, change nothing else.

    python tools/merge_modules.py PLAN [--dry]

A plan is a text of groups; tools/merge_plan.txt has those of the package::

    volta_fn.compiler.passes.attention
    : Hand-written attention: recognise softmax(QKᵀ)V, and replace it by one equation.
    = __init__ attention.patterns attention.match attention.replace attention.calls
    ~ patterns._rule -> _pattern_rule

The first row names the module that is made, ``:`` its docstring, ``=`` the modules that it is made of (dotted names below the package of
the new one, or from the root after a slash; ``__init__`` is the package of the same name), and ``~`` renames of what two of them define.
With ``--dry`` it only tells what clashes: names that two modules define, built-ins that one uses and another one defines, locals that
hide a name.

Afterwards run ``ruff check --select I,F401,F811,RUF022 --fix``, ``ruff format``, and the tests of layers: a merge may make an import
circle.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import textwrap
from collections import defaultdict
from pathlib import Path

ROOT = Path.cwd()
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BUILTINS = set(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


def path_of(module: str) -> Path | None:
    base = ROOT / module.replace(".", "/")
    if base.with_suffix(".py").exists():
        return base.with_suffix(".py")
    if (base / "__init__.py").exists():
        return base / "__init__.py"
    return None


class Scope:
    def __init__(self, kind: str, parent: Scope | None) -> None:
        self.kind, self.parent = kind, parent
        self.bound: set[str] = set()
        self.globals: set[str] = set()


def _targets(node: ast.AST, scope: Scope) -> None:
    """Collect the names that a scope's statements bind, without nested scopes."""
    stack = list(node) if isinstance(node, list) else [node]
    while stack:
        n = stack.pop()
        if isinstance(n, (*FUNCTIONS, ast.ClassDef)):
            scope.bound.add(n.name)
            stack.extend(n.decorator_list)
            if isinstance(n, FUNCTIONS):
                stack.extend([*n.args.defaults, *filter(None, n.args.kw_defaults)])
            else:
                stack.extend([*n.bases, *n.keywords])
            continue
        if isinstance(n, ast.Lambda):
            stack.extend([*n.args.defaults, *filter(None, n.args.kw_defaults)])
            continue
        if isinstance(n, COMPREHENSIONS):
            for w in ast.walk(n):  # a walrus binds outside
                if isinstance(w, ast.NamedExpr):
                    scope.bound.add(w.target.id)
            continue
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
            scope.bound.add(n.id)
        elif isinstance(n, (ast.Import, ast.ImportFrom)):
            for a in n.names:
                scope.bound.add(a.asname or a.name.split(".")[0])
        elif isinstance(n, (ast.Global,)):
            scope.globals.update(n.names)
        elif isinstance(n, ast.Nonlocal):
            pass
        elif (isinstance(n, ast.ExceptHandler) and n.name) or (isinstance(n, (ast.MatchAs, ast.MatchStar)) and n.name):
            scope.bound.add(n.name)
        elif isinstance(n, ast.MatchMapping) and n.rest:
            scope.bound.add(n.rest)
        stack.extend(ast.iter_child_nodes(n))


class Resolver(ast.NodeVisitor):
    """Find the uses of module-level names: (name node, names bound locally around it)."""

    def __init__(self, tree: ast.Module) -> None:
        self.uses: list[tuple[ast.Name, bool, Scope]] = []  # node, is global, scope
        self.global_statements: list[ast.Global] = []
        self.scope = Scope("module", None)
        _targets(tree.body, self.scope)
        self.top = self.scope
        for statement in tree.body:
            self.visit(statement)

    def _is_global(self, name: str) -> bool:
        scope, first = self.scope, True
        while scope.parent is not None:
            if scope.kind != "class" or first:
                if name in scope.globals:
                    return True
                if name in scope.bound:
                    return False
            first = False
            scope = scope.parent
        return True

    def visit_Name(self, node: ast.Name) -> None:
        self.uses.append((node, self._is_global(node.id), self.scope))

    def visit_Global(self, node: ast.Global) -> None:
        self.global_statements.append(node)

    def _function(self, node, body) -> None:
        for d in getattr(node, "decorator_list", []):
            self.visit(d)
        a = node.args
        for d in [*a.defaults, *filter(None, a.kw_defaults)]:
            self.visit(d)
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]
        for arg in every:
            if arg.annotation:
                self.visit(arg.annotation)
        if getattr(node, "returns", None):
            self.visit(node.returns)
        inner = Scope("function", self.scope)
        inner.bound |= {x.arg for x in every}
        _targets(body, inner)
        inner.bound -= inner.globals
        for n in ast.walk(ast.Module(body=body, type_ignores=[])) if isinstance(body, list) else []:
            if isinstance(n, ast.Nonlocal):
                pass
        self.scope = inner
        for statement in body if isinstance(body, list) else [body]:
            self.visit(statement)
        self.scope = inner.parent

    def visit_FunctionDef(self, node) -> None:
        self._function(node, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node) -> None:
        self._function(node, node.body)

    def visit_ClassDef(self, node) -> None:
        for d in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(d)
        inner = Scope("class", self.scope)
        _targets(node.body, inner)
        self.scope = inner
        for s in node.body:
            self.visit(s)
        self.scope = inner.parent

    def _comprehension(self, node) -> None:
        gens = node.generators
        self.visit(gens[0].iter)
        inner = Scope("function", self.scope)
        for g in gens:
            _targets(g.target, inner)
        self.scope = inner
        for i, g in enumerate(gens):
            if i:
                self.visit(g.iter)
            self.visit(g.target)
            for c in g.ifs:
                self.visit(c)
        if isinstance(node, ast.DictComp):
            self.visit(node.key)
            self.visit(node.value)
        else:
            self.visit(node.elt)
        self.scope = inner.parent

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


class Source:
    """A file's text with edits by byte position."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        self.text = path.read_text() if text is None else text
        self.tree = ast.parse(self.text)
        self.raw = self.text.encode()
        starts, at = [0], 0
        for row in self.raw.split(b"\n"):
            at += len(row) + 1
            starts.append(at)
        self.starts = starts
        self.edits: list[tuple[int, int, str]] = []

    def pos(self, row: int, col: int) -> int:
        return self.starts[row - 1] + col

    def span(self, node) -> tuple[int, int]:
        return self.pos(node.lineno, node.col_offset), self.pos(node.end_lineno, node.end_col_offset)

    def replace(self, node, new: str) -> None:
        self.edits.append((*self.span(node), new))

    def replace_span(self, start: int, end: int, new: str) -> None:
        self.edits.append((start, end, new))

    def result(self) -> str:
        out, at = [], 0
        seen = set()
        for start, end, new in sorted(self.edits):
            if (start, end, new) in seen:
                continue
            seen.add((start, end, new))
            assert start >= at, (self.path, self.raw[start : start + 60])
            out += [self.raw[at:start], new.encode()]
            at = end
        out.append(self.raw[at:])
        return b"".join(out).decode()

    def rename_globals(self, names: dict[str, str]) -> list[str]:
        """Rename module-level names and their uses; return complaints."""
        if not names:
            return []
        problems = []
        resolver = Resolver(self.tree)
        for node, is_global, scope in resolver.uses:
            if node.id in names and is_global:
                new = names[node.id]
                s: Scope | None = scope
                while s is not None and s.parent is not None:
                    if new in s.bound:
                        problems.append(f"{self.path}:{node.lineno}: local {new} hides the renamed {node.id}")
                    s = s.parent
                self.replace(node, new)
        for node in resolver.global_statements:
            if set(node.names) & set(names):
                self.replace(node, "global " + ", ".join(names.get(n, n) for n in node.names))
        for node in self.tree.body:
            self._rename_definition(node, names)
        return problems

    def _rename_definition(self, node, names) -> None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name in names:
            start = self.pos(node.lineno, node.col_offset)
            m = re.compile(rb"(async\s+def|def|class)\s+(\w+)").match(self.raw, start)
            self.edits.append((m.start(2), m.end(2), names[node.name]))
        for field in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
                for child in getattr(node, field, []):
                    self._rename_definition(child, names)


def is_type_checking(node) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def bound_by(node) -> set[str]:
    scope = Scope("module", None)
    _targets(node, scope)
    return scope.bound


class Group:
    def __init__(self, name: str) -> None:
        self.name = name
        self.doc = ""
        self.members: list[str] = []
        self.renames: dict[str, dict[str, str]] = defaultdict(dict)
        self.titles: dict[str, str] = {}

    @property
    def package(self) -> str:
        return self.name.rpartition(".")[0]


def read_plan(text: str) -> list[Group]:
    groups: list[Group] = []
    for raw in text.splitlines():
        row = raw.strip()
        if not row or row.startswith("#"):
            continue
        mark, rest = row[0], row[1:].strip()
        if mark == ":":
            groups[-1].doc += (" " if groups[-1].doc else "") + rest
        elif mark == "=":
            g = groups[-1]
            for m in rest.split():
                full = m[1:] if m.startswith("/") else f"{g.name}" if m == "__init__" else f"{g.package}.{m}"
                g.members.append(full)
        elif mark == "~":
            old, new = (x.strip() for x in rest.split("->"))
            stem, _, n = old.rpartition(".")
            groups[-1].renames[stem][n] = new
        else:
            groups.append(Group(row))
    return groups


def wrap_comment(doc: str) -> str:
    out = []
    for paragraph in doc.strip().split("\n\n"):
        rows = [row.strip() for row in paragraph.splitlines()]
        if any(len(row) > 136 for row in rows) and not any(row.startswith(("-", "*", "|", ">>>")) for row in rows):
            rows = textwrap.wrap(" ".join(rows), 134)
        out.append("\n".join(f"# {row}".rstrip() for row in rows))
    return "\n#\n".join(out)


def module_names(body: list[ast.stmt]) -> tuple[set[str], dict[str, tuple[str, str]]]:
    """Return the names that statements define and import.

    The latter with the module, and the name there.
    """
    definitions: set[str] = set()
    imports: dict[str, tuple[str, str]] = {}
    for node in body:
        if isinstance(node, ast.ImportFrom):
            imports |= {a.asname or a.name: (node.module or "", a.name) for a in node.names if a.name != "*"}
        elif isinstance(node, ast.Import):
            imports |= {a.asname or a.name.split(".")[0]: ("", a.name if a.asname else a.name.split(".")[0]) for a in node.names}
        elif is_type_checking(node):
            for branch in (node.body, node.orelse):
                inner = module_names(branch)
                definitions |= inner[0]
                imports |= inner[1]
        else:
            definitions |= bound_by(node)
    return definitions, imports


def merge(group: Group, problems: list[str]) -> tuple[str, dict[str, dict[str, str]], list[Path]]:
    """Return the merged text, the renames by member, and the files to delete."""
    sources = {}
    for m in group.members:
        p = path_of(m)
        if p is None:
            problems.append(f"{group.name}: no module {m}")
            continue
        sources[m] = Source(p)
    members = list(sources)
    stems = {m: m.rpartition(".")[2] for m in members}
    # What each member binds at module level.
    defined: dict[str, set[str]] = {}
    imported: dict[str, dict[str, tuple[str, str]]] = {}
    for m, s in sources.items():
        defs, imps = module_names(s.tree.body)
        defs -= {"__all__", "_"} | set(imps)
        defined[m], imported[m] = defs, imps
    # Decide on names.
    renames: dict[str, dict[str, str]] = {m: dict(group.renames.get(stems[m], {})) for m in members}
    meaning: dict[str, tuple] = {}
    dropped: dict[str, list] = {m: [] for m in members}
    for m in members:
        for n in sorted(defined[m]):
            new = renames[m].get(n, n)
            if new in meaning and meaning[new][0] == "def" and meaning[new] != ("def", m):
                first = definition(sources[meaning[new][1]], n)
                mine = definition(sources[m], n)
                if first is not None and mine is not None and ast.dump(first) == ast.dump(mine):
                    dropped[m].append(mine)  # the same statement: one is enough
                    continue
            if new in meaning and meaning[new] != ("def", m) and n not in renames[m]:
                auto = ("_" if n.startswith("_") else "") + f"{stems[m]}_{n.lstrip('_')}"
                problems.append(f"CLASH {group.name}: {n} of {meaning[new][1]} and {stems[m]}; now {auto}")
                renames[m][n] = new = auto
            meaning[new] = ("def", m)
    member_set = set(members)
    aliases: dict[str, dict[str, str]] = {m: {} for m in members}  # name in member -> name in merged module (intra-group imports)
    modules: dict[str, dict[str, str]] = {m: {} for m in members}  # local name -> member module it stands for
    for m in members:
        for local, (mod, name) in imported[m].items():
            if mod in member_set and name != "*" and (f"{mod}.{name}" not in member_set):
                target = renames[mod].get(name, name)
                if name not in defined[mod]:
                    # imported through: find origin
                    if name in imported[mod]:
                        problems.append(f"NOTE {m} imports {name} through {mod}")
                    elif name not in defined[mod]:
                        problems.append(f"{m}: {name} is not defined in {mod}")
                if local != target:
                    aliases[m][local] = target
                continue
            full = f"{mod}.{name}" if mod else name
            if full in member_set:
                modules[m][local] = full
                continue
            new = renames[m].get(local, local)
            if new != local:
                aliases[m][local] = new
            key = ("import", (mod, name))
            if new in meaning and meaning[new] != key:
                new = f"{stems[m]}_{local.lstrip('_')}"
                new = renames[m].get(local, ("_" if local.startswith("_") else "") + new)
                if local not in renames[m]:
                    problems.append(f"CLASH {group.name}: import {local} of {stems[m]} ({mod}) and {meaning[local]}; now {new}")
                aliases[m][local] = new
            meaning[new] = key
    # a member's use of a builtin that another one defines
    texts: dict[str, str] = {}
    future = False
    imports: list[str] = []
    checking: list[str] = []
    exported: list[str] = []
    stubs: list[Path] = []
    has_all = [
        m
        for m in members
        if any(isinstance(n, (ast.Assign, ast.AugAssign)) and "__all__" in ast.unparse(n).split("=")[0] for n in sources[m].tree.body)
    ]
    order_needs: dict[str, set[str]] = {m: set() for m in members}
    for m in members:
        s = sources[m]
        resolver = Resolver(s.tree)
        for node, is_global, _ in resolver.uses:
            if is_global and node.id in meaning and node.id not in defined[m] and node.id not in imported[m]:
                problems.append(f"CAPTURE {group.name}: {stems[m]}:{node.lineno} uses builtin {node.id}, which {meaning[node.id]} binds")
        names = {**renames[m], **aliases[m]}
        problems += s.rename_globals(names)
        # member modules as attributes
        if modules[m]:
            parents = {c: p for p in ast.walk(s.tree) for c in ast.iter_child_nodes(p)}
            for node, is_global, scope in resolver.uses:
                if is_global and node.id in modules[m]:
                    p = parents[node]
                    if isinstance(p, ast.Attribute):
                        target = renames[modules[m][node.id]].get(p.attr, p.attr)
                        sc = scope
                        while sc is not None and sc.parent is not None:
                            if target in sc.bound:
                                problems.append(f"HIDDEN {s.path}:{node.lineno}: {node.id}.{p.attr}: a local {target} hides it")
                            sc = sc.parent
                        s.replace(p, target)
                    else:
                        problems.append(f"MODULE {s.path}:{node.lineno}: {node.id} is used as a value")
        # cut imports, docstring, __all__
        doc = ast.get_docstring(s.tree)
        body = list(s.tree.body)
        if doc is not None:
            cut(s, body.pop(0))
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                future = True
                cut(s, node)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                imports += import_text(node, m, member_set, aliases[m], s)
                cut(s, node)
            elif is_type_checking(node) and all(isinstance(x, (ast.Import, ast.ImportFrom)) for x in node.body) and not node.orelse:
                for x in node.body:
                    checking += import_text(x, m, member_set, aliases[m], s)
                cut(s, node)
            elif isinstance(node, (ast.Assign, ast.AugAssign)) and ast.unparse(node).split("=")[0].strip(" +") == "__all__":
                value = node.value
                if isinstance(value, (ast.List, ast.Tuple)) and all(isinstance(e, ast.Constant) for e in value.elts):
                    exported += [renames[m].get(e.value, e.value) for e in value.elts]
                    cut(s, node)
                else:
                    problems.append(f"{s.path}: __all__ is computed")
        stub = s.path.with_suffix(".pyi")
        if s.path.name == "__init__.py" and m == group.name and stub.exists():
            for node in body:
                if isinstance(node, ast.Assign) and "attach(" in ast.unparse(node.value):
                    cut(s, node)
                    imports[:] = [i for i in imports if "lazy_imports as _lazy_imports" not in i]
            for node in ast.parse(stub.read_text()).body:
                if isinstance(node, ast.ImportFrom):
                    for a in node.names:
                        exported.append(a.asname or a.name)
                        if node.module not in member_set:
                            imports.append(f"from {node.module} import {a.name} as {a.asname or a.name}")
                else:
                    problems.append(f"{stub}: {ast.unparse(node)}")
            stubs.append(stub)
        for node in dropped[m]:
            cut(s, node)
            inside = s.span(node)
            s.edits = [e for e in s.edits if not (inside[0] <= e[0] and e[1] <= inside[1] and e[2])]
        # which members must come first
        for n in executed(body):
            if isinstance(n, ast.Name) and n.id in imported[m]:
                mod, name = imported[m][n.id]
                if mod in member_set:
                    order_needs[m].add(mod)
                if f"{mod}.{name}" in member_set:
                    order_needs[m].add(f"{mod}.{name}")
        texts[m] = s.result().strip("\n")
        title = doc or ""
        if ">>>" in title:
            problems.append(f"NOTE {m}: docstring has examples")
        texts[m] = (texts[m], title)
    if has_all and len(has_all) != len(members):
        for m in members:
            if m not in has_all and any(not n.startswith("_") for n in defined[m]):
                problems.append(f"NOTE {m} has no __all__: {sorted(n for n in defined[m] if n[0] != '_')}")
    ordered, rest = [], list(members)
    while rest:
        ready = next((m for m in rest if order_needs[m] - {m} <= set(ordered)), None)
        if ready is None:
            problems.append(f"{group.name}: circular order {rest}")
            ready = rest[0]
        ordered.append(ready)
        rest.remove(ready)
    doc = group.doc or texts[members[0]][1]
    out = ['"""' + wrap_doc(doc) + '"""', ""]
    if future:
        out += ["from __future__ import annotations", ""]
    out += [*imports, ""]
    if checking:
        if not any("TYPE_CHECKING" in i for i in imports):
            out.insert(-1, "from typing import TYPE_CHECKING")
        out += ["if TYPE_CHECKING:", *["    " + c for c in checking], ""]
    if exported:
        out += ["__all__ = [" + ", ".join(f'"{e}"' for e in exported) + "]", ""]
    for _i, m in enumerate(ordered):
        body, title = texts[m]
        if not body.strip():
            continue
        if title and not (m == members[0] and not group.doc) and not (sources[m].path.name == "__init__.py" and m == group.name):
            out += ["", "", SECTION, wrap_comment(title), SECTION]
        out += ["", body, ""]
    text = "\n".join(out).rstrip("\n") + "\n"
    files = [sources[m].path for m in members] + stubs
    return text, renames, files


def executed(body):
    """Yield the nodes that importing executes."""
    stack = list(body)
    while stack:
        n = stack.pop()
        yield n
        if isinstance(n, FUNCTIONS):
            stack += [*n.decorator_list, *n.args.defaults, *filter(None, n.args.kw_defaults)]
        elif isinstance(n, ast.Lambda):
            stack += [*n.args.defaults, *filter(None, n.args.kw_defaults)]
        elif isinstance(n, ast.AnnAssign):
            stack += [n.target, *filter(None, [n.value])]
        else:
            stack += list(ast.iter_child_nodes(n))


def definition(source: Source, name: str):
    """Return the only module-level assignment of a name."""
    nodes = [n for n in source.tree.body if isinstance(n, (ast.Assign, ast.AnnAssign)) and name in bound_by(n)]
    return nodes[0] if len(nodes) == 1 else None


SECTION = "# " + "-" * 78


def wrap_doc(doc: str) -> str:
    if "\n" in doc:
        return doc.strip() + "\n"
    if len(doc) <= 80:
        return doc
    if ". " in doc:
        first, _, rest = doc.partition(". ")
    else:
        first, _, rest = doc.partition(": ")
        rest = rest[:1].upper() + rest[1:]
    return first + ".\n\n" + "\n".join(textwrap.wrap(rest, 130)) + "\n"


def cut(s: Source, node) -> None:
    start, end = s.span(node)
    # also a comment at the end of the row
    nl = s.raw.find(b"\n", end)
    s.replace_span(start, nl if nl >= 0 else len(s.raw), "")


def import_text(node, member, members, aliases, s) -> list[str]:
    _start, end = s.span(node)
    nl = s.raw.find(b"\n", end)
    comment = s.raw[end:nl].decode().strip()
    comment = f"  {comment}" if comment else ""
    out = []
    if isinstance(node, ast.Import):
        for a in node.names:
            local = a.asname or a.name.split(".")[0]
            new = aliases.get(local)
            out.append(f"import {a.name}" + (f" as {new or a.asname}" if new or a.asname else "") + comment)
        return out
    for a in node.names:
        if node.module in members or f"{node.module}.{a.name}" in members:
            continue
        new = aliases.get(a.asname or a.name, a.asname or a.name)
        explicit = a.asname == a.name or new != a.name
        out.append(f"from {'.' * node.level}{node.module or ''} import {a.name}" + (f" as {new}" if explicit else "") + comment)
    return out


def is_taken(tree, stem: str, target: str, moved: dict[str, str]) -> bool:
    """Return True if a file binds a name otherwise than as the module `target`."""
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            for b in n.names:
                full = f"{n.module}.{b.name}"
                if (b.asname or b.name) == stem and moved.get(full, full) != target:
                    return True
        elif isinstance(n, ast.Import):
            names = [b.asname or b.name.split(".")[0] for b in n.names]
            if stem in names:
                return True
        elif (
            (isinstance(n, ast.arg) and n.arg == stem)
            or (isinstance(n, ast.Name) and n.id == stem and isinstance(n.ctx, ast.Store))
            or (isinstance(n, (*FUNCTIONS, ast.ClassDef)) and n.name == stem)
        ):
            return True
    return False


def rewrite(path: Path, text: str, moved: dict[str, str], renames: dict[str, dict[str, str]]) -> str:
    """Return the text of a file with imports and mentions of the merged modules."""
    stems = {m.rpartition(".")[2] for m in moved}
    if "volta_fn" not in text:
        return text
    new_text = text
    if path.suffix in (".py", ".pyi") and any(stem in text for stem in stems):
        try:
            s = Source(path, text)
        except SyntaxError:
            s = None
        if s is not None:
            resolver = Resolver(s.tree)
            parents = {c: p for p in ast.walk(s.tree) for c in ast.iter_child_nodes(p)}
            for node in ast.walk(s.tree):
                if not isinstance(node, ast.ImportFrom) or node.level:
                    continue
                mod = node.module or ""
                rows: list[str] = []
                changed = False
                for a in node.names:
                    full = f"{mod}.{a.name}"
                    if mod in moved and full not in moved and path_of(full) is None:
                        name = renames[mod].get(a.name, a.name)
                        alias = a.asname or (a.name if name != a.name else None)
                        if alias == name and a.asname != a.name:
                            alias = None
                        rows.append(f"from {moved[mod]} import {name}" + (f" as {alias}" if alias else ""))
                        changed = True
                    elif full in moved and moved[full] != full:
                        pkg, _, stem = moved[full].rpartition(".")
                        local = a.asname or a.name
                        if a.asname and a.asname != a.name:
                            rows.append(f"from {pkg} import {stem} as {a.asname}")
                        else:
                            # uses become the new module's name, unless that is taken
                            scope_taken = is_taken(s.tree, stem, moved[full], moved)
                            is_top = parents.get(node) is s.tree or is_type_checking(parents.get(node))
                            if stem != a.name and not scope_taken and is_top and path.suffix == ".py":
                                rows.append(f"from {pkg} import {stem}")
                                for n, is_global, _scope in resolver.uses:
                                    if is_global and n.id == a.name:
                                        p = parents[n]
                                        if isinstance(p, ast.Attribute) and p.attr in renames[full]:
                                            s.replace(p, f"{stem}.{renames[full][p.attr]}")
                                        else:
                                            s.replace(n, stem)
                            else:
                                if stem != a.name:
                                    rows.append(f"from {pkg} import {stem} as {a.name}")
                                else:
                                    rows.append(f"from {pkg} import {stem}" + (f" as {stem}" if a.asname else ""))
                                if renames[full]:
                                    for n, _, _ in resolver.uses:
                                        if n.id == local and isinstance(parents[n], ast.Attribute) and parents[n].attr in renames[full]:
                                            s.replace(parents[n], f"{local}.{renames[full][parents[n].attr]}")
                        changed = True
                    else:
                        rows.append(f"from {mod} import {a.name}" + (f" as {a.asname}" if a.asname else ""))
                if changed:
                    start, end = s.span(node)
                    indent = " " * node.col_offset
                    nl = s.raw.find(b"\n", end)
                    tail = s.raw[end:nl].decode()
                    uniq = list(dict.fromkeys(rows))
                    s.replace_span(
                        start, nl if nl >= 0 else end, ("\n" + indent).join(x + (tail if i == 0 else "") for i, x in enumerate(uniq))
                    )
            if s.edits:
                new_text = s.result()

    # full names in strings, `import a.b.c`, documents
    def dotted(match: re.Match) -> str:
        name = match.group(0)
        words = name.split(".")
        for k in range(len(words), 1, -1):
            prefix = ".".join(words[:k])
            if prefix in moved:
                rest = words[k:]
                if rest and rest[0] in renames[prefix]:
                    rest[0] = renames[prefix][rest[0]]
                return ".".join([moved[prefix], *rest])
            if path_of(prefix) is not None:
                return name
        return name

    new_text = re.sub(r"\bvolta_fn(?:\.\w+)+", dotted, new_text)

    def slashed(match: re.Match) -> str:
        name = match.group(1).replace("/", ".").removesuffix(".__init__")
        for prefix in ("", "volta_fn."):
            if prefix + name in moved:
                new = moved[prefix + name].removeprefix(prefix) if prefix else moved[name]
                return new.replace(".", "/") + ".py"
        return match.group(0)

    return re.sub(r"\b((?:\w+/)+\w+)\.py\b", slashed, new_text)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--dry", action="store_true", help="tell what clashes, and change nothing")
    options = parser.parse_args()
    groups = read_plan(options.plan.read_text())
    moved: dict[str, str] = {}
    renames: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    results = []
    for g in groups:
        text, ren, files = merge(g, problems)
        try:
            ast.parse(text)
        except SyntaxError as e:
            problems.append(f"SYNTAX {g.name}: {e}")
        results.append((g, text, files))
        for m in g.members:
            moved[m] = g.name
        renames.update(ren)
        for m in g.members:
            renames.setdefault(m, {})
    for p in problems:
        print(p)
    if options.dry:
        return
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True
    ).stdout.split("\n")
    suffixes = {".py", ".pyi", ".md", ".txt", ".toml", ".yml", ".js", ".mjs", ".json"}
    others = [ROOT / t for t in tracked if t and Path(t).suffix in suffixes and (ROOT / t).is_file() and not t.startswith("CHANGELOG")]
    # write merged files first, then rewrite everything (merged files too)
    gone = {f for _, _, files in results for f in files}
    new_files = {}
    for g, text, files in results:
        target = ROOT / (g.name.replace(".", "/") + ".py")
        is_package = any(f.name == "__init__.py" and f.parent == target.with_suffix("") for f in files)
        stays = target.with_suffix("").is_dir() and not is_package
        if stays:
            target = target.with_suffix("") / "__init__.py"
        new_files[target] = text
    for path in others:
        if path in gone:
            continue
        before = path.read_text()
        after = rewrite(path, before, moved, renames)
        if after != before:
            path.write_text(after)
    texts_after = {target: rewrite(target, text, moved, renames) for target, text in new_files.items()}
    for f in gone:
        f.unlink()
        stub = f.with_suffix(".pyi")
        if stub.exists() and f.suffix == ".py" and f not in texts_after and stub not in gone:
            print("STUB left", stub)
        if not any(x for x in f.parent.iterdir() if x.name != "__pycache__"):
            shutil.rmtree(f.parent)
    for target, text in texts_after.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    main()
