"""Compare the names of JAX with those here: `python tools/jax_surface.py`.

`--record` walks the public modules of the JAX that is installed and writes `tests/jax/surface.txt`: each module, and below it each public
name with its kind and signature, and each public attribute of a class. `--imported` writes `volta_fn/jax/imported_names.txt`, names that
a module has because it imports them, and `--private` writes `volta_fn/jax/private_names.txt`, public objects by the private modules that
define them. `--record-newer` writes to `tests/jax/newer_surface.txt` what a
newer JAX that is installed has beyond it. `--missing` lists what is not here, and `--signatures` where parameters or defaults differ.
Without an option the tool writes docs/jax_names.md, the count of each module. `tests/jax/test_surface.py` holds the comparison.

A name is public if its module defines it, imports it ``as`` the same name, or lists it in ``__all__``: this is JAX's own convention.
Modules that need a package that is not installed are read but not run, and the kinds of their imported names are unknown.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from volta_fn.jax.namespace import VERSION, Refused, read_refused, read_table, refused_names  # noqa: E402

SURFACE = ROOT / "tests" / "jax" / "surface.txt"
IMPORTED = ROOT / "volta_fn" / "jax" / "imported_names.txt"
PRIVATE = IMPORTED.with_name("private_names.txt")
#: The release of the newest JAX, and its names and signatures that the recorded one lacks.
NEWER_VERSION, NEWER = "0.12.0.1", SURFACE.with_name("newer_surface.txt")
PAGE = ROOT / "docs" / "jax_names.md"
#: Parts of the packages' names that are private, or tests and programs of JAX itself.
_PRIVATE = {"_src", "tests", "examples", "testing", "test_util", "mock_data"}
#: Modules that build kernels and MLIR: their names alone are recorded.
_BARE = ("jax.extend.mlir", "jax.experimental.mosaic", "jax.experimental.pallas", "jax.experimental.source_mapper")
#: Classes whose attributes every program has.
_BASES = (object, BaseException, Exception, int, float, str, tuple, dict, list, type, set, frozenset)

#: Classes of JAX's tracing: their attributes are steps of its transforms, which programs do not take.
_INTERNAL = set(
    """AbstractRef AbstractToken AbstractValue AvalMutableQDD AvalQDD CallPrimitive DynamicJaxprTracer HiPrimitive HiType JVPTrace JVPTracer
    JaxprTracer MutableHiType ShapedArray Trace Tracer WrappedFun""".split()
)
#: Attributes that serve JAX's high-level types and references to them (`jax.experimental.hijax`).
_HIGH_LEVEL = set(
    """aval_qdds bind_with_trace def_bind_with_trace def_effectful_abstract_eval2 final_aval_qdds final_qdd has_qdd in_aval_qdds initial_qdd
    is_high is_ref lojax ref_allocating ref_primitive skip_canonicalization to_ct_spec to_lo to_lojax to_tangent_spec""".split()
)

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Name(NamedTuple):
    """A public name, or an attribute of a class: `Array.sum`."""

    path: str
    kind: str
    #: Parameters with their defaults, or an empty string if it is not a function with a signature.
    signature: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.path, self.kind, self.signature)))


# The surface of a package.


def modules(package: str) -> list[str]:
    """Return the public modules of an installed package, without importing them."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"
    return [package, *_below(package, list(spec.submodule_search_locations))]


def _below(package: str, paths: list[str]) -> Iterator[str]:
    for entry in pkgutil.iter_modules(paths):
        if entry.name.startswith("_") or entry.name in _PRIVATE or entry.name.endswith("_test"):
            continue
        yield f"{package}.{entry.name}"
        if entry.ispkg:
            yield from _below(f"{package}.{entry.name}", [f"{path}/{entry.name}" for path in paths])


