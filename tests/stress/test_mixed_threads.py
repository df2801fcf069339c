"""Threads that call functions for the first time while others compile, donate, clear caches, fork and change settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stress.amount import rounds
from tests.stress.processes import run

pytest.importorskip("llvmlite")

#: Prints a digest of what each function gives alone, and how many results of all threads were others.
PROGRAM = """
import gc, hashlib, random, signal, warnings
warnings.simplefilter("ignore")  # Python's, that the process has threads
from volta_fn import lax

THREADS, ROUNDS = 6, {rounds}

def mlp(w, a):
    return vf.grad(lambda w: (jnp.tanh(a @ w) ** 2).sum())(w)

def chain(w, a):  # short launches, several of which are shared with threads that are awake
    for i in range(6):
        a = jnp.sin(a * (i + 0.5)) + a[::-1]
    return a

def recurrent(w, a):
    return lax.scan(lambda c, row: (jnp.tanh(c @ w[:, :1] * 0.1 + row), c), a[0], a)[1]

def large(w, a):
    return (a @ a.T).max(-1) + jnp.sort(a, -1)[:, 0]

def mapped(w, a):
    return vf.vmap(lambda row: vf.checkpoint(lambda r: jnp.cumsum(jnp.exp(-r * r)))(row))(a)

def branches(w, a):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, lax.cond(c[0] > 1, jnp.cos, jnp.sin, c[1])), (0, a))[1]

bodies = [mlp, chain, recurrent, large, mapped, branches]
rng = np.random.default_rng(0)
w, a = [jnp.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((192, 64), (160, 192))]
bits = lambda result: np.asarray(result).tobytes()
alone = [[bits(vf.jit(body)(w, a))] for body in bodies]
print(*[hashlib.sha256(b).hexdigest()[:8] for (b,) in alone])
vf.config.update("jax_debug_nans", True)  # which looks for NaN in every operation, and so fuses none
for body, results in zip(bodies, alone):
    results.append(bits(vf.jit(lambda w, a: body(w, a))(w, a)))
vf.config.update("jax_debug_nans", False)
wrong = []

def work(number, functions, barrier):
    draw = random.Random(number)
    barrier.wait()
    for _ in range(ROUNDS):
        k = draw.randrange(len(bodies))
        form = draw.randrange(8)
        try:
            if form < 4:
                result = functions[k](w, a)
            elif form == 4:  # another function of the same program
                result = vf.jit(lambda w, a: bodies[k](w, a))(w, a)
            elif form == 5:
                copy = a + 0
                result = vf.jit(lambda w, a: bodies[k](w, a), donate_argnums=1)(w, copy)
                del copy
            elif form == 6:
                lost = functions[k](w, a)
                lost.delete()
                result = functions[k](w, a)
            elif not np.allclose(np.asarray(jnp.tanh(a) * 2 + a.sum(0)), np.tanh(np.asarray(a)) * 2 + np.asarray(a).sum(0), 1e-4, 1e-3):
                wrong.append("eager")
                continue
            else:
                continue
            if bits(result) not in alone[k]:
                wrong.append(bodies[k].__name__)
        except Exception as error:
            wrong.append(repr(error))

def disturb(stop):
    draw = random.Random(99)
    while not stop.wait(0.02):
        form = draw.randrange(4)
        if form == 0:
            vf.clear_caches()
        elif form == 1:
            gc.collect()
        elif form == 2:
            vf.config.update("jax_debug_nans", draw.choice((True, False)))
            vf.config.update("jax_default_matmul_precision", draw.choice((None, "highest")))
        else:
            child = os.fork()
            if not child:
                signal.alarm(60)
                os._exit(bits(vf.jit(lambda w, a: mlp(w, a))(w, a)) not in alone[0])
            if os.waitpid(child, 0)[1]:
                wrong.append("child")

for round in range({repetitions}):
    vf.clear_caches()
    stop, barrier = threading.Event(), threading.Barrier(THREADS)
    functions = [vf.jit(lambda w, a, body=body: body(w, a)) for body in bodies]
    threads = [threading.Thread(target=work, args=(number, functions, barrier)) for number in range(THREADS)]
    threads.append(threading.Thread(target=disturb, args=(stop,)))
    for thread in threads:
        thread.start()
    for thread in threads[:-1]:
        thread.join()
    stop.set()
    threads[-1].join()
print(len(wrong), *sorted(set(wrong)))
"""


def test_first_and_later_calls_give_what_one_thread_gets(tmp_path: Path) -> None:
    digests = set()
    for count in ("1", "3", "8"):
        program = PROGRAM.format(rounds=rounds(12), repetitions=2)
        result = run("import volta_fn.compat\n" + program, tmp_path / count, 300, VOLTA_NUM_THREADS=count)
        assert (result.returncode, result.stderr) == (0, "")
        digest, wrong = result.stdout.strip().split("\n")
        assert wrong.strip() == "0"
        digests.add(digest)
    assert len(digests) == 1
