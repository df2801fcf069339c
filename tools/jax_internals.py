"""Stand-ins for the private modules of JAX (`jax._src`) that its tests import.

A name that a public module has is that; some are written here; every other name is `Absent`: it can be imported and used to decorate, and
raises `AbsentInternal` when a running test uses it. JAX's own test utilities are executed from its checkout, which JAX_SOURCE names.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import operator
import sys
import unittest
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax_sparse_internals  # of this folder
import ml_dtypes
import numpy as np

#: Files of JAX's that are executed as they are.
FILES = (
    "test_util",
    "public_test_util",
    "test_warning_util",
    "lax_reference",
    "internal_test_util.lax_test_util",
    "internal_test_util.test_harnesses",
    "pallas.pallas_test_util",
)
#: The public modules whose names a private module has, if it is not that of the same name.
PUBLIC = {
    "api": ("jax", "volta_fn.ad"),
    "array": ("jax",),
    "core": ("jax.extend.core", "jax.core", "jax.errors", "jax"),
    "checkify": ("jax.experimental.checkify",),
    "ad_checkpoint": ("jax.ad_checkpoint", "jax"),
    "custom_derivatives": ("jax.custom_derivatives", "jax"),
    "debugging": ("jax.debug",),
    "export.shape_poly": ("jax.export",),
    "shard_map": ("jax",),
    "lax.linalg": ("jax.lax.linalg", "jax.lax"),
    "linear_util": ("jax.extend.linear_util",),
    "mesh": ("jax.sharding",),
    "nn.functions": ("jax.nn",),
    "numpy": ("jax.numpy",),
    "pallas": ("jax.experimental.pallas",),
    "pallas.cost_estimate": ("jax.experimental.pallas",),
    "pallas.pallas_call": ("jax.experimental.pallas",),
    "sharding_impls": ("jax.sharding",),
}
#: Private packages, whose attributes in lower case are modules.
PACKAGES = {
    "jax._src",
    *[f"jax._src.{n}" for n in ("scipy", "export", "interpreters", "nn", "lib", "internal_test_util", "extend", "tpu", "state")],
}
MODULES = {
    "jax._src.lax": {"lax", "control_flow", "slicing", "windowed_reductions", "convolution", "parallel", "special", "utils", "linalg"},
    "jax._src.numpy": {"util", "einsum", "lax_numpy", "linalg", "fft", "ufuncs", "hijax", "indexing", "reductions"},
    "jax._src.pallas": {"cost_estimate", "pallas_call"},
    "jax._src.random": {"prng", "core", "threefry2x32"},
}
running = False


class AbsentInternal(NotImplementedError):
    """A test used a private name of JAX's that has no stand-in."""