def source_names(module: str, paths: list[str]) -> dict[str, str]:
    """Return the public names of a module's source, and their kinds."""
    path = _source_file(module, paths)
    names: dict[str, str] = {}
    for node in _statements(ast.parse(path.read_text()).body):
        match node:
            case ast.ImportFrom(module=str(home), names=aliases) if aliases[0].name == "*":
                names |= dict.fromkeys(_star(home), "?")
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                names |= {alias.asname: "?" for alias in aliases if alias.asname and _is_public_import(alias)}
            case ast.ClassDef(name=name):
                names[name] = "class"
            case ast.FunctionDef(name=name):
                names[name] = "function"
            case ast.Assign(targets=targets):
                names |= {target.id: "instance" for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = "instance"
    return {name: kind for name, kind in names.items() if not name.startswith("_")}


def _is_public_import(alias: ast.alias) -> bool:
    """Return True for ``import x as x``, and for ``import _x as x``."""
    last = alias.name.rpartition(".")[2]
    return alias.asname in (last, last.lstrip("_"))


def _star(home: str) -> list[str]:
    try:
        module = importlib.import_module(home)
    except ImportError:
        return []
    return getattr(module, "__all__", [name for name in dir(module) if not name.startswith("_")])


def _source_file(module: str, paths: list[str]) -> Path:
    for path in paths:
        base = Path(path, *module.split(".")[1:])
        for file in (base / "__init__.py", base.with_suffix(".py"), base.with_suffix(".pyi")):
            if file.is_file():
                return file
    return Path("/dev/null")


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those in ``if`` and ``try``."""
    for node in body:
        if isinstance(node, ast.If):
            is_typing = (isinstance(node.test, ast.Name) and node.test.id in ("TYPE_CHECKING",)) or ast.unparse(node.test).endswith(
                "TYPE_CHECKING"
            )
            yield from _statements([] if is_typing else node.body)
            yield from _statements(node.orelse)
        elif isinstance(node, ast.Try):
            yield from _statements([*node.body, *[n for handler in node.handlers for n in handler.body]])
        else:
            yield node


def record(package: str) -> dict[str, list[Name]]:
    """Return the public names of each public module of an installed package."""
    spec: Any = importlib.util.find_spec(package)
    paths = list(spec.submodule_search_locations)
    surface = {}
    paths_of_modules = modules(package)
    classes: set[type] = set()  # whose attributes are recorded once, where the class is first met
    for path in paths_of_modules:
        names = source_names(path, paths)
        try:
            module = _imported(path)
        except Exception:  # for want of a package or a device, in many ways
            surface[path] = [Name(name, kind) for name, kind in sorted(names.items())]
            continue
        for name in getattr(module, "__all__", ()):
            names.setdefault(name, "?")
        for name in deprecated(module):
            if _attribute(module, name) is module:
                names.pop(name, None)
            else:
                names.setdefault(name, "?")
        surface[path] = rows = []
        for entry in sorted(names):
            value = _attribute(module, entry)
            if value is not module and (not isinstance(value, ModuleType) or f"{path}.{entry}" in paths_of_modules):
                is_plain = path.startswith(_BARE) or (isinstance(value, type) and value in classes)
                rows += [Name(entry, kind_of(value))] if is_plain else describe(entry, value)
                classes |= {value} if isinstance(value, type) else set()
    return surface


def deprecated(module: ModuleType) -> set[str]:
    """Return the names of a module that warn, or raise since they are removed."""
    return set(getattr(module, "_deprecations", ()))


def _imported(path: str) -> ModuleType:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return importlib.import_module(path)


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute, or the owner if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return getattr(owner, name)
        except (AttributeError, ImportError):
            return owner
        except Exception:  # a value that cannot be had here, such as that of a device
            return None


def describe(name: str, value: Any) -> Iterator[Name]:
    """Yield an object's row, and the rows of its attributes if it is a class."""
    kind = kind_of(value)
    yield Name(name, kind, signature_of(value) if kind != "instance" and kind != "module" else "")
    if kind == "class":
        for attribute in class_attributes(value):
            member = inspect.getattr_static(value, attribute, None)
            is_function = inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))
            member_kind = "method" if is_function or inspect.isroutine(member) else "attribute"
            signature = signature_of(getattr(value, attribute)) if member_kind == "method" else ""
            yield Name(f"{name}.{attribute}", member_kind, signature)


