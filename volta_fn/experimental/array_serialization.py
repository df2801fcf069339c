"""Arrays written to and read from TensorStore, also while a program goes on.

The names are those of `jax.experimental.array_serialization.serialization`. An array is a folder in Zarr's format, with a file for each
shard, which JAX reads, too. The package `tensorstore` does the work and must be installed; `volta_fn.io` needs none.

>>> specification = get_tensorstore_spec("/checkpoints/weights")
>>> specification["driver"], specification["kvstore"]
('zarr', {'driver': 'file', 'path': '/checkpoints/weights'})
"""

from __future__ import annotations

import abc
import asyncio
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from volta_fn import dtypes as _dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import device_put
from volta_fn.core.devices.device import process_count
from volta_fn.core.devices.sharding import Sharding
from volta_fn.errors import ArgumentError, ArgumentTypeError, ExecutionError, MissingDependencyError, ShapeError
from volta_fn.lazy_imports import load

__all__ = [
    "AsyncManager", "BarrierTimeoutError", "GlobalAsyncCheckpointManager", "GlobalAsyncCheckpointManagerBase", "async_deserialize",
    "async_serialize", "get_tensorstore_spec", "is_remote_storage", "run_deserialization", "run_serialization",
]  # fmt: skip

#: Addresses of buckets, and TensorStore's drivers of these.
_BUCKET = re.compile(r"^(gs|s3)://?([^/]+)/(.+)$", re.DOTALL)
_BUCKET_DRIVERS = {"gs": "gcs", "s3": "s3"}


class BarrierTimeoutError(ExecutionError):
    """Another process has not finished a checkpoint in time."""


def _tensorstore() -> Any:
    try:
        tensorstore = load("tensorstore")  # optional, and slow to load
    except ImportError as error:
        raise MissingDependencyError(
            "array_serialization needs the package tensorstore; install it by: pip install tensorstore. volta_fn.io.save needs none"
        ) from error
    return tensorstore


# Specifications: JSON that names a driver, a place and, of an array to be written, its metadata.


def get_tensorstore_spec(
    ckpt_path: str | os.PathLike[str], ocdbt: bool = False, process_idx: int | None = None, arr: Any = None
) -> dict[str, Any]:
    """Return TensorStore's specification of an array in a folder or bucket.

    Args:
        ckpt_path: a path, or an address such as "gs://bucket/array".
        ocdbt: store several arrays in one database, the folder above the path's last name.
        process_idx: a process, whose arrays stand in a folder of its own.
        arr: an array, whose metadata the specification then has.

    Raises `ArgumentError` for a relative path with `ocdbt`, and for a bucket without a name of the array.
    """
    path = os.path.normpath(os.fspath(ckpt_path))
    if process_idx is not None:
        parent, name = os.path.split(path)
        path = os.path.join(parent, f"ocdbt.process_{process_idx}", name)
    folder, name = os.path.split(path) if ocdbt else (path, "")
    bucket = _BUCKET.match(folder)
    if bucket is None and re.match("(gs|s3):/", folder):
        raise ArgumentError(
            f"get_tensorstore_spec: {ckpt_path} must be a bucket, a folder and the array's name, as in gs://bucket/folder/w"
        )
    if bucket is None and ocdbt and not os.path.isabs(folder):
        raise ArgumentError(f"get_tensorstore_spec: with ocdbt the path must be absolute, got {ckpt_path}")
    place: dict[str, Any] = {"driver": "file", "path": folder}
    if bucket is not None:
        place = {"driver": _BUCKET_DRIVERS[bucket[1]], "bucket": bucket[2], "path": bucket[3]}
    kvstore = {"driver": "ocdbt", "base": place, "path": name} if ocdbt else place
    specification: dict[str, Any] = {"driver": "zarr", "kvstore": kvstore}
    return specification if arr is None else _with_metadata(specification, arr)


def _with_metadata(specification: dict[str, Any], array: Any) -> dict[str, Any]:
    """Add an array's shape, dtype and chunks where they are missing."""
    name = np.dtype(array.dtype).name
    if "metadata" in specification:
        return specification if "dtype" in specification or specification["driver"] != "zarr" else specification | {"dtype": name}
    chunk = [max(size, 1) for size in (array.sharding.shard_shape(array.shape) if isinstance(array, Array) else array.shape)]
    if specification["driver"] == "zarr":
        return specification | {"dtype": name, "metadata": {"compressor": {"id": "zstd"}, "shape": [*array.shape], "chunks": chunk}}
    if specification["driver"] == "zarr3":
        grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
        return specification | {"metadata": {"shape": [*array.shape], "data_type": name, "chunk_grid": grid}}
    raise ArgumentError(f"array_serialization writes by the drivers zarr and zarr3, got {specification['driver']!r}")


