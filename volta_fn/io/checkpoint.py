"""Checkpoints of training, restored bit by bit."""

from __future__ import annotations

import json
import math
import operator
import os
import re
import signal
import threading
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import numpy as np

from volta_fn import advice, dtypes, tree
from volta_fn.core.arrays.array import Array, ConcreteArray, from_host
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.devices import distribution
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    CorruptFileError,
    DamagedCheckpointWarning,
    DTypeError,
    VoltaError,
)
from volta_fn.io.files import STORABLE, SafetensorsFile, check_shape, parse_json, remove_leftovers, write_tensors
from volta_fn.io.state_dict import Mismatch, StateDictDiff, on_host

# The manifest of a checkpoint: the type of each leaf of the saved tree.
#
# It is a JSON text in the metadata of a safetensors file. It contains integers and texts; other leaves are tensors of the file.

#: Metadata: the manifest and its checksum (CRC-32).
MANIFEST = "volta_fn.checkpoint"
CHECKSUM = "volta_fn.checkpoint.sum"
DTYPES = {dtype.name: dtype for dtype in dtypes.ALL | dtypes.STORAGE}
#: Kinds of leaves that are tensors, with their dtype if it is always the same.
_TENSORS = {
    "array": None,
    "numpy": None,
    "numpy scalar": None,
    "bool": np.dtype(np.bool_),
    "float": np.dtype(np.float64),
    "complex": np.dtype(np.complex128),
}
_TEXTS = ("int", "str")
_PYTHON = {bool: "bool", float: "float", complex: "complex", int: "int", str: "str"}


@dataclass(frozen=True, slots=True)
class Entry:
    """The type of a leaf, and the text of an int or str, or the checksum of a tensor."""

    kind: str
    text: str = ""
    dtype: np.dtype | None = None
    shape: tuple[int, ...] = ()
    weak: bool = False
    checksum: int = 0

    def __str__(self) -> str:
        if self.dtype is None or self.kind in _PYTHON.values():
            return self.kind
        return f"{dtypes.short_name(self.dtype)}[{','.join(map(str, self.shape))}]"

    def fits(self, leaf: Any) -> bool:
        """Return True if shape and dtype (except of Python numbers) fit a template's leaf."""
        other = describe(leaf)
        if other is None or "str" in (self.kind, other.kind):
            return other is not None and self.kind == other.kind
        free = self.kind in _PYTHON.values() or other.kind in _PYTHON.values()
        return self.shape == other.shape and (free or self.dtype == other.dtype)


def describe(leaf: Any) -> Entry | None:
    """Return the entry for a leaf, without its contents; None if it cannot be saved."""
    if type(leaf) in _PYTHON:
        return Entry(kind := _PYTHON[type(leaf)], dtype=_TENSORS.get(kind))
    kind = "numpy" if isinstance(leaf, np.ndarray) else "numpy scalar" if isinstance(leaf, np.generic) else "array"
    if not isinstance(leaf, (Array, np.ndarray, np.generic, ShapeDtypeStruct)):
        return None
    return Entry(kind, "", np.dtype(leaf.dtype), tuple(leaf.shape), bool(getattr(leaf, "weak_type", False)))


