"""The devices of one process as a world: collectives on the host against NumPy, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn.core.devices import device_world, distribution
from volta_fn.core.devices.device import Device, current_default_device
from volta_fn.core.devices.device_world import ThreadCommunicator, on_all
from volta_fn.errors import ArgumentError, DeviceError, DistributedError


def devices(count: int) -> list[Device]:
    """Return new devices, each with a thread of its own."""
    return [Device("cpu", number, "cpu", vf.devices("cpu")[0].backend) for number in range(count)]


def in_all(count: int, call: Any, ranks: Sequence[int] | None = None) -> list[Any]:
    """Return what a function of a communicator and a position gives on each device."""

    def work(device: Device) -> Any:
        chosen = tuple(range(count)) if ranks is None else tuple(ranks)
        return call(distribution.current().communicator(chosen), device.id)

    return on_all(devices(count), work)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, ml_dtypes.int4, np.uint64, np.complex64]
)
def test_collectives_are_those_of_numpy(dtype: Any) -> None:
    n = 3
    values = np.random.default_rng(0).integers(-1, 2, (n, n, 2)).astype(dtype)
    wide = values.astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64 if dtype is not np.uint64 else np.uint64)

    def call(communicator: Any, position: int) -> dict[str, Any]:
        x = values[position]
        out = np.empty_like(x)
        communicator.reduce("sum", [x], [out], "a sum")
        (started,) = communicator.start_sum([x], None, "a sum").results()
        results = {"sum": out, "started": started, "gather": communicator.gather(x, "a gather")}
        results |= {"scatter": communicator.reduce_scatter(x, "a sum"), "exchange": communicator.exchange(x, "an exchange")}
        results |= {"permute": communicator.permute(x, [(0, 2), (1, 1)], "a permutation")}
        if np.dtype(dtype).kind != "c":
            for step in ("max", "min"):
                results[step] = np.empty_like(x)
                communicator.reduce(step, [x], [results[step]], "an extreme")
        return results

    for position, results in enumerate(in_all(n, call)):
        nothing = np.zeros_like(wide[0])
        expected = {
            "sum": wide.sum(0), "started": wide.sum(0), "gather": wide, "scatter": wide.sum(0)[position], "exchange": wide[:, position],
            "permute": {0: nothing, 1: wide[1], 2: wide[0]}[position], "max": wide.real.max(0), "min": wide.real.min(0),
        }  # fmt: skip
        for name, result in results.items():
            assert result.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(result.astype(wide.dtype), expected[name], err_msg=name)


def test_a_sum_that_travels_as_bfloat16() -> None:
    values = np.random.default_rng(0).normal(size=(2, 100)).astype(np.float32)

    def call(communicator: Any, position: int) -> np.ndarray:
        (total,) = communicator.start_sum([values[position]], "bfloat16", "a sum").results()
        return total

    rounded = values.astype(ml_dtypes.bfloat16).astype(np.float32).sum(0).astype(ml_dtypes.bfloat16)
    for total in in_all(2, call):
        np.testing.assert_array_equal(total, rounded.astype(np.float32))


def test_every_device_computes_in_its_thread_under_the_settings_of_the_caller() -> None:
    those = devices(3)
    assert on_all(those, lambda device: current_default_device() is device) == [True] * 3
    assert on_all(those, lambda device: distribution.current().rank) == [0, 1, 2]
    assert distribution.current() is distribution.ALONE


def test_an_error_of_one_ends_what_the_others_wait_for() -> None:
    def call(communicator: Any, position: int) -> Any:
        if position == 1:
            raise ZeroDivisionError("one")
        return communicator.gather(np.ones(1), "a gather")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            in_all(2, call)
        assert "It was raised on cpu:1" in caught.value.__notes__[0]
    assert [rows.tolist() for rows in in_all(2, lambda c, position: c.gather(np.array([position]), "a gather"))] == [[[0], [1]]] * 2


def test_a_device_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_COLLECTIVE_TIMEOUT", "0.2")
    with pytest.raises(
        DistributedError, match=r"the others of the GPUs \[0, 1\] in a gather: one of them has failed, or has not come in 0.2 s"
    ):
        in_all(2, lambda c, position: position or c.gather(np.ones(1), "a gather"))
    monkeypatch.setenv("VOLTA_COLLECTIVE_TIMEOUT", "soon")
    with pytest.raises(ArgumentError, match="VOLTA_COLLECTIVE_TIMEOUT is 'soon', but must be a number of seconds"):
        in_all(2, lambda c, position: position)


class FailedMemory:
    """Memory of a device that has failed."""

    def check_device(self) -> None:
        raise DeviceError("the device was lost")

    def interrupt(self) -> None:
        """End nothing: nobody waits."""


def test_others_do_not_wait_for_a_device_that_failed_in_its_own_call(monkeypatch: pytest.MonkeyPatch) -> None:
    meetings = device_world._Meetings()
    monkeypatch.setattr(device_world, "_meetings", meetings)
    meetings.add(1, FailedMemory())  # type: ignore[arg-type]  # no collective of it is awaited
    meetings.interrupt()  # as the error of its call does
    with pytest.raises(DistributedError, match="GPU 1 has failed, .*: the device was lost; start the process again"):
        ThreadCommunicator(meetings.of((0, 1)), 0, 0.1).gather(np.ones(1), "a gather")
