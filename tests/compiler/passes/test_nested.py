"""Conditionals that are decided while compiling."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.compiler.passes.common import names, passed, rewriting, untouched
from volta_fn import lax
from volta_fn.compiler.passes.loops import choose_branches
from volta_fn.compiler.passes.simplify import FOLDING
from volta_fn.compiler.pipeline import simplify

X = np.arange(3, dtype=np.float32)


def test_a_known_branch_is_called() -> None:
    choose = lambda x: lax.cond(True, lax.sin, lax.cos, x)
    after = passed(lambda c: choose_branches(rewriting(*FOLDING)(c)), choose, X)
    assert names(after) == ["jit"]
    assert names(passed(simplify, choose, X)) == ["sin"]
    third = lambda x: lax.switch(7, [lax.sin, lax.cos, lambda x: lax.switch(-1, [lax.exp, lax.tan], x)], x)
    assert names(passed(simplify, third, X)) == ["exp"]


def test_branches_that_are_one_program_need_no_choice() -> None:
    def same(x: Any) -> Any:
        return lax.sin(x)

    assert names(passed(choose_branches, lambda x, p: lax.cond(p, same, same, x), X, True))[-1] == "jit"


def test_an_unknown_branch_stays_unknown() -> None:
    untouched(choose_branches, lambda x, p: lax.cond(p, lax.sin, lax.cos, x), X, True)


def test_effects_of_the_chosen_branch_happen() -> None:
    seen: list[str] = []
    loud = lambda x: (vf.debug.callback(lambda v: seen.append("loud"), x), x)[1]
    vf.jit(lambda x: lax.cond(True, loud, lambda x: x, x))(X)
    assert seen == ["loud"]
