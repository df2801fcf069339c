"""The parts of `volta_fn.distributed` that need no other process: buckets, messages, reports, comparisons of programs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn.core.devices import distribution
from volta_fn.distributed import watch
from volta_fn.distributed.watch import FOLDER, Calls, Connection, Switchboard, cause, report
from volta_fn.distributed.world import LARGE, MpiWorld, buckets_of, digest, first_difference, text_of, wire_dtype
from volta_fn.errors import ArgumentError, DistributedError, MissingDependencyError


def test_small_arrays_share_a_bucket_and_large_ones_have_their_own() -> None:
    small, large = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(LARGE // 4, np.float32)
    arrays = [small, large, np.ones(3, ml_dtypes.bfloat16), np.ones((), np.int32), np.zeros((0, 2), np.float32), 2 * small]
    buckets = buckets_of(arrays)
    assert [(b.positions, b.dtype.name) for b in buckets] == [([0, 2, 5], "float32"), ([1], "float32"), ([3], "int32")]
    assert [b.is_direct(arrays) for b in buckets] == [False, True, True]
    outs = [np.empty_like(a) for a in arrays]
    for bucket in buckets:
        bucket.unpack(3 * bucket.packed(arrays), outs)
    for array, out in zip(arrays, outs, strict=True):
        np.testing.assert_array_equal(out, 3 * array)


@pytest.mark.parametrize(
    ("dtype", "wire"), [("float16", "float32"), ("bool", "uint8"), ("int64", "int64"), ("complex64", "complex64"), ("int4", "int32")]
)
def test_dtypes_that_mpi_cannot_add_travel_wider(dtype: str, wire: str) -> None:
    assert wire_dtype(np.dtype(getattr(ml_dtypes, dtype, dtype))).name == wire


def received(line: Connection, count: int) -> list[tuple[str, int]]:
    """Return the kinds and senders of the next messages."""
    results: list[tuple[str, int]] = []
    deadline = time.monotonic() + 30
    while len(results) < count and time.monotonic() < deadline:
        results += [(message["kind"], message["rank"]) for message in line.messages(1.0) if message["kind"] != "admitted"]
    return results


def test_messages_reach_the_others_and_a_lost_process_is_announced() -> None:
    board = Switchboard("127.0.0.1", "secret")
    lines = [Connection("127.0.0.1", board.port, "secret", rank) for rank in range(3)]
    lines[1].send("failed", text="why")
    assert received(lines[0], 1) == received(lines[2], 1) == [("failed", 1)]
    lines[2].send("here", to=0)
    assert received(lines[0], 1) == [("here", 2)]
    lines[1].close()  # as the system does for a process that dies
    assert received(lines[0], 1) == received(lines[2], 1) == [("lost", 1)]
    lines[2].send("left")
    lines[2].close()
    assert received(lines[0], 1) == [("left", 2)]
    lines[0].close()
    board.stop()


@pytest.fixture
def board() -> Iterator[Switchboard]:
    """A switchboard, whose thread is alive at the end."""
    board = Switchboard("127.0.0.1", "secret")
    yield board
    assert board._thread.is_alive()
    board.stop()


WRONG = {
    "not an object": b"[1]\n",
    "no kind": b"{}\n{}\n",
    "nested": b"[" * 100_000 + b"\n",
    "a rank alone": b'{"rank":0}\n',
    "the wrong secret": b'{"rank":0,"secret":"guess"}\n' * 5,
    "binary": bytes(range(256)),
    "nothing": b"",
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_whoever_sends_anything_is_disconnected_alone(board: Switchboard, content: bytes) -> None:
    """Whether they know the secret or not."""
    lines = [Connection("127.0.0.1", board.port, "secret", rank) for rank in range(2)]
    with socket.create_connection(("127.0.0.1", board.port)) as stranger:
        stranger.sendall(content)
        insider = Connection("127.0.0.1", board.port, "secret", 2)
        insider._channel.sock.sendall(content)
        insider.close()
        assert received(lines[0], 1) == received(lines[1], 1) == [("lost", 2)]
        lines[0].send("here", to=1)
        assert received(lines[1], 1) == [("here", 0)]
    lines[0].close()
    assert received(lines[1], 1) == [("lost", 0)]
    lines[1].close()


def test_a_process_speaks_for_itself_alone(board: Switchboard) -> None:
    lines = [Connection("127.0.0.1", board.port, "secret", rank) for rank in range(2)]
    lines[0].send("failed", rank=1, text="why")
    assert received(lines[1], 1) == [("failed", 0)]
    for line in lines:
        line.close()


def test_the_secret_is_proved_on_both_sides_and_never_sent(board: Switchboard) -> None:
    with pytest.raises(DistributedError, match=f"at 127.0.0.1:{board.port}: what listens there does not know the secret"):
        Connection("127.0.0.1", board.port, "guess", 1)
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        heard: list[bytes] = []

        def listen() -> None:
            peer, _ = impostor.accept()
            with peer, socket.create_connection(("127.0.0.1", board.port)) as real:
                peer.sendall(real.recv(32)[::-1])  # a number of its own
                heard.append(peer.recv(1 << 10))
                real.sendall(heard[0])  # the real one wants the answer to another number
                peer.sendall(real.recv(32) or bytes(32))

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(DistributedError, match="does not know the secret"):
            Connection("127.0.0.1", impostor.getsockname()[1], "secret", 1)
        thread.join()
        assert len(heard[0]) == 68
        assert b"secret" not in heard[0]


def test_silent_strangers_leave_room_for_processes(
    board: Switchboard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "_PROOF", 0.5)
    monkeypatch.setattr(watch, "_MOST_UNPROVED", 2)
    monkeypatch.setattr(logging.getLogger("volta_fn"), "propagate", True)
    strangers = [socket.create_connection(("127.0.0.1", board.port)) for _ in range(5)]
    line = Connection("127.0.0.1", board.port, "secret", 1)  # waits until the first ones are disconnected
    assert len(board._unproved()) <= 2
    for stranger in strangers:
        stranger.close()
    line.close()
    assert "is disconnected: it has proved nothing in time" in caplog.text


def test_a_message_is_of_bounded_length(board: Switchboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_LONGEST", 1000)
    lines = [Connection("127.0.0.1", board.port, "secret", rank) for rank in range(2)]
    lines[0].send("failed", text="x" * 900)
    assert received(lines[1], 1) == [("failed", 0)]
    lines[0]._channel.sock.sendall(b"x" * 1100)  # without an end
    assert received(lines[1], 1) == [("lost", 0)]
    for line in lines:
        line.close()


@pytest.mark.parametrize(
    ("address", "parsed"),
    [("10.0.0.5:4000", ("10.0.0.5", 4000)), ("node-1", ("node-1", 0)), ("[::1]:80", ("::1", 80)), ("[::1]", ("::1", 0))],
)
def test_addresses(address: str, parsed: tuple[str, int]) -> None:
    assert watch.parse_address(address) == parsed


@pytest.mark.parametrize("address", ["", ":80", "a:b", "a:99999", "a:-1", "a b", "::1", "a/b", "me@a", "http://a", "a?b", "a#b"])
def test_wrong_addresses(address: str) -> None:
    with pytest.raises(ArgumentError, match="coordinator_address is an interface"):
        vf.distributed.initialize(coordinator_address=address)


class SeveralMachines:
    """MPI's communicator of two processes, as the first of them has it."""

    rank, size = 0, 2

    def allgather(self, name: str) -> list[str]:
        return [name, "another"]

    def bcast(self, value: object, root: int) -> object:
        return value

    def Barrier(self) -> None:
        pass


