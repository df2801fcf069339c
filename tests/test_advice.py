"""Habits from other packages are answered, and the answers name what exists."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
import traceback
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import advice, data, io, nn, optim, random
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ImmutableError, ShapeError, TreeError, UnhashableStaticError

X = jnp.ones((2, 3))
LINEAR = nn.Linear.init(random.key(0), 3, 2)
ANSWERS = [
    *advice.ARRAYS.values(), *advice.MODULES.values(), *advice.OPTIMIZERS.values(),
    *[text for names in advice.NAMES.values() for text in names.values()],
]  # fmt: skip


@pytest.mark.parametrize("name", advice.ARRAYS)
def test_tensors_methods_are_answered(name: str) -> None:
    with pytest.raises(AttributeError, match=f"Array has no attribute '{name}': ") as caught:
        vf.jit(lambda x: getattr(x, name))(X)
    assert advice.ARRAYS[name] in str(caught.value)
    assert not hasattr(X, name)
    assert name not in dir(X)


@pytest.mark.parametrize("name", advice.MODULES)
def test_modules_methods_are_answered(name: str) -> None:
    for module in (LINEAR, nn.Sequential(LINEAR)):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}': "):
            getattr(module, name)


@pytest.mark.parametrize("name", advice.OPTIMIZERS)
def test_optimizers_methods_are_answered(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': "):
        getattr(optim.adam(0.1), name)


@pytest.mark.parametrize("package, name", [(package, name) for package, names in advice.NAMES.items() for name in names])
def test_names_of_other_packages_are_answered(package: str, name: str) -> None:
    module: Any = functools.reduce(getattr, package.split(".")[1:], vf)
    with pytest.raises(AttributeError, match="use "):
        getattr(module, name)


def test_answers_name_what_exists() -> None:
    roots = {"vf": vf, "numpy": jnp, "nn": nn, "optim": optim, "random": random, "data": data, "np": np, "x": X, "jnp": jnp}
    result = 0
    for text in ANSWERS:
        for root, path in re.findall(r"\b(vf|numpy|nn|optim|random|data|np|x)\.((?:[A-Za-z]\w*\.)*[A-Za-z]\w*)", text):
            if f"vf.{root}" in text and root != "vf":
                continue
            value = roots[root]
            for part in path.split("."):
                value = getattr(value, part)
            result += 1
    assert result > 60


def test_answers_call_with_arguments_that_exist() -> None:
    result = 0
    for text in ANSWERS:
        for path, arguments in re.findall(r"\bvf\.((?:\w+\.)*\w+)\(([^()]*)", text):
            parameters = inspect.signature(functools.reduce(getattr, path.split("."), vf)).parameters
            assert {*re.findall(r"(\w+)=", arguments)} <= {*parameters}, text
            result += 1
    assert result > 30


@pytest.mark.parametrize(
    "module, name, instead",
    [
        (nn, "Linaer", "Linear"),
        (jnp, "arrange", "arange"),
        (vf, "value_and_gard", "value_and_grad"),
        (optim, "adamm", "adam"),
        (random, "nromal", "normal"),
        (data, "DataLoadr", "DataLoader"),
        (io, "save_safetensor", "save_safetensors"),
        (LINEAR, "weigth", "weight"),
    ],
)
def test_close_names_are_suggested(module: Any, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=rf"did you mean .*\b{instead}\b"):
        getattr(module, name)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: optim.adam(lr=0.1), "here it is learning_rate"),
        (lambda: optim.adam(0.1, beta1=0.5), "here it is b1"),
        (lambda: optim.sgd(0.1, momentm=0.5), "here it is momentum"),
        (lambda: data.DataLoader(data.ArrayDataset(np.ones(3)), 2, num_workers=2), "here it is workers"),
        (lambda: nn.Linear.init(3, 2), r"The first argument is a random key, vf\.random\.key\(0\).*in_features, out_features"),
        (lambda: nn.Linear(3, 2), r"Linear\.init\(key, in_features, out_features\)"),
        (lambda: nn.BatchNorm1d.init(3)[0](X), r"y, state = layer\(x, state\)"),
        (lambda: nn.relu((X, 1)), "unpack them"),
        (lambda: vf.jit(lambda x, mode: x)(X, "train"), 'argument mode is .*static_argnames="mode"'),
        (lambda: vf.jit(lambda x, *, mode: x)(X, mode="train"), 'argument mode is .*static_argnames="mode"'),
        (lambda: vf.jit(lambda x, options: x)(X, {"mode": "train"}), r"argument options\['mode'\] is 'train'"),
        (lambda: random.normal((3,)), r"random key, got \(3,\).*random\.key\(0\)"),
        (lambda: random.split(0), r"random key, got 0"),
    ],
)  # fmt: skip
def test_wrong_calls_are_answered(call: Any, words: str) -> None:
    with pytest.raises((ArgumentTypeError, DTypeError), match=f"(?s){words}"):
        call()


@pytest.mark.parametrize(
    "call, usage",
    [
        (lambda: nn.GPT.init(3), r"activation=gelu"),
        (lambda: nn.TransformerEncoder.init(3), r"norm=LayerNorm\.init"),
        (lambda: optim.scale_by_muon(lr=1), r"ns_coeffs=\(3\.4445, -4\.775, 2\.0315\)"),
    ],
)
def test_defaults_are_shown_as_one_writes_them(call: Any, usage: str) -> None:
    with pytest.raises(ArgumentTypeError, match=usage) as caught:
        call()
    assert "<function" not in str(caught.value) and " at 0x" not in str(caught.value)


def test_errors_inside_a_call_stay_as_they_are() -> None:
    class Unreadable:
        def __len__(self) -> int:
            raise TypeError("no file")

    with pytest.raises(TypeError, match="no file") as caught:
        data.DataLoader(Unreadable(), 2)
    assert not isinstance(caught.value, ArgumentTypeError)


class Custom(nn.Module):
    """A layer with an `__init__` of its own."""

    linear: nn.Linear
    scale: float = nn.static(default=2.0)

    def __init__(self, key: Any, size: int) -> None:
        self.linear = nn.Linear.init(key, 3, size)

    def __call__(self, x: Any) -> vf.Array:
        return self.scale * self.linear(x)


class Derived(Custom):
    """A layer whose `__init__` calls that of its base."""

    bias: vf.Array

    def __init__(self, key: Any) -> None:
        super().__init__(key, 2)
        self.bias = jnp.ones(2)


def test_modules_may_have_an_init_of_their_own() -> None:
    layer = Custom(random.key(0), 2)
    assert vf.jit(layer)(X).shape == (2, 2)
    assert vf.grad(lambda m: m(X).sum())(layer).linear.bias.tolist() == [4.0, 4.0]
    assert layer.replace(scale=3.0).scale == 3.0 and vf.tree.map(lambda leaf: leaf, layer).scale == 2.0
    assert Derived(random.key(0)).bias.shape == (2,)
    with pytest.raises(ImmutableError, match="replace"):
        layer.linear = None


def test_an_init_must_set_the_declared_fields() -> None:
    class Undeclared(nn.Module):
        linear: nn.Linear

        def __init__(self) -> None:
            self.other = X

    class Forgetful(nn.Module):
        linear: nn.Linear

        def __init__(self) -> None:
            pass

    class Wrong(nn.Module):
        linear: nn.Linear

        def __init__(self) -> None:
            self.linear = "text"

    with pytest.raises(ArgumentError, match="has no field 'other': declare it.*other: vf.Array"):
        Undeclared()
    with pytest.raises(ArgumentError, match="did not set the field 'linear'"):
        Forgetful()
    with pytest.raises(ArgumentTypeError, match="Wrong.linear"):
        Wrong()


WALK = """
import types
import volta_fn as vf

