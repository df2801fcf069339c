"""A sample of random problems for routines, other ones after each commit; what was once wrong; and mistakes that a sample finds."""

from __future__ import annotations

import importlib
from unittest.mock import patch

import pytest

from tests.fuzz import routine_runs, routines
from tests.fuzz.routine_choices import constants, forced
from tests.fuzz.routine_planted import PLANTED, Planted
from tests.fuzz.routine_problems import FAMILIES, FAMILIES_OF, problem, text_of
from tests.stress.amount import rounds
from tests.targets.cpu.running import Guarded

CORPUS = [block.split("\n") for block in routines.CORPUS.read_text().strip().split("\n\n")]

#: Folders whose choices are forced here; those of products and of loops are those of kernels.
FOLDERS = {"cpu": ["library", "convolution", "attention", "fourier", "lapack"], "wgsl": ["library", "convolution", "attention"]}

#: Problems of a family in a sample, per target.
SAMPLE = {"cpu": 4, "wgsl": 1}


@pytest.mark.parametrize("family", FAMILIES_OF["cpu"])
def test_routines_agree_in_every_choice(family: str, request: pytest.FixtureRequest) -> None:
    first = 1000 * int(request.config.getoption("shift"))
    tally, wrong = routines.check(first, rounds(SAMPLE["cpu"]), families=[family])
    assert wrong == []
    assert sum(tally.problems.values()) == rounds(SAMPLE["cpu"])


@pytest.mark.parametrize("family", FAMILIES_OF["wgsl"])
def test_routines_of_shaders_agree_in_every_choice(family: str, request: pytest.FixtureRequest) -> None:
    first = 1000 * int(request.config.getoption("shift"))
    _, wrong = routines.check(first, rounds(SAMPLE["wgsl"]), "wgsl", [family], many=1 << 30)
    assert wrong == []


@pytest.mark.parametrize("lines", CORPUS, ids=lambda lines: lines[0].removeprefix("# "))
@pytest.mark.parametrize("target", ["cpu", "wgsl"])
def test_what_was_once_wrong_is_right(lines: list[str], target: str) -> None:
    for text in lines[1:]:
        assert list(routines.faults(problem(text), target)) == []


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.what)
def test_a_sample_finds_mistakes(planted: Planted) -> None:
    # Without pages that end the process where a mistake reads beyond an operand.
    with planted.plant(), patch.object(routine_runs, "GuardedOperand", lambda size, filling: Guarded(size, 0, filling)):
        _, wrong = routines.check(0, 40, planted.target, [planted.family], many=1 << 30, most=1, shrink=False)
    assert wrong


@pytest.mark.parametrize("family", FAMILIES)
def test_problems_are_text(family: str) -> None:
    for seed in range(20):
        it = routines.drawn(family, seed, 256)
        assert problem(text_of(it)) == it


@pytest.mark.parametrize("target", ["cpu", "wgsl"])
def test_every_constant_that_chooses_is_forced(target: str) -> None:
    """A new threshold or block size comes with values to force, or is named among what chooses nothing."""
    choices = importlib.import_module(f"tests.fuzz.routine_choices_{target}")
    names, replaced = constants(target, FOLDERS[target]), forced(choices.CHOICES)
    assert names >= {name for name in choices.NO_CHOICES if ":" in name}
    imported = {name.partition(":")[2] for name in replaced if ":_" not in name}
    unforced = {name for name in names - choices.NO_CHOICES - replaced if name.partition(":")[2] not in imported}
    assert {name for name in unforced if name.partition(":")[0] not in choices.NO_CHOICES} == set()


@pytest.mark.parametrize("target", ["cpu", "wgsl"])
def test_every_choice_replaces_what_there_is(target: str) -> None:
    for name in forced(importlib.import_module(f"tests.fuzz.routine_choices_{target}").CHOICES):
        module, attribute = name.split(":")
        assert hasattr(importlib.import_module(f"volta_fn.targets.{target}.{module}"), attribute), name
