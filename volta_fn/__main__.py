"""The commands of the package: `python -m volta_fn` lists them.

`python -m volta_fn doctor` is the same as `python -m volta_fn.doctor`.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from volta_fn.advice import correction
from volta_fn.inspection.explanation import aligned
from volta_fn.signals import run

#: The commands, and what they do.
COMMANDS = {
    "doctor": "check packages, devices, drivers and caches, and say what to do",
    "info": "print versions, devices and settings, for a report of a fault",
    "errors [NAME]": "explain an error: cause, example, remedy; without a name, list all",
    "cache": "show, verify or clear the compiled programs on disk",
    "launch -n N PROGRAM": "run a program in N processes that share arrays",
    "jax PROGRAM": "run a program written for JAX, `import jax` meaning volta_fn",
    "chat MODEL": "talk to a language model in a terminal",
}


def main(arguments: Sequence[str]) -> int:
    """List the commands, or run one.

    Returns the exit status, which is 2 for an unknown command.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print("Commands of volta_fn:\n")
        print("\n".join(f"  {row}" for row in aligned([(f"python -m volta_fn {name}", purpose) for name, purpose in COMMANDS.items()])))
        print("\npython -m volta_fn COMMAND --help says more about those with options.")
        return 0
    names = [name.partition(" ")[0] for name in COMMANDS]
    command = arguments[0]
    if command not in names:
        print(correction(f"volta_fn has no command {command!r}", command, names, "python -m volta_fn lists all"), file=sys.stderr)
        return 2
    sys.argv = [f"volta_fn.{command}", *arguments[1:]]
    runpy.run_module(f"volta_fn.{command}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    run(lambda: main(sys.argv[1:]))
