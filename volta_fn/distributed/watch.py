"""The watch over collectives: messages about failures, time limits, and reports.

Each process notes which collective it waits in. A thread of its own exchanges messages with the other processes, and ends the process with
an error that names those that failed or are missing. Reports are files that the launcher reads.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

from volta_fn.core.devices.distribution import DeviceCall
from volta_fn.errors import ArgumentError, DistributedError

Group = tuple[int, ...]

#: The sequence of the collectives that a device runs.
DEVICE = "device"


class Call(NamedTuple):
    """A call that waits for other processes."""

    description: str
    ranks: Group
    #: The sequence that numbers its calls in each group: the "program", its sums in the "background", those of its "device", or the
    #: "control" of all.
    thread: str
    number: int
    since: float


class Calls:
    """The collectives under way, and how many there were in each group."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Group, str], int] = {}
        self._current: dict[str, Call] = {}
        self._lock = threading.Lock()
        #: Give the collectives of devices that have waited for long.
        self.devices: list[Callable[[], list[DeviceCall]]] = []

    def begin(self, ranks: Group, thread: str) -> int:
        """Count a call of a sequence; return its number."""
        with self._lock:
            number = self._counts[ranks, thread] = self._counts.get((ranks, thread), 0) + 1
        return number

    @contextlib.contextmanager
    def waiting(self, ranks: Group, thread: str, description: str) -> Iterator[None]:
        """Count a call, and note that it is under way in a ``with`` block."""
        self._current[thread] = Call(description, ranks, thread, self.begin(ranks, thread), time.monotonic())
        try:
            yield
        finally:
            self._current.pop(thread, None)

    def count(self, ranks: Group, thread: str) -> int:
        """Return how many calls have begun in a group."""
        return self._counts.get((ranks, thread), 0)

    def current(self) -> list[Call]:
        """Return the calls under way."""
        on_devices = [
            Call("a collective on their devices", call.ranks, DEVICE, call.number, call.since)
            for waiting in self.devices
            for call in waiting()
        ]
        return [*self._current.copy().values(), *on_devices]


# Reports of failed processes, as files that the launcher reads.

#: The variable that names the folder for them.
FOLDER = "VOLTA_LAUNCH_REPORTS"
#: The kinds of reports, causes before consequences.
_ORDER = ("lost", "failed", "ended")


class Report(NamedTuple):
    """Why a process ended: it "failed", or another was "lost" or has "ended"."""

    time: float
    rank: int
    kind: str
    text: str
    #: The process to blame.
    about: int | None


def is_launched() -> bool:
    """Return True if the launcher reads reports."""
    return FOLDER in os.environ


def report(rank: int, kind: str, text: str, about: int | None) -> None:
    """Leave a report, if the launcher asks for it; the first one of a process counts."""
    if not is_launched():
        return
    path = Path(os.environ[FOLDER]) / f"{rank}.json"
    if not path.exists():
        path.write_text(json.dumps([time.time(), rank, kind, text, about]))


def cause(folder: Path) -> Report | None:
    """Return the report of the first failure."""
    reports = []
    for path in folder.glob("*.json"):
        try:
            reports.append(Report(*json.loads(path.read_text())))
        except ValueError:  # a process that was killed while it wrote
            continue
    failed = {r.rank for r in reports if r.kind == "failed"}
    reports = [r for r in reports if r.kind != "lost" or r.about not in failed]  # it was lost because it had failed
    return min(reports, key=lambda r: (_ORDER.index(r.kind), r.time), default=None)


# Messages between processes about failures, outside of MPI.
#
# The first process has a `Switchboard`, a thread that passes each message on to all others; every process has a `Connection` to it. A
# process that ends without saying so closes its connection, and the switchboard tells the others.
#
# Both ends of a connection prove that they know the secret, which MPI has told all, before either reads anything else, and the secret
# itself is not sent. The switchboard sends a random number; the process answers with its rank, another random number, and the HMAC of
# all three; the switchboard answers with another HMAC of them. These have fixed sizes. Messages follow, which are lines of JSON of a
# bounded length. A peer that sends anything else is disconnected.

