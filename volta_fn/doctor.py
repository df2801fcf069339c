"""What works on this machine, and what to do: `python -m volta_fn.doctor`."""

from __future__ import annotations

import sys
from types import ModuleType

from volta_fn.commands import run
from volta_fn.inspection.doctor import Report, doctor


class _Doctor(ModuleType):
    """A module that can be called like the function whose name it has.

    ``import volta_fn.doctor`` puts it where that function was.
    """

    def __call__(self) -> Report:
        return doctor()


sys.modules[__name__].__class__ = _Doctor


def main() -> int:
    """Print what `doctor` finds; return 1 if something failed."""
    found = doctor()
    print(found)
    return int(not found.healthy)


if __name__ == "__main__":
    run(main)
