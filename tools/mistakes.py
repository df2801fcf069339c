"""Write docs/mistakes.md, what three packages say to typical mistakes.

python tools/mistakes.py
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import volta_fn as vf  # noqa: E402
from volta_fn import data, io, lax, nn, optim, random  # noqa: E402

TARGET = ROOT / "docs" / "mistakes.md"
HEAD = """# Common mistakes and their error messages

What this package, JAX and PyTorch answer to {count} typical mistakes of newcomers (a table made by `python tools/mistakes.py`). Messages
are cut at 400 characters, and lines that name files left out. *Nothing* means that no error was raised, — that there is no counterpart.
Versions: {versions}.
"""


class Mistake(NamedTuple):
    """The code in each package (or none), and patterns of our answer."""

    title: str
    volta: str
    jax: str
    torch: str
    #: A pattern of the cause, and one of the remedy.
    cause: str
    remedy: str


def load() -> list[Mistake]:
    """Read tools/mistakes.txt: blocks of lines `name: text`."""
    blocks = (Path(__file__).parent / "mistakes.txt").read_text().strip().split("\n\n")
    names = Mistake._fields
    rows = [dict(row.split(": ", 1) for row in block.splitlines()) for block in blocks]
    return [Mistake(**{name: row.get(name, "") for name in names}) for row in rows]


def answer(code: str, names: Callable[[], dict[str, Any]]) -> str:
    """Run a mistake; return what its error says, without the lines that name files."""
    if not code:
        return "—"
    scope = names()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code.replace(" ;; ", "\n").replace("\\t", "    "), scope)
    except Exception as error:
        said = [row for row in str(error).splitlines() if not re.match(r"\s+at .*:\d+ in ", row) and ".py:" not in row]
        text = re.sub(r"0x[0-9a-f]+|(?<=object id )\d+", "0x…", " ".join(" ".join(said).split()))
        return f"{type(error).__name__}: {text[:400]}{'…' if len(text) > 400 else ''}"
    return "*Nothing*"


def own_names() -> dict[str, Any]:
    """Return what mistakes in this package refer to."""
    x = vf.numpy.ones((2, 3))
    return {"np": np, "vf": vf, "jnp": vf.numpy, "data": data, "io": io, "lax": lax, "nn": nn, "optim": optim, "random": random, "x": x,
            "key": random.key(0), "layer": nn.Linear.init(random.key(0), 3, 2), "__name__": "mistake"}  # fmt: skip


def jax_names() -> dict[str, Any]:
    """Return what mistakes in JAX refer to."""
    jax, optax = importlib.import_module("jax"), importlib.import_module("optax")
    return {"np": np, "jax": jax, "jnp": jax.numpy, "lax": jax.lax, "random": jax.random, "nn": jax.nn, "optax": optax,
            "x": jax.numpy.ones((2, 3)), "key": jax.random.key(0), "__name__": "mistake"}  # fmt: skip


def torch_names() -> dict[str, Any]:
    """Return what mistakes in PyTorch refer to."""
    torch = importlib.import_module("torch")
    return {"np": np, "torch": torch, "nn": torch.nn, "F": torch.nn.functional, "x": torch.ones(2, 3), "__name__": "mistake"}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*").replace("\\*Nothing\\*", "*Nothing*")


def table(mistakes: list[Mistake]) -> str:
    """Return the document."""
    rows = ["", "| what was done | volta_fn | JAX | PyTorch |", "| --- | --- | --- | --- |"]
    for mistake in mistakes:
        code = mistake.volta.replace(" ;; ", "; ").replace("\\t", "")
        answers = [answer(c, n) for c, n in ((mistake.volta, own_names), (mistake.jax, jax_names), (mistake.torch, torch_names))]
        rows.append(f"| {mistake.title}: `{code.replace('|', chr(92) + '|')}` | " + " | ".join(map(_cell, answers)) + " |")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "optax", "torch", "numpy"))
    return HEAD.format(count=len(mistakes), versions=versions) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    TARGET.write_text(table(load()))
