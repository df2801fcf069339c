"""What tests of JAX's look at: the behaviour of public functions, or internals.

The names in a test's source tell.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

#: Modules of jax._src that tests use for what public ones have, too.
_HARMLESS = {"test_util", "config", "api", "dtypes", "core", "numpy", "lax", "tree_util", "random", "nn", "public_test_util", "typing"}
#: What is inside, and how a test's source names it.
KINDS = {
    "attributes": r"\._(?:base_array|impl|committed)\b|_has_impl\b|\bdtypes\.dtype\(|dtypes\.ExtendedDType\b|_weak_type_flag",
    "programs": r"\.(?:eqns|jaxpr|invars|outvars)\b|DebugInfo|str\(jax(?:pr|\.make_)|jaxpr_text|saved_residuals|\w_p\b|dce_jaxpr"
    r"|check_jaxpr|\.args\[",
    "texts": r"as_text|compiler_ir|pretty_print|as_hlo|__repr__|\brepr\(|assertMultiLine|hlo",
    "counts": r"\bcount|_count\b|num_\w*(?:trac|call|compil)|_cache|cache_|effects|side_effect|python_should|tracing|called\b",
    "logs and tracebacks": r"assertLogs|capture_|log_|explain|leak|traceback|__cause__|filtered",
    "compilers and devices": r"compiler_options|executable|memory_analysis|cost_analysis|[sS]harding|[mM]esh|pmap|[tT]oken|\.client",
}


def kinds_in(path: Path) -> dict[tuple[str, str], str]:
    """Return what each test of a file looks at, by class and name.

    That is a kind of `KINDS`, "modules", or "public".
    """
    text = path.read_text()
    tree, rows = ast.parse(text), text.split("\n")
    private = _private_names(tree)
    results = {}
    for cls in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        for function in [node for node in cls.body if isinstance(node, ast.FunctionDef)]:
            results[cls.name, function.name] = _kind("\n".join(rows[function.lineno - 1 : function.end_lineno]), private)
    return results


def _private_names(tree: ast.Module) -> set[str]:
    """Return the names by which a file calls private modules of JAX."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax._src")]
    return {alias.asname or alias.name for node in imports for alias in node.names if alias.name not in _HARMLESS}


def _kind(source: str, private: set[str]) -> str:
    if private and re.search(rf"\b(?:{'|'.join(map(re.escape, sorted(private)))})\b[.(]|jax\._src", source):
        return "modules"
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, source)), "public")


def kind_of(test: str, kinds: dict[tuple[str, str], str]) -> str:
    """Return what a test looks at, given its full name, which may have a suffix."""
    *_, cls, name = test.partition(" ")[0].split(".")
    fitting = [(len(method), kind) for (owner, method), kind in kinds.items() if owner == cls and name.startswith(method)]
    fitting = fitting or [(len(method), kind) for (_, method), kind in kinds.items() if name.startswith(method)]
    return max(fitting, default=(0, "public"))[1]