Message = dict[str, Any]
#: The address of the loopback interface.
LOOPBACK = "127.0.0.1"
#: The most bytes of a message.
_LONGEST = 1 << 20
#: Bytes of a random number, of a rank and of an HMAC.
_NONCE, _RANK, _DIGEST = 32, 4, 32
#: Seconds in which a process connects, in which the other end proves that it knows the secret, and in which it takes a message.
_CONNECT, _PROOF, _SEND = 60.0, 10.0, 5.0
#: The most connections that have proved nothing yet: others wait in the system's queue.
_MOST_UNPROVED = 128
#: The most peers whose disconnection is logged.
_MOST_LOGGED = 20

_logger = logging.getLogger("volta_fn")


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port (0 if there is none) of an address.

    >>> parse_address("10.0.0.5:4000"), parse_address("node-1"), parse_address("[::1]:80")
    (('10.0.0.5', 4000), ('node-1', 0), ('::1', 80))
    """
    try:
        url = urlsplit(f"//{text}")
        if url.hostname and url.netloc == text and not set("@ ") & set(text):
            return url.hostname, url.port or 0
    except ValueError:  # the port is not a number, or too large
        pass
    raise ArgumentError(
        f"distributed.initialize: coordinator_address is an interface of the first process's machine, as '10.0.0.5' or '10.0.0.5:4000' "
        f"(IPv6 in brackets), got {text!r}"
    )


def _proof(secret: bytes, sender: str, *content: bytes) -> bytes:
    """Return the HMAC by which a "process" or the "switchboard" proves itself."""
    return hmac.digest(secret, b"\0".join([b"volta_fn", sender.encode(), *content]), "sha256")


class _Channel:
    """A socket that receives and sends messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._received = b""
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """Send a message; return False if some of it could not be sent."""
        with self._lock:
            try:
                self.sock.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                return False
        return True

    def receive(self) -> list[Message] | None:
        """Return the messages that have arrived; None if the connection has ended.

        Raises:
            ValueError: what has arrived is not a message, or too long.
        """
        try:
            data = self.sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return None
        *complete, self._received = (self._received + data).split(b"\n")
        if max(map(len, [*complete, self._received])) > _LONGEST:
            raise ValueError(f"a message has more than {_LONGEST} bytes")
        return [_parse_message(text) for text in complete]


def _parse_message(text: bytes) -> Message:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a message is not JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError("a message has no kind")
    return message


