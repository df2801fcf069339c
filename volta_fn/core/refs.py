"""Mutable references: cells that hold an array, read and written while tracing.

A program has no references: whoever traces a function to one (`jit`, `scan`, `cond`, `while_loop`) passes the values of the references
from outside that it uses as inputs, *binds* the references to these while it is traced, and returns their last values. Which ones those are
the trace knows when the function has run (`DynamicJaxprTrace.refs`), so such a function is traced twice. Differentiation and `vmap` need
nothing: the values in a cell are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value, aval_of, from_host
from volta_fn.core.aval import ShapedArray, Typed, check_option
from volta_fn.core.staging import DynamicJaxprTrace, UsedRefsError, function_name, wraps
from volta_fn.core.trace import EVAL, Trace, Tracer, current_trace
from volta_fn.dtypes import promote
from volta_fn.errors import DTypeError, RefError
from volta_fn.settings import current as settings

T = TypeVar("T")
#: The kind of references whose contents are constants.
_CONSTANT = "no_grad_no_remat"


class AbstractRef(NamedTuple):
    """The type of a reference, as `jax.typeof` tells it: that of its array."""

    inner_aval: ShapedArray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.inner_aval.shape

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.inner_aval.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array."""
        return self.inner_aval.ndim


class Ref(Typed):
    """A mutable reference to an array, made by `new_ref`.

    ``ref[index]`` reads and ``ref[index] = value`` writes, with NumPy's indices; ``ref[...]`` is all of the array. A reference is no
    array: it has a shape and a dtype, which stay, and no arithmetic.

    >>> ref = vf.new_ref(vf.numpy.zeros(3))
    >>> ref[1] += 2.0
    >>> ref
    Ref([0., 2., 0.], dtype=float32)
    """

    __slots__ = ("__weakref__", "is_constant", "owner", "passing", "value")
    #: Whether the process has ever made a reference: if not, nobody has to look for them.
    exist: ClassVar[bool] = False
    # `primitives.array_operations.ref_views` sets these, when the first of them is used:
    #: Return the elements of an array at an index.
    read_part: ClassVar[Callable[[Array, Any], Array]]
    #: What `with_view_nodes` does, unless there are no views.
    with_view_nodes: ClassVar[Callable[[Any], Any] | None] = None
    #: Return an array as a constant for differentiation.
    stop_gradient: ClassVar[Callable[[Array], Array]]
    #: Return an array with other elements at an index.
    write_part: ClassVar[Callable[[Array, Any, Array], Array]]
    #: ``ref.at[index]``, ``ref.reshape(…)``, … are views of the array (`RefView`), which read and write through the reference.
    at: Any
    reshape: ClassVar[Callable[..., Any]]
    transpose: ClassVar[Callable[..., Any]]
    bitcast: ClassVar[Callable[..., Any]]
    T: Any
    #: The contents of the cell: an array or tracer, or None when it is frozen.
    value: Any
    #: The trace whose values it holds: the one under which it was made, or the one that it is bound in.
    owner: Trace
    #: Whether what it holds is constant for differentiation.
    is_constant: bool
    #: The jitted function whose argument it stands for, in a trace of that.
    passing: Any

    def __init__(self, value: Array, is_constant: bool = False, passing: Any = None) -> None:
        Ref.exist = True
        self.value = value
        self.owner = current_trace()
        self.is_constant, self.passing = is_constant, passing

    @property
    def aval(self) -> ShapedArray:
        """The type of the array."""
        if self.value is None:
            raise RefError("this reference was frozen: its value is the result of freeze, and it cannot be used any more")
        aval: ShapedArray = self.value.aval
        return aval

    @property
    def size(self) -> int:
        """The number of elements of the array."""
        return self.aval.size

    def unsafe_buffer_pointer(self) -> int:
        """Return where the elements lie in memory; see `Array.unsafe_buffer_pointer`."""
        return self.value.unsafe_buffer_pointer()

    def __len__(self) -> int:
        return len(self.get())

    def __iter__(self) -> Iterator[Array]:
        return iter(self.get())

    def __getitem__(self, index: Any) -> Array:
        value = self.get()
        return value if index is Ellipsis else Ref.read_part(value, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        update = converted(value, self.dtype)
        is_full = index is Ellipsis and update.shape == self.shape
        self.put(update if is_full else Ref.write_part(self.get(), index, update))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise RefError("a reference is no array: read its value with ref[...]")

    def __repr__(self) -> str:
        if self.value is None:
            return "Ref(<frozen>)"
        return repr(self.value).replace("Array", "Ref", 1) if self.owner is EVAL else f"Ref{{{self.aval}}}"

    def get(self) -> Array:
        """Return the array."""
        self.crossed()
        array: Array = self.value
        return array

    def put(self, value: Array) -> None:
        """Replace the contents by an array of the same type."""
        if self.is_constant and isinstance(value, Tracer):
            value = Ref.stop_gradient(value)
        for trace in self.crossed():
            if not isinstance(trace, DynamicJaxprTrace) and isinstance(value, Tracer) and value._trace is trace:
                raise RefError(
                    f"a reference to an array of type {self.aval} was made outside of the function that is being transformed, "
                    f"so it cannot hold {value.origin()}. Make it an argument of the function that vmap maps, "
                    "write lax.stop_gradient(value), or make it by new_ref(x, kind='no_grad_no_remat')."
                )
        self.value = value

    def addupdate(self, x: Any, idx: Any = ()) -> None:
        """Add `x` to the elements at `idx`, as `ref.addupdate` does."""
        addupdate(self, idx, x)

    def crossed(self) -> list[Trace]:
        """Return the traces up to the owner; staging traces record the reference."""
        traces: list[Trace] = []
        aval, trace = self.aval, current_trace()
        while trace is not self.owner:
            if trace.parent is None:
                raise RefError(
                    f"a reference to an array of type {aval} was used outside of the traced function that made it, or from the "
                    "closure of a function that also gets it as an argument"
                )
            traces.append(trace)
            trace = trace.parent
        for trace in traces:
            if isinstance(trace, DynamicJaxprTrace):
                trace.refs.setdefault(self, self.value)
        return traces


def converted(value: Any, dtype: np.dtype) -> Array:
    """Return a value as an array that a reference of this dtype can hold.

    Raises `DTypeError` if its dtype promotes to another one (programs of JAX convert integers to narrower ones), and `RefError` for a
    reference.
    """
    if isinstance(value, Ref):
        raise RefError("Cannot store a Ref into another Ref: store its value, ref[...]")
    update = as_value(value)
    if update.dtype == dtype:
        return update.astype(dtype) if update.weak_type else update
    narrows = settings.permissive and update.dtype.kind in "iu" and dtype.kind in "iu"
    if not narrows and promote((dtype, False), (update.dtype, update.weak_type))[0] != dtype:
        raise DTypeError(
            f"a reference to an array of dtype {dtype.name} cannot hold one of dtype {update.dtype.name}; convert it with .astype(...)"
        )
    return update.astype(dtype)


def new_ref(init_val: Any, *, memory_space: Any = None, kind: str | None = None) -> Ref:
    """Make a mutable reference that holds `init_val`, an array.

    References may be passed to and closed over by functions under `jit`, `scan`, `cond` and `while_loop`, and mapped by `vmap`, but not
    returned from them. A weakly typed `init_val` takes its dtype firmly.

    Args:
        init_val: an array, a NumPy array or a Python number.
        memory_space: accepted for compatibility; there is one memory.
        kind: "no_grad_no_remat" for a reference of constants for differentiation: what is written has no derivative then. (`checkpoint`
            repeats no writes of other references either.)

    Raises:
        RefError: `init_val` is a reference.
        ArgumentError: another `kind`.

    >>> total = vf.new_ref(0)
    >>> _ = vf.lax.fori_loop(0, 5, lambda i, _: total.__setitem__(..., total[...] + i), None)
    >>> total
    Ref(10, dtype=int32)
    """
    if isinstance(init_val, Ref):
        raise RefError("a reference cannot hold a reference: pass ref[...], the value")
    if kind is not None:
        check_option(kind, "new_ref: kind", (_CONSTANT,))
    value = as_value(init_val)
    return Ref(value.astype(value.dtype) if value.weak_type else value, kind == _CONSTANT)


def empty_ref(ty: Any, memory_space: Any = None) -> Ref:
    """Make a mutable reference of a type, such as a `ShapeDtypeStruct`.

    JAX leaves its contents undefined until they are written; here they are zeros. `memory_space` is accepted for compatibility.

    >>> ref = vf.empty_ref(vf.ShapeDtypeStruct((2,), "float32"))
    >>> ref[0] = 3.0
    >>> ref
    Ref([3., 0.], dtype=float32)
    """
    aval = aval_of(ty)
    return new_ref(from_host(np.zeros(aval.shape, aval.dtype)))


def free_ref(ref: Ref) -> None:
    """Free a reference, which cannot be used afterwards.

    Raises `RefError` outside of the traced function that made it, and if it was given up before.

    >>> ref = vf.new_ref(1.5)
    >>> vf.free_ref(ref)
    >>> ref
    Ref(<frozen>)
    """
    freeze(ref)


def freeze(ref: Ref) -> Array:
    """Return the value of a reference, which cannot be used afterwards.

    Raises `RefError` outside of the traced function that made it.

    >>> vf.freeze(vf.new_ref(1.5))
    Array(1.5, dtype=float32)
    """
    if ref.crossed():
        raise RefError("a reference can be frozen only in the traced function that made it; return its value ref[...] instead")
    value = ref.get()
    ref.value = None
    return value


def get(ref: Ref, idx: Any = None) -> Array:
    """Return ``ref[idx]``; without an index, all of the array."""
    return ref[... if idx is None else idx]


def set(ref: Ref, idx: Any, value: Any) -> None:
    """Write ``ref[idx] = value``; None as the index means ``...``."""
    ref[... if idx is None else idx] = value


def swap(ref: Ref, idx: Any, value: Any) -> Array:
    """Write ``ref[idx] = value`` and return the old value.

    >>> ref = vf.new_ref(vf.numpy.arange(3.0))
    >>> vf.ref.swap(ref, 2, 9.0), ref
    (Array(2., dtype=float32), Ref([0., 1., 9.], dtype=float32))
    """
    old_value = get(ref, idx)
    set(ref, idx, value)
    return old_value


def addupdate(ref: Ref, idx: Any, x: Any) -> None:
    """Add `x` to ``ref[idx]``; where the index repeats, the terms add up.

    >>> ref = vf.new_ref(vf.numpy.zeros(2))
    >>> vf.ref.addupdate(ref, vf.numpy.array([1, 1]), 2.0)
    >>> ref
    Ref([0., 4.], dtype=float32)
    """
    ref.put(ref.get().at[... if idx is None else idx].add(x))


def positions_of_refs(leaves: Sequence[Any]) -> list[int]:
    """Return the positions of references in a list; fast before any was made."""
    return [i for i, leaf in enumerate(leaves) if type(leaf) is Ref] if Ref.exist else []


def with_view_nodes(arguments: T) -> T:
    """Return arguments in which views are pytrees of references.

    Unflattening makes views of these again.
    """
    result: T = arguments if Ref.with_view_nodes is None else Ref.with_view_nodes(arguments)
    return result


def check_no_refs(result: Any, name: str) -> None:
    """Raise `RefError` if a function's result has references."""
    if Ref.exist and positions_of_refs(tree.leaves(result)):
        raise RefError(f"{name} returns a mutable reference, which traced functions cannot; return its value ref[...]")


@contextmanager
def bound(refs: Sequence[Ref], values: Sequence[Array], owner: Trace | None = None) -> Iterator[None]:
    """Bind references to other values.

    These belong to the trace `owner`, by default the current one.
    """
    contents = [(r.value, r.owner) for r in refs]
    for ref, value in zip(refs, values, strict=True):
        ref.value, ref.owner = value, owner or current_trace()
    try:
        yield
    finally:
        for ref, (value, previous) in zip(refs, contents, strict=True):
            ref.value, ref.owner = value, previous


def read_all(refs: Sequence[Ref]) -> list[Array]:
    """Return the contents of references."""
    return [r.get() for r in refs]


def write_all(refs: Sequence[Ref], values: Sequence[Array]) -> None:
    """Write values to references, unless they hold them already."""
    for ref, value in zip(refs, values, strict=True):
        if ref.value is not value:
            ref.put(value)


def check_distinct(leaves: Sequence[Any], name: str) -> list[Ref]:
    """Return the references among leaves; raise `RefError` if one occurs twice."""
    refs = [leaves[i] for i in positions_of_refs(leaves)]
    if len({*map(id, refs)}) < len(refs):
        raise RefError(f"{name} gets one mutable reference as two arguments; pass it once")
    return refs


#: The owner of a `Ref` while a traced function has it as an argument; the function gets a new `Ref` in its stead.
_BORROWED = Trace(None)


def borrowed(refs: Sequence[Ref]) -> AbstractContextManager[None]:
    """Keep a traced function from using references that are its arguments otherwise."""
    return bound(refs, [r.value for r in refs], _BORROWED)


class RefArguments:
    """Arguments (leaves of a pytree) with references at `positions`.

    Raises `RefError` if one of them occurs twice.
    """

    def __init__(self, leaves: Sequence[Any], positions: Sequence[int], name: str) -> None:
        self.leaves = list(leaves)
        self.positions = tuple(positions)
        self.refs = check_distinct(leaves, name)

    def with_others(self, others: Iterator[Any]) -> list[Any]:
        """Return the leaves, with other values in place of those that are no references."""
        return [leaf if i in self.positions else next(others) for i, leaf in enumerate(self.leaves)]

    def values(self) -> list[Any]:
        """Return the leaves, with the references' values in place of these."""
        return with_leaves_at(self.positions, self.leaves, read_all(self.refs))

    def run(self, call: Callable[[list[Any]], tuple[T, Sequence[Array]]]) -> T:
        """Call a function of `values` that returns a result and the last values."""
        leaves = self.values()
        with borrowed(self.refs):
            result, last = call(leaves)
        write_all(self.refs, last)
        return result


class PassedRefError(RefError):
    """A derivative rule gets a reference that is an argument of a jitted function.

    The rule keeps the reference for backward passes, but the argument is another one at each call.
    """

    def __init__(self, ref: Ref) -> None:
        super().__init__("a derivative rule gets a reference that is an argument of a jitted function")
        self.passing = ref.passing


def with_refs_at(positions: Sequence[int], leaves: Sequence[Any], outer: Sequence[Ref] = ()) -> tuple[list[Any], list[Ref]]:
    """Return leaves with new references in place of values, and these references.

    They hold constants where those that they stand for (`outer`) do.
    """
    constant = [r.is_constant for r in outer] or [False] * len(positions)
    refs = [Ref(leaves[i], c) for i, c in zip(positions, constant, strict=True)]
    return with_leaves_at(positions, leaves, refs), refs


def with_leaves_at(positions: Sequence[int], leaves: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Return leaves with others at some positions."""
    replaced = dict(zip(positions, others, strict=True))
    return [replaced.get(i, leaf) for i, leaf in enumerate(leaves)]


def discharged(call: Callable[[list[Ref]], T]) -> T:
    """Return ``call(refs)`` with the references that the functions traced in it use.

    It is called with more of them until no function uses others.
    """
    refs: list[Ref] = []
    while True:
        try:
            return call(refs)
        except UsedRefsError as used:
            new = [r for r in used.refs if r not in refs]
            if not new:
                raise
            refs = [*refs, *new]


def taking_values(
    fun: Callable[..., Any], positions: Sequence[int], constant: Sequence[bool], inner: Sequence[Ref], outer: Sequence[Ref], passing: Any
) -> Callable[..., Any]:
    """Return a function of values in place of references.

    Its result is that of `fun` and the last values. Values at `positions` are those of `inner`, or of new references if there are none;
    `_ref_values` has those of `outer`.
    """

    @wraps(fun)
    def run(*args: Any, _ref_values: Sequence[Any] = (), **kwargs: Any) -> Any:
        leaves, structure = tree.flatten(with_view_nodes((args, kwargs)))
        values = [leaves[i] for i in positions]
        refs = inner or [Ref(value, c, passing) for value, c in zip(values, constant, strict=True)]
        with bound([*refs, *outer], [*values, *_ref_values]):
            positional, named = tree.unflatten(structure, with_leaves_at(positions, leaves, refs))
            result = fun(*positional, **named)
            check_no_refs(result, function_name(fun))
            return result, read_all([*refs, *outer])

    return run


def shapes_with_refs(
    trace: Callable[..., tuple[T, Any]], fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[T, Any]:
    """Trace a function of values in place of references."""
    leaves, structure = tree.flatten(with_view_nodes((tuple(args), kwargs)))
    arguments = RefArguments(leaves, positions_of_refs(leaves), function_name(fun))

    def run(outer: list[Ref]) -> tuple[T, Any]:
        if not arguments.refs and not outer:
            return trace(fun, args, kwargs)
        function = taking_values(fun, arguments.positions, [r.is_constant for r in arguments.refs], (), outer, None)
        positional, named = tree.unflatten(structure, arguments.values())
        with borrowed(arguments.refs):
            program, shapes = trace(function, positional, {**named, "_ref_values": read_all(outer)} if outer else named)
        return program, shapes[0]

    return discharged(run)
