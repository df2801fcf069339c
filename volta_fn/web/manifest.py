"""Make the manifest of a page: arrays, functions, shaders and limits, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from volta_fn.compiler import pipeline
from volta_fn.compiler.program import HostStep
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import DTypeError, ExportError, OutOfMemoryError
from volta_fn.jit import jit
from volta_fn.jit.device_plan import plan_for
from volta_fn.jit.lowered import Lowered
from volta_fn.targets.wgsl.profiles import DeviceProfile
from volta_fn.targets.wgsl.runtime.program_plan import ProgramPlan, Routines, plan_program
from volta_fn.targets.wgsl.scalars import is_supported
from volta_fn.targets.wgsl.target import WgslTarget
from volta_fn.web.function import Argument, Function, Leaf, arguments_of, leaves_of
from volta_fn.web.program import ProgramWriter, required_limits

#: The version of the format, which the runtime checks.
VERSION = 1

#: What to do about primitives that only a host has.
_WAYS_OUT = {
    "eig": "use eigh if the matrices are Hermitian, or compute it before the export and pass the result as state",
    "pure_callback": "write the function in volta_fn, or compute its result before the export and pass it as state",
    "io_callback": "a page has no Python to call: return the values, and read them in the page",
    "debug_callback": "leave out debug.print and debug.callback, or return the values, and read them in the page",
}


class Manifest(NamedTuple):
    """A page's programs and arrays."""

    json: dict[str, Any]
    #: The bytes of constants and of arrays at first.
    data: bytes
    plans: dict[str, ProgramPlan]


def make_manifest(state: Mapping[str, Any], functions: Mapping[str, Function], profile: DeviceProfile, storage: str) -> Manifest:
    """Plan the functions of a page.

    Raises `ExportError` for what a page cannot do, naming the function and the user's line.
    """
    builder = _Builder(profile, storage)
    for name, value in state.items():
        for leaf in leaves_of(name, value):
            builder.declare(leaf, "state")
    exported = {name: builder.function(name, function, state) for name, function in functions.items()}
    largest = max([array["bytes"] for array in builder.arrays], default=0)
    json = {
        "version": VERSION,
        "limits": required_limits(list(builder.plans.values()), largest),
        "arrays": builder.arrays,
        "functions": exported,
        "shaders": builder.writer.shaders,
    }
    return Manifest(json, builder.writer.data.block(), builder.plans)