class _Peer(_Channel):
    """The switchboard's end of a connection."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        super().__init__(sock)
        self.name = name
        self.nonce = secrets.token_bytes(_NONCE)
        self.proof = b""
        self.deadline = time.monotonic() + _PROOF
        #: None until it has proved that it knows the secret.
        self.rank: int | None = None
        #: Whether it has said that it ends.
        self.has_left = False


class Switchboard:
    """Passes messages on; in the first process.

    It listens on the interface with the address `host`, or on the loopback interface if that is empty.
    """

    def __init__(self, host: str, secret: str, port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host or LOOPBACK, port), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._secret = secret.encode()
        self._peers: list[_Peer] = []
        self._logged = 0
        self._is_listening = False
        self._stop, self._stopped = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="volta_fn switchboard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections."""
        self._stop.close()
        self._thread.join()
        for peer in self._peers:
            peer.sock.close()
        self._listener.close()
        self._stopped.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            # Disconnect peers that have not proved in time that they know the secret.
            for peer in self._unproved():
                if time.monotonic() > peer.deadline:
                    self._drop(peer, "it has proved nothing in time")
            listening = len(self._unproved()) < _MOST_UNPROVED
            if listening and not self._is_listening:
                self._selector.register(self._listener, selectors.EVENT_READ)
            elif self._is_listening and not listening:
                self._selector.unregister(self._listener)
            self._is_listening = listening
            for key, _ in self._selector.select(1.0):
                if key.fileobj is self._stopped:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._peers:
                    self._read_from(key.data)

    def _unproved(self) -> list[_Peer]:
        return [peer for peer in self._peers if peer.rank is None]

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:  # the peer has gone, or there are no file descriptors
            self._log(f"a connection cannot be accepted: {error}")
            time.sleep(0.1)
            return
        sock.settimeout(_SEND)
        peer = _Peer(sock, f"{address[0]}:{address[1]}")
        self._peers.append(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)
        with contextlib.suppress(OSError):  # it shows when it is read from
            sock.sendall(peer.nonce)

    def _read_from(self, peer: _Peer) -> None:
        """Read from a peer; whatever it sends, the others are served."""
        try:
            if peer.rank is None:
                self._check(peer)
                return
            messages = peer.receive()
            if messages is None:
                self._drop(peer, None)
                return
            for message in messages:
                peer.has_left = peer.has_left or message["kind"] == "left"
                self._pass_on({**message, "rank": peer.rank}, peer)
        except Exception as error:
            self._drop(peer, str(error))

    def _check(self, peer: _Peer) -> None:
        """Read some of the proof that a peer knows the secret, and answer it."""
        size = _RANK + _NONCE + _DIGEST
        try:
            data = peer.sock.recv(size - len(peer.proof))
        except OSError:
            data = b""
        if not data:
            self._drop(peer, "it has closed the connection without a proof")
            return
        peer.proof += data
        if len(peer.proof) < size:
            return
        content, digest = [peer.nonce, peer.proof[:-_DIGEST]], peer.proof[-_DIGEST:]
        if not hmac.compare_digest(digest, _proof(self._secret, "process", *content)):
            raise ValueError("it does not know the secret")
        peer.sock.sendall(_proof(self._secret, "switchboard", *content))
        peer.rank = int.from_bytes(peer.proof[:_RANK], "big")

    def _drop(self, peer: _Peer, reason: str | None) -> None:
        """Disconnect a peer, and tell the others if it was a process that has not left."""
        self._peers.remove(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()
        if reason is not None:
            self._log(f"{peer.name} is disconnected: {reason}")
        if peer.rank is not None and not peer.has_left:
            self._pass_on({"kind": "lost", "rank": peer.rank}, peer)

    def _pass_on(self, message: Message, source: _Peer) -> None:
        for other in self._peers:
            if other is source or other.rank is None or message.get("to") not in (None, other.rank):
                continue
            if not other.send(message):
                with contextlib.suppress(OSError):  # so that it is read as one that has gone
                    other.sock.shutdown(socket.SHUT_RDWR)

    def _log(self, text: str) -> None:
        self._logged += 1
        if self._logged <= _MOST_LOGGED:
            more = "; more of this is not logged" if self._logged == _MOST_LOGGED else ""
            _logger.warning("the switchboard of volta_fn.distributed: %s%s", text, more)


class Connection:
    """The connection of this process to the switchboard."""

    def __init__(self, host: str, port: int, secret: str, rank: int) -> None:
        self.rank = rank
        where = f"process {rank} cannot reach process 0 at {host}:{port}"
        try:
            sock = socket.create_connection((host, port), _CONNECT)
            is_proved = _prove(sock, secret.encode(), rank)
        except OSError as error:
            raise DistributedError(f"{where}: {error}") from error
        if not is_proved:
            sock.close()
            raise DistributedError(f"{where}: what listens there does not know the secret of this program's processes")
        sock.settimeout(None)
        self._channel = _Channel(sock)

    def send(self, kind: str, **content: Any) -> None:
        """Send a message to all others, or to the process that `to` names."""
        self._channel.send({"kind": kind, **content})  # whether it arrives shows later

    def close(self) -> None:
        """Close the connection."""
        self._channel.sock.close()

    def messages(self, seconds: float) -> Iterator[Message]:
        """Yield the messages of some seconds; at the end, that process 0 is lost."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._channel.sock, selectors.EVENT_READ)
            if not selector.select(seconds):
                return
        messages = self._channel.receive()
        yield from [{"kind": "lost", "rank": 0}] if messages is None else messages


def _prove(sock: socket.socket, secret: bytes, rank: int) -> bool:
    """Prove to a switchboard that this process knows the secret.

    Return True if the switchboard has proved it, too.
    """
    nonce = _receive_exactly(sock, _NONCE)
    content = rank.to_bytes(_RANK, "big") + secrets.token_bytes(_NONCE)
    sock.sendall(content + _proof(secret, "process", nonce, content))
    return hmac.compare_digest(_receive_exactly(sock, _DIGEST), _proof(secret, "switchboard", nonce, content))


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Receive so many bytes; fewer if the connection ends."""
    data = b""
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return data


# The thread that watches over a process's collectives.
#
# A collective waits in MPI's code, where nothing can be raised. So a thread listens to the other processes. It ends this process, with a
# message, when another one has failed or is lost. When a collective takes longer than `_ASK`, it asks the others for their calls: those
# that have not joined it are missing. If a missing process waits for this one in another collective, or has ended, or
# the limit is over, the process ends with an error that names them.

#: Seconds between two checks, and after which the others are asked.
_CHECK, _ASK = 0.1, 1.0
#: Seconds in which the others can read of a failure before this process, and maybe the switchboard, ends.
FAREWELL_SECONDS = 0.3


class Watch:
    """Watches over the collectives of this process."""

    def __init__(self, connection: Connection, calls: Calls, limit: float) -> None:
        self.connection, self.calls, self.limit = connection, calls, limit
        self._answers: dict[int, Message] = {}
        self._left: set[int] = set()
        self._asked: Call | None = None
        self._next_question = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="volta_fn watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Announce that this process leaves, and end the watch."""
        self._stopped = True
        self.connection.send("left")
        self._thread.join()
        self.connection.close()

    def fail(self, text: str) -> None:
        """Tell the others that this process has failed."""
        self._stopped = True
        report(self.connection.rank, "failed", text, self.connection.rank)
        self.connection.send("failed", text=text)

    def _watch(self) -> None:
        while not self._stopped:
            for message in self.connection.messages(_CHECK):
                self._on_message(message)
            for call in self.calls.current():
                self._check_call(call)

    def _on_message(self, message: Message) -> None:
        kind, rank = message["kind"], message["rank"]
        if self._stopped:
            return
        if kind == "lost":
            self._end("lost", f"process {rank} has died", rank)
        elif kind == "failed":
            self._end("ended", f"process {rank} has failed: {message['text']}", rank)
        elif kind == "left":
            self._left.add(rank)
        elif kind == "where":
            self.connection.send("here", to=rank, call=message["call"], **self._position(message["call"]))
        elif kind == "here" and self._asked is not None and message["call"][1:] == _named(self._asked)[1:]:
            self._answers[rank] = message

    def _position(self, call: Any) -> dict[str, Any]:
        """Return the count of this process's calls in a group, and its pending calls."""
        _, ranks, thread, _ = call
        return {"count": self.calls.count(tuple(ranks), thread), "waits": [_named(c) for c in self.calls.current()]}

    def _check_call(self, call: Call) -> None:
        """Ask about a call that waits for long; end the process if one never joins it."""
        now = time.monotonic()
        if now - call.since < _ASK:
            return
        if self._asked != call:
            self._asked, self._answers, self._next_question = call, {}, now
        others = [r for r in call.ranks if r != self.connection.rank]
        missing = [r for r in others if not self._has_joined(r, call)]
        for rank in others:
            if reason := self._reason_never_joins(rank, call, rank in missing):
                self._end("failed", f"process {self.connection.rank} waits for process {rank} in {call.description}, but {reason}", rank)
        if now - call.since > self.limit:
            who = f"{missing} have not come" if missing else "all others have come"
            text = f"process {self.connection.rank} has waited longer than {self.limit:g} s in {call.description}: of the processes {who}"
            self._end("failed", text, missing[0] if missing else None)
        if now >= self._next_question:
            self._next_question = now + _ASK
            self.connection.send("where", call=_named(call))

    def _has_joined(self, rank: int, call: Call) -> bool:
        answer = self._answers.get(rank)
        return answer is not None and answer["count"] >= call.number

    def _reason_never_joins(self, rank: int, call: Call, missing: bool) -> str | None:
        """Return why a process does not join a call, if that is known."""
        if missing and rank in self._left:
            return "that has ended"
        answer = self._answers.get(rank)
        for description, ranks, thread, number in answer["waits"] if answer is not None else ():
            in_same = (tuple(ranks), thread, number) == call[1:4] and description != call.description
            waits_for_this = missing and self.connection.rank in ranks and self.calls.count(tuple(ranks), thread) < number
            if in_same or waits_for_this:
                return f"that waits for it in {description}: the processes run different programs, or the same with different shapes"
        return None

    def _end(self, kind: str, text: str, rank: int | None) -> NoReturn:
        report(self.connection.rank, kind, text, rank)
        if kind == "failed":
            self.connection.send("failed", text=text)
        if not is_launched():
            print(f"volta_fn: {text}. Process {self.connection.rank} ends.", file=sys.stderr, flush=True)
        sys.stdout.flush()
        time.sleep(FAREWELL_SECONDS)
        os._exit(1)


def _named(call: Call) -> list[Any]:
    """Return the description, group and number of a call, for JSON."""
    return [call.description, list(call.ranks), call.thread, call.number]
