"""The layers of the package, and what holds for every module: who imports whom, what is documented and annotated, what importing loads."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from volta_fn.jax import namespace
from volta_fn.numpy import attached
from volta_fn.targets import cpu_device
from volta_fn.targets.gpu import backend

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "volta_fn"

#: The layers, lowest first. A module imports from its own layer and those before it.
LAYERS = [
    {"settings", "source", "errors", "signals", "lazy_imports", "tracebacks", "advice", "dtypes", "tree"},
    {"core"},
    {"primitives"},
    {"transforms", "compiler"},
    {"codegen"},
    {"runtime"},
    {"targets"},
    {"jit"},
    {"numpy", "lax", "random", "scipy", "ops", "sharding", "distributed"},
    {"nn", "optim", "io", "data", "vision", "test_util", "info", "cache", "export"},
    {"inspection", "web", "onnx", "chat"},
    {"__main__", "dlpack", "doctor", "launch", "profiler"},
    {"compat", "debug", "experimental", "example_libraries", "extend"},
    {"jax"},
]
#: The layers whose packages are read as a whole, and not name by name.
INNER = {"core", "primitives", "transforms", "compiler", "codegen", "runtime", "targets", "jit"}
#: The drivers of GPUs among the targets.
DRIVERS = {"wgpu", "nvidia"}
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.fixture(scope="module", autouse=True)
def syntax_trees(no_collections: None) -> Iterator[None]:
    """Drop the trees of all files after these tests, so that no later collection of garbage looks at them."""
    yield
    parsed.cache_clear()
    nodes.cache_clear()


def name_of(path: Path) -> str:
    """Return the dotted name of a module's file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(), str(path))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file's syntax tree."""
    return tuple(ast.walk(parsed(path)))


def blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements directly inside a node, and the parts of a statement that have statements of their own."""
    return (child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)))


def statements(root: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements inside a node at any depth."""
    stack = [root]
    while stack:
        for child in blocks(stack.pop()):
            stack.append(child)
            if isinstance(child, ast.stmt):
                yield child


def imported_by(node: ast.stmt, module: str) -> list[str]:
    """List the modules of the package that an import statement names."""
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
    """Return True for `if TYPE_CHECKING:`, whose imports do not happen at run time."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports_of(module: str) -> set[str]:
    """Return the modules that a module imports anywhere, also for type checkers and in functions; stubs, which are no modules, aside."""
    inside = statements(parsed(MODULES[module]))
    return {name for node in inside for name in imported_by(node, module) if name in MODULES} - {module}


def run_time_imports(module: str) -> set[str]:
    """Return the modules of the package that importing a module imports."""
    results: set[str] = set()
    stack: list[ast.AST] = [parsed(MODULES[module])]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.stmt):
            results.update(imported_by(node, module))
        if not is_type_checking(node) and not isinstance(node, FUNCTIONS):
            stack.extend(blocks(node))
    return results - {module}


def layer_of(module: str) -> int:
    """Return the index of a module's layer; `volta_fn` itself is above all."""
    if module == "volta_fn":
        return len(LAYERS)
    package = module.split(".")[1]
    return next((i for i, names in enumerate(LAYERS) if package in names), len(LAYERS))


def test_every_module_belongs_to_a_layer() -> None:
    layered = set().union(*LAYERS)
    assert {name.split(".")[1] for name in MODULES if name != "volta_fn"} <= layered


# Rules: each lists how a module breaks it.


def imports_upward(module: str) -> list[str]:
    """List the imports of later layers."""
    return [name for name in run_time_imports(module) if layer_of(name) > layer_of(module)]


#: What only the pipeline calls. A target's own `target.py` may import passes, to list them.
COMPILER_INSIDE = tuple(f"volta_fn.compiler.{name}" for name in ("pipeline", "passes", "fusion", "node_passes", "lowering"))


def calls_the_compiler(module: str) -> list[str]:
    """List a target's imports of the compiler's passes: targets get lowered programs, and do not lower programs themselves."""
    if not module.startswith("volta_fn.targets.") or module.endswith(".target"):
        return []
    return [name for name in run_time_imports(module) if name.startswith(COMPILER_INSIDE)]


def imports_other_targets(module: str) -> list[str]:
    """List a target's imports of another one.

    Exceptions are NumPy's, which computes what others have no code for, the target of GPUs, whose plans `gpu` runs, and the interface of
    drivers; the scalars of NVIDIA's further kernels are those of machine code, and so are the routines of WebAssembly.
    """
    package = ".".join(module.split(".")[:3])
    if not package.startswith("volta_fn.targets.") or module == "volta_fn.targets.cpu_device":
        return []
    allowed = [f"{package}.", "volta_fn.targets.numpy."]
    if package == "volta_fn.targets.gpu":
        allowed.append("volta_fn.targets.wgsl.")
    if package.split(".")[-1] in DRIVERS:
        allowed += ["volta_fn.targets.gpu.driver", "volta_fn.targets.gpu.pipelines", "volta_fn.targets.wgsl."]
    if package == "volta_fn.targets.wasm":
        allowed.append("volta_fn.targets.cpu.")
    if package == "volta_fn.targets.nvidia":
        allowed += ["volta_fn.targets.cpu.scalars.", "volta_fn.targets.cpu.loops.emit_values."]
    return [name for name in run_time_imports(module) if name.startswith("volta_fn.targets.") and not f"{name}.".startswith(tuple(allowed))]


