"""Each planted fault raises at its line, in every mode, with the same message as in the golden file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.inspection.faults import FAULTS, Fault
from tests.inspection.golden_file import GoldenFile, shown
from volta_fn import errors, lax

GOLDEN = GoldenFile("faults.txt")

#: How the batch of examples is given to the function of one.
MODES: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "eager": lambda f, xs: [f(x) for x in xs],
    "jit": lambda f, xs: [vf.jit(f)(x) for x in xs],
    "scan": lambda f, xs: lax.scan(lambda carry, x: (carry, f(x)), 0.0, xs),
    "vmap": lambda f, xs: vf.vmap(f)(xs),
}


def raised(fault: Fault, mode: str) -> errors.NonFiniteError:
    """Return the error of a fault in a mode."""
    with vf.debug.nans(), pytest.raises(errors.NonFiniteError) as caught:
        MODES[mode](fault.function, vnp.asarray(fault.examples()))
    return caught.value


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAULTS)
def test_the_message_names_the_line(name: str, mode: str) -> None:
    fault = FAULTS[name]
    error = raised(fault, mode)
    assert error.location is not None
    assert (Path(error.location.file).name, error.location.lineno) == ("faults.py", fault.line()), str(error)
    text = str(error)
    assert "operand 0" in text and len(text.splitlines()) >= 4  # the remedy is the last but one
    if mode == "scan":
        assert "in iteration 1 of 4 of a scan" in text
    if mode == "vmap":
        assert "example 1 of 4 that vmap maps" in text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAULTS)
def test_machine_code_gives_the_same_message(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)
    assert shown(str(raised(FAULTS[name], mode))) == GOLDEN.read()[f"{name} under {mode}"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*FAULTS][4::12])
def test_a_gpu_gives_the_same_message(name: str, mode: str) -> None:
    with vf.default_device(vf.devices("gpu")[0]):
        assert shown(str(raised(FAULTS[name], mode))) == GOLDEN.read()[f"{name} under {mode}"]


@pytest.mark.parametrize("mode", MODES)
def test_messages_are_those_of_the_golden_file(mode: str) -> None:
    GOLDEN.compare({f"{name} under {mode}": shown(str(raised(fault, mode))) for name, fault in FAULTS.items()})


def test_there_are_forty_faults() -> None:
    assert len(FAULTS) == 40


def test_without_the_block_nothing_is_raised() -> None:
    with np.errstate(all="ignore"):
        for fault in FAULTS.values():
            fault.function(vnp.asarray(fault.examples())[1])
