"""Arrays: immutable values on a device.

`Array` is the type of arrays and tracers, `ConcreteArray` that of arrays with elements. The buffer of a donated or deleted array raises on
any use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct, Typed
from volta_fn.core.caches import Interned
from volta_fn.core.devices.device import Device, current_default_device
from volta_fn.errors import ArgumentError, ArgumentTypeError, DonatedBufferError, DTypeError, ImmutableError
from volta_fn.lazy_imports import deferred, is_installed, load
from volta_fn.settings import current as settings

# Arrays: the immutable values that programs work on.
#
# `Array` is what a user sees: both arrays with numbers in them (`ConcreteArray`) and the tracers that stand for arrays while a
# function is traced are instances of it. Its operators and methods are attached by the layers that define them
# (`attach`), so this file names no operation.

if TYPE_CHECKING:
    from volta_fn.core.arrays.array_methods import ArrayMethods  # a stub: what `attach` makes of arrays
else:
    ArrayMethods = object

_ADVICE = deferred("volta_fn.advice")
_MEMORY = deferred("volta_fn.core.arrays.memory")
_HTML = deferred("volta_fn.core.arrays.html")


class Array(Typed, ArrayMethods):
    """An immutable n-dimensional array on a device; tracers are Arrays too.

    >>> import volta_fn.numpy as jnp
    >>> x = jnp.array([1.0, 2.0])
    >>> x.shape, x.dtype, (x + 1).at[0].set(5.0)
    ((2,), dtype('float32'), Array([5., 3.], dtype=float32))
    """

    __slots__ = ()
    #: NumPy's own arrays let this class handle mixed expressions.
    __array_priority__ = 100

    @property
    def aval(self) -> ShapedArray:
        """Shape, dtype and weak type."""
        raise ArgumentTypeError(f"{type(self).__name__} has no abstract value")

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        """Whether the dtype yields to that of other arrays, as a Python scalar's does."""
        return self.aval.weak_type

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.aval.nbytes

    #: `==` compares element by element, so arrays are not hashable by value.
    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len() of a zero-dimensional array")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise ArgumentTypeError("iteration over a zero-dimensional array")
        return (self[i] for i in range(self.shape[0]))

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if name not in _ADVICE.ARRAYS and (name[0] != "_" or name.startswith("__"))]

    def __delitem__(self, index: Any) -> NoReturn:
        raise ImmutableError("arrays are immutable: elements cannot be deleted; volta_fn.numpy.delete(x, i, axis) returns a new array")


def attach(name: str, function: Callable[..., Any] | property) -> None:
    """Make `function` the operator, method or property `name` of all arrays."""
    setattr(Array, name, function)


def attach_unloaded(name: str, module: str, function: str | None = None) -> None:
    """Give arrays a method or property whose module is loaded when it is first used.

    `function` is its name in the module; without one, the module attaches the method itself.
    """
    setattr(Array, name, _LazyMethod(name, module, function))


class _LazyMethod:
    """Stands for a method of arrays until its module is imported, and replaces it."""

    __slots__ = ("_function", "_module", "_name")

    def __init__(self, name: str, module: str, function: str | None) -> None:
        self._name, self._module, self._function = name, module, function

    def __get__(self, array: Array | None, kind: type[Array]) -> Any:
        module = load(self._module)
        if self._function is not None:
            attach(self._name, getattr(module, self._function))
        if vars(Array)[self._name] is self:  # the module is being imported, and needs a method itself
            raise AttributeError(f"arrays have no {self._name!r} yet", name=self._name, obj=array)
        return getattr(kind if array is None else array, self._name)


class ArraySpec:
    """An interned pair of an aval and a device: the key of compiled kernels."""

    __slots__ = ("__weakref__", "_deleted", "_donated", "_exact", "_interned", "aval", "device")
    aval: ShapedArray
    device: Device
    _interned: ArraySpec

    @property
    def donated(self) -> ArraySpec:
        """The spec of donated arrays of this type, which have no buffer.

        No kernel is kept for it, so that a lookup misses and the slow path finds that the buffer is missing.
        """
        return self._variant("_donated")

    @property
    def deleted(self) -> ArraySpec:
        """The spec of deleted arrays of this type, which have no buffer."""
        return self._variant("_deleted")

    @property
    def exact(self) -> ArraySpec:
        """The spec of arrays of this weak type that hold a Python number.

        Their kernels compute the number of the result as well (`jit.eager`), so they are not those of other arrays.
        """
        return self._variant("_exact")

    def _variant(self, name: str) -> ArraySpec:
        """Return the variant of this spec with that name, which is its own variant."""
        variant: ArraySpec | None = getattr(self, name, None)
        if variant is None:
            variant = ArraySpec()
            variant.aval, variant.device = self.aval, self.device
            variant._interned = self  # kept alive by its variants, which a later lookup must return
            setattr(self, name, variant)
            setattr(variant, name, variant)
        return variant