def class_attributes(value: type) -> list[str]:
    """Return the public attributes of a class, without those of Python's classes."""
    inherited = {
        name for base in value.__mro__ if base in _BASES or base.__module__ in ("enum", "abc", "typing", "builtins") for name in vars(base)
    }
    return [name for name in sorted(set(dir(value)) - inherited) if not name.startswith("_")]


def kind_of(value: Any) -> str:
    """Return what an object is: a class, function, module or instance."""
    if isinstance(value, type):
        return "class"
    if isinstance(value, ModuleType):
        return "module"
    if inspect.isroutine(value) or (callable(value) and hasattr(value, "__wrapped__")) or (callable(value) and hasattr(value, "__name__")):
        return "function"
    return "instance"


def signature_of(value: Any) -> str:
    """Return the parameters of a function, with their short defaults."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    texts = []
    previous: Any = None
    for parameter in parameters:
        if previous == parameter.POSITIONAL_ONLY and parameter.kind != previous:
            texts.append("/")
        if parameter.kind == parameter.KEYWORD_ONLY and previous not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            texts.append("*")
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        texts.append(prefix + parameter.name + _default(parameter.default))
        previous = parameter.kind
    if previous == inspect.Parameter.POSITIONAL_ONLY:
        texts.append("/")
    return f"({', '.join(texts)})"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    is_plain = type(value) in (type(None), bool, int, float, str) or (type(value) is tuple and not value)
    return f"={value!r}" if is_plain and len(repr(value)) < 40 else "=..."


# The file of a surface.


def write(surface: dict[str, list[Name]]) -> str:
    """Return the text of a surface."""
    return "".join(f"{module}\n" + "".join(f"    {name}\n" for name in names) for module, names in surface.items())


def read(text: str | None = None) -> dict[str, list[Name]]:
    """Return the surface that a text describes, or the recorded one."""
    surface: dict[str, list[Name]] = {}
    names: list[Name] = []
    for row in (SURFACE.read_text() if text is None else text).splitlines():
        if not row.startswith("    "):
            names = surface[row] = []
        else:
            path, kind, *signature = row.strip().split(" ", 2)
            names.append(Name(path, kind, *signature))
    return surface


def beyond(newer: dict[str, list[Name]], older: dict[str, list[Name]]) -> dict[str, list[Name]]:
    """Return the rows of a newer surface that an older one lacks, and new modules.

    A function's row is new if its signature is; that of a method `sort` or `argsort` is NumPy's.
    """

    def row(name: Name) -> tuple[str, str]:
        is_compared = name.kind in ("function", "method") and not name.path.endswith("sort")
        return name.path, name.signature if is_compared else ""

    older_rows = {path: {row(name) for name in names} for path, names in older.items()}
    rows = {path: [name for name in names if row(name) not in older_rows.get(path, ())] for path, names in newer.items()}
    return {path: names for path, names in rows.items() if names or path not in older}


# The comparison.


class Difference(NamedTuple):
    """A name that is missing here, or that differs: what JAX has and what is here."""

    module: str
    name: str
    what: str
    theirs: str
    ours: str


def compare(surface: dict[str, list[Name]], load: Callable[[str], Any]) -> Iterator[Difference]:
    """Yield what a package lacks, and what differs in kind or signature.

    `load` imports a module of JAX's from the package.
    """
    for path, names in surface.items():
        try:
            module = load(path)
        except ImportError as error:
            yield Difference(path, "", "module", "module", str(error))
            continue
        for name in names:
            yield from _compare_name(path, module, name)


def _compare_name(path: str, module: Any, name: Name) -> Iterator[Difference]:
    owner, *rest = name.path.split(".")
    value = _attribute(module, owner)
    if value is module:
        if not rest:
            yield Difference(path, name.path, "name", name.kind, "")
        return
    if rest:
        if name.path.rpartition(".")[0] in _INTERNAL or name.path.rpartition(".")[2] in _HIGH_LEVEL:
            return
        if not isinstance(value, type) or issubclass(value, Refused):
            return  # which the row of the class tells
        member = _attribute(value, rest[0])
        if member is value and rest[0] in _fields(value):
            return
        if member is value:
            yield Difference(path, name.path, "attribute", name.kind, "")
            return
        value = member
    elif name.kind not in ("?", ours := kind_of(value)) and not _is_like(name, ours):
        yield Difference(path, name.path, "kind", name.kind, ours)
        return
    if name.signature and name.kind != "class" and not accepts(value, name.signature):
        yield Difference(path, name.path, "signature", name.signature, signature_of(value))


def _fields(value: type) -> set[str]:
    """Return the attributes that instances of a class are annotated to have."""
    return {field for base in value.__mro__ for field in vars(base).get("__annotations__", ())}


def _is_like(name: Name, ours: str) -> bool:
    """Return True for a callable object, or a context manager that is a class."""
    kinds = {name.kind, ours}
    return kinds == {"function", "instance"} or (kinds == {"function", "class"} and name.path.islower())


#: Signatures that tell nothing, or parameters of ufuncs that JAX has only to refuse them.
_OPAQUE = ("(self, *args, **kwargs)", "(*args, **kwargs)", "(*args)", "(*args, out=None, where=None)")


def accepts(value: Any, signature: str) -> bool:
    """Return True if a function can be called as one with this signature can.

    The name of a method's first parameter does not matter.
    """
    ours = signature_of(value)
    if not ours or ours == signature or signature in _OPAQUE:
        return True
    theirs, mine = _parameters(signature), _parameters(ours)
    if theirs and mine and theirs[0][0] in ("self", "cls"):
        theirs, mine = theirs[1:], mine[1:] if mine[0][1] in ("/", "") else mine
    names = {n for n, kind, _ in mine if kind != "/"}
    takes_any = any(kind == "**" for _, kind, _ in mine)
    takes_all = any(kind == "*" for _, kind, _ in mine)
    for name, kind, default in theirs:
        if kind in ("*", "**"):
            if not (takes_all if kind == "*" else takes_any):
                return False
        elif kind == "/" or (kind == "" and takes_all):
            continue
        elif (name not in names and not takes_any) or (
            name in names
            and (match := next(entry for entry in mine if entry[0] == name))[2] != default
            and "..." not in (default, match[2])
        ):
            return False
    positions = [name for name, kind, _ in theirs if kind in ("/", "")]
    mine_positions = [name for name, kind, _ in mine if kind in ("/", "")]
    if not takes_all and len(mine_positions) < len(positions):
        return False
    order = [n for n, kind, _ in theirs if kind == ""]
    return takes_all or all(n not in mine_positions or mine_positions.index(n) == positions.index(n) for n in order)


def _parameters(signature: str) -> list[tuple[str, str, str]]:
    """Return the name, kind ("/", "", "kw", "*" or "**") and default of parameters."""
    tree: Any = ast.parse(f"def f{signature}: pass").body[0]
    arguments: ast.arguments = tree.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    kinds = ["/"] * len(arguments.posonlyargs) + [""] * len(arguments.args)
    rows = [(a.arg, kind, ast.unparse(d) if d else "") for a, kind, d in zip(positional, kinds, defaults, strict=True)]
    rows += [(arguments.vararg.arg, "*", "")] if arguments.vararg else []
    rows += [(a.arg, "kw", ast.unparse(d) if d else "") for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return rows + ([(arguments.kwarg.arg, "**", "")] if arguments.kwarg else [])


def here(path: str) -> Any:
    """Import a module of JAX's from volta_fn."""
    return importlib.import_module(f"volta_fn.{path}")


