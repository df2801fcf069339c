"""A process ends in order whatever is under way, and what it says with VOLTA_GPU_DEBUG; forked ones are told that they have no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

PROGRAM = """
import threading, time
import volta_fn as vf
from volta_fn import lax, numpy as jnp

vf.set_default_device("gpu")
step = vf.jit(lambda x: (lax.fori_loop(0, 5, lambda i, w: w @ w * 0.01, x), x.sum()))
x = jnp.ones((32, 32))
unread = [step(x) for _ in range(5)]
begun = threading.Barrier(4)

def train(read):
    y, loss = step(x)
    begun.wait()
    while True:
        y, loss = step(y)
        if read:
            float(loss)

for read in (False, False, True):
    threading.Thread(target=train, args=(read,), daemon=True).start()
begun.wait()
time.sleep(0.2)
print("end")
"""


def test_a_process_ends_with_work_under_way_in_threads() -> None:
    env = {**os.environ, "VOLTA_GPU_DEBUG": "1"}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, env=env)
    assert (ended.returncode, ended.stdout) == (0, "end\n"), ended.stderr[-3000:]
    lines = ended.stderr.splitlines()
    form = re.compile(r"[\d.]+ ms \S.*: (a block of \d+ bytes|free blocks given back|batch \d+ submitted|waited [\d.]+ s).*\d+.*")
    assert not [line for line in lines if not form.fullmatch(line)][:5]
    said = " ".join(lines)
    assert all(word in said for word in ("a block of", "batch 3 submitted", "waited"))


FORKED = """
import multiprocessing
import numpy as np
import volta_fn as vf
from volta_fn.errors import DeviceError

gpu = vf.devices("gpu")[0]
uses = [lambda: vf.device_put(1.0, gpu)]
if OPENED:
    x, step = vf.device_put(np.arange(4.0, dtype=np.float32), gpu), vf.jit(lambda x: x * 2 + 1)
    unread = step(x)
    uses += [lambda: step(x), lambda: np.asarray(unread), lambda: x + 1, lambda: vf.synchronize(gpu)]

def child():
    for use in uses:
        try:
            use()
        except DeviceError as error:
            print("spawn" in str(error), end=" ")
    print(float(vf.numpy.sum(vf.device_put(np.ones(3), "cpu"))))

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
if OPENED:
    print(np.asarray(step(x)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("opened", [True, False])
def test_forked_processes_are_told_that_they_have_no_gpu(opened: bool) -> None:
    """Whether their parent has used it or only looked for it; they may use the CPU, and their parent goes on."""
    env = {name: value for name, value in os.environ.items() if name != "VOLTA_DEVICE"}
    program = f"OPENED = {opened}" + FORKED
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120, env=env)
    expected = "True True True True True 3.0\n[1. 3. 5. 7.]\n" if opened else "True 3.0\n"
    assert (ended.returncode, ended.stdout) == (0, expected), ended.stderr[-3000:]