_specs: Interned[tuple[ShapedArray, Device], ArraySpec] = Interned()
#: The lookup of a global name is faster than that of an attribute.
_NDARRAY = np.ndarray

_lock = threading.Lock()


def array_spec(aval: ShapedArray, device: Device) -> ArraySpec:
    """Return the interned (aval, device) pair."""
    key = (aval, device)
    spec = _specs.get(key)
    if spec is not None:
        return spec
    with _lock:
        spec = _specs.get(key)
        if spec is None:
            spec = ArraySpec()
            spec.aval, spec.device = aval, device
            _specs.add(key, spec)
    return spec


class ConcreteArray(Array):
    """An array with elements, in the buffer of a device; `wrap` makes them."""

    __slots__ = ("__dict__", "__weakref__", "_buffer", "_number", "_spec")
    _buffer: Any
    _spec: ArraySpec
    #: The Python number, in full precision, of which a weakly typed array was filled. Unset in all other arrays.
    _number: float | complex

    @property
    def aval(self) -> ShapedArray:
        """Shape, dtype and weak type."""
        return self._spec.aval

    @property
    def device(self) -> Device:
        """The device that holds the elements."""
        return self._spec.device

    def devices(self) -> set[Device]:
        """Return the set of devices that hold the elements."""
        return self._spec.device.members()

    def buffer(self) -> Any:
        """Return the device's buffer.

        Raises `DonatedBufferError` if the array was donated to a jitted call or deleted; the message says which.
        """
        if self._buffer is DELETED:
            if self._spec is self._spec.deleted:
                raise DonatedBufferError(
                    f"this array ({self.aval}) was deleted by its method delete(). Delete arrays after their last use."
                )
            raise DonatedBufferError(
                f"this array ({self.aval}) was donated to a jitted function (donate_argnums or donate_argnames), which reused its memory. "
                "Use the function's result instead, or do not donate an array that is needed later."
            )
        return self._buffer

    def delete(self) -> None:
        """Give the memory back now; any later use raises `DonatedBufferError`."""
        if self._buffer is not DELETED:
            self._buffer, self._spec = DELETED, self._spec.deleted

    def is_deleted(self) -> bool:
        """Return True if the memory was given back, by donation or `delete`."""
        return self._buffer is DELETED

    def block_until_ready(self) -> ConcreteArray:
        """Wait until the device has computed the elements, and return self."""
        if type(self._buffer) is not _NDARRAY:  # NumPy's arrays are computed
            self._spec.device.backend.wait(self.buffer())
        return self

    def is_ready(self) -> bool:
        """Return whether the device has computed the elements; does not wait.

        A GPU gets the work that is pending.
        """
        return type(self._buffer) is _NDARRAY or self._spec.device.backend.is_ready(self.buffer())

    def host(self) -> np.ndarray:
        """Return the elements as a read-only NumPy array (no copy on the CPU)."""
        view = self._spec.device.backend.get(self.buffer()).view()
        view.flags.writeable = False
        return view

    @property
    def _value(self) -> np.ndarray:
        """The elements as NumPy's, by the name of JAX's that libraries use."""
        return self.host()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.host()
        converts = dtype is not None and np.dtype(dtype) != values.dtype
        if copy is False and (converts or self._spec.device.platform != "cpu"):
            raise ArgumentError(
                f"copy=False: a NumPy array of {dtype or self.dtype} cannot share the memory of {self.aval} on {self.device}"
            )
        if converts:
            return values.astype(dtype)
        return values.copy() if copy else values

    def __dlpack__(
        self, *, stream: None = None, max_version: tuple[int, int] | None = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        return _MEMORY.dlpack_capsule(self.device, self.buffer(), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _MEMORY.dlpack_device(self.device)

    def __arrow_array__(self, type: Any = None) -> Any:
        return _MEMORY.arrow_array(self.host(), type)

    @property
    def __arrow_c_array__(self) -> Any:
        if not is_installed("pyarrow"):  # then a library of tables that needs no pyarrow finds no columns of Arrow here
            raise AttributeError("arrays are exported as columns of Arrow by pyarrow, which is not installed")
        return self.__arrow_array__().__arrow_c_array__

    def item(self, *index: int) -> Any:
        """Return an element as a Python scalar: the only one, or the one at `index`."""
        if not index and self.size != 1:
            raise ArgumentError(f"item() is for arrays of one element, got shape {self.shape}: x.item(0) is the first, x.tolist() has all")
        return self.host().item(*index)

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python scalars."""
        return self.host().tolist()

    def _scalar(self, kind: str) -> Any:
        if self.size != 1:
            raise ArgumentTypeError(f"only an array with one element converts to {kind}; this one has shape {self.shape}")
        return self.host().reshape(()).item()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ArgumentError(
                f"the truth value of an array of shape {self.shape} is ambiguous: use x.any() or x.all(). By element, `and` is &, "
                "`or` is |, `not` is ~, and 0 < x < 1 is (0 < x) & (x < 1)"
            )
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.ndim or self.dtype not in dtypes.INTEGERS:
            raise ArgumentTypeError(f"only zero-dimensional integer arrays serve as an index, got {self.aval}")
        return int(self._scalar("int"))

    def __format__(self, spec: str) -> str:
        if self.ndim:
            try:
                return format(str(self), spec)
            except ValueError:
                raise ArgumentError(
                    f"the format {spec!r} is one of numbers, and this array has shape {self.shape}: format one, as x.mean(), or round all, "
                    "volta_fn.numpy.round(x, 2)"
                ) from None
        return format(self.item() if spec else self.host()[()], spec)  # a scalar of NumPy prints bfloat16 as 9.0, an array as 9

    def __repr__(self) -> str:
        if self.is_deleted():
            return f"Array(<deleted>, {self.aval})"
        prefix, width = "Array(", np.get_printoptions()["linewidth"]
        body = np.array2string(self.host(), separator=", ", prefix=prefix, suffix=",") if self.size else f"[], shape={self.shape}"
        dtype = f"dtype={self.dtype.name}{', weak_type=True' if self.weak_type else ''})"
        fits = len(body) - body.rfind("\n") + len(dtype) + 2 <= width
        return f"{prefix}{body},{' ' * (1 if fits else len(prefix))}{dtype}"  # JAX's text

    def _repr_html_(self) -> str:
        html: str = _HTML.folded(repr(self), "") if self.is_deleted() else _HTML.array_html(f"Array {self.aval}", self.host(), repr(self))
        return html

    def __str__(self) -> str:
        return repr(self) if self.is_deleted() else str(self.host())

    def __reduce__(self) -> tuple[Any, ...]:
        return from_host, (np.array(self.host()), self.weak_type)

    def __copy__(self) -> ConcreteArray:
        return self

    def __deepcopy__(self, memo: Any) -> ConcreteArray:
        return self


def host_buffer(array: ConcreteArray) -> np.ndarray:
    """Return the elements in the CPU's memory: the array's own buffer, or a copy."""
    buffer = array.buffer()
    return buffer if isinstance(buffer, np.ndarray) else array.host()


def numbers_of(value: Array) -> np.ndarray | None:
    """Return the numbers of a constant, if they can be read without waiting."""
    return value.device.backend.host_elements(value.buffer()) if type(value) is ConcreteArray else None


def wrap(buffer: Any, spec: ArraySpec) -> ConcreteArray:
    """Return the array in a buffer (inlined by hand on hot paths)."""
    array = ConcreteArray()
    array._buffer = buffer
    array._spec = spec
    return array


def with_number(array: ConcreteArray, number: float | complex) -> ConcreteArray:
    """Store with a weakly typed array the Python number that fills it."""
    array._number = number
    array._spec = array._spec.exact
    return array


def number_of(array: Any) -> float | complex | None:
    """Return the Python number that fills a weakly typed array, or None."""
    return getattr(array, "_number", None)


def alias(array: ConcreteArray, device: Device | None = None) -> ConcreteArray:
    """Return an array that shares the buffer, or has a copy on `device`."""
    copy = wrap(array.buffer(), array._spec) if device is None else from_host(array.host(), array.weak_type, device)
    number = number_of(array)
    return copy if number is None else with_number(copy, number)


def from_number(value: complex, dtype: np.dtype, weak_type: bool, device: Device | None = None) -> ConcreteArray:
    """Return a Python number as a scalar.

    It keeps the number in full if it is weakly typed. Raises `OverflowError` for an integer that does not fit, but in JAX's mode, where it
    wraps around.
    """
    if settings.permissive and type(value) is int and dtype.kind in "iu":
        value = int(np.asarray(value).astype(dtype))
    if dtype not in dtypes.WIDE_NUMBERS:
        return from_host(np.asarray(value, dtype), weak_type, device)
    if dtype.kind == "f" and abs(value) <= _LARGEST:
        array = from_host(np.asarray(value, dtype), weak_type, device)
    else:
        with np.errstate(over="ignore"):  # beyond float32, it is infinite there
            array = from_host(np.asarray(value, dtype), weak_type, device)
    return with_number(array, value) if weak_type else array


#: The largest float32.
_LARGEST = float(np.finfo(np.float32).max)


def _read_in_c(cls: type, path: str) -> None:
    """Define properties that follow attributes in C, without a Python frame each."""
    for name in ("shape", "dtype", "ndim", "size", "weak_type"):
        setattr(cls, name, property(attrgetter(f"{path}.{name}"), _setter(name), doc=getattr(Array, name).__doc__))


def _setter(name: str) -> Callable[[Any, Any], NoReturn]:
    """Return the function that refuses to set a property."""
    remedies = {"shape": "x.reshape(shape)", "dtype": "x.astype(dtype)", "device": "device_put(x, device)"}

    def refuse(self: Any, value: Any) -> NoReturn:
        remedy = f": {remedies[name]} returns another array" if name in remedies else ""
        raise AttributeError(f"arrays are immutable, so x.{name} = … cannot change one{remedy}")

    return refuse


#: The name that users know it by, in Python's errors too. Pickles of the class find it by its qualified name.
ConcreteArray.__name__ = "Array"

_read_in_c(Array, "aval")
_read_in_c(ConcreteArray, "_spec.aval")
for _name in ("aval", "device"):  # mypy sees the typed ones
    setattr(ConcreteArray, _name, property(attrgetter(f"_spec.{_name}"), _setter(_name), doc=getattr(ConcreteArray, _name).__doc__))


def from_host(values: np.ndarray, weak_type: bool = False, device: Device | None = None) -> ConcreteArray:
    """Return an array with a copy of NumPy elements.

    It is on `device` (default: the current default device). Raises `DTypeError` for unsupported dtypes.
    """
    if values.dtype not in dtypes.STORED:
        values = _native(values)
    device = device or current_default_device()
    spec = array_spec(ShapedArray(values.shape, values.dtype, weak_type), device)
    return wrap(device.backend.put(np.array(values)), spec)


def _native(values: np.ndarray) -> np.ndarray:
    """Return `values` in native byte order; raise `DTypeError` for unknown dtypes."""
    native = dtypes.canonical(values.dtype.newbyteorder("=") if values.dtype.kind in "iufc" else values.dtype)
    if native not in dtypes.STORED and native != dtypes.float0:
        raise DTypeError(
            f"arrays of dtype {values.dtype} are not supported; convert to one of bool, int8…uint64, float16…complex128, bfloat16"
        )
    return values.astype(native)


def as_value(value: Any) -> Array:
    """Return `value` as an array or tracer.

    Arrays and tracers pass through, NumPy arrays and scalars are copied, Python scalars become weak. Raises `ArgumentTypeError` for
    anything else.
    """
    if isinstance(value, Array):
        return value
    if isinstance(value, np.ndarray):
        return from_host(unmasked(value))
    if isinstance(value, np.generic):
        return from_host(np.asarray(value))
    if isinstance(value, (bool, int, float, complex)):
        return from_number(value, *dtypes.scalar_dtype(value))
    if hasattr(value, "__jax_array__"):
        return as_value(value.__jax_array__())
    if expression := conversion(value):
        raise ArgumentTypeError(f"expected an array, got a {library_name(value)}. Convert it first: {expression}.")
    raise ArgumentTypeError(
        f"expected an array, a NumPy array or a scalar, got {brief(value)} of type {type(value).__name__}. {_remedy(value)}"
    )


def unmasked(value: Any) -> Any:
    """Return `value`; raise `ArgumentTypeError` if it is one of NumPy's masked arrays."""
    is_subclass = isinstance(value, np.ndarray) and type(value) is not np.ndarray  # asked first, as asking for `np.ma` imports it
    if is_subclass and isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError("arrays here have no masks, so that of a masked array would be lost: pass x.filled(value), or x.data")
    return value


#: Attributes of objects that hold an array, by the protocols of NumPy and DLPack.
_PROTOCOLS = ("__array__", "__dlpack__", "__array_interface__", "__cuda_array_interface__")


def conversion(value: Any, name: str = "x") -> str | None:
    """Return the expression that makes an object of another package an array.

    It is None for objects that hold none. `name` is what the object is called.

    >>> conversion(memoryview(b"ab")), conversion("ab")
    ('volta_fn.numpy.asarray(x)', None)
    """
    if hasattr(value, "toarray"):  # SciPy's sparse matrices
        return f"volta_fn.numpy.asarray({name}.toarray())"
    if isinstance(value, (memoryview, range)) or (not isinstance(value, type) and any(hasattr(value, p) for p in _PROTOCOLS)):
        detach = ".detach()" if getattr(value, "requires_grad", False) is True else ""
        return f"volta_fn.numpy.asarray({name}{detach})"
    return None


def library_name(value: Any) -> str:
    """Return the name of an object's type with that of its library.

    >>> library_name(np.ones(1))
    'numpy.ndarray'
    """
    library = type(value).__module__.partition(".")[0]
    return type(value).__name__ if library == "builtins" else f"{library}.{type(value).__name__}"


def brief(value: Any) -> str:
    """Return the start of an object's repr, in one line.

    >>> brief([[1, 2], [3, 4]])
    '[[1, 2], [3, 4]]'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 1]}…"


#: The longest text of an object in a message.
_BRIEF = 60


def _remedy(value: Any) -> str:
    if isinstance(value, str):
        return "Text is no array: pass an option of a jitted function as static, jit(f, static_argnames=…), and data as numbers."
    if isinstance(value, (list, tuple)) and any(isinstance(item, str) for item in value):
        return "Text is no array: use the numbers of its items, as numpy.arange(len(items))."
    if isinstance(value, tuple) and any(isinstance(item, Array) for item in value):
        return "If a function returned several values, unpack them, as in `y, state = layer(x, state)`; numpy.stack joins arrays."
    if callable(value):
        return "It is a function or a class: call it first, or make it static with jit(f, static_argnames=…)."
    if value is None:
        return "Did a function end without `return`?"
    if isinstance(value, dict):
        return "Arithmetic on a dictionary goes by its leaves: tree.map(lambda leaf: 2 * leaf, params)."
    return "Convert lists and tuples with volta_fn.numpy.asarray first."


def aval_of(x: Any) -> ShapedArray:
    """Return the type of an array, NumPy array, scalar or `ShapeDtypeStruct`.

    >>> vf.typeof(vf.numpy.ones((2, 3)))
    f32[2,3]
    """
    if isinstance(x, Array):
        return x.aval
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if shape is not None and dtype is not None:
        return ShapedArray(tuple(shape), _canonical_dtype(dtype), bool(getattr(x, "weak_type", False)))
    return as_value(x).aval


def _canonical_dtype(dtype: Any) -> Any:
    """Return a dtype of NumPy; an extended one, that of random keys, as it is."""
    return dtype if isinstance(dtype, dtypes.ExtendedDType) else dtypes.canonical(np.dtype(dtype))


#: JAX's name for it.
typeof = aval_of


def _like(x: Any) -> ShapeDtypeStruct:
    """Describe an array, a NumPy array or a Python number.

    >>> ShapeDtypeStruct.like(2.0)
    ShapeDtypeStruct(shape=(), dtype=float32, weak_type=True)
    """
    aval = aval_of(x)
    return ShapeDtypeStruct(aval.shape, aval.dtype, sharding=getattr(x, "sharding", None), weak_type=aval.weak_type)


ShapeDtypeStruct.like = staticmethod(_like)


# `DELETED`: the buffer of a donated or deleted array.
#
# A thread may look up the program for an array's type, and read the array's buffer only after another thread has donated the array. The
# buffer is then `DELETED`: a non-contiguous `ndarray`, so that compiled fast paths reject it, whose attributes, ufuncs and functions raise.


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise DonatedBufferError(
        "an array was donated to a jitted function (donate_argnums or donate_argnames), or deleted, by another thread while this call "
        "began to use it. Use the function's result instead, or do not donate an array that other threads use."
    )


#: Attributes that debuggers and documentation tools read of any object.
_OF_ANY_OBJECT = frozenset({"__class__", "__dict__", "__doc__", "__module__", "__name__", "__qualname__", "__wrapped__"})


class _DeletedBuffer(np.ndarray):
    """An array whose elements may not be read."""

    __array_ufunc__ = __array_function__ = _refuse

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name) if name in _OF_ANY_OBJECT else _refuse()


#: The buffer of all arrays that were donated or deleted.
DELETED: Any = np.full((2, 2), np.nan)[:, :1].view(_DeletedBuffer)
