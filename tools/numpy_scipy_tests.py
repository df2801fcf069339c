"""A plugin of pytest that compares calls in NumPy's and SciPy's tests.

    python -m pytest -c /dev/null --noconftest -p tools.numpy_scipy_tests --pyargs numpy._core.tests.test_umath ...
    python -m pytest -c /dev/null --noconftest -p scipy.conftest -p tools.numpy_scipy_tests --pyargs scipy.linalg.tests.test_decomp ...

The tests run on NumPy and SciPy. Their calls of functions, methods, operators and indexing that volta_fn has, too, with arguments that mean
something there, are made a second time, with volta_fn's arrays and default dtypes of 64 bits: numbers, shapes, dtypes and errors are
compared. So tests need not be about arrays that never change, and calls are compared whose results no test looks at. Equal calls are
compared once. Some tests fail because their arrays are of a subclass. Where volta_fn differs, the installed JAX is asked.
Environment variables: CALLS_SAVE is a file for all differences, as JSON; CALLS_JIT=1 compiles each call, and
CALLS_EVERY=10 compares one call in ten; VOLTA_NATIVE=0 is NumPy's target.

The summary says how many calls there were of each outcome: `same`; `dtype`, where JAX promotes otherwise; `jax`, a result that JAX has,
too; `refused`, an error of volta_fn's, and `refused too`, where JAX has one; `accepted`, a call that NumPy and JAX refuse; `inapplicable`,
with other dtypes, subclasses, results in place; `fail`, everything else.
"""

from __future__ import annotations

import collections
import functools
import importlib
import json
import os
import signal
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy._lib._array_api import xp_capabilities_table

import volta_fn as vf
from tools.array_api_jitted import of_arrays
from volta_fn.errors import ConcretizationError, VoltaError

for _name in ("_rational_tests", "_umath_tests"):
    importlib.import_module(f"numpy._core.{_name}")  # they look into ufuncs, so they must find NumPy's own

JIT, EVERY = os.environ.get("CALLS_JIT") == "1", int(os.environ.get("CALLS_EVERY", "1"))
#: The most elements of an array, and the most seconds of a test.
MOST, SECONDS = 200_000, 20.0
DTYPES = {np.dtype(name) for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()} | {
    np.dtype(name) for name in "float16 float32 float64 complex64 complex128".split()
}
#: Arguments that say where results go and how elements lie, and their values that mean nothing else.
_PLACEMENT = ("out", "order", "casting", "subok", "like", "device", "copy", "ndmin", "requirements", "signature", "sig")
_DEFAULTS = (None, "same_kind", "C", "K", "A", False, 0)
#: Functions that make arrays, which are then compared where they are used.
_CREATION = "array asarray empty empty_like copy frombuffer fromiter asanyarray ascontiguousarray".split()
#: Functions with other results than arrays, with other meanings, or that change their arguments.
_OTHERS = set(
    """
    array_repr array_str can_cast result_type promote_types issubdtype isdtype iterable isscalar load save savez fromfile fromstring
    from_dlpack fromfunction frompyfunc printoptions set_printoptions get_printoptions einsum_path fill_diagonal place put put_along_axis
    astype apply_along_axis apply_over_axes piecewise
    """.split()
)
_METHODS = """
    all any argmax argmin argpartition argsort choose clip compress conj conjugate cumprod cumsum diagonal dot flatten max mean min nonzero
    prod ptp ravel repeat reshape round searchsorted squeeze std sum swapaxes take trace transpose var astype
""".split()
_SCIPY = "linalg special signal fft ndimage stats interpolate optimize integrate cluster cluster.vq".split()
_UFUNC_METHODS = ("reduce", "accumulate", "outer", "reduceat")


class Inapplicable(Exception):
    """Arguments that mean nothing to volta_fn."""


class TooLong(BaseException):
    """A test took longer than its limit."""


