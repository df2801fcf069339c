"""The counterparts with other defaults in docs/learn/from_pytorch.md give PyTorch's numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn, optim, random

torch = pytest.importorskip("torch")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "learn" / "from_pytorch.md").read_text(encoding="utf-8")
#: PyTorch's code and ours, of each row of the table.
ROWS = dict(re.findall(r"^\| `([^`]+)`[^|]*\| `([^`]+)`", PAGE, re.M))
OPTIMIZERS = [code for code in ROWS if code.startswith("torch.optim.")]
START, GOAL = (np.asarray(random.normal(random.key(seed), (4, 5))) for seed in (0, 1))


def test_every_kind_of_row_is_tried() -> None:
    assert len(OPTIMIZERS) == 3 and "F.gelu(x)" in ROWS


@pytest.mark.parametrize("code", OPTIMIZERS)
def test_optimizers_make_the_same_steps(code: str) -> None:
    parameter = torch.tensor(START, requires_grad=True)
    theirs = eval(code, {"torch": torch, "parameters": [parameter]})
    ours, params = eval(ROWS[code], {"optim": optim}), vf.numpy.asarray(START)
    state = ours.init(params)
    for _ in range(4):
        updates, state = ours.update(2 * (params - GOAL), state, params)
        params = optim.apply_updates(params, updates)
        theirs.zero_grad()
        ((parameter - torch.tensor(GOAL)) ** 2).sum().backward()
        theirs.step()
    np.testing.assert_allclose(np.asarray(params), parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_gelu_is_the_exact_one() -> None:
    actual = np.asarray(eval(ROWS["F.gelu(x)"], {"nn": nn, "x": vf.numpy.asarray(START)}))
    np.testing.assert_allclose(actual, torch.nn.functional.gelu(torch.tensor(START)).numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(actual - np.asarray(nn.gelu(START))).max() > 1e-5
