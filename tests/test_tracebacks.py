"""Uncaught errors show the user's lines, and one of this package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import volta_fn as vf
from volta_fn import tracebacks
from volta_fn.errors import ShapeError

ROOT = Path(__file__).parent.parent
SCRIPT = """
import volta_fn as vf
x = vf.numpy.ones((2, 3))
def model(x):
    {mistake}
    return x.sum()
vf.{transform}(model)(x)
"""


def shown(folder: Path, program: str, **variables: str) -> tuple[list[str], str]:
    """Run a script that fails; return the files and functions of its traceback, and all that it printed."""
    (folder / "script.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    run = subprocess.run([sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    frames = re.findall(r'File "(.*?)", line \d+, in (\S+)', run.stderr)
    return [f"{Path(file).name} {function}" for file, function in frames], run.stderr


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap"])
def test_a_mistake_shows_the_users_frames_and_one_more(tmp_path: Path, transform: str) -> None:
    program = SCRIPT.format(mistake="x = x @ vf.numpy.ones((7, 7))", transform=transform)
    frames, text = shown(tmp_path, program)
    assert frames == ["script.py <module>", "script.py model", "products.py array_matmul"]
    assert "ShapeError" in text and "VOLTA_TRACEBACK_FILTERING=off" in text
    everything, text = shown(tmp_path, program, VOLTA_TRACEBACK_FILTERING="off")
    assert len(everything) > 7
    assert "VOLTA_TRACEBACK_FILTERING" not in text


def test_errors_of_users_show_their_frames_alone(tmp_path: Path) -> None:
    frames, text = shown(tmp_path, SCRIPT.format(mistake="raise KeyError('mine')", transform="jit"))
    assert frames == ["script.py <module>", "script.py model"]
    assert "KeyError: 'mine'" in text


def test_a_recursion_without_end_is_shown(tmp_path: Path) -> None:
    mistake = "def deeper(n):\n        return deeper(n + 1)\n    deeper(0)"
    frames, text = shown(tmp_path, SCRIPT.format(mistake=mistake, transform="jit"))
    assert frames[:2] == ["script.py <module>", "script.py model"] and "RecursionError" in text
    assert "Error in sys.excepthook" not in text


def test_causes_are_shortened_too(tmp_path: Path) -> None:
    mistake = "try:\n        x @ vf.numpy.ones((7, 7))\n    except ValueError as error:\n        raise RuntimeError('wrapped') from error"
    frames, text = shown(tmp_path, SCRIPT.format(mistake=mistake, transform="jit"))
    assert frames == ["script.py model", "products.py array_matmul", "script.py <module>", "script.py model"]
    assert "direct cause" in text


def test_unexpected_errors_keep_their_frames(tmp_path: Path) -> None:
    """A mistake in the package itself must be found."""
    mistake = "vf.numpy.concatenate.__wrapped__.__globals__['lax'] = None\n    vf.numpy.concatenate([x])"
    frames, text = shown(tmp_path, SCRIPT.format(mistake=mistake, transform="jit"))
    assert "AttributeError" in text
    assert frames[:2] == ["script.py <module>", "script.py model"]
    assert len(frames) > 3


def test_unknown_names_show_one_frame_of_the_package(tmp_path: Path) -> None:
    frames, text = shown(tmp_path, "import volta_fn as vf\ndef model():\n    return vf.relu(1.0)\nmodel()")
    assert frames[:2] == ["script.py <module>", "script.py model"] and len(frames) == 3
    assert "\nAttributeError: module 'volta_fn' has no attribute 'relu': it is volta_fn.nn.relu\n" in text


def test_a_modules_field_is_refused_at_the_users_line(tmp_path: Path) -> None:
    """Though Python wrote the `__init__` that was called."""
    program = "import volta_fn as vf\nclass Net(vf.nn.Module):\n    width: int\ndef build():\n    return Net(8)\nbuild()"
    frames, text = shown(tmp_path, program)
    assert frames[:2] == ["script.py <module>", "script.py build"] and len(frames) == 3
    assert "script.py:5 in build" in text and "<string>" not in text.partition("Error: ")[2]


def test_a_hook_of_others_stays(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.excepthook = lambda *a: print('mine', file=sys.stderr)\nimport volta_fn as vf\nvf.numpy.ones(2) @ vf.numpy.ones(3)"
    )
    assert shown(tmp_path, program) == ([], "mine\n")


def test_notebooks_show_short_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        custom_exceptions = ()

        def set_custom_exc(self, kinds, handler):
            self.custom_exceptions, self.handler = kinds, handler

        def showtraceback(self, exc_tuple, tb_offset=None, running_compiled_code=False):
            self.shown = exc_tuple

    class IPython:
        shell = Shell()

        @classmethod
        def get_ipython(cls):
            return cls.shell

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    tracebacks.install()
    shell = IPython.shell
    with pytest.raises(ShapeError) as caught:
        vf.jit(lambda x: x @ vf.numpy.ones((7, 7)))(vf.numpy.ones((2, 3)))
    assert shell.custom_exceptions == (Exception,)
    assert len(tracebacks._entries(caught.value.__traceback__)) > 5
    shell.handler(shell, caught.type, caught.value, caught.tb)
    assert shell.shown[2] is caught.value.__traceback__
    assert len(tracebacks._entries(shell.shown[2])) == 2  # the user's lines alone
    with pytest.raises(TypeError) as wrong:
        vf.numpy.ones(2).sum(dim=0)
    shell.handler(shell, wrong.type, wrong.value, wrong.tb)
    assert wrong.value.__notes__ == ["volta_fn.numpy.sum has the argument axis instead of dim"]
    assert len(tracebacks._entries(shell.shown[2])) == 1
    with pytest.raises(KeyError) as own:
        vf.jit(lambda x: {}[1])(1.0)
    shell.handler(shell, own.type, own.value, own.tb)
    assert len(tracebacks._entries(shell.shown[2])) == 2  # without the frames between the call and the function