class _Builder:
    def __init__(self, profile: DeviceProfile, storage: str) -> None:
        self.profile, self.storage = profile, storage
        self.target, self.routines = WgslTarget(profile.capabilities), Routines()
        self.writer = ProgramWriter()
        self.arrays: list[dict[str, Any]] = []
        self.numbers: dict[str, int] = {}
        self.plans: dict[str, ProgramPlan] = {}

    def declare(self, leaf: Leaf, kind: str) -> int:
        """Add an array and return its number."""
        if leaf.name in self.numbers:
            raise ExportError(f"export_web: two arrays have the name {leaf.name!r}; keys of dicts should not contain dots")
        dtype = leaf.value.dtype
        if not is_supported(dtype, self.profile.capabilities):
            raise ExportError(f"export_web: {leaf.name} has dtype {dtype.name}, which WebGPU has not; convert it to a 32-bit dtype")
        self.numbers[leaf.name] = len(self.arrays)
        nbytes = leaf.value.size * dtype.itemsize
        array = {
            "name": leaf.name,
            "kind": kind,
            "shape": list(leaf.value.shape),
            "dtype": dtype.name,
            "bytes": max(nbytes + -nbytes % 4, 4),
        }
        if leaf.elements is not None:
            array["initial"] = self.writer.data.add(leaf.elements, self.storage)
        self.arrays.append(array)
        return self.numbers[leaf.name]

    def function(self, name: str, function: Function, state: Mapping[str, Any]) -> dict[str, Any]:
        """Plan a function and return it as JSON."""
        arguments = arguments_of(name, function, state)
        numbers = [number for argument in arguments for number in self._numbers_of(name, argument)]
        lowered = self._lowered(name, function, arguments)
        plan = self._planned(name, lowered)
        self.plans[name] = plan
        results = self._results(name, function, lowered, state)
        program = self.writer.write(plan)
        targets = [self.numbers.get(leaf.name, -1) if leaf.name.partition(".")[0] in state else -1 for leaf in results]
        described = [
            {"name": leaf.name, "shape": list(leaf.value.shape), "dtype": leaf.value.dtype.name, "from": source, "state": target}
            for leaf, source, target in zip(results, program.pop("results"), targets, strict=True)
        ]
        inputs = [argument.name for argument in arguments if not argument.is_state]
        return {"arguments": numbers, "inputs": inputs, "results": described, **program}

    def _numbers_of(self, name: str, argument: Argument) -> list[int]:
        if argument.is_state:
            return [self.numbers[leaf.name] for leaf in leaves_of(argument.name, argument.value)]
        return [self.declare(Leaf(f"{name}/{leaf.name}", leaf.value), "input") for leaf in leaves_of(argument.name, argument.value)]

    def _lowered(self, name: str, function: Function, arguments: list[Argument]) -> Lowered:
        names = [argument.name for argument in arguments if argument.is_state]
        updated = [i for i, a in enumerate(arguments) if a.is_state and a.name in function.results and names.count(a.name) == 1]
        values = [argument.value for argument in arguments]
        return jit(function.function, donate_argnums=tuple(updated)).lower(*values)

    def _planned(self, name: str, lowered: Lowered) -> ProgramPlan:
        closed = lowered.jaxpr
        self._check_dtypes(name, closed)
        try:
            plan = plan_program(closed, lowered._traced.donated, pipeline, self.target, self.routines, on_device=False)
        except OutOfMemoryError as error:
            problems = plan_for(lowered._traced, self.profile).problems
            raise ExportError(f"export_web: {name!r} does not fit {self.profile.name}: {'; '.join(problems)}") from error
        if plan.on_host:
            step = HostStep.of(plan.on_host[0], self.target.explain_host(plan.on_host[0]))
            way_out = _WAYS_OUT.get(step.primitive, "compute it before the export and pass the result as state")
            raise ExportError(f"export_web: in {name!r}, {step}, and a page has no Python: {way_out}")
        return plan

    def _check_dtypes(self, name: str, closed: ClosedJaxpr) -> None:
        for eqn in closed.eqns:
            for var in eqn.outvars:
                if not is_supported(var.aval.dtype, self.profile.capabilities):
                    where = f", at {eqn.source}" if eqn.source else ""
                    message = f"export_web: in {name!r}, {eqn.primitive.name} gives {var.aval}{where}; WebGPU has no {var.aval.dtype.name}"
                    raise ExportError(f"{message}: convert to a 32-bit dtype") from DTypeError(message)

    def _results(self, name: str, function: Function, lowered: Lowered, state: Mapping[str, Any]) -> list[Leaf]:
        """Return the arrays that a function returns, by name."""
        info = lowered.out_info
        values = info if isinstance(info, tuple | list) and len(function.results) != 1 else (info,)
        if len(values) != len(function.results):
            raise ExportError(f"export_web: {name!r} returns {len(values)} values, but {len(function.results)} names of results are given")
        leaves = [leaf for result, value in zip(function.results, values, strict=True) for leaf in leaves_of(result, value)]
        for result, value in zip(function.results, values, strict=True):
            if result in state:
                _check_same(name, result, leaves_of(result, state[result]), leaves_of(result, value))
        return leaves


def _check_same(name: str, result: str, before: list[Leaf], after: list[Leaf]) -> None:
    """Raise `ExportError` unless a result can be the new state."""
    old, new = ({leaf.name: (tuple(leaf.value.shape), leaf.value.dtype.name) for leaf in leaves} for leaves in (before, after))
    for key in [*old, *new]:
        if old.get(key) != new.get(key):
            raise ExportError(
                f"export_web: {name!r} should return {result!r} as it is in the state, "
                f"but {key} is {old.get(key, 'not there')} in the state and {new.get(key, 'not there')} in the result"
            )
