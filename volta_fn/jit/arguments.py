"""Arguments of jitted functions: static, donated and dynamic ones.

Static arguments are constants of the program, and the memory of donated ones may be reused. A `Request` is one call with its arguments.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value, brief, conversion, library_name
from volta_fn.core.functions import argument_labels, function_name, wraps
from volta_fn.errors import ArgumentError, ArgumentTypeError, UnhashableStaticError


class JitOptions(NamedTuple):
    """Options of `jit`: positions and names of static and of donated arguments."""

    argnums: frozenset[int]
    argnames: frozenset[str]
    donate_argnums: frozenset[int]
    donate_argnames: frozenset[str]

    @property
    def has_static(self) -> bool:
        """Whether any argument is static."""
        return bool(self.argnums or self.argnames)


_NO_OPTIONS = JitOptions(*[frozenset[Any]()] * 4)


class ArgumentsKey(NamedTuple):
    """What a call's key has of its arguments besides the types of arrays."""

    #: The structure of the dynamic arguments.
    in_tree: Any
    #: The name or position, type and value of each static argument.
    static_args: tuple[Any, ...]
    static_kwargs: tuple[Any, ...]


class Request:
    """One call: `leaves` and `in_tree` of dynamic arguments; `key` of everything else."""

    def __init__(self, fun: Callable[..., Any], options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.options = options
        self.args = args
        self.kwargs = kwargs
        static_args = {i: args[i] for i in sorted(options.argnums) if i < len(args)}
        static_kwargs = {n: kwargs[n] for n in sorted(options.argnames) if n in kwargs}
        self.dynamic_args = tuple([a for i, a in enumerate(args) if i not in static_args])
        self.dynamic_kwargs = {n: v for n, v in kwargs.items() if n not in static_kwargs}
        self.leaves, self.in_tree = tree.flatten((self.dynamic_args, self.dynamic_kwargs))
        self.static_args, self.static_kwargs = static_args, static_kwargs
        self.fun = fun
        self.key = ArgumentsKey(self.in_tree, _static_key(fun, static_args), _static_key(fun, static_kwargs))

    @property
    def function(self) -> Callable[..., Any]:
        """The function of the dynamic arguments."""
        return _with_statics(self.fun, self.static_args, self.static_kwargs) if self.static_args or self.static_kwargs else self.fun

    def values(self) -> list[Array]:
        """Return the leaves as arrays; raise `ArgumentTypeError` naming other arguments."""
        values: list[Array] = []
        for leaf in self.leaves:
            try:
                values.append(as_value(leaf))
            except ArgumentTypeError as error:
                raise (error if isinstance(leaf, np.ndarray) else ArgumentTypeError(self._not_an_array(len(values)))) from None
        return values

    def _not_an_array(self, position: int) -> str:
        """Say which argument is not an array, and how to make it static."""
        label, value = argument_labels(self.function, self.in_tree)[position], self.leaves[position]
        name, where = re.split(r"[\[.]", label, maxsplit=1)[0], function_name(self.fun)
        if expression := conversion(value, label):
            return f"{where}: the argument {label} is a {library_name(value)}, not an array. Convert it first: {expression}."
        remedy = f'If it is an option, make it static: jit({where}, static_argnames="{name}")'
        if isinstance(value, (set, frozenset)):
            remedy = "A set has no order: pass a sorted list or tuple"
        elif label != name:
            remedy = f"Leaves of arguments must be arrays: take it out of the pytree {name}, and pass it as a static argument"
        elif label == self._name_of_self():
            remedy = (
                f"If {where} is a method, make {type(value).__name__} a volta_fn.nn.Module, whose arrays are arguments of the program. A "
                f'static self, jit({where}, static_argnames="{name}"), is compared by identity: later changes of attributes are not seen'
            )
        return f"{where}: the argument {label} is {brief(value)} of type {type(value).__name__}, which is no array. {remedy}."

    def _name_of_self(self) -> str | None:
        """Return the name of the first parameter if the function was defined in a class."""
        outer, _, _ = getattr(self.fun, "__qualname__", "").rpartition(".")
        if not outer or outer.endswith("<locals>"):
            return None
        return next(iter(inspect.signature(self.fun).parameters), None)

    def donated(self) -> tuple[bool, ...]:
        """Return for each leaf whether its argument is donated."""
        if not (self.options.donate_argnums or self.options.donate_argnames):
            return (False,) * len(self.leaves)
        positions = [i for i in range(len(self.args)) if i not in self.options.argnums]
        flags: list[bool] = []
        for position, arg in zip(positions, self.dynamic_args, strict=True):
            flags += [position in self.options.donate_argnums] * len(tree.leaves(arg))
        for name in sorted(self.dynamic_kwargs):
            flags += [name in self.options.donate_argnames] * len(tree.leaves(self.dynamic_kwargs[name]))
        return tuple(flags)


#: Types of numbers with signed zeros: 0.0 and -0.0 are equal, but different constants. Keys have zeros of these types as texts.
_SIGNED = (float, complex)


def _key_entry(value: Any) -> Any:
    """Return the entry of a key for a static value."""
    return value if value or type(value) not in _SIGNED else repr(value)


@functools.cache
def key_function(static: frozenset[int], count: int, attribute: str) -> Callable[..., tuple[Any, ...]]:
    """Generate the function that makes the key of a call with `count` arguments.

    The key has the types and values of the static arguments, and an attribute of the others (None stays None). The code has no
    loop and no call, since every call of a jitted function with static arguments makes such a key.
    """
    names = [f"a{i}" for i in range(count)]
    entries = [
        f"type({a}), {a} if {a} or type({a}) not in zeros else repr({a})" if i in static else f"None if {a} is None else {a}.{attribute}"
        for i, a in enumerate(names)
    ]
    key_of: Callable[..., tuple[Any, ...]] = eval(f"lambda {', '.join(names)}: ({''.join(e + ', ' for e in entries)})", {"zeros": _SIGNED})
    return key_of


def static_values(static: frozenset[int], args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the types and values of a call's static arguments, as a key."""
    return tuple([(type(a), _key_entry(a)) for i, a in enumerate(args) if i in static])


def _with_statics(fun: Callable[..., Any], static_args: dict[int, Any], static_kwargs: dict[str, Any]) -> Callable[..., Any]:

    @wraps(fun)
    def with_statics(*args: Any, **kwargs: Any) -> Any:
        rest = iter(args)
        count = len(args) + len(static_args)
        merged = [static_args[i] if i in static_args else next(rest) for i in range(count)]
        return fun(*merged, **kwargs, **static_kwargs)

    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        return with_statics
    # Labels of arguments are read from it, by the positions among those that are not static.
    dynamic = [p for i, p in enumerate(signature.parameters.values()) if i not in static_args and p.name not in static_kwargs]
    with_statics.__signature__ = signature.replace(parameters=dynamic)  # type: ignore[attr-defined]  # which functions may have
    return with_statics


def _static_key(fun: Callable[..., Any], values: dict[Any, Any]) -> tuple[Any, ...]:
    for name, value in values.items():
        try:
            if isinstance(value, Array):
                raise TypeError
            hash(value)
        except TypeError:
            raise UnhashableStaticError(f"static argument {name!r} of {function_name(fun)} is {_unhashable(name, value)}") from None
    return tuple([(name, type(v), _key_entry(v)) for name, v in values.items()])


def _unhashable(name: Any, value: Any) -> str:
    if isinstance(value, (Array, np.ndarray)):
        return (
            f"an array of shape {value.shape}, but programs are kept by the values of static arguments, and arrays cannot be static. "
            f"Leave it out of static_arg{'names' if isinstance(name, str) else 'nums'}: arrays are ordinary arguments."
        )
    return (
        f"{value!r:.80} of type {type(value).__name__}, which is not hashable. "
        "Pass a tuple instead of a list, a frozen dataclass instead of a dict; arrays cannot be static, nor what holds them."
    )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, (int, str)) else tuple(value)


def resolve_options(fun: Callable[..., Any], argnums: Any, argnames: Any, donate_argnums: Any, donate_argnames: Any) -> JitOptions:
    """Resolve names to positions and positions to names.

    An argument is static or donated however it is passed, unless both its names and its positions are given: then each holds for arguments
    that are passed so. Raises `ArgumentError` for names and positions that `fun` does not have.
    """
    if argnums is argnames is donate_argnums is donate_argnames is None:
        return _NO_OPTIONS
    nums, names = _as_tuple(argnums), _as_tuple(argnames)
    donate_nums, donate_names = _as_tuple(donate_argnums), _as_tuple(donate_argnames)
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
        if donate_names:
            raise ArgumentError(f"{function_name(fun)} has no signature: use donate_argnums instead of donate_argnames") from None
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters) or not parameters
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters) or not parameters

    nameless = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]

    def positions(numbers: tuple[int, ...], labels: tuple[str, ...], option: str, infer: bool) -> tuple[frozenset[int], frozenset[str]]:
        if positional := [n for n in labels if n in nameless]:
            raise ArgumentError(f"{option}_argnames: {function_name(fun)} takes {positional} by position only: use {option}_argnums")
        unknown = [n for n in labels if n not in named and n not in keywords]
        if unknown and not any_keyword:
            raise ArgumentError(f"{option}_argnames: {function_name(fun)} has no arguments {unknown}: name some of {[*named, *keywords]}")
        resolved = set()
        for number in numbers:
            if not variadic and not -len(named) <= number < len(named):
                raise ArgumentError(
                    f"{option}_argnums={number} is out of range: {function_name(fun)} takes {len(named)} positional arguments"
                )
            resolved.add(number % len(named) if number < 0 and named else number)
        if not infer:
            return frozenset(resolved), frozenset(labels)
        resolved |= {named.index(n) for n in labels if n in named}
        return frozenset(resolved), frozenset(labels) | {named[i] for i in resolved if i < len(named)}

    static_numbers, static_labels = positions(nums, names, "static", argnums is None or argnames is None)
    donated_numbers, donated_labels = positions(donate_nums, donate_names, "donate", donate_argnums is None or donate_argnames is None)
    if static_numbers & donated_numbers:
        raise ArgumentError("an argument cannot be both static and donated")
    return JitOptions(static_numbers, static_labels, donated_numbers, donated_labels)
