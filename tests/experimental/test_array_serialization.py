"""Arrays in TensorStore: specifications, and arrays that are written and read."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, MissingDependencyError, ShapeError
from volta_fn.experimental import array_serialization as serialization

HAS_TENSORSTORE = importlib.util.find_spec("tensorstore") is not None
needs_tensorstore = pytest.mark.skipif(not HAS_TENSORSTORE, reason="tensorstore is not installed")
ARRAYS = [vnp.arange(6.0).reshape(2, 3), vnp.ones(4, "int8"), vnp.array(3), vnp.ones((2, 2), "bfloat16")]


def specs_in(folder: Path) -> list[dict[str, Any]]:
    return [serialization.get_tensorstore_spec(folder / str(i)) for i in range(len(ARRAYS))]


def test_specifications() -> None:
    spec = serialization.get_tensorstore_spec("/checkpoints/a/w", arr=ARRAYS[0])
    assert spec["kvstore"] == {"driver": "file", "path": "/checkpoints/a/w"}
    assert (spec["dtype"], spec["metadata"]["shape"], spec["metadata"]["chunks"]) == ("float32", [2, 3], [2, 3])
    joined = serialization.get_tensorstore_spec("/checkpoints/a/w", ocdbt=True, process_idx=1)
    assert joined["kvstore"] == {"driver": "ocdbt", "base": {"driver": "file", "path": "/checkpoints/a/ocdbt.process_1"}, "path": "w"}
    bucket = serialization.get_tensorstore_spec("gs://bucket/run/w")
    assert bucket["kvstore"] == {"driver": "gcs", "bucket": "bucket", "path": "run/w"}
    assert serialization.is_remote_storage(bucket)
    assert not serialization.is_remote_storage(spec)
    with pytest.raises(ArgumentError, match="absolute"):
        serialization.get_tensorstore_spec("a/w", ocdbt=True)
    with pytest.raises(ArgumentError, match="bucket"):
        serialization.get_tensorstore_spec("gs://bucket")


@pytest.mark.skipif(HAS_TENSORSTORE, reason="tensorstore is installed")
def test_without_tensorstore_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="pip install tensorstore"):
        serialization.run_serialization(ARRAYS, specs_in(tmp_path))


@needs_tensorstore
def test_arrays_are_written_and_read(tmp_path: Path) -> None:
    specs = specs_in(tmp_path)
    serialization.run_serialization(ARRAYS, specs)
    shardings = [a.sharding for a in ARRAYS]
    for array, copy in zip(ARRAYS, serialization.run_deserialization(shardings, specs), strict=True):
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(copy), np.asarray(array))
    (wider,) = serialization.run_deserialization(shardings[:1], specs[:1], [(3, 2)], ["int32"])
    assert wider.tolist() == [[0, 1], [3, 4], [0, 0]]
    described = vf.ShapeDtypeStruct((4,), "float32", sharding=shardings[1])
    assert serialization.run_deserialization([described], specs[1:2])[0].dtype == np.float32
    with pytest.raises(ShapeError, match="cut or extend"):
        serialization.run_deserialization(shardings[:1], specs[:1], [(6,)])
    with pytest.raises(ArgumentTypeError, match="Sharding"):
        serialization.run_deserialization([None], specs[:1])


@needs_tensorstore
def test_checkpoints_are_stored_while_the_program_goes_on(tmp_path: Path) -> None:
    manager, committed = serialization.GlobalAsyncCheckpointManager(), []
    paths = [str(tmp_path / str(i)) for i in range(2)]
    for step in range(3):
        arrays = [vnp.full(1000, float(step)), vnp.full((), step)]
        manager.serialize_with_paths(arrays, paths, on_commit_callback=lambda step=step: committed.append(step))
        manager.check_for_errors()
    manager.wait_until_finished()
    assert committed == [0, 1, 2]
    copies = manager.deserialize_with_paths([a.sharding for a in arrays], paths)
    assert float(copies[0].sum()) == 2000.0
    assert int(copies[1]) == 2

    def fail() -> None:
        raise OSError("the disk is full")

    manager.serialize_with_paths(arrays, paths, on_commit_callback=fail)
    with pytest.raises(OSError, match="full"):
        manager.wait_until_finished()
    manager.check_for_errors()


@needs_tensorstore
def test_arrays_that_are_split_are_stored_by_shards(tmp_path: Path) -> None:
    devices = vf.devices("cpu")
    mesh = vf.make_mesh((len(devices),), ("x",))
    sharding = vf.NamedSharding(mesh, vf.P("x"))
    array = vf.device_put(vnp.arange(4.0 * len(devices)), sharding)
    spec = serialization.get_tensorstore_spec(tmp_path / "w")

    async def write_and_read() -> Any:
        await serialization.async_serialize(array, spec)
        return await serialization.async_deserialize(sharding, spec)

    copy = asyncio.run(write_and_read())
    np.testing.assert_array_equal(np.asarray(copy), np.asarray(array))
    assert copy.sharding == array.sharding


@needs_tensorstore
def test_reading_works_where_an_event_loop_runs(tmp_path: Path) -> None:
    specs = specs_in(tmp_path)

    async def write() -> list[Any]:
        serialization.run_serialization(ARRAYS, specs)
        return serialization.run_deserialization([a.sharding for a in ARRAYS], specs)

    assert len(asyncio.run(write())) == len(ARRAYS)