# Names that modules import.

#: What no module has: a value may be None.
_MISSING = object()
#: Modules that have values which do not tell where they come from.
_HOMES = ("jax", "jax.lax", "jax.typing", "jax._src.typing", "jax._src.util", "typing")
_IMPORTED_HEAD = "# Names that modules of JAX's have because they import them: volta_fn/jax/namespace.py says how to read this.\n"


def imported_names(surface: dict[str, list[Name]]) -> str:
    """Return the table of names that modules of the installed JAX import.

    Their homes have them here, too. `IMPORTED` is empty meanwhile, as names are left out that modules here have otherwise.
    """
    IMPORTED.write_text(_IMPORTED_HEAD)
    table = [_IMPORTED_HEAD]
    for path in surface:
        if path.startswith((*_BARE, "jax.tools")):
            continue
        with contextlib.suppress(Exception):  # a module that needs a package or a device
            module, public = _imported(path), {name.path for name in surface[path]}
            names = [name for name in dir(module) if not name.startswith("_") and name not in public | deprecated(module)]
            names = [name for name in names if not hasattr(here(path), name)]
            homes: dict[str, list[str]] = {}
            for name in names:
                home, original = _origin(name, _attribute(module, name))
                if home and name != "annotations":
                    homes.setdefault(home, []).append(name if name == original else f"{name}={original}")
            table += [f"{path}\n", *[f"    {home}: {' '.join(items)}\n" for home, items in sorted(homes.items())], "\n"] if homes else []
    return "".join(table).rstrip("\n") + "\n"