def imports_inside_functions(module: str) -> list[str]:
    """List the imports of the package's modules inside functions."""
    functions = [node for node in statements(parsed(MODULES[module])) if isinstance(node, FUNCTIONS)]
    return [name for function in functions for node in statements(function) for name in imported_by(node, module)]


def loaded_by_name(module: str) -> list[str]:
    """List the package's modules that a module loads on first use: literal arguments of `lazy_imports.load` and `deferred`."""
    calls = [node for node in nodes(MODULES[module]) if isinstance(node, ast.Call)]
    options = [node.args[0] for node in calls if ast.unparse(node.func).split(".")[-1] in ("load", "deferred") and node.args]
    return [arg.value for arg in options if isinstance(arg, ast.Constant) and str(arg.value).partition(".")[0] == "volta_fn"]


def loads_upward_or_nothing(module: str) -> list[str]:
    """List the modules loaded on first use that do not exist, or are of later layers."""
    return [name for name in loaded_by_name(module) if name not in MODULES or layer_of(name) > layer_of(module)]


def imports_by_name(module: str) -> list[int]:
    """List the lines that import by name otherwise than by `lazy_imports.load`, which these rules see."""
    other = {"importlib", "__import__", "import_module", "imp", "runpy", "pkgutil"}
    results = [
        node.lineno
        for node in nodes(MODULES[module])
        if (isinstance(node, ast.Import) and other & {a.name.partition(".")[0] for a in node.names})
        or (isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in other)
        or (isinstance(node, ast.Name) and node.id in other)
        or (isinstance(node, ast.Attribute) and node.attr in other)
    ]
    answers_imports = ("volta_fn.lazy_imports", "volta_fn.jax.namespace", "volta_fn.jax.__main__", "volta_fn.__main__")
    return [] if module in answers_imports else results


def unpickles(module: str) -> list[int]:
    """List the lines that import a module which runs code out of the files it reads."""
    unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    imports = [n for n in statements(parsed(MODULES[module])) if isinstance(n, ast.Import | ast.ImportFrom)]
    named = [(n.lineno, [a.name for a in n.names] if isinstance(n, ast.Import) else [n.module or ""]) for n in imports]
    return [line for line, names in named if unsafe & {name.partition(".")[0] for name in names}]


def stub_names_nothing_or_later_layers(module: str) -> list[str]:
    """List the modules in a module's stub that do not exist, or are of later layers."""
    stub = MODULES[module].with_suffix(".pyi")
    body = ast.parse(stub.read_text()).body if stub.exists() else []
    used = [name for node in body for name in imported_by(node, module)]
    return [name for name in used if name not in MODULES or layer_of(name) > layer_of(module)]


def public_definitions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield a file's public functions and classes and their public methods, by name."""
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
    """Return True if a definition is documented elsewhere: an overload at the implementation, a setter at the getter."""
    return any(ast.unparse(d).split(".")[-1] in ("overload", "setter") for d in getattr(node, "decorator_list", []))


def lacks_docstrings(module: str) -> list[str]:
    """List the public names without a docstring, and the module if it has none."""
    named = [(module, parsed(MODULES[module])), *public_definitions(MODULES[module])]
    return [name for name, node in named if not ast.get_docstring(node) and not is_overload_or_setter(node)]


def says_nothing_of_modules(module: str) -> list[str]:
    """List the modules that the docstring of an inner layer's package leaves out: it says in what order to read them."""
    path = MODULES[module]
    if path.name != "__init__.py" or module.partition(".")[2].partition(".")[0] not in INNER:
        return []
    inside = {p.stem for p in path.parent.glob("*.py")} | {p.parent.name for p in path.parent.glob("*/__init__.py")}
    return sorted(inside - set(re.findall(r"`(\w+)`", ast.get_docstring(parsed(path)) or "")) - {path.stem})


def unannotated(function: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool) -> list[str]:
    """List the parameters without annotations, and "return" for a result without."""
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    static = any(ast.unparse(d) == "staticmethod" for d in function.decorator_list)
    if is_method and not static:
        positional = positional[1:]
    every = [*positional, *args.kwonlyargs, *filter(None, [args.vararg, args.kwarg])]
    return [a.arg for a in every if a.annotation is None] + ["return"] * (function.returns is None)


def lacks_annotations(module: str) -> list[str]:
    """List the parameters and results of public functions without annotations."""
    functions = [(name, node) for name, node in public_definitions(MODULES[module]) if isinstance(node, FUNCTIONS)]
    return [f"{name}: {missing}" for name, node in functions for missing in unannotated(node, "." in name)]


def is_long(module: str) -> list[int]:
    """Return the number of lines of a file of more than 900, which is too long to be read at one sitting."""
    length = len(MODULES[module].read_text().splitlines())
    return [length] if length > 900 else []


