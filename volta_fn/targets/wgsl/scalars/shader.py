"""Compute shaders in the making."""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Dispatch, grid
from volta_fn.targets.wgsl.scalars.helpers import ONE
from volta_fn.targets.wgsl.scalars.memory import Array, Atomics
from volta_fn.targets.wgsl.shader_module import Binding, Builtin, Declaration, ShaderModule, WorkgroupVariable
from volta_fn.targets.wgsl.text import Function, Module


class OtherAccess(Exception):
    """A buffer is asked for that is there already, and accessed in another way."""


class Shader(Function):
    """A module with the entry point `main`, for workgroups of `invocations`."""

    #: Numbers of the workgroup in the grid and of the invocation in the workgroup, as u32.
    group = "group"
    local = "local"

    def __init__(self, device: TargetCapabilities, invocations: int = 64) -> None:
        super().__init__(Module(device))
        self.invocations = invocations
        self._arrays: dict[int, Array] = {}
        self._builtins = {"workgroup_id": "vec3<u32>", "local_invocation_index": "u32"}
        self._local = "_local_invocation_index"

    def buffer(self, number: int, dtype: np.dtype, written: bool = False, size: int = 0, lanes: int = 4) -> Array:
        """Return the buffer of a number as an array.

        Its size is given if it is accessed in fours, or more `lanes` (see `Array`).

        An array that is only read may be asked for with its size and without: it has single elements in either case. Raises
        `OtherAccess` if it was asked for already to do something else with it, or has been read one by one and is to be read in fours now.
        """
        known = self._arrays.setdefault(number, Array(self, f"b{number}", dtype, written, size, lanes))
        if not (written or known.written) and 0 in (size, known.size) and not (size and known.is_read):
            known.size = size = max(size, known.size)
        if (known.dtype, known.written, known.size, known.lanes) != (dtype, written, size, lanes):
            raise OtherAccess(f"buffer {number}")
        return known

    def atomics(self, number: int, dtype: np.dtype) -> Array:
        """Return a buffer as an array of atomic int32 or uint32 numbers."""
        self._arrays[number] = Atomics(self, f"b{number}", dtype, written=True)
        return self._arrays[number]

    def workgroup(self, name: str, type_: str, length: int = 0) -> str:
        """Declare a variable, or an array, that the workgroup shares; return its name.

        It is not initialized.
        """
        return self.module.declare(name, WorkgroupVariable(name, type_, length))

    def tile(self, name: str, dtype: np.dtype, size: int) -> Array:
        """Return an array in workgroup memory, written in fours."""
        array = Array(self, name, dtype, written=True, size=size)
        self.module.declare(name, WorkgroupVariable(name, array.element, array.length))
        if array.accessors:
            self.module.declare(f"accessors of {name}", "\n".join(array.accessors))
        return array

    def builtin(self, name: str, type_: str = "u32") -> str:
        """``subgroup_size``, ``subgroup_invocation_id``, … as a name."""
        self._builtins[name] = type_
        return f"_{name}"

    def number_by_subgroups(self) -> None:
        """Order invocations such that those of a subgroup are neighbors.

        All subgroups are full.
        """
        for name in ("subgroup_id", "subgroup_size", "subgroup_invocation_id"):
            self.builtin(name)
        self._local = "_subgroup_id * _subgroup_size + _subgroup_invocation_id"

    def dispatch(self, groups: int, work: int = 0) -> Dispatch:
        """Return the dispatch of so many workgroups.

        `multiplications` is their number in all of them, if that may be very large.
        """
        shape = grid(groups, self.module.device.groups)
        arrays = {number: self._arrays[number] for number in sorted(self._arrays)}
        declarations: list[Declaration] = []
        for array in arrays.values():
            declarations += [Binding(array.name, array.element, array.written), *[f"{accessor}\n" for accessor in array.accessors]]
        begin = [f"  if (group >= {groups}u) {{ return; }}"] if shape[0] * shape[1] > groups else []
        if ONE in self.module:
            begin.append(f"  {ONE} = bitcast<f32>(0x3f800000u | _workgroup_id.z);")
        builtins = tuple([Builtin(name, f"_{name}", type_) for name, type_ in self._builtins.items()])
        module = ShaderModule(
            (*declarations, *self.module.declarations),
            self.invocations,
            builtins,
            "".join([f"{statement}\n" for statement in (*begin, *self.statements)]),
            group=f"_workgroup_id.x + _workgroup_id.y * {shape[0]}u",
            prologue=f"  let local = {self._local};\n",
        )
        written = frozenset(number for number, array in arrays.items() if array.written)
        return Dispatch(module, tuple(arrays), written, shape, work)