def _origin(name: str, value: Any) -> tuple[str, str]:
    """Return a home of a value and its name there, which is empty for a module.

    Both are empty if the value cannot be had here.
    """
    if isinstance(value, ModuleType):
        homes = [(value.__name__, "")]
    else:
        homes = [(str(getattr(value, "__module__", "")), str(getattr(value, "__name__", ""))), *[(home, name) for home in _HOMES]]
    for home, original in homes:
        owner = sys.modules.get(home)
        if owner is None or home == "builtins" or (owner is not value and getattr(owner, original, _MISSING) is not value):
            continue
        if home.partition(".")[0] not in ("jax", "jaxlib"):
            return home, original
        if home in {*read_table(), *read_refused()} and (not original or hasattr(here(home), original)):
            return home, original
    return "", ""


_PRIVATE_HEAD = "# Public names by the private modules of JAX that define them: volta_fn/jax/namespace.py says how to read this.\n"
#: Parts of the paths of private modules that are about other machines, or JAX's own tests.
_OTHER_MACHINES = ("mosaic", "triton", "cudnn", "tpu", "debugger", "test", "fuser", "mlir", "pathways")


def private_names(surface: dict[str, list[Name]]) -> str:
    """Return the table of public objects that JAX's private modules define.

    It has those that they import from each other, too. Those that are here by their public names have the same object by the private ones.
    `PRIVATE` is empty meanwhile.
    """
    PRIVATE.write_text(_PRIVATE_HEAD)
    public: dict[int, list[tuple[str, str]]] = {}
    for path in surface:
        if path.startswith("jax.example_libraries"):
            continue
        with contextlib.suppress(Exception):  # a module that needs a package or a device
            for name, value in vars(_imported(path)).items():
                if str(getattr(value, "__module__", "")).startswith("jax"):
                    public.setdefault(id(value), []).append((path, name))
    table, packages = [_PRIVATE_HEAD], {""}
    for path in sorted(name for name in sys.modules if name.startswith("jax._src.")):
        module = sys.modules[path]
        if any(part in path for part in _OTHER_MACHINES) or not getattr(module, "__file__", None):
            continue
        homes: dict[str, list[str]] = {}
        for name in _defined(Path(str(module.__file__))):
            places = public.get(id(getattr(module, name, None)), [("", "")])
            home, original = next((place for place in places if place[1] == name), places[0])
            with contextlib.suppress(Exception):  # a name that is not here
                if home and not isinstance(getattr(here(home), original), type(Refused)) and not _has(path, name):
                    homes.setdefault(home, []).append(name if name == original else f"{name}={original}")
        names = [name.partition("=")[0] for items in homes.values() for name in items]
        for name in sorted({*_bound(Path(str(module.__file__)))}.intersection(vars(module)) - {*names}):
            value = vars(module)[name]
            home, original = _origin(name, value)
            if not home:
                home, original = str(getattr(value, "__module__", "")), str(getattr(value, "__name__", ""))
                if not home.startswith("jax._src.") or home == path or getattr(sys.modules.get(home), original, None) is not value:
                    continue
            if home.startswith("jax") and not _has(home, original):  # in a private module that this table is to have
                home, original = public.get(id(value), [("", "")])[0]
            with contextlib.suppress(Exception):
                is_here = not home.startswith("jax") or not isinstance(getattr(here(home), original), type(Refused))
                if home and is_here and not isinstance(value, ModuleType) and not _has(path, name):
                    homes.setdefault(home, []).append(name if name == original else f"{name}={original}")
        if homes:
            parents = [path[:k] for k, letter in enumerate(path) if letter == "."][2:]
            table += [f"{parent}\n" for parent in parents if parent not in packages]
            packages.update([*parents, path])
            table += [f"{path}\n", *[f"    {home}: {' '.join(items)}\n" for home, items in sorted(homes.items())]]
    return "".join(table)