def is_remote_storage(tspec: dict[str, Any] | str) -> bool:
    """Return True if a specification, or a path, is of a bucket in a cloud.

    >>> is_remote_storage("gs://bucket/w"), is_remote_storage(get_tensorstore_spec("/checkpoints/w"))
    (True, False)
    """
    if isinstance(tspec, str):
        return tspec.startswith(("gs://", "s3://"))
    inner = next((tspec[key] for key in ("base", "kvstore") if key in tspec), None)
    return tspec.get("driver") in _BUCKET_DRIVERS.values() if inner is None else is_remote_storage(inner)


# Writing and reading.


async def async_serialize(
    arr_inp: Any,
    tensorstore_spec: dict[str, Any],
    commit_future: list[Any] | None = None,
    context: Any = None,
    chunk_layout: Any = None,
    primary_host: int | None = None,
    replica_id: int = 0,
    transaction: Any = None,
) -> None:
    """Write an array, and wait until its elements are copied.

    Without `commit_future` it waits until they are stored.

    Args:
        arr_inp: an array, also one that is split between devices.
        tensorstore_spec: where to, of `get_tensorstore_spec`.
        commit_future: a list, to which futures are added that are done when elements are stored.
        context, chunk_layout, transaction: TensorStore's.
        primary_host: accepted; every process writes the shards of its own devices.
        replica_id: the copy that is written of a shard with several.
    """
    array = as_value(arr_inp)
    options = {key: value for key, value in (("context", context), ("chunk_layout", chunk_layout), ("transaction", transaction)) if value}
    ts = _tensorstore()
    store = await ts.open(ts.Spec(_with_metadata(tensorstore_spec, array)), create=True, open=True, **options)
    for shard in array.addressable_shards:
        if shard.replica_id != replica_id:
            continue
        written = store[shard.index].write(np.asarray(shard.data), can_reference_source_data_indefinitely=True)
        await written.copy
        if commit_future is None:
            await written.commit
        else:
            commit_future.append(written.commit)


async def async_deserialize(
    in_type: Any,
    tensorstore_spec: Any,
    global_shape: Sequence[int] | None = None,
    dtype: Any = None,
    byte_limiter: Any = None,
    context: Any = None,
    chunk_layout: Any = None,
    assume_metadata: bool = False,
) -> Array:
    """Read an array.

    Args:
        in_type: its sharding, or a `ShapeDtypeStruct` with one.
        tensorstore_spec: where from.
        global_shape: another shape, to which the array is cut or filled with zeros.
        dtype: another dtype.
        byte_limiter: accepted; TensorStore limits its own memory.
        context, chunk_layout, assume_metadata: TensorStore's.

    Raises `ArgumentTypeError` without a sharding, `ShapeError` for a shape of another rank.
    """
    sharding = getattr(in_type, "sharding", in_type)
    if not isinstance(sharding, Sharding):
        raise ArgumentTypeError(f"array_serialization: the sharding of an array to be read must be a Sharding, got {in_type!r:.80}")
    dtype = getattr(in_type, "dtype", None) if dtype is None else dtype
    options = {key: value for key, value in (("context", context), ("chunk_layout", chunk_layout)) if value}
    store = await _tensorstore().open(tensorstore_spec, open=True, assume_metadata=assume_metadata, **options)
    shape = tuple(store.shape if global_shape is None else global_shape)
    if len(shape) != len(store.shape):
        raise ShapeError(f"array_serialization: the stored array has shape {tuple(store.shape)}, which {shape} cannot cut or extend")
    shared = tuple([slice(0, min(size, stored)) for size, stored in zip(shape, store.shape, strict=True)])
    values = await store[shared].read()
    if shape != tuple(store.shape):
        filled = np.zeros(shape, values.dtype)
        filled[shared] = values
        values = filled
    return device_put(values if dtype is None else values.astype(_dtypes.as_dtype(dtype)), sharding)


def run_serialization(arrays: Sequence[Any], tensorstore_specs: Sequence[dict[str, Any]]) -> None:
    """Write arrays, and wait until they are stored."""

    async def write() -> None:
        await asyncio.gather(*[async_serialize(array, spec) for array, spec in zip(arrays, tensorstore_specs, strict=True)])

    _run(write)


