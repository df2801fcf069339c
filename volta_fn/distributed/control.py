"""Messages between processes about failures, outside of MPI.

The first process has a `Switchboard`, a thread that passes each message on to all others; every process has a `Connection` to it. A process
that ends without saying so closes its connection, and the switchboard tells the others. Messages are lines of JSON, the first of which
proves that the process knows the secret, which MPI has told all.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Any

from volta_fn.errors import DistributedError

Message = dict[str, Any]
#: The most bytes of a message: others come from elsewhere.
_MOST = 1 << 20
#: Seconds in which a process connects.
_CONNECT = 60.0


class _Channel:
    """A socket that receives and sends messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rank: int | None = None
        self.left = False
        self._received = b""
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message; whether it arrives shows later."""
        with self._lock, contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """Return what has arrived; None if the connection has ended."""
        try:
            data = self.sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data or len(self._received) > _MOST:
            return None
        *complete, self._received = (self._received + data).split(b"\n")
        try:
            return [json.loads(text) for text in complete]
        except ValueError:
            return None


class Switchboard:
    """Passes messages on; in the first process."""

    def __init__(self, host: str, secret: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._secret = secret
        self._connections: list[_Channel] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="volta_fn switchboard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections."""
        self._stopped = True
        socket.create_connection(self._listener.getsockname()).close()  # so that it looks
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # sockets
        self._selector.close()

    def _serve(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    connection = _Channel(self._listener.accept()[0])
                    self._selector.register(connection.sock, selectors.EVENT_READ, connection)
                else:
                    self._attend(key.data)

    def _attend(self, connection: _Channel) -> None:
        messages = connection.receive()
        if messages is None:
            self._selector.unregister(connection.sock)
            connection.sock.close()
            if connection in self._connections:
                self._connections.remove(connection)
            if connection.rank is not None and not connection.left:
                self._pass_on({"kind": "lost", "rank": connection.rank}, connection)
            return
        for message in messages:
            if connection.rank is None:
                self._admit(connection, message)
                continue
            connection.left = connection.left or message["kind"] == "left"
            self._pass_on(message, connection)

    def _admit(self, connection: _Channel, message: Message) -> None:
        if message.get("secret") != self._secret:
            self._selector.unregister(connection.sock)
            connection.sock.close()
            return
        connection.rank = int(message["rank"])
        self._connections.append(connection)
        connection.send({"kind": "admitted"})

    def _pass_on(self, message: Message, source: _Channel) -> None:
        for other in list(self._connections):
            if other is not source and message.get("to") in (None, other.rank):
                other.send(message)


class Connection:
    """The connection of this process to the switchboard."""

    def __init__(self, host: str, port: int, secret: str, rank: int) -> None:
        self.rank = rank
        try:
            sock = socket.create_connection((host, port), _CONNECT)
        except OSError as error:
            raise DistributedError(f"process {rank} cannot reach process 0 at {host}:{port}: {error}") from error
        self._connection = _Channel(sock)
        self._connection.send({"rank": rank, "secret": secret})
        self._connection.receive()

    def send(self, kind: str, **content: Any) -> None:
        """Send a message to all others, or to the process that `to` names."""
        self._connection.send({"kind": kind, "rank": self.rank, **content})

    def close(self) -> None:
        """Close the connection."""
        self._connection.sock.close()

    def messages(self, seconds: float) -> Iterator[Message]:
        """Yield the messages of some seconds; at the end, that process 0 is lost."""
        self._connection.sock.settimeout(None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection.sock, selectors.EVENT_READ)
            if not selector.select(seconds):
                return
        found = self._connection.receive()
        yield from [{"kind": "lost", "rank": 0}] if found is None else found
