"""Write mistakes.golden.txt: what this package and JAX answer to the mistakes in mistakes.txt.

python -m tests.errors.golden
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volta_fn import nn, random

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "tools"))
import mistakes  # noqa: E402

sys.path.pop(0)
GOLDEN = HERE / "mistakes.golden.txt"


class Case(NamedTuple):
    """A mistake by its title, and its code in each package (none for JAX if there is no counterpart)."""

    title: str
    volta: str
    jax: str


def load() -> list[Case]:
    """Read mistakes.txt: blocks of lines `name: text`."""
    blocks = (HERE / "mistakes.txt").read_text().strip().split("\n\n")
    rows = [dict(row.split(": ", 1) for row in block.splitlines()) for block in blocks]
    return [Case(row["title"], row["volta"], row.get("jax", "")) for row in rows]


def _container(name: str, module: str) -> type:
    """Return a class that holds an array as those of other libraries do."""

    def __init__(self: Any, values: Any) -> None:
        self.held = np.array(values)

    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.held

    return type(name, (), {"__init__": __init__, "__array__": __array__, "__module__": module})


#: Stand-ins for classes of pandas, which tests do not need.
STAND_INS = {"Series": _container("Series", "pandas.core.series"), "DataFrame": _container("DataFrame", "pandas.core.frame")}


@functools.cache
def language_model() -> nn.CausalLM:
    """Return the smallest language model."""
    sizes = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    return nn.CausalLM.init(random.key(0), nn.CausalLMConfig(model_type="llama", **sizes))


def answer(case: Case) -> str:
    """Return what this package says."""
    return mistakes.answer(case.volta, lambda: {**mistakes.own_names(), **STAND_INS, "lm": language_model()})


def answer_of_jax(case: Case) -> str:
    """Return what JAX says."""
    return mistakes.answer(case.jax, lambda: {**mistakes.jax_names(), **STAND_INS})


def read() -> dict[str, str]:
    """Return this package's answers in the golden file by title."""
    blocks = GOLDEN.read_text().strip().split("\n\n")
    return {rows[0]: rows[2].removeprefix("  volta_fn: ") for rows in (block.splitlines() for block in blocks)}


if __name__ == "__main__":
    texts = [f"{c.title}\n  {c.volta}\n  volta_fn: {answer(c)}\n  JAX: {answer_of_jax(c)}" for c in load()]
    GOLDEN.write_text("\n\n".join(texts) + "\n")
