"""What works on this machine, and what to do: `python -m volta_fn.doctor`."""

from __future__ import annotations

import sys

from volta_fn.inspection.doctor import doctor


def main() -> int:
    """Print what `doctor` finds; return 1 if something failed."""
    found = doctor()
    print(found)
    return int(not found.healthy)


if __name__ == "__main__":
    sys.exit(main())
