"""The tool that runs programs of packages drawn at random: what it reads, and what it counts as the same."""

from __future__ import annotations

import ast
import math
import sys

import pytest

from tests.test_layers import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import jax_packages as tool


def outcome(text: str = "", status: int | None = 0) -> tool.Outcome:
    return tool.Outcome(status, text, "Traceback\nValueError: bad\nThe frames inside volta_fn are not shown", 1.0)


def test_each_program_parses_and_prints() -> None:
    programs = list(tool.read_programs(tool.PROGRAMS.read_text()))
    assert len(programs) >= 30 and len({p.package for p in programs}) == len(programs)
    for program in programs:
        assert program.version and program.description
        names = {node.id for node in ast.walk(ast.parse(program.text)) if isinstance(node, ast.Name)}
        assert "print" in names, program.package


def test_numbers_are_compared_by_value() -> None:
    theirs = outcome("a 1.0 [2e3 nan inf]")
    assert tool.compare(theirs, outcome("a 1.00005 [2000.1 nan inf]")).startswith("same (4 numbers")
    assert tool.compare(theirs, outcome("a 1.0002 [2e3 nan inf]")).startswith("differs (4")
    assert tool.compare(theirs, outcome("a 1.0")) == "differs: 1 numbers, JAX's 4"
    assert tool.compare(theirs, outcome("a nan [2e3 1.0 inf]")).startswith("differs")
    assert math.isnan(theirs.numbers()[2])
    assert outcome("0.25-0.5j 1e-3+2j").numbers() == [0.25, -0.5, 1e-3, 2.0]


@pytest.mark.parametrize("status", [1, None])
def test_failures_are_named(status: int | None) -> None:
    reason = "ValueError: bad" if status else "too long"
    assert tool.compare(outcome("1.0"), outcome(status=status)) == f"fails: {reason}"
    assert tool.compare(outcome(status=status), outcome("1.0")) == f"not counted, as under JAX: {reason}"
    assert tool.compare(outcome("none"), outcome("none")) == "not counted: it prints no number"


def test_a_program_runs_in_another_process() -> None:
    program = tool.Program("numpy", "2", "", "import jax.numpy as jnp\nprint(jnp.arange(4.0).sum())\n")
    result = tool.run(program, "volta_fn", 60)
    assert (result.status, result.numbers()) == (0, [6.0]), result.errors
    assert tool.installed_version("numpy") and tool.installed_version("no-such-package") is None
