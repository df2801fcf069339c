"""Modules: layers and models as immutable pytrees.

A module is a frozen dataclass and a pytree node. Its children are arrays and other modules, so `grad`, `jit` and `tree.map` take a model
as it is; its hyper-parameters are *static*: they belong to the tree's structure.

A layer that needs more than its input has further parameters of ``__call__``, out of these three:

- ``state``: values kept from call to call, such as the running means of a batch norm. The layer is called
  ``y, state = layer(x, state)``, and its ``init`` returns the pair ``(layer, state)``. The state of a model is a dict from the names of
  its children with state to their states.
- ``key``: a random key, for example for dropout. It may be None if nothing is drawn.
- ``training``: a boolean, False by default, for layers that behave differently in training.

`apply` calls any layer by this rule. `Sequential` uses it, and `Module.join` builds models from layers with and without state.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, dataclass_transform

import numpy as np

from volta_fn import advice, tree
from volta_fn.core.arrays import html
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct, Typed
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ArgumentError, ArgumentTypeError, ImmutableError
from volta_fn.source import current_scope, has_annotations, is_internal, signature
from volta_fn.tree.registry import FIELDS

__all__ = ["Module", "apply", "parameter_count", "static"]


#: An attribute that modules have while their own `__init__` runs, which may set the fields.
_OPEN = "_being_made"
#: The parameters that a layer may have in addition to its input.
EXTRAS = ("state", "key", "training")
_LEAVES = (Array, np.ndarray, np.generic, ShapeDtypeStruct)

T = TypeVar("T")


def static(*, default: Any = dataclasses.MISSING, metadata: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Declare a field of a `Module` as a hyper-parameter.

    Its value is hashable, and belongs to the tree's structure instead of its children. Other dataclasses that are pytrees may have such
    fields, too. `metadata` and `options` are those of `dataclasses.field`.

    >>> class Scale(vf.nn.Module):
    ...     factor: vf.Array
    ...     power: int = vf.nn.static(default=1)
    ...     def __call__(self, x):
    ...         return x * self.factor**self.power
    >>> vf.tree.map(lambda leaf: 2 * leaf, Scale(vf.numpy.ones(2), power=3))
    Scale(factor: f32[2], power=3)
    """
    field: Any = dataclasses.field(default=default, metadata={"static": True, **(metadata or {})}, **options)
    return field


