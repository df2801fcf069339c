"""The user's line is found through the package's own frames and those of its machinery, and nothing else is skipped."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import types
from types import CodeType

import pytest

from volta_fn.source import SourceLocation, user_code_position, user_location


def as_if_in(module, function):
    """Return a function of the named module that calls `function`."""
    namespace = {"__name__": module, "function": function}
    exec("def inner():\n    return function()\n", namespace)
    return namespace["inner"]


def test_location_is_the_calling_line():
    line = inspect.currentframe().f_lineno + 1
    where = user_location()
    assert where == SourceLocation(__file__, line, "test_location_is_the_calling_line")
    assert str(where) == f"{__file__}:{line} (test_location_is_the_calling_line)"


@pytest.mark.parametrize(
    "module", ["volta_fn", "volta_fn.numpy.linalg", "optree.ops", "functools", "contextlib", "threading", "concurrent.futures"]
)
def test_internal_frames_are_skipped(module):
    line = inspect.currentframe().f_lineno + 1
    where = as_if_in(module, as_if_in(module, user_location))()
    assert where == SourceLocation(__file__, line, "test_internal_frames_are_skipped")


@pytest.mark.parametrize("module", ["volta_fn_extras", "my.volta_fn", "__main__"])
def test_other_frames_are_the_users(module):
    assert as_if_in(module, user_location)().function == "inner"


def test_raw_position_gives_the_same_location():
    position, where = user_code_position(), user_location()
    assert isinstance(position[0], CodeType)
    assert SourceLocation.of(position) == where


def test_no_user_frame_gives_none():
    """Every frame of a fresh thread that runs the package's own code is internal."""
    import _thread
    import threading

    result, done = [], threading.Event()
    namespace = {"__name__": "volta_fn.jit", "found": result, "done": done, "look": user_location}
    exec("def work():\n    found.append(look())\n    done.set()\n", namespace)
    _thread.start_new_thread(namespace["work"], ())
    assert done.wait(10)
    assert result == [None]


def test_wrapped_function_and_pickle():
    where = functools.lru_cache(lambda: user_location())()
    assert where.function.endswith("<lambda>")
    assert pickle.loads(pickle.dumps(where)) == where


def test_location_is_frozen():
    with pytest.raises(AttributeError):
        SourceLocation("a", 1, "f").lineno = 2


def test_lines_of_notebooks_are_named_by_the_number_of_their_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Compiler:
        @staticmethod
        def format_code_name(name: str) -> tuple[str, str] | None:
            return ("Cell", "In[8]") if name == "ipykernel_1/8.py" else None

    class Shell:
        compile = Compiler()

    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=Shell))
    assert str(SourceLocation("ipykernel_1/8.py", 3, "f")) == "cell 8, line 3 (f)"
    assert str(SourceLocation("train.py", 3, "f")) == "train.py:3 (f)"
