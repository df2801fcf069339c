"""Forks while another thread compiles: the child compiles, too."""

from __future__ import annotations

import pytest

from tests.stress.amount import rounds
from tests.stress.processes import check, run

pytest.importorskip("llvmlite")


def test_children_of_a_process_that_compiles_compile() -> None:
    count = rounds(10)
    result = run(
        f"""
import signal, warnings
warnings.simplefilter("ignore")  # Python's, that the process has threads
stop = False
model(-1)(x)  # loads modules: Python has locks of its own for those that another thread is importing

def work():
    for number in range(100_000):
        if stop:
            break
        model(number)(x)
busy = threading.Thread(target=work)
busy.start()
good = 0
for number in range({count}):
    time.sleep(0.05 + 0.013 * (number % 7))
    child = os.fork()
    if not child:
        signal.alarm(20)
        model(-2 - number)(x)
        os._exit(0)
    good += os.waitpid(child, 0)[1] == 0
stop = True
busy.join()
print(good)
""",
        timeout=60 + 25 * count,
    )
    check(result, str(count))
