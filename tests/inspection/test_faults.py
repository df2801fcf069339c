"""Each planted fault raises at its line, in every mode, with the same message as in the golden file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.inspection.faults import FAULTS, Fault
from volta_fn import errors, lax

GOLDEN = Path(__file__).parent / "golden" / "faults.txt"

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


def shown(error: errors.NonFiniteError) -> str:
    """Return a message without what depends on the machine: folders, lines, digits of numbers."""
    text = re.sub(r"\S*/(\w+\.py):\d+", r"\1", str(error))
    return re.sub(r"from \S+ to [^,\n;]+", "from … to …", text)


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
@pytest.mark.parametrize("name", [*FAULTS][::8])
def test_machine_code_gives_the_same_message(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", True)
    assert shown(raised(FAULTS[name], mode)) == read_golden()[f"{name} under {mode}"]


@pytest.mark.parametrize("mode", MODES)
def test_messages_are_those_of_the_golden_file(mode: str) -> None:
    """`VOLTA_UPDATE_GOLDEN=1` writes the file anew."""
    found = {f"{name} under {mode}": shown(raised(fault, mode)) for name, fault in FAULTS.items()}
    known = read_golden()
    if os.environ.get("VOLTA_UPDATE_GOLDEN", "0") != "0":
        known |= found
        GOLDEN.write_text("\n".join(f"== {title}\n{text}" for title, text in sorted(known.items())) + "\n", encoding="utf-8")
    assert found == {title: known.get(title) for title in found}


def read_golden() -> dict[str, str]:
    """Return the messages of the golden file by their titles."""
    if not GOLDEN.exists():
        return {}
    entries = GOLDEN.read_text(encoding="utf-8").removeprefix("== ").rstrip("\n").split("\n== ")
    return dict(entry.split("\n", 1) for entry in entries)


def test_there_are_forty_faults() -> None:
    assert len(FAULTS) == 40


def test_without_the_block_nothing_is_raised() -> None:
    with np.errstate(all="ignore"):
        for fault in FAULTS.values():
            fault.function(vnp.asarray(fault.examples())[1])
