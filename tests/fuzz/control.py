"""Send anything to the port on which processes tell each other of failures.

`python -m tests.fuzz.control --count 100000` opens so many connections to a `Switchboard`: strangers that send damaged proofs, JSON, binary
data, a byte at a time, nothing, or more than is read, and processes that know the secret and then send wrong messages. After each of them a
message still passes between two honest processes. A stranger that is admitted, or a message that does not arrive, is a fault.
"""

from __future__ import annotations

import argparse
import logging
import random
import socket
import sys
import time
from collections import Counter

from tests.fuzz.files import mutated
from volta_fn.distributed import watch
from volta_fn.distributed.watch import LOOPBACK, Connection, Switchboard
from volta_fn.errors import DistributedError

SECRET = "correct horse"
#: Lines that were once the end of the switchboard, and others that mean something.
LINES = (
    b"[1]\n",
    b"{}\n{}\n",
    b"[" * 100_000 + b"\n",
    b'{"rank":0}\n',
    b'{"kind":1}\n',
    b'{"kind":"failed"}\n',
    b'{"kind":"left","rank":0}\n',
    b'{"kind":"lost","to":[1]}\n',
    b'{"kind":"here","to":{}}\n',
    b'"kind"\n',
    b"NaN\n",
    b"\xff\xfe\n",
    b"\n\n\n",
    b'{"kind":"x","rank":' + b"9" * 5000 + b"}\n",
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(200),
)


def _line(draw: random.Random) -> bytes:
    return mutated(draw.choice(LINES), draw) if draw.random() < 0.5 else draw.choice(LINES)


def _proof_of(secret: str, nonce: bytes, draw: random.Random) -> bytes:
    content = draw.randrange(8).to_bytes(4, "big") + draw.randbytes(32)
    return content + watch._proof(secret.encode(), "process", nonce, content)


def stranger(port: int, draw: random.Random) -> str:
    """Connect without the secret; return what is wrong."""
    with socket.create_connection((LOOPBACK, port), 10) as sock:
        sock.settimeout(10)
        nonce = sock.recv(32)
        proof = _proof_of("guess", nonce, draw)
        kind = draw.randrange(6)
        content = (proof, proof[: draw.randrange(68)], proof + _line(draw), _line(draw), nonce * 3, draw.randbytes(draw.randrange(1, 300)))[
            kind
        ]
        try:
            if draw.random() < 0.1:
                for byte in content[:100]:
                    sock.sendall(bytes([byte]))
            else:
                sock.sendall(content)
            if len(content) >= 68 and (answer := sock.recv(100)):
                return f"a stranger is answered: {answer!r}"
        except OSError:
            pass  # it is disconnected
    return ""


def insider(port: int, draw: random.Random) -> str:
    """Connect with the secret, and send anything."""
    connection = Connection(LOOPBACK, port, SECRET, draw.randrange(2, 8))
    try:
        for _ in range(draw.randrange(1, 4)):
            connection._channel.sock.sendall(_line(draw))
    except OSError:
        pass  # it is disconnected
    connection.close()
    return ""


def _arrives(sender: Connection, receiver: Connection, number: int) -> bool:
    """Tell whether a message passes; others may come before it."""
    sender.send("hello", number=number)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any(m["kind"] == "hello" and m.get("number") == number and m["rank"] == sender.rank for m in receiver.messages(1.0)):
            return True
    return False


def check(count: int, seed: int = 0, until: float = float("inf")) -> tuple[int, Counter[str]]:
    """Open so many connections; return how many, and what was wrong."""
    draw, wrong, done = random.Random(seed), Counter[str](), 0
    board = Switchboard("", SECRET)
    first, second = (Connection(LOOPBACK, board.port, SECRET, rank) for rank in range(2))
    while done < count and time.monotonic() < until:
        try:
            fault = (stranger if draw.random() < 0.6 else insider)(board.port, draw)
        except (DistributedError, OSError) as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            wrong[fault] += 1
        done += 1
        if not _arrives(first, second, done):
            wrong["a message does not arrive"] += 1
            break
    first.close()
    second.close()
    board.stop()
    return done, wrong


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="how many connections (default 100,000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("volta_fn").setLevel(logging.ERROR)
    done, wrong = check(options.count, options.seed, time.monotonic() + options.seconds)
    print(f"{done:,} connections, {sum(wrong.values())} wrong")
    for fault, times in wrong.most_common():
        print(f"{times} times {fault}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
