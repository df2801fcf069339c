"""Checkpoints of training: one file per step, of which the newest are kept."""

from __future__ import annotations

import operator
import os
import re
import threading
from pathlib import Path
from typing import Any

from volta_fn.core import world
from volta_fn.errors import ArgumentError, ArgumentTypeError, CheckpointError
from volta_fn.io.atomic import remove_leftovers
from volta_fn.io.manifest import write_manifest
from volta_fn.io.tensor_file import SafetensorsFile, write_tensors
from volta_fn.io.training_state import decode, encode

#: The names of checkpoints: ten digits, or more without leading zeros.
_NAME = re.compile(r"step_([0-9]{10}|[1-9][0-9]{10,})\.safetensors")


class Checkpointer:
    """Saves training states in a folder and restores them bit by bit.

    A state is any pytree, such as parameters, optimizer states, random keys and the step. Leaves may be arrays,
    NumPy arrays and scalars, and Python's bool, int, float, complex and str; all are restored bit by bit, with their types.
    Static fields, such as a layer's stride, are not saved; the template provides them.

    A checkpoint is one safetensors file, which is written atomically: a process that is killed while saving leaves the previous checkpoints
    valid. One process at a time may save in a folder; any number may read.

    With several processes (`volta_fn.distributed`) all of them call each method: the first one writes the state, which is the same in all,
    and all read it. The shards of a state are joined before (`optim.gather_states`), so that any number of processes can go on.

    Args:
        directory: the folder, which the first `save` makes.
        keep: how many checkpoints to keep, those of the highest steps; None keeps all.

    Raises `ArgumentError` if `keep` is less than 1.

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

    def __init__(self, directory: str | os.PathLike[str], *, keep: int | None = 3) -> None:
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise ArgumentError(f"Checkpointer: keep is an integer of at least 1, or None for all, got {keep!r}")
        self.directory = Path(directory)
        self.keep = keep
        self._lock = threading.Lock()

    def save(self, step: int, state: Any) -> None:
        """Save the state of a step, and remove the checkpoints beyond `keep`.

        An older checkpoint of the same step is replaced.

        Raises:
            ArgumentTypeError: a leaf is of a kind that cannot be saved. ArgumentError: `step` is not an integer from 0.
            SerializationError, OSError: the file cannot be written; older checkpoints remain.
        """
        path = self._path(step)
        world.current().run_once(lambda: self._write(int(step), path, state))

    def _write(self, step: int, path: Path, state: Any) -> None:
        tensors, entries = encode(state)
        with self._lock:
            self.directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self.directory, _NAME)
            write_tensors(path, tensors, write_manifest(entries))
            self._remove_old(step)

    def restore(self, template: Any, step: int | None = None) -> Any:
        """Restore the state of a step, by default of the latest.

        Args:
            template: a tree of the same structure, such as a fresh initial state; its arrays may be `ShapeDtypeStruct`. Arrays are put on
                the devices where the template's are.
            step: the number of a step that was saved.

        Raises:
            CheckpointError: there is no such checkpoint, or the template's structure, shapes or dtypes are not those of the saved tree.
            CorruptFileError: the file is damaged.
        """
        steps = self.all_steps()
        if step is None and not steps:
            raise CheckpointError(f"there are no checkpoints in {self.directory}")
        chosen = steps[-1] if step is None else step
        try:
            file = SafetensorsFile(self._path(chosen))
        except FileNotFoundError:
            raise CheckpointError(f"there is no checkpoint of step {chosen} in {self.directory}, only of {steps}") from None
        return decode(template, file)

    def latest_step(self) -> int | None:
        """Return the highest step that has a checkpoint, or None."""
        return max(self.all_steps(), default=None)

    def all_steps(self) -> list[int]:
        """Return the steps that have checkpoints, in order."""
        return world.current().run_once(self._steps_on_disk)

    def _steps_on_disk(self) -> list[int]:
        entries = os.scandir(self.directory) if self.directory.is_dir() else ()
        names = (entry.name for entry in entries if entry.is_file())
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)

    def _path(self, step: int) -> Path:
        try:
            number = operator.index(step)
        except TypeError as error:
            raise ArgumentTypeError(f"Checkpointer: a step is an integer, got {type(step).__name__} {step!r:.40}") from error
        if number < 0:
            raise ArgumentError(f"Checkpointer: a step is an integer from 0, got {number}")
        return self.directory / f"step_{number:010}.safetensors"

    def _remove_old(self, newest: int) -> None:
        if self.keep is None:
            return
        others = [step for step in self._steps_on_disk() if step != newest]
        for step in others[: max(len(others) - (self.keep - 1), 0)]:
            self._path(step).unlink(missing_ok=True)