def _bound(source: Path) -> list[str]:
    """Return the names that a module's source defines or imports."""
    imports = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ImportFrom)]
    return [*_defined(source), *[alias.asname or alias.name for node in imports for alias in node.names]]


def _defined(source: Path) -> list[str]:
    """Return the names that a module's source defines, in their order."""
    names: dict[str, None] = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, _DEFINITIONS):
            names[node.name] = None
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: None for target in targets if isinstance(target, ast.Name)}
    return list(names)


def _has(path: str, name: str) -> bool:
    """Return True if a module of JAX's path here has a name."""
    try:
        return hasattr(here(path), name)
    except ImportError:
        return False


# The page.

_HEAD = f"""# Names of JAX {VERSION}

`python tools/jax_surface.py` writes this page. It compares the public modules, names, attributes of classes and parameters of JAX with
those of `volta_fn.jax`: a name is public if its module defines it, imports it `as` the same name, or lists it in `__all__`. Every module
and every name is there. *Refused* names can mean nothing without XLA: they import, and raise `UnsupportedError` with advice when they are
called. Attributes of the classes that JAX traces with are not compared.

"""


def page(
    surface: dict[str, list[Name]], differences: list[Difference], newer: dict[str, list[Name]], newer_differences: list[Difference]
) -> str:
    """Return the text of docs/jax_names.md."""
    missing = [d for d in differences if d.what in ("module", "name")]
    refused = {path: set(refused_names(path)) for path in surface}
    names = {path: [name for name in rows if "." not in name.path] for path, rows in surface.items()}
    count, attributes = sum(map(len, names.values())), sum(map(len, surface.values())) - sum(map(len, names.values()))
    numbers = (
        f"{len(surface)} modules with {count} names, of which {len(missing)} are missing and {sum(map(len, refused.values()))} refused; "
        f"{attributes} attributes of classes."
    )
    rows = [f"| `{path}` | {len(names[path])} | {len(refused[path])} |" for path in surface if names[path] and not path.startswith(_BARE)]
    bare = [path for path in surface if path.startswith(_BARE)]
    rows.append(f"| {len(bare)} modules of kernels and MLIR | {sum(len(names[p]) for p in bare)} | {sum(len(refused[p]) for p in bare)} |")
    text = f"{_HEAD}{numbers}\n\n| module | names | refused |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
    text += "".join(_section(title, what, differences) for what, title in _SECTIONS.items())
    missing = [d for d in newer_differences if d.what in ("module", "name")]
    added = [f"{path}.{name.path}" for path, rows in newer.items() for name in rows if "." not in name.path]
    public = {f"{path}.{name.path}" for path, rows in surface.items() for name in rows}
    count = len({*added} - public)
    text += f"\n## JAX {NEWER_VERSION}\n\nThis release has {count} names that {VERSION} lacks, of which {len(missing)} are missing here; "
    text += "most serve kernels and\nMLIR, and are refused. Below is what it changed and is not so here.\n"
    return text + "".join(_section(title, what, newer_differences).replace("## ", "### ") for what, title in _SECTIONS.items())


_SECTIONS = {
    "attribute": "Attributes that classes lack",
    "kind": "Names of another kind",
    "signature": "Functions with other parameters or defaults",
}