#: By rule, a module and a source that break it.
RULES: dict[Callable[[str], list], tuple[str, str]] = {
    imports_upward: ("core.a", "from volta_fn.jit import jit"),
    calls_the_compiler: ("targets.a", "from volta_fn.compiler.passes.dce import overlap_sums"),
    imports_other_targets: ("targets.wgsl.a", "from volta_fn.targets.cpu.routine import Routine"),
    imports_inside_functions: ("nn.a", "def f():\n    from volta_fn import tree"),
    loads_upward_or_nothing: ("core.a", "load('volta_fn.jit')"),
    imports_by_name: ("nn.a", "import importlib.util"),
    unpickles: ("nn.a", "from pickle import loads"),
    stub_names_nothing_or_later_layers: ("core.a", "from volta_fn.jit import jit as jit"),
    lacks_docstrings: ("nn.a", "def f(): pass"),
    says_nothing_of_modules: ("core", '"""See `c`."""'),
    lacks_annotations: ("nn.a", '"""A."""\ndef f(x):\n    """F."""'),
    is_long: ("nn.a", "x = 1\n" * 901),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Callable[[str], list]) -> None:
    broken = {module: faults for module in MODULES if (faults := rule(module))}
    assert not broken, f"{rule.__name__}: {broken}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_finds_a_planted_fault(rule: Callable[[str], list], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, source = RULES[rule]
    path = tmp_path / ("__init__.py" if rule is says_nothing_of_modules else "a.py")
    (tmp_path / "b.py").touch()
    path.write_text(source)
    path.with_suffix(".pyi").write_text(source)
    monkeypatch.setitem(MODULES, "volta_fn.jit", path)
    monkeypatch.setitem(MODULES, f"volta_fn.{name}", path)
    assert rule(f"volta_fn.{name}")


def test_tables_of_modules_name_modules() -> None:
    """Modules that are loaded by the entries of a table, which `loaded_by_name` does not see, exist."""
    numpy = [f"volta_fn.numpy.{name}" for name in (*attached.FUNCTIONS, *namespace._FREQUENT)]
    assert {*numpy, *cpu_device._COMPILER, *backend._DRIVERS.values()} <= set(MODULES)


def test_no_import_cycles() -> None:
    """No two modules import each other, not even for annotations or inside functions."""
    graph = {module: imports_of(module) for module in MODULES}
    done: set[str] = set()
    while ready := {m for m in graph if m not in done and graph[m] <= done}:
        done |= ready
    left = {m: sorted(graph[m] - done) for m in sorted(set(graph) - done)}
    assert not left, f"in a cycle, or above one: {left}"


@pytest.mark.parametrize("where", ["", "if TYPE_CHECKING:\n    ", "def f():\n    "])
def test_a_planted_cycle_is_found(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, other in (("p", "q"), ("q", "p")):
        path = tmp_path / f"{name}.py"
        path.write_text(f"{where if name == 'q' else ''}from volta_fn.nn.{other} import x")
        monkeypatch.setitem(MODULES, f"volta_fn.nn.{name}", path)
    with pytest.raises(AssertionError, match=r"volta_fn\.nn\.p"):
        test_no_import_cycles()


def classes_of_two_modules(modules: Iterable[str]) -> list[tuple[str, str]]:
    """Return the public names of classes that two modules of a package or a target define, each with the package."""
    result: Counter[tuple[str, str]] = Counter()
    for module in modules:
        package = ".".join(module.split(".")[1:3] if module.startswith("volta_fn.targets.") else module.split(".")[1:2])
        result.update(
            (package, node.name) for node in parsed(MODULES[module]).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
        )
    return [name for name, count in result.items() if count > 1]


def test_a_class_name_stands_for_one_thing() -> None:
    assert not classes_of_two_modules(MODULES)


def test_a_class_name_that_stands_for_two_things_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = MODULES["volta_fn.core.jaxpr"]
    monkeypatch.setitem(MODULES, "volta_fn.core.a_copy", twin)
    assert ("core", "Jaxpr") in classes_of_two_modules(MODULES)


def test_importing_loads_no_heavy_dependency() -> None:
    heavy = ("wgpu", "llvmlite", "safetensors", "optree", "jax", "scipy")
    ours = (
        *("transforms", "compiler", "targets.cpu_device", "targets.numpy", "nn", "jit.sharded", "core.arrays.html"),
        *("core.devices.sharding", "core.devices.placement", "primitives.array_operations.ref_views"),
    )
    script = f"import volta_fn, sys; print([m for m in {heavy + tuple(f'volta_fn.{m}' for m in ours)} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_programs_written_for_jax_load_the_compiler_with_jax_alone() -> None:
    script = "import volta_fn.jax.namespace, sys; print([m for m in ('optree', 'volta_fn.targets.cpu_device') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_importing_works_without_the_optional_packages() -> None:
    script = "import sys; sys.modules.update(wgpu=None, llvmlite=None, safetensors=None); import volta_fn"
    subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=ROOT, check=True)
