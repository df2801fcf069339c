"""Checks of this machine, with remedies: `python -m volta_fn.doctor`."""

from __future__ import annotations

import sys
from types import ModuleType

from volta_fn.commands import run
from volta_fn.inspection.doctor import Report, doctor


class _Doctor(ModuleType):
    """A module that can be called like the function whose name it has.

    ``import volta_fn.doctor`` replaces that function by it.
    """

    def __call__(self) -> Report:
        return doctor()


sys.modules[__name__].__class__ = _Doctor


def main() -> int:
    """Print the report of `doctor`; return 1 if a check failed."""
    report = doctor()
    print(report)
    return int(not report.healthy)


if __name__ == "__main__":
    run(main)
