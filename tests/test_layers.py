"""The house's rules: who may import whom, how long a file may be, what must be documented and annotated, what importing loads."""

from __future__ import annotations

import ast
import functools
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "volta_fn"

#: The layers, lowest first. A module imports from its own layer and those before it.
LAYERS = [
    {"source", "errors", "lazy_imports", "dtypes", "tree", "tree_util"},
    {"core"},
    {"primitives"},
    {"transforms", "compiler"},
    {"codegen"},
    {"codegen"},
    {"targets"},
    {"jit"},
    {"numpy", "lax", "random", "linalg", "fft", "special", "scipy"},
    {"nn", "optim", "io", "data", "debug", "test_util"},
]
#: The layers whose packages are read as a whole, and not name by name.
INNER = {"core", "primitives", "transforms", "compiler", "codegen", "targets", "jit"}
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def name_of(path: Path) -> str:
    """The dotted name of a module's file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(), str(path))


def imported_by(node: ast.stmt, module: str) -> list[str]:
    """The modules of our own that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.partition(".")[0] == "volta_fn"]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        anchor = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
        base = ".".join([*anchor[: len(anchor) - node.level + 1], *filter(None, [node.module])])
    if base.partition(".")[0] != "volta_fn":
        return []
    return [full if (full := f"{base}.{alias.name}") in MODULES else base for alias in node.names]