#: Why parameters differ, and the functions, by their names without modules.
_REASONS = {
    "an argument that JAX demands may be left out": """make_mesh named_call transfer_guard find_top_trace broadcast register_lowering empty
        emit_python_callback debug_info GlobalAsyncCheckpointManagerBase.serialize""",
    "JAX itself refuses `concrete`; here is `static_argnames`": "checkpoint remat",
    "the parameter is private in JAX": "export clear_backends swap Traced.lower dce_jaxpr",
    "fields are named, where JAX takes any": "Jaxpr.replace JaxprEqn.replace",
    "the program's function is returned, which takes the arguments": "jaxpr_as_fun",
    "derivatives of eigenvectors need no option": "eig",
    "`dynamic_shape` is for padded matrices of a TPU": "qdwh",
    "the default is the more exact algorithm, or a longer series": "standardize log_ndtr",
    "the default is the same number or behaviour, written otherwise": "squareplus take_along_axis array polyval",
    "the default order of the products differs": "einsum einsum_path",
    "pickles are refused": "save",
    "arrays are immutable, and JAX refuses `inplace=True`": "ufunc.at",
    "SciPy's parameters are here, too, in its order": "eigh_tridiagonal solve solve_triangular",
    "new options of derivatives are missing": "custom_gradient custom_vjp.defvjp linearize vjp",
    "`pin` is for memory of TPUs": "empty_ref new_ref",
    "options for encrypted connections are missing": "initialize",
    "options of a compiler or of several memories are missing": "compute_on",
    "a mesh must be given": "Exported.in_shardings_jax",
    "`out_sharding` is missing: `with_sharding_constraint` splits the result": "reduce_max reduce_min one_hot histogram",
    "equal elements always keep their order": "top_k",
    "a folder must be given": "trace",
    "the only method is the exact one": "beta chisquare gamma loggamma poisson",
    "other keywords are refused": "P.update",
}


def _reason(difference: Difference) -> str:
    """Return why the parameters of a function differ."""
    return next(reason for reason, names in _REASONS.items() if difference.name in names.split())


def _section(title: str, what: str, differences: list[Difference]) -> str:
    """Return the names of one kind of difference: by module, or by the reason."""
    if what == "signature":
        reasons: dict[str, list[str]] = {}
        for difference in differences:
            if difference.what == what and not difference.module.startswith(_BARE):
                reasons.setdefault(_reason(difference), []).append(f"`{difference.module}.{difference.name}`")
        lines = [f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()]
        return f"\n## {title}\n\n| names | why |\n| --- | --- |\n" + "\n".join(lines) + "\n" if lines else ""
    modules: dict[str, list[str]] = {}
    for difference in differences:
        if difference.what == what and not difference.module.startswith(_BARE):
            modules.setdefault(difference.module, []).append(f"`{difference.name}`")
    rows = [f"| `{module}` | {', '.join(names)} |" for module, names in modules.items()]
    return f"\n## {title}\n\n| module | names |\n| --- | --- |\n" + "\n".join(rows) + "\n" if rows else ""


def main(options: list[str]) -> None:
    """Record the surface, list the differences, or write the page."""
    if "--record" in options:
        SURFACE.write_text(write(record("jax")))
        return
    if "--record-newer" in options:
        NEWER.write_text(write(beyond(record("jax"), read())))
        return
    if "--imported" in options:
        IMPORTED.write_text(imported_names(read()))
        return
    if "--private" in options:
        PRIVATE.write_text(private_names(read()))
        return
    differences = list(compare(read(), here))
    newer = read(NEWER.read_text())
    newer_differences = list(compare(newer, here))
    if "--missing" in options or "--signatures" in options:
        kinds = ("signature",) if "--signatures" in options else ("module", "name", "attribute", "kind")
        print(*[" | ".join(difference) for difference in (*differences, *newer_differences) if difference.what in kinds], sep="\n")
    else:
        PAGE.write_text(page(read(), differences, newer, newer_differences))


if __name__ == "__main__":
    main(sys.argv[1:])