@dataclass_transform(eq_default=False, field_specifiers=(static, dataclasses.field))
class Module:
    """The base of layers and models: frozen dataclasses that are pytree nodes.

    A class may have an `__init__` of its own, which sets the declared fields: ``self.weight = …``. When it has returned,
    they do not change any more.

    Fields are children: arrays, modules, containers of them, or None. Hyper-parameters are declared with `static`. Modules compare
    and hash by identity.

    Raises (when an instance is made):
        ArgumentTypeError: a child holds something other than arrays, or a static field something that cannot be hashed.

    >>> class Network(nn.Module):
    ...     hidden: nn.Linear
    ...     out: nn.Linear
    ...     def __call__(self, x):
    ...         return self.out(nn.relu(self.hidden(x)))
    >>> first, second = vf.random.split(vf.random.key(0))
    >>> net = Network(nn.Linear.init(first, 4, 8), nn.Linear.init(second, 8, 2))
    >>> net
    Network(  # 58 parameters
      hidden: Linear(weight: f32[4,8], bias: f32[8])  # 40
      out: Linear(weight: f32[8,2], bias: f32[2])  # 18
    )
    >>> gradient = vf.grad(lambda net, x: vf.numpy.sum(net(x)))(net, vf.numpy.ones((3, 4)))
    >>> gradient.out.bias
    Array([3., 3.], dtype=float32)
    """

    if TYPE_CHECKING:
        __call__: ClassVar[Callable[..., Any]]  # of any signature
    _data: ClassVar[tuple[str, ...]] = ()
    _static: ClassVar[tuple[str, ...]] = ()
    _named_in_call: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own_init = "__init__" in vars(cls)
        if own_init:
            cls.__init__ = _completed(cls.__init__)  # type: ignore[method-assign]
        elif not has_annotations(cls):
            cls.__init__ = cls.__init__  # type: ignore[method-assign]  # a class without new fields is created like its base
        is_generated = "__init__" not in vars(cls)
        dataclasses.dataclass(frozen=True, eq=False, repr=False, init=not own_init)(cls)
        if is_generated and not is_internal(cls.__module__):
            cls.__init__ = _of_this_module(vars(cls)["__init__"])  # type: ignore[method-assign]
        if is_generated:
            cls.__init__ = _explained(vars(cls)["__init__"])  # type: ignore[method-assign]
        del cls.__setattr__, cls.__delattr__  # those of Module raise helpful errors
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # it is a dataclass now
        cls._static = tuple(field.name for field in fields if field.metadata.get("static", False))
        cls._data = tuple(field.name for field in fields if field.name not in cls._static)
        cls._named_in_call = _named_in_call(cls)
        if "forward" in vars(cls) and "__call__" not in dir(cls):
            cls.__call__ = _name_it_call
        if isinstance(vars(cls).get("__call__"), FunctionType):
            cls.__call__ = _in_scope(vars(cls)["__call__"])
        if isinstance(vars(cls).get("init"), classmethod):
            cls.init = classmethod(advice.explained(vars(cls)["init"].__func__))  # type: ignore[attr-defined]
        keys = {name: tree.GetAttrKey(name) for name in cls._data}
        tree.register_pytree_with_keys(
            cls,
            lambda module: ([(keys.get(name) or tree.GetAttrKey(name), c) for name, c in module.children().items()], module._structure()),
            cls._rebuild,
        )
        if cls.children is Module.children and cls._structure is Module._structure:
            FIELDS[cls] = cls._data, cls._static

    def __post_init__(self) -> None:
        for name in self._data:
            _check_child(self, name, getattr(self, name))
        for name in self._static:
            _check_static(self, name, getattr(self, name))

    def children(self) -> dict[str, Any]:
        """Return the children by name: arrays, modules, containers of them."""
        return {name: getattr(self, name) for name in self._data}

    def hyper_parameters(self) -> dict[str, Any]:
        """Return the static fields by name."""
        return {name: getattr(self, name) for name in self._static}

    @property
    def takes(self) -> frozenset[str]:
        """Those of "state", "key" and "training" that `__call__` takes."""
        return self._named_in_call

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed.

        >>> layer = vf.nn.Linear.init(vf.random.key(0), 3, 2)
        >>> layer.replace(bias=None)
        Linear(weight: f32[3,2])
        """
        unknown = sorted(set(changes) - {*self._data, *self._static})
        if unknown:
            raise ArgumentError(f"{type(self).__name__}.replace: no fields {unknown}; it has {[*self._data, *self._static]}")
        changed = object.__new__(type(self))
        changed.__dict__.update(self.children() | self.hyper_parameters() | changes)
        changed.__post_init__()
        return changed

    @classmethod
    def join(cls, **fields: Any) -> Any:
        """Create the module from fields, some of which may be pairs ``(layer, state)``.

        The `init` of a layer with state returns such pairs. Returns the module, or if there were pairs the module and its state: a dict
        from the fields' names to their states. Fields may also be lists, tuples and dicts; their states have the same form, with None for
        layers without state.

        >>> class Block(nn.Module):
        ...     linear: nn.Linear
        ...     norm: nn.BatchNorm1d
        ...     def __call__(self, x, state, *, training=False):
        ...         x, norm = self.norm(self.linear(x), state["norm"], training=training)
        ...         return nn.relu(x), {"norm": norm}
        >>> block, state = Block.join(linear=nn.Linear.init(vf.random.key(0), 3, 4), norm=nn.BatchNorm1d.init(4))
        >>> y, state = block(vf.numpy.ones((2, 3)), state, training=True)
        >>> y.shape, list(state)
        ((2, 4), ['norm'])
        """
        layers, states = split_state(fields)
        module = cls(**layers)
        return (module, states) if states else module

    def __repr__(self) -> str:
        return describe(self)

    def _repr_html_(self) -> str:
        return unfolding(self, type(self).__name__)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get(_OPEN) is None:
            raise ImmutableError(f"{type(self).__name__} is immutable: module.replace({name}=...) makes a changed copy")
        if name not in {*self._data, *self._static}:
            kind = "vf.Array" if isinstance(value, Array) else type(value).__name__
            raise ArgumentError(f"{type(self).__name__} has no field {name!r}: declare it in the class body, as `{name}: {kind}`")
        self.__dict__[name] = value

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if name[0] != "_" or name.startswith("__")]

    if not TYPE_CHECKING:  # for type checkers, a module has the attributes that its class declares
        from_pretrained = advice.MissingOfClass("from_pretrained", advice.MODULES)  # asked of the class, which __getattr__ does not see

        def __getattr__(self, name: str) -> Any:
            candidates = () if name.startswith("_") else [*self.__dict__, *dir(type(self))]
            advice.unknown_attribute(type(self).__name__, name, advice.MODULES, candidates)

    def __delattr__(self, name: str) -> None:
        raise ImmutableError(f"{type(self).__name__} is immutable: its field {name!r} cannot be deleted")

    def _structure(self) -> Any:
        """Return the treedef's static data: the hyper-parameters."""
        return tuple([getattr(self, name) for name in self._static])

    @classmethod
    def _rebuild(cls, structure: Any, children: Sequence[Any]) -> Self:
        """Rebuild the module; children are unchecked, because leaves may be any objects."""
        module = object.__new__(cls)
        module.__dict__.update(zip(cls._data, children, strict=True))
        module.__dict__.update(zip(cls._static, structure, strict=True))
        return module