def write_manifest(entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return the metadata that hold the manifest."""
    text = json.dumps({name: _as_json(entry) for name, entry in entries.items()})
    return {MANIFEST: text, CHECKSUM: _text_checksum(text)}


def read_manifest(file: SafetensorsFile) -> dict[str, Entry]:
    """Read the manifest of a file, and check it against the tensors.

    Raises `CheckpointError` if there is no manifest, `CorruptFileError` if it is invalid.
    """
    if MANIFEST not in file.metadata:
        raise CheckpointError(f"{file} is not a checkpoint but another safetensors file; io.load_safetensors reads it")
    text = file.metadata[MANIFEST]
    if file.metadata.get(CHECKSUM) != _text_checksum(text):
        raise CorruptFileError(f"{file}: the manifest is damaged: its checksum is wrong")
    parsed = parse_json(text.encode(), f"{file}: the manifest")
    entries = {name: _from_json(value, f"{file}: the manifest's entry {name!r}") for name, value in parsed.items()}
    tensors = {name: entry.dtype for name, entry in entries.items() if entry.dtype is not None}
    if tensors.keys() != set(file):
        raise CorruptFileError(f"{file}: the manifest does not agree with the tensors about {sorted(tensors.keys() ^ set(file))}")
    for name, dtype in tensors.items():
        _check_tensor(name, entries[name], dtype, file)
    return entries


def _text_checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _stored_as(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """Return a tensor's dtype and shape in the file: bytes for unsupported dtypes."""
    return (dtype, shape) if dtype in STORABLE else (np.dtype(np.uint8), (math.prod(shape) * dtype.itemsize,))


def _check_tensor(name: str, entry: Entry, dtype: np.dtype, file: SafetensorsFile) -> None:
    info = file.info(name)
    fixed = _TENSORS[entry.kind]
    if _stored_as(dtype, entry.shape) != (info.dtype, info.shape):
        raise CorruptFileError(f"{file}: the tensor {name!r} is not as the manifest says, {dtype.name}{list(entry.shape)}")
    check_shape(f"{file}: tensor {name!r}", dtype, entry.shape)
    if fixed not in (None, dtype) or (entry.shape and entry.kind not in ("array", "numpy")):
        raise CorruptFileError(f"{file}: {name!r} cannot be of kind {entry.kind!r} and {dtype.name}{list(entry.shape)}")


def _as_json(entry: Entry) -> dict[str, Any]:
    if entry.dtype is None:
        return {"kind": entry.kind, "text": entry.text}
    return {"kind": entry.kind, "dtype": entry.dtype.name, "shape": entry.shape, "weak": entry.weak, "checksum": entry.checksum}


def _from_json(value: Any, where: str) -> Entry:
    match value:
        case {"kind": str(kind), "text": str(text)} if kind in _TEXTS and len(value) == 2:
            return Entry(kind, text)
        case {"kind": str(kind), "dtype": str(name), "shape": [*shape], "weak": bool(weak), "checksum": int(checksum)}:
            if kind in _TENSORS and name in DTYPES and len(value) == 5 and all(type(size) is int for size in shape):
                return Entry(kind, "", DTYPES[name], tuple(shape), weak, checksum)
    raise CorruptFileError(f"{where} is invalid: {value!r:.120}")


# Training states as tensors: pytrees that are restored bit by bit.
#
# Each leaf is a tensor named by its path, or in the manifest. Nothing is pickled, so that reading a file runs none of its code.

#: Leaves on the host, by path: the manifest's entry without a checksum, and the elements of arrays.
Captured = dict[str, tuple[Entry, np.ndarray | None]]


def capture(state: Any, *, copy: bool = False) -> Captured:
    """Return the leaves of a tree on the host, by path, without their checksums.

    If `copy`, the leaves that the caller may change, NumPy's arrays, are copied.

    Raises `ArgumentTypeError` for a leaf that cannot be saved, `DTypeError` for one of an unknown dtype.
    """
    return {name: _capture_leaf(name, leaf, copy) for name, leaf in _leaves_by_path(state).items()}


def _capture_leaf(name: str, leaf: Any, copy: bool) -> tuple[Entry, np.ndarray | None]:
    entry = describe(leaf)
    if entry is None or isinstance(leaf, ShapeDtypeStruct) or (entry.kind == "str" and not _is_text(leaf)):
        raise ArgumentTypeError(
            f"checkpoint: {name!r} is a {type(leaf).__name__}; a state consists of arrays, NumPy arrays, random keys, None and "
            "Python's bool, int, float, complex and str (without unpaired surrogates)"
        )
    if entry.dtype is None:
        return Entry(entry.kind, hex(leaf) if entry.kind == "int" else leaf), None
    values = on_host(leaf)
    if values.dtype not in DTYPES.values():
        raise DTypeError(f"checkpoint: {name!r} has the dtype {values.dtype}, which is not supported; convert it first")
    return entry, values.copy() if copy and isinstance(leaf, np.ndarray) else values


def encode(captured: Captured) -> tuple[dict[str, np.ndarray], dict[str, Entry]]:
    """Return the tensors and the manifest's entries of captured leaves."""
    tensors: dict[str, np.ndarray] = {}
    entries: dict[str, Entry] = {}
    for name, (entry, values) in captured.items():
        entries[name] = entry
        if values is not None:
            tensors[name] = values if values.dtype in STORABLE else _bytes(values)
            entries[name] = Entry(entry.kind, "", values.dtype, values.shape, entry.weak, _checksum(values))
    return tensors, entries


def decode(template: Any, file: SafetensorsFile) -> Any:
    """Return a tree like the template from a file.

    Raises `CheckpointError` if the template has other leaves than the file, `CorruptFileError` if the file is damaged.
    """
    entries, leaves = read_manifest(file), _leaves_by_path(template)
    wrong = [name for name in leaves if name in entries and not entries[name].fits(leaves[name])]
    diff = StateDictDiff(
        missing=tuple([name for name in leaves if name not in entries]),
        unexpected=tuple([name for name in entries if name not in leaves]),
        mismatched=tuple([Mismatch(name, _in_words(leaves[name]), str(entries[name])) for name in wrong]),
    )
    if diff:
        raise CheckpointError(f"{file} does not fit the template, which must have the structure of the saved tree\n{diff}")

    def restore(path: tree.KeyPath, leaf: Any) -> Any:
        name = tree.keystr(path)
        return _restore_leaf(name, entries[name], leaf, file)

    return tree.map_with_path(restore, template)


def _restore_leaf(name: str, entry: Entry, leaf: Any, file: SafetensorsFile) -> Any:
    """Restore a leaf; an array goes to the device of the template's."""
    if entry.kind == "str":
        return entry.text
    if entry.dtype is None:
        return _as_integer(name, entry.text, file)
    stored = file.host(name)
    values = stored if entry.dtype in STORABLE else stored.view(entry.dtype).reshape(entry.shape)
    if _checksum(values) != entry.checksum:
        raise CorruptFileError(f"{file}: the bytes of {name!r} are damaged: the checksum is wrong")
    match entry.kind:
        case "array":
            return from_host(values, entry.weak, leaf.device if isinstance(leaf, ConcreteArray) else None)
        case "numpy":
            return values.copy()
        case "numpy scalar":
            return values[()]
    return values.item()


def _as_integer(name: str, text: str, file: SafetensorsFile) -> int:
    try:
        return int(text, 16)
    except ValueError as error:
        raise CorruptFileError(f"{file}: {name!r} should be an integer, got {text!r:.40}") from error


def _leaves_by_path(state: Any) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for path, leaf in tree.leaves_with_path(state):
        name = tree.keystr(path)
        if name in leaves:
            raise CheckpointError(f"two leaves of the tree have the path {name!r}")
        leaves[name] = leaf
    return leaves


def _is_text(value: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in value)


def _in_words(leaf: Any) -> str:
    entry = describe(leaf)
    return f"nothing like {type(leaf).__name__}" if entry is None else str(entry)


def _bytes(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1).view(np.uint8)


def _checksum(values: np.ndarray) -> int:
    return zlib.crc32(_bytes(values).data)


# Checkpoints of training: one file per step, of which the newest are retained.

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
        directory: the folder, which the first `save` creates.
        keep: the number of checkpoints to keep, those of the highest steps; None keeps all.
        keep_every: keep the checkpoints of multiples of this step in addition.
        save_every: `save` does nothing for steps that are no multiples of this.
        asynchronous: whether files are written by a thread, while training goes on. `save` then returns when the arrays are on the host and
            the previous file is written.
        loader: a `DataLoader` whose position is saved and restored with the state, so that a resumed loop gets the remaining batches.

    Raises `ArgumentError` if a number is less than 1.

    >>> import tempfile
    >>> state = {"w": vf.numpy.ones(2), "key": vf.random.key(0), "step": 0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpointer(folder, keep=2)
    ...     for step in range(5):
    ...         state |= {"w": state["w"] * 2, "step": step}
    ...         checkpoints.save(step, state)
    ...     steps = checkpoints.all_steps()
    ...     restored = checkpoints.restore(state)
    >>> steps, restored["w"], restored["step"]
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

    @advice.explained
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
        terminated = distribution.current().run_once(lambda: self._terminated)
        if terminated or force or int(step) % self.save_every == 0:
            wait = terminated or not self.asynchronous
            distribution.current().run_once(lambda: self._save(path, int(step), state, wait=wait))
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

    @advice.explained
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
            return self._restore_step(template, step, steps)
        if not steps:
            raise CheckpointError(f"there are no checkpoints in {self.directory}")
        for older in reversed(steps[1:]):
            try:
                return self._restore_step(template, older, steps)
            except CorruptFileError as error:
                warnings.warn(f"the checkpoint of step {older} is passed over: {error.message}", DamagedCheckpointWarning, stacklevel=2)
        return self._restore_step(template, steps[0], steps)

    def _restore_step(self, template: Any, step: int, steps: list[int]) -> Any:
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
        return distribution.current().run_once(self._steps_on_disk)

    def _steps_on_disk(self) -> list[int]:
        entries = os.scandir(self.directory) if self.directory.is_dir() else ()
        names = (entry.name for entry in entries if entry.is_file())
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match and int(match[1]) <= _LAST)

    def _is_checkpoint(self, step: int) -> bool:
        """Return True if a file has the header of a checkpoint.

        Others are neither counted nor removed.
        """
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
