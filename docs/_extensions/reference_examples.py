"""Examples of the reference for names whose docstrings have none, or the reason why there is none.

They come from docs/reference/examples.txt; rules find those of elementwise functions, optimizers, constants and records. All are run here.
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import importlib
import inspect
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import optim

TABLE = Path(__file__).resolve().parents[1] / "reference" / "examples.txt"
#: Numbers that most elementwise functions are defined for, by the number of arguments.
SAMPLES = (np.array([0.25, 0.5], np.float32), np.array([0.5, 0.75], np.float32))
INTEGERS = (np.array([3, 12], np.int32), np.array([1, 2], np.int32))
ABBREVIATIONS = {"volta_fn": "vf", "volta_fn.numpy": "jnp"}
CONSTANTS = (int, float, frozenset, type(None))


@functools.cache
def table() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the table: by module and name, a ":" with code or a "-" with a reason."""
    entries: dict[tuple[str, str], tuple[str, str]] = {}
    module = ""
    for row in TABLE.read_text().splitlines():
        if row.startswith("["):
            module = row.strip("[]")
        elif row and not row.startswith("#"):
            name, sign, text = row.partition(": ") if ": " in row and " " not in row.partition(": ")[0] else row.partition(" - ")
            assert (module, name) not in entries, f"{module}.{name} has two entries in {TABLE}"
            entries[module, name] = sign.strip(), text
    return entries


def names_of(module: str) -> dict[str, Any]:
    """Return what the examples of a module refer to: it and the other modules by their last names."""
    names: dict[str, Any] = {"vf": vf, "jnp": jnp, "np": np, "nn": vf.nn, "stats": vf.scipy.stats}
    if not module.startswith("volta_fn.scipy.stats.") and module not in ABBREVIATIONS:
        names[module.rpartition(".")[2]] = importlib.import_module(module)
    return {"optim": optim, **names}


def shown(code: str, module: str) -> list[str]:
    """Run statements separated by `;;`, and return them with what they print, and the value of the last, as in a terminal."""
    source, names, lines = "\n".join(code.split(" ;; ")), names_of(module), []
    logging.disable(logging.WARNING)  # of examples that switch logs on
    for node in (body := ast.parse(source).body):
        text = ast.get_source_segment(source, node) or ""
        lines += [f"{'>>>' if number == 0 else '...'} {row}" for number, row in enumerate(text.splitlines())]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if node is body[-1] and isinstance(node, ast.Expr):
                value = eval(text, names)
                print(repr(value) if value is not None else "", end="")
            else:
                exec(text, names)
        lines += printed.getvalue().splitlines()
    logging.disable(logging.NOTSET)
    return lines


def elementwise(path: str, value: Any) -> list[str]:
    """Return an example of a function of one or two arrays with a result of their shape; nothing for others."""
    for samples in (SAMPLES, INTEGERS):
        for arity in (1, 2):
            arrays = samples[:arity]
            try:
                result = value(*map(jnp.asarray, arrays))
            except Exception:  # not a function of so many arrays of this dtype
                continue
            if isinstance(result, vf.Array) and result.shape == (2,):
                return [f">>> {path}({', '.join(f'jnp.array({a.tolist()})' for a in arrays)})", repr(result)]
    return []


def optimizer(path: str, value: Any) -> list[str]:
    """Return an example of what makes an optimizer from a learning rate, or from nothing; nothing for others."""
    if not path.startswith("optim."):
        return []
    needed = [p.name for p in inspect.signature(value).parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if needed not in ([], ["learning_rate"]):
        return []
    call = f"{path}({'0.1' if needed else ''})"
    values = "params, grads = jnp.array([1.0, 2.0]), jnp.array([0.5, -1.0])"
    code = f"rule = {call} ;; {values} ;; rule.update(grads, rule.init(params), params)[0]"
    try:
        return shown(code, "volta_fn.optim.contrib" if "contrib" in path else "volta_fn.optim")
    except Exception:  # it needs more than gradients
        return []


def example(module: str, name: str, value: Any) -> list[str]:
    """Return an example of a name with its result, by the table or by a rule; nothing if there is none."""
    sign, text = table().get((module, name), ("", ""))
    if sign:
        return shown(text, module) if sign == ":" else []
    path = f"{ABBREVIATIONS.get(module, module.removeprefix('volta_fn.'))}.{name}"
    if inspect.isclass(value):
        return [f">>> list({path})", repr(list(value))] if issubclass(value, enum.Enum) else []
    if not callable(value):
        return [f">>> {path}", repr(value)] if isinstance(value, CONSTANTS) else []
    rules: tuple[Callable[[str, Any], list[str]], ...] = (optimizer, elementwise)
    return next(filter(None, (rule(path, value) for rule in rules)), [])


def reason(module: str, name: str, value: Any) -> str:
    """Return why a name has no example; nothing if there is no reason."""
    sign, text = table().get((module, name), ("", ""))
    if sign == "-":
        return text
    if inspect.isclass(value) and issubclass(value, tuple) and hasattr(value, "_fields"):
        fields = ", ".join(f"`{field}`" for field in value._fields)
        return f"A record {f'of {fields}' if fields else 'without fields'}: functions return it, and programs pass it on."
    return ""
