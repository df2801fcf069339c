"""Reports of failed processes, as files that the launcher reads."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

#: The variable that names the folder for them.
FOLDER = "VOLTA_LAUNCH_REPORTS"
#: What a report is about, the cause before its consequences.
_ORDER = ("lost", "failed", "ended")


class Report(NamedTuple):
    """Why a process has ended: "failed", or another was "lost" or has "ended"."""

    time: float
    rank: int
    kind: str
    text: str
    #: The process to blame.
    about: int | None


def is_launched() -> bool:
    """Return True if the launcher reads reports."""
    return FOLDER in os.environ


def report(rank: int, kind: str, text: str, about: int | None) -> None:
    """Leave a report, if the launcher asks for it; the first one of a process counts."""
    if not is_launched():
        return
    path = Path(os.environ[FOLDER]) / f"{rank}.json"
    if not path.exists():
        path.write_text(json.dumps([time.time(), rank, kind, text, about]))


def cause(folder: Path) -> Report | None:
    """Return the report of what went wrong first."""
    found = []
    for path in folder.glob("*.json"):
        try:
            found.append(Report(*json.loads(path.read_text())))
        except ValueError:  # a process that was killed while it wrote
            continue
    failed = {r.rank for r in found if r.kind == "failed"}
    found = [r for r in found if r.kind != "lost" or r.about not in failed]  # it was lost because it had failed
    return min(found, key=lambda r: (_ORDER.index(r.kind), r.time), default=None)
