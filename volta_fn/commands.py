"""Run the package's commands, `python -m volta_fn.…`."""

from __future__ import annotations

import errno
import io
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":  # of Windows, where it is a pipe or a file
            stream.reconfigure(errors="replace")
    try:
        status = main()
        sys.stdout.flush()
    except OSError as error:
        if not is_broken_pipe(error):
            raise
        discard_output()
        status = BROKEN_PIPE
    sys.exit(status)


def is_broken_pipe(error: OSError) -> bool:
    """Return True if nobody reads; Windows calls that an invalid argument."""
    return isinstance(error, BrokenPipeError) or (sys.platform == "win32" and error.errno == errno.EINVAL)


def discard_output() -> None:
    """Discard all further output.

    Otherwise Python fails again when it flushes the output at exit.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
