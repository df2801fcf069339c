"""Every cell of the page about the Array API is what its expression gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax.numpy
import numpy as np
import pytest

import volta_fn.numpy as vnp

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "array_api.md").read_text()
ROWS = re.findall(r"^\| `(.*?xp\..*?)` \| `(.*?)` \| `(.*?)` \| `(.*?)` \| .+ \|$", PAGE, re.MULTILINE)
_ANCESTORS = (Exception, BaseException, LookupError, object)


def shown(expression: str, xp: Any) -> str:
    """Return what an expression gives, as the table has it."""
    try:
        with np.errstate(all="ignore"):
            result = eval(expression, {"xp": xp, "inf": np.inf})
    except Exception as error:
        return ", ".join(c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins" and c not in _ANCESTORS)
    if isinstance(result, type):
        return result.__name__
    return str(result.tolist() if hasattr(result, "tolist") else result)


def test_all_rows_are_found() -> None:
    assert len(ROWS) == PAGE.count("| `xp.") + PAGE.count("| `type(") + PAGE.count("| `(xp.") > 20


@pytest.mark.wide
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning", "ignore:.*complex:DeprecationWarning")
@pytest.mark.parametrize(("expression", "here", "numpys", "jaxs"), ROWS, ids=[row[0] for row in ROWS])
def test_the_row_is_true(expression: str, here: str, numpys: str, jaxs: str) -> None:
    assert shown(expression, vnp) == here
    assert shown(expression, np) == numpys
    assert shown(expression, jax.numpy) == jaxs
