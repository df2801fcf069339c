"""Signatures are read without evaluating annotations that name nothing yet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import volta_fn as vf
from volta_fn.source import has_annotations, parameter_names, signature, signature_of

PACKAGE = Path(vf.__file__).parent

#: Functions and a module as users write them, without the future import. `Batch` is imported for type checkers alone; `Tree` names itself.
LAZY = """
from typing import TYPE_CHECKING

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn, optim, random

if TYPE_CHECKING:
    from elsewhere import Batch


def loss(w: Batch, x: Batch | None = None, *, power: Batch = 2) -> Batch:
    return (w**power).sum()


class Tree(nn.Module):
    weight: vf.Array
    children_: list[Tree] | None = None

    @classmethod
    def init(cls, key: Batch, size: Batch) -> Tree:
        return cls(random.normal(key, (size,)))

    def __call__(self, x: Batch, *, key: Batch = None, training: Batch = False) -> Batch:
        return x @ self.weight


class Named(nn.Module):
    weight: Batch


x = jnp.arange(3.0)
print(vf.jit(vf.grad(loss), static_argnames="power")(x, power=3))
print(vf.jit(loss, donate_argnames="w")(jnp.ones(2)))
try:
    vf.jit(loss)("text")
except TypeError as error:
    print(error)
print(vf.vmap(vf.checkpoint(loss))(jnp.ones((2, 3))))
def square(w: Batch) -> Batch:
    return (w * w).sum()


def forward(w: Batch) -> tuple[Batch, Batch]:
    return square(w), w


f = vf.custom_vjp(square)
f.defvjp(forward, lambda w, g: (2 * g * w,))
print(vf.grad(f)(x))
tree = Tree.init(random.key(0), 3).replace(children_=[Tree(x)])
print(nn.summary(tree, x).parameters, tree.takes == {"key", "training"}, Named(x))
try:
    Tree.init(size=3)
except TypeError as error:
    print(error)
print(optim.inject_hyperparams(lambda rate: optim.sgd(rate))(rate=0.1).init(x).hyperparams)
import inspect
print(inspect.signature(vf.jit(loss)))
"""

PRINTED = """\
[ 0.  3. 12.]
2.0
loss: the argument w is 'text' of type str, which is no array. If it is an option, make it static: jit(loss, static_argnames="w").
[3. 3.]
[0. 2. 4.]
6 True Named(weight: f32[3])
Tree.init() missing 1 required positional argument: 'key'. The first argument is a random key, vf.random.key(0). Its arguments are key, size
{'rate': Array(0.1, dtype=float32)}
(w: Batch, x: Batch | None = None, *, power: Batch = 2) -> Batch
"""


def test_signatures() -> None:
    def function(x: int, *rest: float, axis: int = 0) -> int:
        return x

    assert signature(function) == signature_of(function)
    assert parameter_names(function) == ["x", "rest", "axis"]
    with pytest.raises(TypeError):
        signature("no function")  # type: ignore[arg-type]
    assert signature_of("no function") is None  # type: ignore[arg-type]
    assert parameter_names("no function") == []  # type: ignore[arg-type]


def test_annotations_of_a_class_are_not_those_of_its_base() -> None:
    class Base:
        width: int

    class Derived(Base):
        pass

    assert has_annotations(Base)
    assert not has_annotations(Derived)


def test_the_package_reads_signatures_in_one_way() -> None:
    """`inspect.signature` would evaluate the annotations of users' functions."""
    reader = re.compile(r"inspect\.(signature|get_annotations|getfullargspec)\(|get_type_hints\(")
    assert [path.name for path in PACKAGE.rglob("*.py") if reader.search(path.read_text(encoding="utf-8"))] == ["source.py"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="an annotation that names nothing is an error of `def` there")
def test_annotations_may_name_what_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LAZY)
    run = subprocess.run([sys.executable, "-W", "error", "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert re.sub(r"  at .*\n", "", run.stdout) == PRINTED