def walk(module, path, found):
    if module.__name__ in found:
        return found
    found[module.__name__] = (path, module)
    for name in dir(module):
        value = None if name.startswith("_") else getattr(module, name)
        if isinstance(value, types.ModuleType):
            assert value.__name__.startswith("volta_fn."), (path, name)
            walk(value, f"{path}.{name}", found)
    return found

for path, module in walk(vf, "vf", {}).values():
    print(path)
    for name in dir(module):
        assert not name.startswith("_") or name.startswith("__"), (path, name)
        assert name not in ("Any", "annotations", "np", "vnp", "Callable"), (path, name)
    try:
        module.nothing_of_this_name
    except AttributeError as error:
        assert "dir(volta_fn" in str(error), (path, error)
    else:
        raise AssertionError(path)
"""


def test_every_public_module_lists_its_names_and_answers_to_others() -> None:
    run = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) > 70
    assert {"vf.nn.losses", "vf.lax.linalg", "vf.scipy.stats.norm", "vf.dtypes", "vf.optim.tree"} <= set(run.stdout.split())


@pytest.mark.parametrize(
    "module, name, instead",
    [
        (vf, "relu", "volta_fn.nn.relu"),
        (vf, "scan", "volta_fn.lax.scan"),
        (vf, "enable_x64", "volta_fn.jax.enable_x64"),
        (vf, "monitoring", "import volta_fn.monitoring"),
        (jnp, "grad", "volta_fn.grad"),
        (nn, "adam", "volta_fn.optim.adam"),
        (nn.losses, "accuracy", "volta_fn.nn.metrics.accuracy"),
        (vf.dtypes, "flaot32", "float32"),
        (optim, "Linear", "volta_fn.nn.Linear"),
    ],
)
def test_names_of_other_modules_are_found(module: Any, name: str, instead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module, name, raising=False)  # a module that another test has imported
    with pytest.raises(AttributeError, match=re.escape(instead)):
        getattr(module, name)


def test_asking_for_an_unknown_name_loads_nothing() -> None:
    program = "import sys, volta_fn as vf; print(hasattr(vf, 'relu'), 'volta_fn.nn' in sys.modules, 'difflib' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False", "False"]


def test_a_traceback_names_the_builtin_error() -> None:
    with pytest.raises(AttributeError) as caught:
        vf.relu  # asking is the test
    assert traceback.format_exception_only(caught.value) == [
        "AttributeError: module 'volta_fn' has no attribute 'relu': it is volta_fn.nn.relu\n"
    ]


PARAMS = {"w": jnp.ones(2), "b": jnp.ones(3)}


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: X - [1, 2, 3], ArgumentTypeError, r"got \[1, 2, 3\] of type list.*asarray"),
        (lambda: [1, 2, 3] - X, ArgumentTypeError, "of type list.*asarray"),
        (lambda: X / (1, 2), ArgumentTypeError, "of type tuple"),
        (lambda: X < "1", ArgumentTypeError, "of type str"),
        (lambda: X + None, ArgumentTypeError, "Did a function end without `return`"),
        (lambda: X.at.__setitem__(0, 1.0), ImmutableError, r"x = x\.at\[i\]\.set\(values\)"),
        (lambda: X.view(3, 2), ArgumentTypeError, r"x\.reshape"),
        (lambda: X.view(-1), ArgumentTypeError, r"x\.reshape"),
        (lambda: vf.jit(lambda x, n: x, static_argnums=1)(X, X), UnhashableStaticError, "arrays cannot be static"),
        (lambda: vf.jit(lambda x, n: x, static_argnums=1)(X, n=X), UnhashableStaticError, "arrays cannot be static"),
        (lambda: vf.grad(lambda w: w, argnums="w")(1.0), ArgumentTypeError, "positions, which are integers, got 'w'"),
        (lambda: jnp.zeros(2, 3), DTypeError, r"3 is a number; the sizes of a shape are one tuple, as in zeros\(\(2, 3\)\)"),
        (lambda: random.key("seed"), ArgumentTypeError, "key: the seed must be an integer, got 'seed'"),
        (lambda: optim.apply_updates(PARAMS, {"w": jnp.ones(2), "b": jnp.ones(4)}), ShapeError, r"at \['b'\] has shape \(4,\), its"),
        (lambda: optim.apply_updates(PARAMS, {"w": jnp.ones(2)}), TreeError, "the parameters, compared with the updates"),
    ],
)  # fmt: skip
def test_wrong_operands_and_arguments_are_answered(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        call()


def test_operators_of_pythons_own_types_stay() -> None:
    assert [0] * jnp.array(3) == [0, 0, 0]
    assert (X == None) is False and (X != "a") is True  # noqa: E711
    assert X.view("int32").dtype == np.int32


@pytest.mark.parametrize("value", [X, LINEAR, nn.Sequential(LINEAR), vf.jit(lambda x: x)], ids=lambda v: type(v).__name__)
def test_objects_list_no_internals(value: Any) -> None:
    assert [name for name in dir(value) if name.startswith("_") and not name.startswith("__")] == []
    assert {"shape", "at", "weight", "replace", "lower", "layers"} & set(dir(value))


@pytest.mark.parametrize(
    "message, note",
    [
        ("sum() got an unexpected keyword argument 'dim'", "volta_fn.numpy.sum has the argument axis instead of dim"),
        ("mean() got an unexpected keyword argument 'keepdim'", "volta_fn.numpy.mean has the argument keepdims instead of keepdim"),
        ("softmax() got an unexpected keyword argument 'dim'", "volta_fn.nn.softmax has the argument axis instead of dim"),
        ("sum() got an unexpected keyword argument 'qqq'", None),
        ("mine() got an unexpected keyword argument 'dim'", None),
        ("mine() missing 1 required positional argument: 'x'", None),
        ("unsupported operand type(s) for +: 'int' and 'str'", None),
    ],
)
def test_pythons_errors_of_calls_get_a_note(message: str, note: str | None) -> None:
    assert advice.note_of_call(message) == note


def test_a_step_without_a_state_is_explained() -> None:
    with pytest.raises(TypeError) as caught:
        optim.adam(0.1).update(LINEAR)
    assert "optimizer.update(grads, state, params)" in str(advice.note_of_call(str(caught.value)))


def test_the_traceback_has_the_note() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import volta_fn as vf; vf.numpy.ones(2).sum(dim=0)"], capture_output=True, text=True, check=False
    )
    assert run.stderr.splitlines()[-2:] == [
        "TypeError: sum() got an unexpected keyword argument 'dim'", "volta_fn.numpy.sum has the argument axis instead of dim"
    ]  # fmt: skip