class Tally:
    """The outcomes of all calls."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.calls: set[Any] = set()
        #: The test that runs, and whether a call is being compared: what it calls is not.
        self.test, self.comparing = "", False

    def note(self, outcome: str, name: str = "", call: str = "", difference: str = "") -> None:
        self.counts[outcome] += 1
        if name:
            self.rows.append({"function": name, "outcome": outcome, "difference": difference[:600], "call": call, "test": self.test})


tally = Tally()


# Arguments.


def converted(value: Any, array: Callable[[Any], Any]) -> Any:
    """Return an argument with another library's arrays in place of NumPy's."""
    if isinstance(value, np.ndarray):
        if type(value) not in (np.ndarray, Shadow) or value.dtype not in DTYPES or value.size > MOST or not value.dtype.isnative:
            raise Inapplicable
        return array(np.array(value, order="C", subok=False))
    if type(value) in (list, tuple):
        return type(value)(converted(v, array) for v in value)
    if isinstance(value, (type, np.dtype, np.generic)):
        dtype = np.dtype(value) if isinstance(value, (type, np.dtype)) else value.dtype
        if dtype not in DTYPES or not dtype.isnative:
            raise Inapplicable
        return value
    if value is np._NoValue or isinstance(value, (bool, int, float, complex, str, slice, type(None), type(...))):
        return value
    raise Inapplicable


def as_array(value: Any, array: Callable[[Any], Any]) -> Any:
    """Return a list of numbers as an array, for functions that take no lists."""
    if type(value) not in (list, tuple):
        return value
    try:
        numbers = np.asarray(value)
    except ValueError:
        raise Inapplicable from None
    if numbers.dtype not in DTYPES:
        raise Inapplicable
    return array(numbers)


def without_placement(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return keywords without those that say where results go."""
    placement = {k: v for k, v in keywords.items() if k in _PLACEMENT and not (k == "order" and type(v) is int)}  # of splines, a degree
    for value in placement.values():
        if any(isinstance(v, np.ndarray) or v not in _DEFAULTS for v in (value if isinstance(value, tuple) else (value,))):
            raise Inapplicable
    return {k: v for k, v in keywords.items() if k not in placement and v is not np._NoValue}


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to what is in nested lists, tuples and dicts."""
    if type(value) in (list, tuple):
        return type(value)(mapped(function, v) for v in value)
    if type(value) is dict:
        return {k: mapped(function, v) for k, v in value.items()}
    return function(value)


def bare(value: Any) -> Any:
    """Return values with NumPy's arrays in place of shadows."""
    return mapped(lambda x: x.view(np.ndarray) if type(x) is Shadow else x, value)


def shadowed(value: Any) -> Any:
    """Return values with shadows in place of NumPy's arrays."""
    return mapped(lambda x: x.view(Shadow) if type(x) is np.ndarray else x, value)


def identity(value: Any) -> Any:
    """Return what two equal calls have in common."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hash(value.tobytes())
    if isinstance(value, (list, tuple)):
        return tuple(map(identity, value))
    if isinstance(value, dict):
        return tuple([(name, identity(x)) for name, x in value.items()])
    return type(value), repr(value)


def text_of(name: str, arguments: Any, keywords: Any) -> str:
    """Return a call as text."""

    def text(value: Any) -> str:
        if isinstance(value, np.ndarray):
            return f"{value.dtype}{list(value.shape)}{f' {value.tolist()}' if value.size <= 12 else ''}"
        if type(value) in (list, tuple):
            return f"[{', '.join(map(text, value[:8]))}]"
        return brief(value, 100)

    return f"{name}({', '.join([*map(text, arguments), *(f'{k}={text(v)}' for k, v in keywords.items())])})"[:500]


def brief(value: Any, length: int = 220) -> str:
    return " ".join(repr(value).split())[:length]


# Results.


def plain(value: Any) -> Any:
    """Return results as NumPy's arrays."""
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else np.asarray(value)


def difference(result: Any, expected: Any) -> tuple[str, str]:
    """Return an outcome, `same`, `dtype` or `fail`, and how results differ."""
    if isinstance(result, list) or isinstance(expected, list):
        if not (isinstance(result, list) and isinstance(expected, list)) or len(result) != len(expected):
            return "fail", f"structure {brief(result)}, not {brief(expected)}"
        parts = [difference(r, w) for r, w in zip(result, expected, strict=True)]
        return next((p for kind in ("fail", "dtype") for p in parts if p[0] == kind), ("same", ""))
    if expected.dtype not in DTYPES:
        return "same", ""
    if result.shape != expected.shape:
        return "fail", f"shape {result.shape}, not {expected.shape}"
    if not equal(result, expected):
        return "fail", f"{brief(result)}, not {brief(expected)}"
    return ("same", "") if result.dtype == expected.dtype else ("dtype", f"dtype {result.dtype}, not {expected.dtype}")


