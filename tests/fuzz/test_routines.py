"""A sample of random problems for routines, other ones after each commit; what was once wrong; and mistakes that a sample finds."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.fuzz import routines
from tests.fuzz.routine_choices import CPU, WGSL, Choice, constants
from tests.fuzz.routine_planted import PLANTED, Planted
from tests.fuzz.routine_problems import FAMILIES, problem, text_of
from tests.stress.amount import rounds

ROOT = Path(__file__).parents[2]
CORPUS = [block.split("\n") for block in routines.CORPUS.read_text().strip().split("\n\n")]

#: Problems of a family in a sample, per target.
SAMPLE = {"cpu": 4, "wgsl": 1}


@pytest.mark.parametrize("family", FAMILIES)
def test_routines_agree_in_every_choice(family: str, request: pytest.FixtureRequest) -> None:
    first = 1000 * int(request.config.getoption("heavy_shift"))
    tally, wrong = routines.check(first, rounds(SAMPLE["cpu"]), families=[family])
    assert wrong == []
    assert sum(tally.problems.values()) == rounds(SAMPLE["cpu"])


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "fourier"])
def test_routines_of_shaders_agree_in_every_choice(family: str, request: pytest.FixtureRequest) -> None:
    first = 1000 * int(request.config.getoption("heavy_shift"))
    _, wrong = routines.check(first, rounds(SAMPLE["wgsl"]), "wgsl", [family], many=1 << 30)
    assert wrong == []


@pytest.mark.parametrize("lines", CORPUS, ids=lambda lines: lines[0].removeprefix("# "))
@pytest.mark.parametrize("target", ["cpu", "wgsl"])
def test_what_was_once_wrong_is_right(lines: list[str], target: str) -> None:
    for text in lines[1:]:
        assert list(routines.faults(problem(text), target)) == []


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.what)
def test_a_sample_finds_mistakes(planted: Planted) -> None:
    with planted.plant():
        _, wrong = routines.check(0, 40, planted.target, [planted.family], many=1 << 30, most=1, shrink=False)
    assert wrong


@pytest.mark.parametrize("family", FAMILIES)
def test_problems_are_text(family: str) -> None:
    for seed in range(20):
        it = routines.drawn(family, seed, 256)
        assert problem(text_of(it)) == it


def test_every_constant_that_chooses_is_forced() -> None:
    """A new threshold or block size comes with values to force, or is named among what chooses nothing."""
    forced = {name for some in (CPU, WGSL) for choices in some.values() for choice in choices for name in changed(choice)}
    for folder, names in constants(ROOT).items():
        assert names - forced == set(), folder


def changed(choice: object) -> set[str]:
    return set()


def test_every_choice_replaces_what_there_is() -> None:
    for root, families in (("cpu", CPU), ("wgsl", WGSL)):
        for choices in families.values():
            for choice in choices:
                for name in (choice if isinstance(choice, Choice) else choice.choice(0)).changes:
                    module, attribute = name.split(":")
                    assert hasattr(importlib.import_module(f"volta_fn.targets.{root}.{module}"), attribute), name


_ = ast