def is_type_checking(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`, whose imports do not happen at run time."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def run_time_imports(module: str) -> set[str]:
    """Our own modules that importing a module imports."""
    found: set[str] = set()
    stack: list[ast.AST] = [parsed(MODULES[module])]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.stmt):
            found.update(imported_by(node, module))
        if not is_type_checking(node) and not isinstance(node, FUNCTIONS):
            stack.extend(ast.iter_child_nodes(node))
    return found - {module}


def layer_of(module: str) -> int:
    """The index of a module's layer; the package's own face is above all."""
    if module == "volta_fn":
        return len(LAYERS)
    part = module.split(".")[1]
    return next((i for i, names in enumerate(LAYERS) if part in names), len(LAYERS))


def test_every_module_belongs_to_a_layer():
    known = set().union(*LAYERS)
    assert {name.split(".")[1] for name in MODULES if name != "volta_fn"} <= known


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_from_earlier_layers(module):
    upward = [name for name in run_time_imports(module) if layer_of(name) > layer_of(module)]
    assert not upward, f"{module} imports upward: {upward}"


@pytest.mark.parametrize("module", MODULES)
def test_no_imports_of_our_own_inside_functions(module):
    for function in ast.walk(parsed(MODULES[module])):
        if isinstance(function, (*FUNCTIONS, ast.Lambda)):
            inner = [name for node in ast.walk(function) if isinstance(node, ast.stmt) for name in imported_by(node, module)]
            assert not inner, f"{module}:{function.lineno} imports {inner} inside a function"


def loaded_by_name(module: str) -> list[str]:
    """List our own modules that a module loads by their names on first use: literal arguments of `lazy_imports.load`."""
    calls = [node for node in ast.walk(parsed(MODULES[module])) if isinstance(node, ast.Call)]
    given = [node.args[0] for node in calls if ast.unparse(node.func).split(".")[-1] == "load" and node.args]
    return [arg.value for arg in given if isinstance(arg, ast.Constant) and str(arg.value).partition(".")[0] == "volta_fn"]


@pytest.mark.parametrize("module", MODULES)
def test_modules_loaded_on_first_use_exist_and_are_not_of_later_layers(module):
    wrong = [name for name in loaded_by_name(module) if name not in MODULES or layer_of(name) > layer_of(module)]
    assert not wrong, f"{module} loads {wrong}"


@pytest.mark.parametrize("module", MODULES)
def test_only_lazy_imports_imports_by_name(module):
    """`lazy_imports.load` is the one way, which the tests of the layers see."""
    other = {"importlib", "__import__", "import_module", "imp", "runpy", "pkgutil"}
    found = [
        node.lineno
        for node in ast.walk(parsed(MODULES[module]))
        if (isinstance(node, ast.Import) and other & {a.name.partition(".")[0] for a in node.names})
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in other)
        or (isinstance(node, ast.Name) and node.id in other)
        or (isinstance(node, ast.Attribute) and node.attr in other)
    ]
    assert module == "volta_fn.lazy_imports" or not found, f"{module} imports by name in {found}; use lazy_imports.load"


STUBS = [name for name in MODULES if MODULES[name].with_suffix(".pyi").exists()]


@pytest.mark.parametrize("module", STUBS)
def test_stubs_name_modules_that_exist_and_are_not_of_later_layers(module):
    stub = ast.parse(MODULES[module].with_suffix(".pyi").read_text())
    used = [name for node in stub.body if isinstance(node, ast.stmt) for name in imported_by(node, module)]
    wrong = [name for name in used if name not in MODULES or layer_of(name) > layer_of(module)]
    assert not wrong, f"{module} lists names of {wrong}"


def test_no_import_cycles():
    graph = {module: run_time_imports(module) for module in MODULES}
    done: set[str] = set()
    while ready := {m for m in graph if m not in done and graph[m] <= done}:
        done |= ready
    left = {m: sorted(graph[m] - done) for m in sorted(set(graph) - done)}
    assert not left, f"in a cycle, or above one: {left}"


def lines(path: Path) -> int:
    """How many lines a file has."""
    return len(path.read_text().splitlines())


def test_files_are_short():
    too_long = {str(path.relative_to(ROOT)): lines(path) for path in FILES if lines(path) > 500}
    assert not too_long
    assert statistics.median(lines(path) for path in FILES) < 150


def public_definitions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """A file's public functions and classes and their public methods, by name."""
    stack: list[tuple[str, ast.AST]] = [("", parsed(path))]
    while stack:
        prefix, parent = stack.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
                yield prefix + node.name, node
                if isinstance(node, ast.ClassDef):
                    stack.append((f"{prefix}{node.name}.", node))
            elif isinstance(node, (ast.If, ast.Try)):
                stack.append((prefix, node))


def is_overload_or_setter(node: ast.AST) -> bool:
    """Whether a definition's documentation stands elsewhere: an overload's at the implementation, a setter's at the getter."""
    return any(ast.unparse(d).split(".")[-1] in ("overload", "setter") for d in getattr(node, "decorator_list", []))


@pytest.mark.parametrize("module", MODULES)
def test_public_names_are_documented(module):
    assert ast.get_docstring(parsed(MODULES[module])), f"{module} has no docstring"
    bare = [name for name, node in public_definitions(MODULES[module]) if not ast.get_docstring(node) and not is_overload_or_setter(node)]
    assert not bare, f"{module}: without a docstring: {bare}"


PACKAGES = [m for m in MODULES if m.count(".") and m.split(".")[1] in INNER and MODULES[m].name == "__init__.py"]


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_say_what_their_modules_are(package):
    """So that whoever reads the package from its beginning knows where to go on."""
    here = MODULES[package].parent
    inside = {path.stem for path in here.glob("*.py")} | {path.parent.name for path in here.glob("*/__init__.py")}
    named = set(re.findall(r"`(\w+)`", ast.get_docstring(parsed(MODULES[package])) or ""))
    assert not (left := inside - named - {"__init__"}), f"{package} says nothing of {sorted(left)}"


def unannotated(function: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool) -> list[str]:
    """The parameters without annotations, and "return" for a result without."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
    if is_method and not static:
        positional = positional[1:]
    every = [*positional, *args.kwonlyargs, *filter(None, [args.vararg, args.kwarg])]
    return [a.arg for a in every if a.annotation is None] + ["return"] * (function.returns is None)


@pytest.mark.parametrize("module", MODULES)
def test_public_functions_are_annotated(module):
    bare = {
        name: missing
        for name, node in public_definitions(MODULES[module])
        if isinstance(node, FUNCTIONS) and (missing := unannotated(node, "." in name))
    }
    assert not bare, f"{module}: without annotations: {bare}"


def test_importing_loads_no_heavy_dependency():
    heavy = ("wgpu", "llvmlite", "safetensors", "optree", "jax", "scipy")
    ours = ("volta_fn.transforms", "volta_fn.compiler", "volta_fn.targets.cpu_device", "volta_fn.targets.numpy", "volta_fn.nn")
    script = f"import volta_fn, sys; print([m for m in {heavy + ours} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_importing_works_without_the_optional_parts():
    script = "import sys; sys.modules.update(wgpu=None, llvmlite=None, safetensors=None); import volta_fn"
    subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=ROOT, check=True)


PLANTED = {
    "upward": ("core.a", "from volta_fn.jit import jit", test_imports_only_from_earlier_layers),
    "inside": ("nn.a", "def f():\n    from volta_fn import tree", test_no_imports_of_our_own_inside_functions),
    "silent": ("nn.a", "def f(): pass", test_public_names_are_documented),
    "unnamed": ("core", '"""See `b`."""', test_packages_say_what_their_modules_are),
    "by name": ("nn.a", "import importlib.util", test_only_lazy_imports_imports_by_name),
    "loaded": ("core.a", "load('volta_fn.jit')", test_modules_loaded_on_first_use_exist_and_are_not_of_later_layers),
    "untyped": ("nn.a", '"""A."""\ndef f(x):\n    """F."""', test_public_functions_are_annotated),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_tester_finds_planted_faults(fault, tmp_path, monkeypatch):
    name, source, check = PLANTED[fault]
    path = tmp_path / "a.py"
    path.write_text(source)
    monkeypatch.setitem(MODULES, "volta_fn.jit", path)
    monkeypatch.setitem(MODULES, f"volta_fn.{name}", path)
    with pytest.raises(AssertionError):
        check(f"volta_fn.{name}")


def test_the_tester_finds_a_planted_cycle(tmp_path, monkeypatch):
    for name, other in (("p", "q"), ("q", "p")):
        path = tmp_path / f"{name}.py"
        path.write_text(f"from volta_fn.nn.{other} import x")
        monkeypatch.setitem(MODULES, f"volta_fn.nn.{name}", path)
    with pytest.raises(AssertionError, match=r"volta_fn\.nn\.p"):
        test_no_import_cycles()
