"""Run the package's commands, `python -m volta_fn.…`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

#: The exit status of a command that SIGPIPE has ended, as shells report it.
BROKEN_PIPE = 141


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command and exit with its status.

    If its output goes to a program that has ended, as in ``… | head``, it ends silently with the status `BROKEN_PIPE`.
    """
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        status = BROKEN_PIPE
    sys.exit(status)


def discard_output() -> None:
    """Discard all further output.

    Otherwise Python fails again when it flushes the output at exit.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
