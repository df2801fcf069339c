"""Checkpoints of training: one file per step, of which the newest are kept."""

from __future__ import annotations

import operator
import os
import re
import signal
import threading
import warnings
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from volta_fn.core.distribution import world
from volta_fn.errors import ArgumentError, ArgumentTypeError, CheckpointError, CorruptFileError, DamagedCheckpointWarning, VoltaError
from volta_fn.io.atomic import remove_leftovers
from volta_fn.io.manifest import read_manifest, write_manifest
from volta_fn.io.tensor_file import SafetensorsFile, write_tensors
from volta_fn.io.training_state import Captured, capture, decode, encode

#: The names of checkpoints: ten digits, or more without leading zeros.
_NAME = re.compile(r"step_([0-9]{10}|[1-9][0-9]{10,18})\.safetensors")
#: The highest step.
_LAST = 2**63 - 1


class _Resumable(Protocol):
    """A loader: its position is saved and restored."""

    def state(self) -> dict[str, int]: ...
    def restore(self, state: Any) -> None: ...


class Checkpointer:
    """Saves training states in a folder and restores them bit by bit.

    A state is any pytree, such as parameters, optimizer states, random keys and the step. Leaves may be arrays,
    NumPy arrays and scalars, and Python's bool, int, float, complex and str; all are restored bit by bit, with their types.
    Static fields, such as a layer's stride, are not saved; the template provides them.

    A checkpoint is one safetensors file with a checksum for each leaf, which is written atomically: a process that is killed while saving
    leaves the previous checkpoints valid. One process at a time may save in a folder; any number may read.

    In a ``with`` block, SIGTERM ends the process at the next `save`, whatever its step, when that is on the disk: by `SystemExit` with
    the status 143. This needs the main thread. At the end of the block, `wait_until_finished` is called.

    With several processes (`volta_fn.distributed`) all of them call each method: the first one writes the state, which is the same in all,
    and all read it. The shards of a state are joined before (`optim.gather_states`), so that any number of processes can go on.

    Args:
        directory: the folder, which the first `save` makes.
        keep: how many checkpoints to keep, those of the highest steps; None keeps all.
        keep_every: checkpoints of multiples of this step are kept in addition.
        save_every: `save` does nothing for steps that are no multiples of this.
        asynchronous: whether files are written by a thread, while training goes on. `save` then returns when the arrays are on the host and
            the previous file is written.
        loader: a `DataLoader` whose position is saved and restored with the state, so that a resumed loop gets the remaining batches.

    Raises `ArgumentError` if a number is less than 1.

    >>> import tempfile, volta_fn as vf
    >>> state = {"w": vf.numpy.ones(2), "key": vf.random.key(0), "step": 0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpointer(folder, keep=2)
    ...     for step in range(5):
    ...         state |= {"w": state["w"] * 2, "step": step}
    ...         checkpoints.save(step, state)
    ...     kept = checkpoints.all_steps()
    ...     restored = checkpoints.restore(state)
    >>> kept, restored["w"], restored["step"]
    ([3, 4], Array([32., 32.], dtype=float32), 4)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        keep_every: int | None = None,
        save_every: int = 1,
        asynchronous: bool = False,
        loader: _Resumable | None = None,
    ) -> None:
        for name, value in (("keep", keep), ("keep_every", keep_every), ("save_every", save_every)):
            if (value is not None or name == "save_every") and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ArgumentError(f"Checkpointer: {name} is an integer of at least 1, or None for all, got {value!r}")
        self.directory = Path(directory)
        self.keep, self.keep_every, self.save_every = keep, keep_every, save_every
        self.asynchronous = asynchronous
        self.loader = loader
        self._lock = threading.Lock()
        #: The threads that write, of which one at a time does so, and the error that one ended with. There is more than one only if an
        #: interrupt has ended the wait for it.
        self._writers: list[threading.Thread] = []
        self._writing = threading.Lock()
        self._failure: BaseException | None = None
        self._terminated = False
        self._handlers: list[Any] = []

    def save(self, step: int, state: Any, *, force: bool = False) -> None:
        """Save the state of a step, and remove the checkpoints beyond `keep`.

        An older checkpoint of the same step is replaced. `force` saves steps between those of `save_every`, too.

        Raises:
            ArgumentTypeError: a leaf is of a kind that cannot be saved. ArgumentError: `step` is not an integer from 0.
            SerializationError, OSError: the file cannot be written; older checkpoints remain. Of an asynchronous save the next call of
                `save` or `wait_until_finished` raises it.
            SystemExit: SIGTERM has arrived; the state is on the disk.
        """
        path = self._path(step)
        terminated = world.current().run_once(lambda: self._terminated)
        if terminated or force or int(step) % self.save_every == 0:
            wait = terminated or not self.asynchronous
            world.current().run_once(lambda: self._save(path, int(step), state, wait=wait))
        if terminated:
            raise SystemExit(128 + signal.SIGTERM)

    def _save(self, path: Path, step: int, state: Any, *, wait: bool) -> None:
        with self._lock:
            captured = capture(self._with_position(state), copy=not wait)
            self._finish()
            if wait:
                self._write(path, step, captured)
            else:
                writer = threading.Thread(target=self._write_later, args=(path, step, captured), name="volta_fn saves a checkpoint")
                self._writers.append(writer)
                writer.start()

    def _write(self, path: Path, step: int, captured: Captured) -> None:
        tensors, entries = encode(captured)
        with self._writing:
            self.directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.directory, _NAME)
            write_tensors(path, tensors, write_manifest(entries))
            self._remove_old(step)

    def _write_later(self, path: Path, step: int, captured: Captured) -> None:
        try:
            self._write(path, step, captured)
        except BaseException as error:  # raised by the next call
            self._failure = error

    def _finish(self) -> None:
        while self._writers:
            if self._writers[-1].ident is not None:  # else an interrupt came before it was started
                self._writers[-1].join()
            self._writers.pop()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait_until_finished(self) -> None:
        """Wait until the last asynchronous checkpoint is on the disk; raise its error."""
        with self._lock:
            self._finish()

    def reached_preemption(self) -> bool:
        """Return True if SIGTERM has arrived, so that the next `save` is the last one."""
        return self._terminated

    def restore(self, template: Any, step: int | None = None) -> Any:
        """Restore a step's state, by default the latest, and the loader's position.

        If the latest checkpoint is damaged, the one before it is restored, with a `DamagedCheckpointWarning`.

        Args:
            template: a tree of the same structure, such as a fresh initial state; its arrays may be `ShapeDtypeStruct`. Arrays are put on
                the devices where the template's are.
            step: the number of a step that was saved.

        Raises:
            CheckpointError: there is no such checkpoint, or the template's structure, shapes or dtypes are not those of the saved tree.
            CorruptFileError: the file, or every file, is damaged.
        """
        self.wait_until_finished()
        steps = self.all_steps()
        if step is not None:
            return self._restored(template, step, steps)
        if not steps:
            raise CheckpointError(f"there are no checkpoints in {self.directory}")
        for older in reversed(steps[1:]):
            try:
                return self._restored(template, older, steps)
            except CorruptFileError as error:
                warnings.warn(f"the checkpoint of step {older} is passed over: {error.message}", DamagedCheckpointWarning, stacklevel=2)
        return self._restored(template, steps[0], steps)

    def _restored(self, template: Any, step: int, steps: list[int]) -> Any:
        try:
            file = SafetensorsFile(self._path(step))
        except FileNotFoundError:
            raise CheckpointError(f"there is no checkpoint of step {step} in {self.directory}, only of {steps}") from None
        restored = decode(self._with_position(template), file)
        if self.loader is None:
            return restored
        self.loader.restore(restored["loader"])
        return restored["state"]

    def _with_position(self, state: Any) -> Any:
        return state if self.loader is None else {"loader": self.loader.state(), "state": state}

    def latest_step(self) -> int | None:
        """Return the highest step that has a checkpoint, or None."""
        return max(self.all_steps(), default=None)

    def all_steps(self) -> list[int]:
        """Return the steps that have checkpoints, in order."""
        return world.current().run_once(self._steps_on_disk)

    def _steps_on_disk(self) -> list[int]:
        entries = os.scandir(self.directory) if self.directory.is_dir() else ()
        names = (entry.name for entry in entries if entry.is_file())
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found and int(found[1]) <= _LAST)

    def _is_checkpoint(self, step: int) -> bool:
        """Tell whether a file has the header of a checkpoint: others are neither counted nor removed."""
        try:
            read_manifest(SafetensorsFile(self._path(step)))
        except (OSError, VoltaError):
            return False
        return True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers.append(signal.signal(signal.SIGTERM, self._terminate))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handlers and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handlers.pop() or signal.SIG_DFL)
        self.wait_until_finished()
        if self._terminated and kind is None:  # there was no `save` after SIGTERM
            raise SystemExit(128 + signal.SIGTERM)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True

    def _path(self, step: int) -> Path:
        try:
            number = operator.index(step)
        except TypeError as error:
            raise ArgumentTypeError(f"Checkpointer: a step is an integer, got {type(step).__name__} {step!r:.40}") from error
        if not 0 <= number <= _LAST:
            raise ArgumentError(f"Checkpointer: a step is an integer from 0 to {_LAST}, got {number}")
        return self.directory / f"step_{number:010}.safetensors"

    def _remove_old(self, newest: int) -> None:
        if self.keep is None:
            return
        others = [step for step in self._steps_on_disk() if step != newest and not (self.keep_every and step % self.keep_every == 0)]
        others = [step for step in others if self._is_checkpoint(step)]
        for step in others[: max(len(others) - (self.keep - 1), 0)]:
            self._path(step).unlink(missing_ok=True)