def apply(layer: Callable[..., Any], x: Any, state: Any = None, *, key: Any = None, training: bool = False) -> tuple[Any, Any]:
    """Call a layer with those of state, key and training that it takes.

    Returns its output and its new state, None if it has no state.

    >>> y, state = vf.nn.apply(vf.nn.relu, vf.numpy.array([-1.0, 2.0]))
    >>> y, state
    (Array([0., 2.], dtype=float32), None)
    """
    takes: frozenset[str] = layer.takes if isinstance(layer, Module) else frozenset()
    arguments = {"key": key, "training": training}
    options = {name: value for name, value in arguments.items() if name in takes}
    if "state" not in takes:
        return layer(x, **options), None
    if state is None:
        raise ArgumentTypeError(
            f"{type(layer).__name__} has state: it is called `y, state = layer(x, state)` with the state that init returned with it"
        )
    return layer(x, state, **options)


def split_state(value: Any) -> tuple[Any, Any]:
    """Split pairs ``(layer, state)`` in a field's value into layers and states."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Module) and not isinstance(value[1], Module):
        return value
    if isinstance(value, Mapping):
        split = {name: split_state(v) for name, v in value.items()}
        states = {name: state for name, (_, state) in split.items() if state is not None}
        return {name: layer for name, (layer, _) in split.items()}, states or None
    if type(value) in (list, tuple):
        pairs = [split_state(v) for v in value]
        state_list = [state for _, state in pairs]
        return type(value)([layer for layer, _ in pairs]), state_list if any(s is not None for s in state_list) else None
    return value, None


def parameter_count(module: Any) -> int:
    """Return the number of elements of all arrays of a tree.

    >>> vf.nn.parameter_count(vf.nn.Linear.init(vf.random.key(0), 3, 2))
    8
    """
    return sum(int(np.prod(np.shape(leaf))) for leaf in tree.leaves(module, is_leaf=_is_typed))


def _is_typed(value: Any) -> bool:
    """Return True for arrays, those that are nodes (quantised ones) included."""
    return isinstance(value, Typed)


def describe(value: Any, indent: str = "") -> str:
    """Format a tree of modules with types, hyper-parameters and sizes."""
    if isinstance(value, Module):
        return _describe_module(value, indent)
    if isinstance(value, (list, tuple)) and any(_has_modules(v) for v in value):
        rows = [f"{indent}  {i}: {describe(v, indent + '  ')}" for i, v in enumerate(value)]
        return "\n".join(["[", *rows, f"{indent}]"])
    if isinstance(value, Mapping) and _has_modules(value):
        rows = [f"{indent}  {name}: {describe(v, indent + '  ')}" for name, v in value.items()]
        return "\n".join(["{", *rows, f"{indent}}}"])
    return repr(tree.map(_Type, value, is_leaf=_is_typed)) if not isinstance(value, _LEAVES) else repr(_Type(value))


class _Type:
    """Prints as the type of an array."""

    def __init__(self, leaf: Any) -> None:
        self.text = repr(ShapedArray(leaf.shape, leaf.dtype)) if isinstance(leaf, _LEAVES) else repr(leaf)

    def __repr__(self) -> str:
        return self.text


def _describe_module(module: Module, indent: str) -> str:
    children = {name: child for name, child in module.children().items() if child is not None}
    options = [f"{name}={_name(value)}" for name, value in module.hyper_parameters().items() if value is not None]
    count = parameter_count(module)
    title = type(module).__name__
    if not any(_has_modules(child) for child in children.values()):
        fields = [f"{name}: {describe(child)}" for name, child in children.items()]
        note = f"  # {count:,}" if indent and count else ""
        return f"{title}({', '.join([*fields, *options])}){note}"
    inner = indent + "  "
    rows = [f"{inner}{name}: {describe(child, inner)}" for name, child in children.items()]
    rows += [f"{inner}{option}" for option in options]
    return "\n".join([f"{title}(  # {count:,} parameters", *rows, f"{indent})"])


def _name(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def _has_modules(value: Any) -> bool:
    return any(isinstance(v, Module) for v in tree.leaves(value, is_leaf=lambda v: isinstance(v, Module)))


def _named_in_call(cls: type) -> frozenset[str]:
    if "__call__" not in vars(cls) and not any("__call__" in vars(base) for base in cls.__mro__):
        return frozenset()
    return frozenset(EXTRAS).intersection(signature(cls.__call__).parameters)


def unfolding(value: Any, title: str) -> str:
    """Return HTML of a tree, whose modules, containers and arrays unfold."""
    if isinstance(value, Module):
        options = [html.escaped(f"{name} = {_name(option)}") for name, option in value.hyper_parameters().items()]
        children, label = value.children(), f"{title}  # {parameter_count(value):,} parameters"
    elif isinstance(value, (list, tuple, Mapping)):
        names = value if isinstance(value, Mapping) else getattr(value, "_fields", range(len(value)))
        items = value.values() if isinstance(value, Mapping) else value
        options, children, label = [], {str(name): child for name, child in zip(names, items, strict=True)}, title
    else:
        return value._repr_html_() if hasattr(value, "_repr_html_") else html.escaped(repr(value))
    rows = [_child_row(name, child) for name, child in children.items() if child is not None]
    return html.folded(label, html.listed([*rows, *options]))


def _child_row(name: str, child: Any) -> str:
    if isinstance(child, (Module, list, tuple, Mapping)):
        return unfolding(child, f"{name}: {type(child).__name__}")
    return f"<code>{html.escaped(name)}</code> {unfolding(child, name)}"


# The equations of a layer carry its path in the model, as those of a `named_scope` do.

#: The module whose call is being traced.
_caller: ContextVar[Module | None] = ContextVar("_caller", default=None)


def _in_scope(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a module's `__call__` whose equations are in a scope of its name."""

    @functools.wraps(call)
    def call_in_scope(self: Module, *args: Any, **kwargs: Any) -> Any:
        if current_trace() is EVAL:
            return call(self, *args, **kwargs)
        caller = _caller.get()
        if caller is self:  # super().__call__
            return call(self, *args, **kwargs)
        outer, name = current_scope.get(), _name_in(caller, self)
        tokens = current_scope.set(f"{outer}/{name}" if outer else name), _caller.set(self)
        try:
            return call(self, *args, **kwargs)
        finally:
            current_scope.reset(tokens[0])
            _caller.reset(tokens[1])

    return call_in_scope