class Absent:
    """A private name without a stand-in."""

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "__name__":
            return self.name.rpartition(".")[2]
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Absent(f"{self.name}.{attribute}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.name.endswith(".cache_clear"):
            return None
        self._use()
        return args[0] if len(args) == 1 and callable(args[0]) else Absent(f"{self.name}()")

    def _use(self, *_: Any) -> Any:
        if running:
            raise AbsentInternal(self.name)
        return False

    def _ignore(self, *_: Any) -> None:
        """Do nothing."""

    def _none(self, *_: Any) -> Iterator[Any]:
        self._use()
        return iter(())

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()

    __hash__ = object.__hash__
    __enter__ = __eq__ = __le__ = __lt__ = __ge__ = __gt__ = __bool__ = __instancecheck__ = _use  # type: ignore[assignment]
    __setattr__ = __setitem__ = __exit__ = _ignore  # type: ignore[assignment]
    __iter__ = __delitem__ = _none  # type: ignore[assignment]
    __or__ = __ror__ = __getitem__ = lambda self, *_: self  # type: ignore[assignment]


class Private(ModuleType):
    """A private module: its own names, those of public modules, and absent ones."""

    def __init__(self, name: str, *publics: Any, **names: Any) -> None:
        super().__init__(name)
        self.__dict__.update(names, _publics=publics, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        is_package = self.__name__ in PACKAGES and name.islower() and name[0] != "_"
        if is_package or name in MODULES.get(self.__name__, ()) or full.removeprefix("jax._src.") in FILES:
            return importlib.import_module(full)
        for public in self._publics:
            if hasattr(public, name):
                return getattr(public, name)
        return Absent(full)


class Setting:
    """A setting as JAX's tests use it: its value, and a context manager."""

    def __init__(self, config: Any, name: str) -> None:
        self.__dict__.update(config=config, name=name)

    def __getattr__(self, name: str) -> Any:
        if name != "value":
            raise AttributeError(name)
        return self.config.values[self.name]

    def get_global(self) -> Any:
        """Return the value."""
        return self.value

    @contextlib.contextmanager
    def __call__(self, value: Any = True) -> Iterator[None]:
        before = self.value
        self.config.update(self.name, value)
        try:
            yield
        finally:
            self.config.update(self.name, before)


class DtypesOfNumbers(dict[type, Any]):
    """The dtypes of Python's numbers, as `jax_enable_x64` has them."""

    def __getitem__(self, kind: type) -> Any:
        return super().__getitem__(kind)()

    def get(self, kind: Any, default: Any = None) -> Any:
        """Return the dtype of a type, or a default."""
        make = super().get(kind)
        return make() if make else default


class Generator(str):
    """The name of an implementation of keys, with what tests ask of it."""

    @property
    def key_shape(self) -> tuple[int]:
        """The shape of a key's data."""
        return (2 if self == "threefry2x32" else 4,)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return Private(name)


def _config() -> dict[str, Any]:
    import jax  # noqa: PLC0415  # which must be installed first

    config = jax.config
    for name in (
        "jax_use_simplified_jaxpr_constants",
        "jax_skip_slow_tests",
        "jax_num_generated_cases",
        "jax_embedded_constants_max_bytes",
        "jax_export_ignore_forward_compatibility",
    ):
        config.values.setdefault(name, False)
    states = {name: Setting(config, name) for name in config.values}
    flag = lambda name, default, *_, **__: SimpleNamespace(value=default)  # noqa: E731
    flags = dict.fromkeys(("string_flag", "int_flag", "bool_flag", "enum_flag"), flag)
    ExplicitX64Mode = enum.IntEnum("ExplicitX64Mode", "WARN ERROR ALLOW")
    explicit_mode = {"ExplicitX64Mode": ExplicitX64Mode} | {name.removeprefix("jax_"): state for name, state in states.items()} | states
    read = {"_read": config.values.get, "bool_env": lambda name, default: default, "config_states": states}
    return {**explicit_mode, **flags, **read, "config": config, "update": config.update}


def _names(types: dict[str, Any], *kinds: str) -> list[Any]:
    """Return the dtypes of these kinds in JAX's order, the narrow ones first."""
    by_kind = {kind: [t for n, t in sorted(types.items()) if n.startswith(kind) and n[len(kind)].isdigit()] for kind in kinds}
    numpys = {kind: [f"{kind}{bits}" for bits in (8, 16, 32, 64)] for kind in ("uint", "int")}
    numpys["bfloat"] = ["float16", "float32", "float64"]
    return [t for kind in kinds for t in (*by_kind[kind], *numpys.get(kind, ()))]


def _dtype_of(jax: Any, jnp: Any, x: Any) -> Any:
    """Return the dtype of a value, or that which a type stands for."""
    if not isinstance(x, (type, np.dtype)):
        return jax.dtypes.canonicalize_dtype(x.dtype) if hasattr(x, "dtype") else jnp.result_type(x)
    narrow, mode = jax.dtypes.canonicalize_dtype(x), jax.config.values["jax_explicit_x64_dtypes"]
    if (isinstance(x, type) and x in (int, float, complex)) or narrow == np.dtype(x) or mode in ("warn", 1):
        return narrow
    if mode in ("error", 2):
        raise ValueError(f"Explicitly requested dtype {x} is not available")
    return np.dtype(x)


def _dtypes() -> dict[str, Any]:
    import jax  # noqa: PLC0415  # which must be installed first
    from jax import numpy as jnp  # noqa: PLC0415  # which must be installed first

    def default(short: str, wide: str) -> Callable[[], np.dtype]:
        return lambda: np.dtype(wide if jax.config.x64_enabled else short)

    integer, unsigned = default("int32", "int64"), default("uint32", "uint64")
    real, number = default("float32", "float64"), default("complex64", "complex128")
    names = {n: t for n, t in vars(ml_dtypes).items() if isinstance(t, type) and n not in ("finfo", "iinfo")}
    return {
        **names,
        "dtype": lambda x: _dtype_of(jax, jnp, x),
        "default_types": {"b": lambda: np.dtype(bool), "i": integer, "u": unsigned, "f": real, "c": number},
        "default_int_dtype": integer,
        "default_uint_dtype": unsigned,
        "default_float_dtype": real,
        "python_scalar_types_to_dtypes": DtypesOfNumbers({bool: lambda: np.dtype(bool), int: integer, float: real, complex: number}),
        "to_inexact_dtype": lambda d: (
            np.dtype(d) if jnp.issubdtype(d, np.inexact) else real() if np.dtype(d).itemsize == 8 else np.dtype("f4")
        ),
        "to_complex_dtype": lambda d: jax.dtypes.canonicalize_dtype(np.promote_types(d, np.complex64)),
        "is_weakly_typed": lambda x: bool(getattr(x, "weak_type", isinstance(x, (int, float, complex)) and not isinstance(x, bool))),
        "itemsize_bits": lambda d: (
            8 * np.dtype(d).itemsize if np.dtype(d).kind in "bc" else (jnp.finfo if jnp.issubdtype(d, np.inexact) else jnp.iinfo)(d).bits
        ),
        "promote_types": jnp.promote_types,
        "_weak_types": [int, float, complex],
        "_jax_types": [np.dtype(n) for n in ["bool", *_names(names, "uint", "int", "float", "bfloat"), "complex64", "complex128"]],
        "_intn_dtypes": [np.dtype(names[n]) for n in ("int2", "int4", "uint2", "uint4")],
    }


def _util() -> dict[str, Any]:
    def safe_zip(*columns: Any) -> list[Any]:
        return list(zip(*columns, strict=True))

    def split(values: Any, sizes: Any) -> list[Any]:
        result, rest = [], list(values)
        for size in sizes:
            result.append(rest[:size])
            rest = rest[size:]
        return [*result, rest]

    return {
        "safe_zip": safe_zip,
        "safe_map": lambda f, *columns: [f(*row) for row in safe_zip(*columns)],
        "unzip2": lambda pairs: tuple(zip(*rows, strict=True)) if (rows := list(pairs)) else ((), ()),
        "split_list": split,
        "canonicalize_axis": lambda axis, ndim: operator.index(axis) % ndim,
        "tuple_insert": lambda t, i, v: (*t[:i], v, *t[i:]),
        "tuple_delete": lambda t, i: (*t[:i], *t[i + 1 :]),
        "tuple_update": lambda t, i, v: (*t[:i], v, *t[i + 1 :]),
        "curry": lambda f: functools.partial(functools.partial, f),
        "install_failure_signal_handler": lambda: None,
    }


def _promotion() -> dict[str, Any]:
    from jax import numpy as jnp  # noqa: PLC0415  # which must be installed first

    inexact = _dtypes()["to_inexact_dtype"]

    def promoted(adjust: Callable[[Any], Any]) -> Callable[..., list[Any]]:
        return lambda *values: [jnp.asarray(v).astype(adjust(jnp.result_type(*values))) for v in values]

    return {"promote_dtypes": promoted(lambda d: d), "promote_dtypes_inexact": promoted(inexact)}


def _device() -> dict[str, Any]:
    backend = SimpleNamespace(platform="cpu", platform_version="cpu", runtime_type="cpu")
    return {
        "get_backend": functools.cache(lambda *_: backend),
        "num_cpu_devices": SimpleNamespace(value=1),
        "canonicalize_platform": lambda platform: platform,
        "devices": lambda *names: importlib.import_module("jax").devices(*names),
    }


def _sizes() -> dict[str, Any]:
    """Return functions of sizes, which may be symbolic."""
    dimension = importlib.import_module("volta_fn.core.dimension")

    def definitely_equal(x: Any, y: Any) -> bool:
        try:
            return bool(x == y)
        except dimension.InconclusiveDimensionOperation:
            return False

    def stride_dim(size: Any, window: Any, stride: int) -> Any:
        return dimension.max_dim((size - window + stride) // stride, 0)

    def dilate_dim(size: Any, dilation: int) -> Any:
        return size if definitely_equal(dilation, 1) else dimension.max_dim(1 + dilation * (size - 1), 0)

    return {
        "max_dim": dimension.max_dim,
        "min_dim": dimension.min_dim,
        "is_symbolic_dim": dimension.is_symbolic_dim,
        "is_constant_shape": lambda shape: not dimension.is_symbolic(shape),
        "dimension_as_value": lambda d: d.__jax_array__() if dimension.is_symbolic_dim(d) else d,
        "definitely_equal": definitely_equal,
        "definitely_equal_one_of_dim": lambda x, ys: any(definitely_equal(x, y) for y in ys),
        "stride_dim": stride_dim,
        "dilate_dim": dilate_dim,
    }


def _loading() -> dict[str, Any]:
    unchanged = lambda condition=True: lambda function: function  # noqa: E731
    tests = {"thread_unsafe_test": unchanged, "thread_unsafe_test_class": unchanged}
    return {**tests, "JaxTestLoader": unittest.TestLoader, "TEST_NUM_THREADS": SimpleNamespace(value=0)}


def _dispatch() -> dict[str, Any]:
    cache = SimpleNamespace(cache_info=lambda: SimpleNamespace(misses=0), cache_clear=lambda: None)
    tokens = SimpleNamespace(clear=lambda: None, block_until_ready=lambda: None)
    return {"xla_primitive_callable": cache, "runtime_tokens": tokens}


#: What makes the names of a module that has some of its own.
OWN: dict[str, Callable[[], dict[str, Any]]] = {
    "config": _config,
    "dtypes": _dtypes,
    "util": _util,
    "numpy.util": _promotion,
    "lax.windowed_reductions": lambda: {"_select_and_gather_add": lambda x, *_: x},
    "lax.lax": lambda: {"remaining": lambda all_, *others: [x for x in all_ if not any(x in other for other in others)]},
    "xla_bridge": _device,
    "test_loader": _loading,
    "dispatch": _dispatch,
    "deprecations": lambda: {"is_accelerated": lambda name: True},
    "compilation_cache": lambda: {"_cache": None},
    "core": lambda: {"reset_trace_state": lambda: True, "trace_state_clean": lambda: True, **_sizes()},
    "export.shape_poly": lambda: {"_DimExpr": importlib.import_module("volta_fn.core.dimension").Dimension},
    "lib": lambda: {
        "version": (9, 9, 9),
        "jaxlib_extension_version": 0,
        "_jax": Private("_jax", is_optimized_build=lambda: True, get_internal_device_put_info=dict),
    },
    "cloud_tpu_init": lambda: {"is_libtpu_at_least": lambda *_: True, "running_in_cloud_tpu_vm": False},
    "random.prng": lambda: {"prngs": {name: Generator(name) for name in ("threefry2x32", "rbg", "unsafe_rbg")}},
}


class Finder(MetaPathFinder, Loader):
    """Finds private modules: JAX's files, and stand-ins."""

    def __init__(self, source: Path) -> None:
        self.files = {f"jax._src.{name}": source / "jax/_src" / f"{name.replace('.', '/')}.py" for name in FILES}
        self.files["jax.experimental.sparse.test_util"] = source / "jax/experimental/sparse/test_util.py"

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a private module."""
        if fullname in self.files:
            return spec_from_file_location(fullname, self.files[fullname])
        return ModuleSpec(fullname, self, is_package=True) if f"{fullname}.".startswith("jax._src.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = spec.name.removeprefix("jax._src").removeprefix(".")
        publics = PUBLIC.get(name) or (f"jax.{name}", f"jax.{name.partition('.')[0]}")
        attributes = OWN[name]() if name in OWN else {}
        return Private(spec.name, *map(_imported, publics), **attributes)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up when they are used."""


def install(source: Path) -> None:
    """Let `jax._src` be the stand-ins, with the files of a checkout of JAX."""
    importlib.import_module("volta_fn.jax").install()
    sys.meta_path.insert(0, Finder(source))
    jax_sparse_internals.install()
    mosaic = importlib.import_module("jax.experimental.mosaic.gpu.core")
    mosaic.artificial_shared_memory_limit = contextlib.nullcontext  # type: ignore[attr-defined]  # tests of the interpreter set it, too
