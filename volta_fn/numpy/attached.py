"""Give arrays the names of their methods before the module `methods` is there.

It is imported when one of them is first used; at start it would cost a third of the time of `import volta_fn`.
"""

from __future__ import annotations

from typing import Any

from volta_fn.core.array import Array, attach
from volta_fn.lazy_imports import load

#: What `methods` attaches: methods and properties, and names of other libraries' arrays, which say what to use instead.
NAMES = """
T __array_namespace__ __matmul__ __rmatmul__ __round__ abs add_ addressable_data addressable_shards all any append argmax argmin
argpartition argsort astype backward bmm byteswap choose chunk clip clone committed compress conj conjugate contiguous copy
copy_to_host_async cos cpu cuda cumprod cumsum data detach diagonal dim dot double eq exp expand fill flatten float gather global_shards
grad half imag index_select int is_cuda is_fully_addressable is_fully_replicated log log_softmax long mT masked_fill matmul max mean min mm
mul_ new_zeros nonzero norm numel numpy permute prod ptp ravel real relu repeat requires_grad requires_grad_ reshape round scatter_
searchsorted sharding sigmoid sign sin softmax sort split sqrt square squeeze std sum swapaxes t take tanh to to_device to_numpy tobytes
topk trace transpose type unsafe_buffer_pointer unsqueeze var view view_as zero_
""".split()


class Unloaded:
    """Stands for a method of arrays until `methods` is imported, and replaces it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, array: Array | None, kind: type[Array]) -> Any:
        load("volta_fn.numpy.methods")
        if vars(Array)[self._name] is self:  # `methods` is being imported, and needs a method itself
            raise AttributeError(f"arrays have no {self._name!r} yet", name=self._name, obj=array)
        return getattr(kind if array is None else array, self._name)


for _name in NAMES:
    if _name not in vars(Array):  # else `methods` was there first
        attach(_name, Unloaded(_name))  # type: ignore[arg-type]
