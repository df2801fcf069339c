"""Assignment to elements, and names of methods before these are loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from volta_fn.core.arrays.array import Array, ConcreteArray, attach, attach_unloaded
from volta_fn.core.trace import EVAL, current_trace
from volta_fn.errors import ImmutableError

# x[i] = v, for libraries that assign to elements: an error, unless it is allowed.

_allowed: ContextVar[bool] = ContextVar("assignment_allowed", default=False)

_IMMUTABLE = (
    "arrays are immutable, so x[i] = v cannot change one. Write x = x.at[i].set(v), which returns a new array "
    "(inside jit nothing is copied when the old one is dead); .at[i].add, .multiply, .min, .max do the other updates."
)


@contextlib.contextmanager
def allow_assignment() -> Iterator[None]:
    """Let ``x[i] = v`` replace an array's elements within a ``with`` block.

    It is for libraries written to the Array API standard that assign to elements, such as scikit-learn. The elements are copied, so that
    no other array changes, not even one made from `x` without a copy; but every name of `x` itself sees the change. A compiled program
    that has `x` as a constant may have the old elements or the new ones, so do not assign to such arrays. Assignments
    inside functions that are traced or differentiated still raise `ImmutableError`.

    >>> x = jnp.zeros(3)
    >>> with jnp.allow_assignment():
    ...     x[1:] = 5.0
    >>> x
    Array([0., 5., 5.], dtype=float32)
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def _setitem(self: Array, index: Any, value: Any) -> None:
    if not _allowed.get():
        raise ImmutableError(f"{_IMMUTABLE} For libraries that assign, see volta_fn.numpy.allow_assignment.")
    if not isinstance(self, ConcreteArray) or current_trace() is not EVAL:
        raise ImmutableError(f"{_IMMUTABLE} allow_assignment does not hold inside functions that are traced or differentiated.")
    changed: Any = self.at[index].set(value)
    self._buffer, self._spec = changed.buffer(), changed._spec


attach("__setitem__", _setitem)


# Give arrays the names of their methods before the modules that have them are there.
#
# A module is imported when one of its methods is first used; all of them together would take a third of the time of `import volta_fn`.

#: Functions that are methods without change, by module, which is loaded for them alone. One of another name is behind a colon.
FUNCTIONS = {
    "creation": "copy",
    "arithmetic": "clip conj:conjugate conjugate round",
    "indexing": "choose diagonal nonzero take trace",
    "products": "__matmul__:array_matmul __rmatmul__:array_rmatmul dot",
    "reductions": "all any argmax argmin cumprod cumsum max mean min prod ptp std sum var",
    "shapes": "ravel repeat squeeze swapaxes",
    "sorting": "argpartition argsort searchsorted sort",
}

#: What `methods` attaches: other methods and properties, and names of other libraries' arrays, which say what to use instead.
NAMES = """
T __array_namespace__ __round__ abs add_ addressable_data addressable_shards append astype backward bfloat16 bmm byteswap chunk clamp
clamp_ clone committed div_ fill_ iloc normal_ sub_ uniform_ unsqueeze_ values compress contiguous copy_to_host_async cos cpu cuda data
detach dim double eq exp expand fill flat flatten float gather global_shards grad half imag index_select int is_cuda is_fully_addressable
is_fully_replicated log log_softmax long mT masked_fill matmul mm mul_ new_zeros norm numel numpy permute real relu requires_grad
requires_grad_ reshape scatter_ sharding sigmoid sign sin softmax split sqrt square t tanh to to_device to_numpy tobytes topk transpose
type unsafe_buffer_pointer unsqueeze view view_as zero_
""".split()


for _module, _names in FUNCTIONS.items():
    for _name in _names.split():
        _method, _, _function = _name.partition(":")
        attach_unloaded(_method, f"volta_fn.numpy.{_module}", _function or _method)
for _name in NAMES:
    if _name not in vars(Array):  # else `methods` was there first
        attach_unloaded(_name, "volta_fn.numpy.methods")