def test_several_machines_use_the_interface_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world_of_two = MpiWorld(SeveralMachines(), 10.0, "127.0.0.2")
    assert world_of_two.watch.connection._channel.sock.getpeername()[0] == "127.0.0.2"
    world_of_two.stop()
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(DistributedError, match=r"is that of the loopback interface there \(127.0.1.1\); name the interface"):
        MpiWorld(SeveralMachines(), 10.0)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "192.0.2.1")  # of no interface
    with pytest.raises(DistributedError, match="process 0 cannot listen for the others at 192.0.2.1"):
        MpiWorld(SeveralMachines(), 10.0)


def test_the_cause_of_an_end_is_what_went_wrong_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    report(0, "ended", "process 2 has failed", 2)
    report(1, "lost", "process 2 has died", 2)
    assert cause(tmp_path).text == "process 2 has died"  # type: ignore[union-attr]
    report(2, "failed", "ValueError", 2)
    report(2, "failed", "later", 2)
    (tmp_path / "3.json").write_text("[1.0, ")
    assert cause(tmp_path).text == "ValueError"  # type: ignore[union-attr]


def test_the_first_equation_that_differs_is_named() -> None:
    texts = [text_of(vf.make_jaxpr(f)(1.0), sources=True) for f in (lambda x: vf.lax.sin(x) * 2, lambda x: vf.lax.sin(x) * 3)]
    assert digest(texts[0]) != digest(texts[1])
    message = first_difference([texts[0], texts[0], texts[1]])
    assert message.startswith("equation 2 differs:\n  process 0: c:f32[] = mul b 2.0:f32[]  # ")
    assert "\n  process 2: c:f32[] = mul b 3.0:f32[]  # " in message
    assert first_difference(["{ lambda ; a:f32[2]. let  in (a,) }", "{ lambda ; a:f32[3]. let  in (a,) }"]).startswith("the inputs differ")
    callback = lambda x: vf.pure_callback(lambda v: v, x, x)
    assert " at 0x" not in text_of(vf.make_jaxpr(callback)(1.0))