def run_deserialization(
    shardings: Sequence[Any],
    tensorstore_specs: Sequence[Any],
    global_shapes: Sequence[Any] | None = None,
    dtypes: Sequence[Any] | None = None,
    concurrent_gb: int = 32,
) -> list[Array]:
    """Read arrays, given their shardings; see `async_deserialize`."""
    count = len(tensorstore_specs)
    columns = (
        shardings,
        tensorstore_specs,
        [None] * count if global_shapes is None else global_shapes,
        [None] * count if dtypes is None else dtypes,
    )

    async def read() -> list[Array]:
        return [*await asyncio.gather(*[async_deserialize(*row) for row in zip(*columns, strict=True)])]

    arrays: list[Array] = _run(read)
    return arrays


def _run(function: Callable[[], Any]) -> Any:
    """Run a coroutine in an event loop, in another thread if this one has a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(function())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(function())).result()


# Checkpoints while a program goes on.


class GlobalAsyncCheckpointManagerBase(abc.ABC):
    """The interface of managers of checkpoints."""

    @abc.abstractmethod
    def check_for_errors(self) -> None:
        """Raise the error of the last checkpoint, if it failed."""

    @abc.abstractmethod
    def wait_until_finished(self) -> None:
        """Wait until the last checkpoint is stored."""

    @abc.abstractmethod
    def serialize(self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Callable[[], None] | None = None) -> None:
        """Begin to write arrays."""

    @abc.abstractmethod
    def deserialize(self, shardings: Any, tensorstore_specs: Any, global_shapes: Any = None, dtypes: Any = None) -> list[Array]:
        """Read arrays."""


class AsyncManager:
    """Waits in a thread until what was written is stored.

    Raises `ArgumentError` for several processes: `volta_fn.io.Checkpointer` writes their checkpoints.
    """

    def __init__(self, timeout_secs: float = 300) -> None:
        if process_count() > 1:
            raise ArgumentError("array_serialization writes arrays of one process; use volta_fn.io.Checkpointer with several")
        self._timeout_secs = timeout_secs
        self._futures: list[Any] = []
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def _start_async_commit(self, on_commit_callback: Callable[[], None] | None) -> None:
        def commit() -> None:
            try:
                for future in self._futures:
                    future.result()
                if on_commit_callback is not None:
                    on_commit_callback()
            except BaseException as error:  # raised by the next call in the program's thread
                self._error = error

        self._thread = threading.Thread(target=commit)
        self._thread.start()

    def check_for_errors(self) -> None:
        """Raise the error of the last checkpoint, if it failed."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_until_finished(self) -> None:
        """Wait until the last checkpoint is stored; raise its error."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self.check_for_errors()


class GlobalAsyncCheckpointManager(AsyncManager, GlobalAsyncCheckpointManagerBase):
    """Writes checkpoints while the program goes on."""

    def serialize(
        self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Callable[[], None] | None = None, transaction: Any = None
    ) -> None:
        """Copy arrays, and store them while the program goes on.

        It waits for the checkpoint before. `on_commit_callback` is called in another thread when all are stored.
        """
        self.wait_until_finished()
        self._futures = []

        async def write() -> None:
            pairs: Iterator[Any] = zip(arrays, tensorstore_specs, strict=True)
            await asyncio.gather(
                *[async_serialize(array, spec, commit_future=self._futures, transaction=transaction) for array, spec in pairs]
            )

        _run(write)
        self._start_async_commit(on_commit_callback)

    def serialize_with_paths(
        self, arrays: Any, paths: Sequence[str], *, on_commit_callback: Callable[[], None] | None = None, transaction: Any = None
    ) -> None:
        """Do what `serialize` does, given the arrays' folders."""
        specs = [get_tensorstore_spec(path) for path in paths]
        self.serialize(arrays, specs, on_commit_callback=on_commit_callback, transaction=transaction)

    def deserialize(
        self, shardings: Any, tensorstore_specs: Any, global_shapes: Any = None, dtypes: Any = None, concurrent_gb: int = 32
    ) -> list[Array]:
        """Wait for the checkpoint before, and read arrays."""
        self.wait_until_finished()
        return run_deserialization(shardings, tensorstore_specs, global_shapes, dtypes, concurrent_gb)

    def deserialize_with_paths(
        self, shardings: Any, paths: Sequence[str], global_shapes: Any = None, dtypes: Any = None, concurrent_gb: int = 32
    ) -> list[Array]:
        """Do what `deserialize` does, given the arrays' folders."""
        return self.deserialize(shardings, [get_tensorstore_spec(path) for path in paths], global_shapes, dtypes, concurrent_gb)