def _name_in(caller: Module | None, layer: Module) -> str:
    """Return the name of a layer in the module that calls it, or that of its class."""
    for name, value in ({} if caller is None else vars(caller)).items():
        if value is layer:
            return name
        entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        for key, entry in entries:
            if entry is layer:
                return str(key) if name.startswith("_") else f"{name}.{key}"
    return type(layer).__name__


def _name_it_call(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise `ArgumentError`: the class has PyTorch's `forward` alone."""
    raise ArgumentError(f"{type(self).__name__} defines forward; the method that a call runs has the name __call__ here")


def _of_this_module(initialise: FunctionType) -> Callable[..., None]:
    """Return a generated `__init__` as a function of this module.

    It reads no globals. Its frame then is one of this package, and errors are at the line of its caller.
    """
    function = FunctionType(initialise.__code__, globals(), "__init__", initialise.__defaults__, initialise.__closure__)
    function.__kwdefaults__ = initialise.__kwdefaults__
    return functools.update_wrapper(function, initialise)


def _explained(initialise: Callable[..., None]) -> Callable[..., None]:
    """Let a generated `__init__` called with other arguments name the class's `init`.

    Those who know PyTorch pass it the sizes.
    """

    @functools.wraps(initialise)
    def run(self: Module, *args: Any, **kwargs: Any) -> None:
        try:
            initialise(self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None or not _draws_parameters(type(self)):
                raise
            raise ArgumentTypeError(
                f"{type(self).__name__}(…) takes the parameters themselves; {_usage(type(self))} draws initial ones "
                f"({str(error).partition('() ')[2]})"
            ) from None

    return run


def _completed(initialise: Callable[..., None]) -> Callable[..., None]:
    """Let a custom `__init__` set the declared fields; check them when it returns."""

    @functools.wraps(initialise)
    def run(self: Module, *args: Any, **kwargs: Any) -> None:
        inside = self.__dict__.get(_OPEN) is not None
        self.__dict__[_OPEN] = True
        try:
            initialise(self, *args, **kwargs)
        finally:
            if not inside:
                del self.__dict__[_OPEN]
        if not inside:
            _fill_in_defaults(self)
            self.__post_init__()

    return run


def _fill_in_defaults(module: Module) -> None:
    for field in dataclasses.fields(module):  # type: ignore[arg-type]  # it is a dataclass
        if field.name not in module.__dict__ and field.default is dataclasses.MISSING:
            raise ArgumentError(f"{type(module).__name__}.__init__ did not set the field {field.name!r}")
        module.__dict__.setdefault(field.name, field.default)


def _check_child(module: Module, name: str, value: Any) -> None:
    for leaf in tree.leaves(value):
        if not isinstance(leaf, _LEAVES):
            if _draws_parameters(type(module)):
                raise ArgumentTypeError(
                    f"{type(module).__name__}(…) takes the parameters themselves, and its field {name!r} got {_name(leaf)}; "
                    f"{_usage(type(module))} draws initial ones"
                )
            raise ArgumentTypeError(
                f"{type(module).__name__}.{name}: children of a module are arrays, modules and containers of them, got "
                f"{type(leaf).__name__} {_name(leaf)}; declare a hyper-parameter as `{name}: ... = nn.static()`, wrap a function in "
                "nn.Lambda, make a number an array with numpy.array"
            )


def _draws_parameters(cls: type) -> bool:
    """Return True if the `init` of a class is a classmethod, and no field."""
    return isinstance(getattr(cls, "init", None), MethodType)


def _usage(cls: Any) -> str:
    names = [p.name for p in signature(cls.init).parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return f"{cls.__name__}.init({', '.join(names)})"


def _check_static(module: Module, name: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise ArgumentTypeError(
            f"{type(module).__name__}.{name}: a static field must be hashable, got {type(value).__name__} {value!r}; use a tuple for a list"
        ) from None
