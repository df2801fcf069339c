"""Messages for mistakes of users of PyTorch, NumPy, Keras and JAX are those of the golden file."""

from __future__ import annotations

import pytest

import volta_fn as vf
from tests.errors import golden

GOLDEN = golden.read()
CASES = golden.load()


@pytest.fixture(autouse=True)
def on_host() -> object:
    with vf.default_device(vf.devices("cpu")[0]):
        yield


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.title)
def test_the_message_is_that_of_the_golden_file(case: golden.Case) -> None:
    if "import torch" in case.volta:
        pytest.importorskip("torch")
    assert golden.answer(case) == GOLDEN[case.title], "run python -m tests.errors.golden, and read what changed"


def test_each_mistake_is_answered() -> None:
    assert len({case.title for case in CASES}) == len(CASES) >= 75
    assert [case.title for case in CASES if golden.answer(case) == "*Nothing*"] == []
