"""Threads that use an array while another one donates it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.stress.amount import rounds

#: Elements: a call takes long enough for another thread to begin in the middle of it.
SIZE = 1_000_000
BASE = np.arange(SIZE, dtype=np.float32)

donating = vf.jit(lambda x: x * 2.0 + 1.0, donate_argnums=0)
using = vf.jit(lambda x: x + 1.0)


def eager(x: vf.Array) -> vf.Array:
    return x - 1.0


def copied(x: vf.Array) -> np.ndarray:
    return np.asarray(x).copy()


#: What threads do with an array, and what they must get.
USES: dict[Callable[[Any], Any], np.ndarray] = {donating: BASE * 2 + 1, using: BASE + 1, eager: BASE - 1, copied: BASE}


def race(uses: list[Callable[[Any], Any]], count: int) -> Counter[str]:
    """Return what became of `uses`, each in a thread of its own, of `count` arrays."""
    seen: Counter[str] = Counter()
    barrier = threading.Barrier(len(uses))
    arrays = [jnp.asarray(BASE) + 0 for _ in range(4)]

    def work(number: int) -> None:
        use = uses[number]
        for i in range(count):
            if not number:
                arrays[i % 4] = jnp.asarray(BASE) + 0
            barrier.wait()
            try:
                right = np.array_equal(np.asarray(use(arrays[i % 4])), USES[use])
                seen[f"{number}: {'right' if right else 'wrong'}"] += 1
            except vf.errors.DonatedBufferError:
                seen[f"{number}: refused"] += 1
            barrier.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(uses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


@pytest.mark.parametrize("native", [True, False])
def test_users_get_the_elements_or_an_error(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", native)
    for use in (donating, using):
        use.clear_cache()
    seen = race([donating, using, eager, copied], rounds(40))
    assert not [outcome for outcome in seen if "wrong" in outcome], seen
    assert seen["0: right"] == rounds(40)


def test_of_threads_that_donate_one_array_one_has_it() -> None:
    seen = race([donating, donating, donating], rounds(60))
    assert sum(n for outcome, n in seen.items() if "right" in outcome) == rounds(60)
    assert sum(n for outcome, n in seen.items() if "refused" in outcome) == 2 * rounds(60)
