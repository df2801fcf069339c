"""The end of a process, while threads compile and after the main one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stress.amount import rounds
from tests.stress.processes import check, run

pytest.importorskip("llvmlite")


def test_threads_that_outlive_the_main_one_compile_and_load_data() -> None:
    result = run("""
from volta_fn.data import DataLoader
loader = DataLoader(np.arange(12.0), 4, workers=2)

def work():
    threading.main_thread().join()
    print(round(float(model(1)(x)), 3) == round(float(model(1)(x)), 3), sum(1 for _ in loader))
threading.Thread(target=work).start()
""")
    check(result, "True 3")


def test_atexit_handlers_compile() -> None:
    result = run("""
import atexit
model(2)(x)
atexit.register(lambda: print(float(model(1)(x)) == float(model(1)(x))))
atexit.register(lambda: print(float(model(3)(x)) == float(model(3)(x))))
""")
    check(result, "True\nTrue")


@pytest.mark.parametrize("attempt", range(rounds(4)))
def test_a_process_ends_well_while_daemons_compile(attempt: int, tmp_path: Path) -> None:
    result = run(f"""
def work(first):
    for number in range(first, first + 1000):
        model(number)(x)
for first in (0, 1000, 2000):
    threading.Thread(target=work, args=(first,), daemon=True).start()
time.sleep({0.3 + 0.17 * attempt % 1})
print("the end")
""")
    check(result, "the end")


@pytest.mark.parametrize("attempt", range(rounds(2)))
def test_a_process_ends_well_while_what_was_repeated_compiles_in_the_background(attempt: int) -> None:
    result = run(f"""
for size in range(1000, 1012):
    for _ in range(2):
        jnp.var(jnp.linspace(0.0, 1.0, size + 100 * {attempt}))
print("the end")
""")
    check(result, "the end")
