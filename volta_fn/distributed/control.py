"""Messages between processes about failures, outside of MPI.

The first process has a `Switchboard`, a thread that passes each message on to all others; every process has a `Connection` to it. A process
that ends without saying so closes its connection, and the switchboard tells the others.

Both ends of a connection prove that they know the secret, which MPI has told all, before either reads anything else, and the secret itself
is not sent. The switchboard sends a random number; the process answers with its rank, another random number, and the HMAC of all three;
the switchboard answers with another HMAC of them. These have fixed sizes. Messages follow, which are lines of JSON of a bounded length. A
peer that sends anything else is disconnected.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from volta_fn.errors import ArgumentError, DistributedError

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
        return [_message(text) for text in complete]


def _message(text: bytes) -> Message:
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
            self._drop_silent()
            self._listen(len(self._unproved()) < _MOST_UNPROVED)
            for key, _ in self._selector.select(1.0):
                if key.fileobj is self._stopped:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._peers:
                    self._attend(key.data)

    def _unproved(self) -> list[_Peer]:
        return [peer for peer in self._peers if peer.rank is None]

    def _drop_silent(self) -> None:
        """Disconnect peers that have not proved in time that they know the secret."""
        for peer in self._unproved():
            if time.monotonic() > peer.deadline:
                self._drop(peer, "it has proved nothing in time")

    def _listen(self, listening: bool) -> None:
        if listening and not self._is_listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._is_listening and not listening:
            self._selector.unregister(self._listener)
        self._is_listening = listening

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

    def _attend(self, peer: _Peer) -> None:
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
    nonce = _exactly(sock, _NONCE)
    content = rank.to_bytes(_RANK, "big") + secrets.token_bytes(_NONCE)
    sock.sendall(content + _proof(secret, "process", nonce, content))
    return hmac.compare_digest(_exactly(sock, _DIGEST), _proof(secret, "switchboard", nonce, content))


def _exactly(sock: socket.socket, size: int) -> bytes:
    """Receive so many bytes; fewer if the connection ends."""
    data = b""
    while len(data) < size and (more := sock.recv(size - len(data))):
        data += more
    return data
