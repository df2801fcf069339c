"""Serve a model to thirty-two clients at once, while another thread trains it on.

    python examples/inference_server.py

All threads share one model without a lock, because it is immutable: training makes new models. So every answer must equal that of a single
thread, to the last bit.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import common
import numpy as np

import volta_fn as vf
from volta_fn import data, nn, optim, random

CLIENTS, SIDE = 32, 8

optimizer = optim.adam(2e-3)
logits = vf.jit(lambda model, images: model(images))


def network(key: vf.Array) -> nn.Sequential:
    """Create a small convolutional network."""
    first, second = random.split(key)
    conv = nn.Conv2d.init(first, 1, 16, 3, padding=1)
    return nn.Sequential(conv, nn.relu, nn.MaxPool2d.init(2), nn.Flatten(), nn.Linear.init(second, 16 * (SIDE // 2) ** 2, 10))


@vf.jit
def step(model: nn.Sequential, moments: optim.OptState, images: vf.Array, labels: vf.Array) -> tuple[nn.Sequential, optim.OptState]:
    """Make a step of training."""
    grads = vf.grad(lambda model: nn.losses.cross_entropy(model(images), labels))(model)
    updates, moments = optimizer.update(grads, moments, model)
    return optim.apply_updates(model, updates), moments


def train(model: nn.Sequential, digits: data.Dataset, go_on: Callable[[], bool]) -> tuple[nn.Sequential, int]:
    """Train a model while `go_on()` is true; return it and the number of steps."""
    moments, steps, loader = optimizer.init(model), 0, data.DataLoader(digits, 32, shuffle=True, key=0, drop_last=True)
    while go_on():
        for batch in loader:
            model, moments = step(model, moments, *batch)
            steps += 1
    return model, steps


@contextmanager
def serving(model: nn.Sequential) -> Iterator[int]:
    """Run a web server and yield its port.

    It responds to POST of an image's 64 float32 with the ten logits.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            image = np.frombuffer(self.rfile.read(int(self.headers["Content-Length"])), np.float32).reshape(1, 1, SIDE, SIDE)
            answer = np.asarray(logits(model, image)).tobytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = CLIENTS

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def ask(port: int, images: np.ndarray) -> list[bytes]:
    """Ask the server for one image after another, and return its answers."""
    connection, answers = http.client.HTTPConnection("127.0.0.1", port), []
    for image in images:
        connection.request("POST", "/", image.tobytes())
        answers.append(connection.getresponse().read())
    connection.close()
    return answers


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Serve; return the numbers of answers, errors and training steps, and the rate."""
    options = common.arguments(__doc__, argv)
    digits, held_out = common.digits(None)
    images = np.asarray(data.gather(held_out, np.arange(10 if options.quick else 300))[0])
    counter = iter(range(10))
    model, _ = train(network(random.key(options.seed)), digits, lambda: next(counter, None) is not None)
    expected = [np.asarray(logits(model, image[None])).tobytes() for image in images]
    served = threading.Event()
    with serving(model) as port, ThreadPoolExecutor(CLIENTS + 1) as pool:
        training = pool.submit(train, model, digits, lambda: not served.is_set())
        start = time.perf_counter()
        answers = list(pool.map(lambda _: ask(port, images), range(CLIENTS)))
        seconds = time.perf_counter() - start
        served.set()
    count, wrong = CLIENTS * len(images), sum(got != want for client in answers for got, want in zip(client, expected, strict=True))
    steps = training.result()[1]
    print(f"{count:,} answers to {CLIENTS} clients, {count / seconds:,.0f} a second, while another thread trained {steps:,} steps")
    print(f"answers that differ from a single thread's: {wrong}")
    return {"answers": count, "per_second": count / seconds, "wrong": wrong, "steps": steps}


if __name__ == "__main__":
    main()
