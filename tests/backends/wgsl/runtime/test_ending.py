"""A process ends in order whatever is under way; and what it says with VOLTA_GPU_DEBUG."""

from __future__ import annotations

import os
import re
import subprocess
import sys

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
