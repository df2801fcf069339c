"""Collect what libraries use of JAX.

`python tools/jax_uses.py WHEEL …` reads the sources of wheels, of folders and of the last commits of bare Git repositories, and adds what
the JAX that is installed has, public or private, to two files, whose test holds that it is here, too:

- `tests/jax/used_names.txt`: names, each a path of modules, an attribute of the last one, and perhaps attributes of that. A name with a
  word in parentheses is a function to which that keyword is passed, and an attribute of `jax.config` an option that is updated.
- `tests/jax/used_attributes.txt`: of each of the `OBJECTS`, its attributes that sources read of any object.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

USED = Path(__file__).resolve().parent.parent / "tests" / "jax" / "used_names.txt"
ATTRIBUTES = USED.with_name("used_attributes.txt")

#: Objects whose attributes are compared: those of public classes are in `tests/jax/surface.txt`, but for what instances and the classes of
#: tracing have.
OBJECTS = {
    "array": "jax.numpy.ones((2, 3))",
    "key": "jax.random.key(0)",
    "index": "jax.numpy.ones(3).at[0]",
    "device": "jax.devices()[0]",
    "sharding": "jax.numpy.ones(3).sharding",
    "named sharding": "jax.sharding.NamedSharding(jax.make_mesh((1,), ('x',)), jax.P('x'))",
    "mesh": "jax.make_mesh((1,), ('x',))",
    "struct": "jax.ShapeDtypeStruct((2,), 'float32')",
    "aval": "jax.core.ShapedArray((2,), jax.numpy.float32)",
    "function": "jax.jit(jax.numpy.sin)",
    "custom_jvp": "jax.custom_jvp(jax.numpy.sin)",
    "custom_vjp": "jax.custom_vjp(jax.numpy.sin)",
    "derivative": "jax.vjp(jax.numpy.sin, 1.0)[1]",
    "traced": "jax.jit(jax.numpy.sin).trace(1.0)",
    "lowered": "jax.jit(jax.numpy.sin).lower(1.0)",
    "compiled": "jax.jit(jax.numpy.sin).lower(1.0).compile()",
    "jaxpr": "jax.make_jaxpr(jax.numpy.sin)(1.0)",
    "open jaxpr": "jax.make_jaxpr(jax.numpy.sin)(1.0).jaxpr",
    "equation": "jax.make_jaxpr(jax.numpy.sin)(1.0).eqns[0]",
    "variable": "jax.make_jaxpr(jax.numpy.sin)(1.0).jaxpr.invars[0]",
    "literal": "jax.make_jaxpr(lambda x: x + 1.0)(1.0).eqns[0].invars[1]",
    "primitive": "jax.lax.sin_p",
    "call primitive": "jax.make_jaxpr(jax.jit(jax.numpy.sin))(1.0).eqns[0].primitive",
    "tree": "jax.tree.structure({'a': 1})",
    "registry": "jax.tree_util.default_registry",
    "path": "jax.tree_util.tree_flatten_with_path({'a': 1})[0][0][0][0]",
    "config": "jax.config",
    "tracer": "traced(jax.jit)",
    "mapped": "traced(jax.vmap)",
    "differentiated": "traced(jax.grad)",
    "exported": "jax.export.export(jax.jit(jax.numpy.sin))(jax.ShapeDtypeStruct((2,), 'float32'))",
    "ufunc": "jax.numpy.add",
    "scalar type": "jax.numpy.float32",
    "ref": "jax.new_ref(jax.numpy.ones(3))",
    "sparse": "jax.experimental.sparse.BCOO.fromdense(jax.numpy.eye(2))",
}


def sources(library: Path) -> Iterator[ast.Module]:
    """Yield the modules of a library that mention JAX."""
    for text in filter(lambda text: b"jax" in text, texts(library)):
        try:
            yield ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):  # templates, sources of Python 2, and long generated expressions
            continue


def texts(library: Path) -> Iterator[bytes]:
    """Yield the Python files of a wheel, a folder, or a bare Git repository."""
    if (library / "objects").is_dir():
        git = ["git", "-C", str(library)]
        rows = subprocess.run([*git, "ls-tree", "-r", "HEAD"], capture_output=True, check=True).stdout.decode(errors="replace").splitlines()
        for row in rows:
            if row.endswith(".py"):  # a snapshot may lack files
                yield subprocess.run([*git, "cat-file", "blob", row.split()[2]], capture_output=True, check=False).stdout
    elif library.is_dir():
        yield from (path.read_bytes() for path in sorted(library.rglob("*.py")))
    else:
        with zipfile.ZipFile(library) as archive:
            yield from (archive.read(name) for name in archive.namelist() if name.endswith(".py"))


def used(module: ast.Module) -> Iterator[str]:
    """Yield the names of JAX that a module uses, and keywords that it passes."""
    origins: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_jax(alias.name):
                    yield alias.name
                    package = alias.name.partition(".")[0]
                    origins[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_jax(node.module or ""):
            for alias in node.names:
                if alias.name != "*":
                    origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    yield f"{node.module}.{alias.name}"
    for node in ast.walk(module):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if origin := _origin(value, origins):
                origins.setdefault(name, origin)  # `lax = jax.lax`
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and (name := _origin(node, origins)):
            yield name
        elif isinstance(node, ast.Call) and (name := _origin(node.func, origins)):
            yield from (f"{name}({keyword.arg})" for keyword in node.keywords if keyword.arg)
            match node.args:
                case [ast.Constant(value=str(option)), *_] if name == "jax.config.update":
                    yield f"jax.config.{option}"


def attributes(module: ast.Module) -> set[str]:
    """Return the names of the attributes that a module reads."""
    return {node.attr for node in ast.walk(module) if isinstance(node, ast.Attribute)}


def _is_jax(module: str) -> bool:
    return module.partition(".")[0] in ("jax", "jaxlib")


def _origin(node: ast.AST, origins: Mapping[str, str]) -> str:
    """Return the name of JAX that ``a.b.c`` is, or an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([origins[node.id], *reversed(parts)]) if isinstance(node, ast.Name) and node.id in origins else ""