def test_calls_are_numbered_by_group() -> None:
    calls = Calls()
    with calls.waiting((0, 1), "program", "psum"), calls.waiting((0, 1), "background", "psum"):
        assert [(c.thread, c.number) for c in calls.current()] == [("program", 1), ("background", 1)]
    with pytest.raises(ValueError, match="x"), calls.waiting((0, 1), "program", "psum"):
        raise ValueError("x")
    assert calls.count((0, 1), "program") == 2
    assert not calls.current()


def test_collectives_that_wait_on_a_device_are_calls() -> None:
    calls, waiting = Calls(), [distribution.DeviceCall((0, 1), 7, 1.5)]
    calls.devices.append(lambda: waiting)
    assert [calls.begin((0, 1), watch.DEVICE) for _ in range(2)] == [1, 2]
    (call,) = calls.current()
    assert (call.ranks, call.thread, call.number, call.since) == ((0, 1), "device", 7, 1.5)
    assert calls.count((0, 1), "device") == 2


def test_one_process_is_a_world_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    vf.distributed.initialize(num_processes=1, process_id=0)
    assert vf.distributed.is_initialized()
    assert (vf.process_index(), vf.process_count(), vf.local_device_count()) == (0, 1, len(vf.local_devices()))
    assert distribution.current().run_once(lambda: 3) == 3
    with pytest.raises(ArgumentError, match="num_processes=2, but MPI says 1"):
        vf.distributed.initialize(num_processes=2)
    with pytest.raises(ArgumentError, match="positive number of seconds"):
        vf.distributed.initialize(timeout=0)
    with pytest.raises(ArgumentError, match="does not know the devices of 1"):
        vf.local_devices(1)
    vf.distributed.shutdown()
    assert not vf.distributed.is_initialized()


def test_several_processes_need_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr("volta_fn.distributed.world.is_installed", lambda package: False)
    with pytest.raises(MissingDependencyError, match=r"2 processes .* pip install 'volta-fn\[distributed\]'"):
        vf.distributed.initialize()


def test_several_processes_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "current", lambda: SimpleNamespace(size=2))
    with pytest.raises(DistributedError, match="initialize was called before; call distributed.shutdown first"):
        vf.distributed.initialize()