def equal(result: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether numbers agree within rounding of the less precise dtype."""
    infos = [np.finfo(x.dtype) for x in (result, expected) if x.dtype.kind in "fc"]
    if not infos:
        return bool(np.all(result == expected))
    eps, tiny, most = max(float(i.eps) for i in infos), max(float(i.tiny) for i in infos), min(float(i.max) for i in infos)
    x, y = (a.astype(np.complex128) for a in (result, expected))
    scale = np.max(np.abs(y), where=np.isfinite(np.abs(y)), initial=0.0)
    for p, q in ((x.real, y.real), (x.imag, y.imag)):
        ok = (p == q) | (np.isnan(p) & np.isnan(q)) | (np.abs(p - q) <= 100 * eps * scale + 4 * tiny)
        if not np.all(ok | ((np.abs(q) > most) & (np.abs(p) >= most) & (np.sign(p) == np.sign(q)))):
            return False
    return True


# Calls.

#: volta_fn or jax -> result.
Call = Callable[[Any], Any]


def run(name: str, function: Callable[..., Any], other: Callable[[Any], Callable[..., Any]], arguments: Any, keywords: Any) -> Any:
    """Call a function of NumPy or SciPy, and compare it with `other` of volta_fn."""
    arguments, keywords = bare(arguments), bare(keywords)
    key = name, identity(arguments), identity(keywords)
    if tally.comparing or key in tally.calls:
        return shadowed(function(*arguments, **keywords))
    tally.calls.add(key)
    if len(tally.calls) % EVERY:
        return shadowed(function(*arguments, **keywords))
    before = mapped(lambda x: x.copy() if isinstance(x, np.ndarray) else x, (arguments, keywords))
    result, error = None, None
    try:
        result = function(*arguments, **keywords)
    except Exception as raised:  # the test expects it
        error = raised

    def call(package: Any) -> Any:
        array = package.numpy.asarray
        named = {k: converted(v, array) for k, v in without_placement(before[1]).items()}
        values, target = converted(tuple(before[0]), array), other(package)
        if JIT and package is vf:
            target = functools.partial(jitted, target)
        try:
            return target(*values, **named)
        except (TypeError, VoltaError) as raised:
            if not any(type(v) in (list, tuple) for v in values):
                raise
            try:
                return target(*[as_array(v, array) for v in values], **named)
            except (TypeError, VoltaError):
                raise raised from None

    tally.comparing = True
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            outcome, what = compare(call, result, error)
    finally:
        tally.comparing = False
    tally.note(outcome, *(() if outcome in ("same", "dtype", "inapplicable") else (name, text_of(name, *before), what)))
    if error is not None:
        raise error
    return shadowed(result)


def compare(call: Call, result: Any, error: Exception | None) -> tuple[str, str]:
    """Return the outcome of a call, and how it differs from the result or error."""
    try:
        counterpart = plain(call(vf))
    except Inapplicable:
        return "inapplicable", ""
    except VoltaError as raised:
        if error is not None:
            return "same", ""
        return (
            "refused too" if isinstance(of_jax(call), Exception) else "refused"
        ), f"{type(raised).__name__}: {str(raised).splitlines()[0]}"
    except Exception as raised:  # an error that is none of volta_fn's
        if type(raised) is type(error):
            return "same", ""
        return ("inapplicable" if "unexpected keyword argument" in str(raised) else "fail"), f"{raised!r} beside {error!r}"
    if error is not None:
        theirs = of_jax(call)
        return ("accepted" if isinstance(theirs, Exception) else "jax"), f"{brief(counterpart)}, NumPy: {error!r}, JAX: {brief(theirs)}"
    outcome, what = difference(counterpart, plain(result))
    if outcome == "same":
        return outcome, ""
    theirs = of_jax(call)
    if isinstance(theirs, Exception) or difference(counterpart, theirs)[0] != "same":
        return "fail", f"{what}; JAX: {brief(theirs)}"
    return ("dtype" if outcome == "dtype" else "jax"), what


def of_jax(call: Call) -> Any:
    """Return what JAX gives for a call, or its error."""
    try:
        return plain(call(jax))
    except Exception as error:  # whatever it is, JAX refuses the call
        return error


def jitted(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function as a program of its arrays."""
    program, arrays = of_arrays(function, *arguments, **keywords)
    if not arrays:
        raise Inapplicable
    try:
        return vf.jit(program)(*arrays)
    except ConcretizationError:
        raise Inapplicable from None


# Names of NumPy and SciPy, whose calls are compared.


def member(path: str) -> Callable[[Any], Any]:
    """Return what finds a function in volta_fn or JAX."""
    return lambda package: functools.reduce(getattr, path.split("."), package)


def function_of(path: str, function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return run(path, function, member(path), arguments, keywords)

    return call


def creation(function: Any) -> Any:
    """Return a function that makes shadows."""
    return functools.wraps(function)(lambda *arguments, **keywords: shadowed(function(*bare(arguments), **bare(keywords))))


class Ufunc:
    """A ufunc of NumPy or SciPy whose calls and methods are compared."""

    def __init__(self, ufunc: Any) -> None:
        self._ufunc = ufunc

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return call_ufunc(self._ufunc, "__call__", arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name in _UFUNC_METHODS:
            return lambda *arguments, **keywords: call_ufunc(self._ufunc, name, arguments, keywords)
        if name == "at":
            return lambda *arguments: self._ufunc.at(*bare(arguments))
        return getattr(self._ufunc, name)

    def __eq__(self, other: object) -> bool:
        return self._ufunc is (other._ufunc if isinstance(other, Ufunc) else other)

    def __hash__(self) -> int:
        return hash(self._ufunc)

    def __repr__(self) -> str:
        return repr(self._ufunc)


def call_ufunc(ufunc: Any, method: str, arguments: Any, keywords: Any) -> Any:
    """Call a ufunc or a method of it, and compare it where volta_fn's means the same."""
    path, function = _paths.get(ufunc, ""), getattr(ufunc, method)
    if method == "__call__":
        applies = len(arguments) == ufunc.nin and keywords.get("where", True) is True and "dtype" not in keywords
    else:
        applies = bool(path) and hasattr(member(path)(vf), method)
        path = f"{path}.{method}"
    if not (path and applies):
        return shadowed(function(*bare(arguments), **bare(keywords)))
    return run(path, function, member(path), arguments, keywords)


class Shadow(np.ndarray):
    """An array whose methods, operators and indexing are compared."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        outs = keywords.get("out")
        if outs is None and method != "at":
            return call_ufunc(ufunc, method, inputs, keywords)
        result = getattr(ufunc, method)(*bare(inputs), **bare(keywords))
        return outs[0] if outs and len(outs) == 1 and outs[0] is not None else shadowed(result)

    def __array_function__(self, function: Any, kinds: Any, arguments: Any, keywords: Any) -> Any:
        path = _paths.get(function)
        if path is None:
            return shadowed(function(*bare(arguments), **bare(keywords)))
        return run(path, function, member(path), arguments, keywords)

    def __getitem__(self, index: Any) -> Any:
        base = bare(self)
        if isinstance(index, str):
            return base[index]
        return run("getitem", lambda x, i: x[i], lambda _: lambda x, i: x[i], (base, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        base = bare(self)

        def assign(x: Any, i: Any, v: Any) -> Any:
            base[i] = v
            return base.copy()

        if isinstance(index, str) or base.dtype not in DTYPES:
            base[bare(index)] = bare(value)
        else:
            other = lambda package: lambda x, i, v: x.at[i].set(as_array(v, package.numpy.asarray))  # noqa: E731
            run("setitem", assign, other, (base.copy(), index, value), {})


def method_of(name: str) -> Callable[..., Any]:
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        base = bare(self)
        if base.dtype not in DTYPES:
            return shadowed(getattr(base, name)(*bare(arguments), **bare(keywords)))
        function = lambda x, *rest, **options: getattr(x, name)(*rest, **options)  # noqa: E731
        return run(f"ndarray.{name}", function, lambda _: function, (base, *arguments), keywords)

    return call


for _name in _METHODS:
    setattr(Shadow, _name, method_of(_name))

#: Where volta_fn has a function.
_paths: dict[Any, str] = {}


class Proxy(types.ModuleType):
    """A module, or a distribution of SciPy, with functions that are compared."""

    def __init__(self, subject: Any, path: str) -> None:
        super().__init__(path)
        vars(self).update(vars(subject), __getattr__=functools.partial(getattr, subject), __call__=subject)
        other = member(path)(vf)
        for name in dir(subject):
            if not name.startswith("_"):
                value = getattr(subject, name)
                substitute = substitute_of(value, f"{path}.{name}", getattr(other, name, None))
                if substitute is not value:
                    setattr(self, name, substitute)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return vars(self)["__call__"](*arguments, **keywords)


def substitute_of(value: Any, path: str, counterpart: Any) -> Any:
    """Return what stands for a member of a module with a counterpart."""
    name = path.rpartition(".")[2]
    if isinstance(value, (type, types.ModuleType)) or not callable(value):
        return value
    if isinstance(counterpart, types.ModuleType):
        return Proxy(value, path)
    if counterpart is not None and name not in _OTHERS and name not in _CREATION:
        _paths.setdefault(value, path)
    if isinstance(value, np.ufunc):
        return Ufunc(value)
    if name in _CREATION:
        return creation(value)
    if value not in _paths:
        return value
    substitute = function_of(_paths[value], value)
    if value in xp_capabilities_table:  # which SciPy's decorators of tests read
        xp_capabilities_table[substitute] = xp_capabilities_table[value]
    return substitute


def proxies() -> dict[str, Proxy]:
    """Return what stands for modules, by their names."""
    paths = {name: name for name in ("numpy", "numpy.linalg", "numpy.fft", "scipy", *(f"scipy.{n}" for n in _SCIPY))}
    paths |= {"numpy._core.umath": "numpy", "scipy.special._ufuncs": "scipy.special"}
    modules = {name: Proxy(importlib.import_module(name), path) for name, path in paths.items()}
    for name in paths:
        package, _, attribute = name.rpartition(".")
        if package in modules:
            setattr(modules[package], attribute, modules[name])
    return modules


_proxies = proxies()
#: What stands for modules and their functions, by their identities.
_substitutes = {id(sys.modules[name]): proxy for name, proxy in _proxies.items()}
for _name, _proxy in _proxies.items():
    _subject = vars(sys.modules[_name])
    _substitutes |= {id(_subject[key]): value for key, value in vars(_proxy).items() if value is not _subject.get(key, value)}


class Module(pytest.Module):
    """A file of tests that finds compared functions under their names."""

    def _getobj(self) -> Any:  # pytest's name
        modules = {name: sys.modules[name] for name in _proxies}
        sys.modules.update(_proxies)
        try:
            module = super()._getobj()
        finally:
            sys.modules.update(modules)
        for name, value in list(vars(module).items()):
            if id(value) in _substitutes:
                setattr(module, name, _substitutes[id(value)])
        if hasattr(module, "consistent_subclass"):
            module.consistent_subclass = lambda out, operand: True
        return module


# pytest's hooks.


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> Any:
    return Module.from_parent(parent, path=module_path)


def pytest_configure(config: Any) -> None:
    os.environ["NPY_AVAILABLE_MEM"] = os.environ["SCIPY_AVAILABLE_MEM"] = "1 GB"  # tests that take more skip themselves
    vf.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_x64", True)
    for name in _SCIPY:
        importlib.import_module(f"jax.scipy.{name}")
    jax.numpy.linalg.inv(jax.numpy.eye(2))  # which imports what it needs, before NumPy has proxies


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    tally.test = item.nodeid

    def stop(*_: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    path = os.environ.get("CALLS_SAVE")
    if path:
        Path(path).write_text(json.dumps(tally.rows))
    terminalreporter.write_line("calls: " + "  ".join(f"{outcome} {count}" for outcome, count in tally.counts.most_common()))
    groups: dict[tuple[str, str], list[dict[str, str]]] = collections.defaultdict(list)
    for row in tally.rows:
        groups[row["outcome"], row["function"]].append(row)
    for (outcome, name), group in sorted(groups.items()):
        terminalreporter.write_line(f"{outcome:12}{name} x{len(group)}")
        for row in group[: 3 if outcome == "fail" else 1]:
            terminalreporter.write_line(f"            {row['call'][:300]}: {row['difference'][:400]}")