def resolves(name: str, root: str = "jax", named: bool = False) -> bool:
    """Return True if a name exists in JAX, or in what stands for it, `root`.

    What stands for jaxlib is `root` with "lib". With `named`, a keyword must be a parameter's name, and not one of any that a function
    takes.
    """
    path, _, keyword = name.partition("(")
    package, *names = path.split(".")
    parts = [root + package.removeprefix("jax"), *names]
    for k in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for part in parts[k:]:
            try:
                value = getattr(value, part)
            except AttributeError:
                return False
            except Exception:  # a name that is refused with advice
                return True
        return not keyword or accepts(value, keyword[:-1], named)
    return False


def accepts(function: Any, keyword: str, named: bool = False) -> bool:
    """Return True if a function takes a keyword, as its signature tells."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return not named
    parameter = parameters.get(keyword)
    if parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
        return True
    return not named and any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def make_object(expression: str, jax: ModuleType) -> Any:
    """Return the object of an expression of `OBJECTS`."""

    def traced(transform: Any) -> Any:
        tracers: list[Any] = []

        def function(x: Any) -> Any:
            tracers.append(x)
            return x.sum()

        transform(function)(jax.numpy.ones(3) if transform is not jax.grad else 1.0 * jax.numpy.ones(3))
        return tracers[0]

    for module in ("export", "experimental.sparse"):
        importlib.import_module(f"{jax.__name__}.{module}")
    return eval(expression, {"jax": jax, "traced": traced})


def has(value: Any, attribute: str) -> bool:
    """Return True if an object has an attribute, even one that cannot be read now."""
    try:
        getattr(value, attribute)
    except AttributeError:
        return False
    except Exception:  # the value of a tracer, which another error tells about
        return True
    return True


def collect(wheels: Iterable[Path]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the names and the attributes of objects that JAX has."""
    modules = [module for wheel in wheels for module in sources(wheel)]
    names = {name for module in modules for name in used(module)}
    read = {name for module in modules for name in attributes(module) if not name.startswith("__")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jax = importlib.import_module("jax")
        objects = {name: make_object(expression, jax) for name, expression in OBJECTS.items()}
        return (
            sorted(name for name in names if resolves(name, named=True)),
            {name: sorted(a for a in read if has(value, a) and _is_told_apart(name, a)) for name, value in objects.items()},
        )


def _is_told_apart(name: str, attribute: str) -> bool:
    """Return False for an attribute that is mostly read of arrays."""
    return name == "array" or not hasattr(np.ndarray, attribute)


def read_attributes() -> dict[str, list[str]]:
    """Return the recorded attributes of each object."""
    rows = (row.partition(":") for row in ATTRIBUTES.read_text().splitlines())
    return {name: words.split() for name, _, words in rows}


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if not argv:
        print(__doc__)
        return 2
    before, before_attributes = set(USED.read_text().split()), read_attributes()
    used_names, used_attributes = collect(map(Path, argv))
    names = {*before, *used_names}
    USED.write_text("\n".join(sorted(names)) + "\n")
    rows = {name: sorted({*before_attributes.get(name, ()), *used_attributes[name]}) for name in OBJECTS}
    ATTRIBUTES.write_text("".join(f"{name}: {' '.join(words)}\n" for name, words in rows.items()))
    more = sum(map(len, rows.values())) - sum(map(len, before_attributes.values()))
    print(f"{len(names)} names, {len(names - before)} more, and {more} more attributes by {len(argv)} libraries")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
