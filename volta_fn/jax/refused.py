"""Names of JAX that import and raise with advice when they are called.

Some parts of JAX cannot mean anything without XLA: kernels for TPUs, MLIR, compiled executables. Libraries import these names at their
top and call them on such hardware alone, so the names exist. The table `refused_names.txt` lists them below their modules, each under a key
of `ADVICE`. A name's spelling says what it is: `Mask` is a class, `launch` a function, `launch_p` a primitive; `name@` is a
constant, and `name+` and `Name-` are a class and a function in spite of their spelling.
"""

from __future__ import annotations

from typing import Any, NoReturn

from volta_fn.core.primitive import Primitive
from volta_fn.errors import UnsupportedError

#: What to do instead, by the keys of the table.
ADVICE = {
    "kernels": "kernels of Pallas and Mosaic have no compiler here: write the function in jax.numpy, which jit compiles for every target",
    "mlir": "programs are not built as MLIR: lower a primitive by a function of other primitives (jax.interpreters.mlir.lower_fun)",
    "xla": "there is no XLA whose programs or options could be had: inspect jax.make_jaxpr(f)(...), and store functions by jax.export",
    "tensorflow": "programs are not converted to TensorFlow: store functions by jax.export, or as ONNX by volta_fn.onnx",
    "tensorstore": "checkpoints are not written by TensorStore: use volta_fn.io.save and volta_fn.io.load",
    "cudnn": "cuDNN's cells are not called: write the cell in jax.numpy under jax.lax.scan",
    "sparse": "this operation has no sparse form here: use BCOO's methods, or m.todense() and jax.numpy",
    "hijax": "high-level types are not supported: make the class a pytree instead (jax.tree_util.register_pytree_node)",
    "transfer": "arrays do not move between processes in this way: use jax.experimental.multihost_utils, or collectives in jax.shard_map",
    "tracing": "this step of JAX's tracing has no counterpart: use jax.make_jaxpr, jax.jvp, jax.linearize or jax.vjp on the function",
    "taylor": "rules of jet are not registered: jet differentiates every primitive by its derivative",
    "profiler": "profiles are JSON for Perfetto here, not XSpace: open the file that jax.profiler.trace writes",
    "internals": "this part of JAX's implementation has no counterpart: use the public functions, or those of jax.extend",
    "devices": "devices and their memories are not described in this way: use jax.devices() and the attributes of its devices",
}


MARKS = "@+-"


def refused(path: str, name: str, names: dict[str, str]) -> Any:
    """Return what stands for a refused name; None if `names` lacks it."""
    mark = next((mark for mark in ("", *MARKS) if name + mark in names), None)
    if mark is None:
        return None
    advice, full = ADVICE[names[name + mark]], f"{path}.{name}"
    if mark == "@":
        return RefusedValue(full, advice)
    if mark == "+" or (not mark and name[0].isupper() and not name.isupper()):
        return _RefusedClass(
            name, (Refused,), {"__module__": path, "__doc__": f"A class of JAX's without instances: {advice}.", "_advice": advice}
        )
    if name.endswith("_p"):
        return _RefusedPrimitive(full, advice)
    return _function(full, advice)


def _raise(name: str, advice: str) -> NoReturn:
    raise UnsupportedError(f"{name} cannot be used: {advice}")


class _RefusedClass(type):
    """The type of `Refused`: members of enumerations are constants."""

    _advice: str

    def __getattr__(cls, name: str) -> RefusedValue:
        if not name.isupper():
            raise AttributeError(f"{cls.__module__}.{cls.__qualname__} has no attribute {name!r}")
        return RefusedValue(f"{cls.__module__}.{cls.__qualname__}.{name}", cls._advice)


class Refused(metaclass=_RefusedClass):
    """The base of classes without instances, which libraries may name and derive from."""

    _advice = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        _raise(f"{type(self).__module__}.{type(self).__qualname__}", self._advice)


class RefusedValue:
    """A constant that no function takes, or a module of such.

    Calls raise, and attributes are such constants, too.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        _raise(self._name, self._advice)

    def __getattr__(self, name: str) -> RefusedValue:
        if name.startswith("_"):
            raise AttributeError(f"{self._name} has no attribute {name!r}")
        return RefusedValue(f"{self._name}.{name}", self._advice)

    def __repr__(self) -> str:
        return f"<{self._name}>"


class _RefusedPrimitive(Primitive):
    """A primitive that no program has, as a key of tables of rules."""

    _refusal: tuple[str, str]

    def __init__(self, name: str, advice: str) -> None:
        object.__setattr__(self, "name", name.rpartition(".")[2].removesuffix("_p"))
        object.__setattr__(self, "_refusal", (name, advice))

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Raise `UnsupportedError`."""
        _raise(*self._refusal)


def _function(name: str, advice: str) -> Any:
    def refuse(*args: Any, **options: Any) -> NoReturn:
        _raise(name, advice)

    refuse.__module__, _, refuse.__name__ = name.rpartition(".")
    refuse.__qualname__ = refuse.__name__
    refuse.__doc__ = f"Raise `UnsupportedError`: {advice}."
    return refuse
