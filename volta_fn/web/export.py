"""Write web pages: one self-contained file, or a module and its data."""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.advice import explained
from volta_fn.compiler import pipeline
from volta_fn.compiler.buffers import Output
from volta_fn.compiler.target import HostStep
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilerError,
    DTypeError,
    ExportError,
    MissingDependencyError,
    OutOfMemoryError,
    SerializationError,
)
from volta_fn.io.files import replacing
from volta_fn.io.state_dict import dotted, joined
from volta_fn.jit import jit
from volta_fn.jit.stages import DeviceProfile, Lowered, plan_for, profile_of
from volta_fn.lazy_imports import deferred, is_installed
from volta_fn.source import signature, signature_of
from volta_fn.targets.wgsl.commands import BufferRange, Command, For, Host, Run, Submit, While, runs
from volta_fn.targets.wgsl.program_plan import ProgramPlan, plan_program
from volta_fn.targets.wgsl.scalars import is_supported
from volta_fn.targets.wgsl.target import RoutineCache, WgslTarget

if TYPE_CHECKING:
    from volta_fn.targets.wasm import WasmProgram

_WASM = deferred("volta_fn.targets.wasm")  # not every page has any

# Collect the bytes of constants and parameters, each once.

#: Dtypes in which a file may hold float32 parameters.
STORAGES = ("float32", "float16", "bfloat16")


class Data:
    """The bytes of a page's arrays, as ranges of one block."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0
        self._ranges: dict[bytes, dict[str, Any]] = {}

    def add(self, array: np.ndarray, storage: str = "float32") -> dict[str, Any]:
        """Return where an array is: its offset and bytes.

        Also the dtype in which float32 numbers are stored, if that is another one.

        Raises `ArgumentError` if a finite number is infinite in `storage`.
        """
        elements = np.ascontiguousarray(array)
        described: dict[str, Any] = {}
        if storage != "float32" and elements.dtype == np.float32:
            elements = _narrow(elements, storage)
            described["storage"] = storage
        data = elements.tobytes()
        data += bytes(-len(data) % 4)
        if data not in self._ranges:
            self._ranges[data] = {"offset": self._size, "bytes": len(data)}
            self._chunks.append(data)
            self._size += len(data)
        return self._ranges[data] | described

    def block(self) -> bytes:
        """Return all of it."""
        return b"".join(self._chunks)


def _narrow(elements: np.ndarray, storage: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = elements.astype(dtypes.as_dtype(storage))
    lost = np.isfinite(elements) & ~np.isfinite(narrow.astype(np.float32))
    if lost.any():
        raise ArgumentError(f"storage: {elements[lost].flat[0]} is beyond {storage}; store such parameters as 'float32' or 'bfloat16'")
    return narrow


# Describe a function that a page calls.


@dataclass(frozen=True)
class Function:
    """A function of a page.

    Args:
        function: a function of arrays and pytrees, jitted or not.
        arguments: for each argument the name of a part of the state, or the types of an input: an array, whose elements are what the input
            holds at first, a `ShapeDtypeStruct`, or a pytree of these. An input has the name of the function's parameter.
        results: the name of each result. One that is a name of the state updates it, in place where it can; others are read by the page.

    >>> step = vf.web.Function(lambda w, x: (w + x, (w * x).sum()), ["w", vf.ShapeDtypeStruct((3,), "float32")], ["w", "total"])
    >>> step.results
    ('w', 'total')
    """

    function: Callable[..., Any]
    arguments: Sequence[Any]
    results: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(self.arguments))
        object.__setattr__(self, "results", (self.results,) if isinstance(self.results, str) else tuple(self.results))


class Leaf(NamedTuple):
    """An array of a page: its name, its type, and its elements if it has any at first."""

    name: str
    value: ShapeDtypeStruct | Array

    @property
    def elements(self) -> np.ndarray | None:
        """Its elements."""
        return None if isinstance(self.value, ShapeDtypeStruct) else np.asarray(self.value)


def leaves_of(name: str, value: Any) -> list[Leaf]:
    """Return the arrays of a pytree, with names as in a state dict."""
    leaves = tree.leaves_with_path(value, is_leaf=lambda node: isinstance(node, ShapeDtypeStruct))
    return [Leaf(joined(name, dotted(path)) if path else name, _as_leaf(name, leaf)) for path, leaf in leaves]


def _as_leaf(name: str, leaf: Any) -> ShapeDtypeStruct | Array:
    if isinstance(leaf, ShapeDtypeStruct):
        return leaf
    try:
        return as_value(leaf)
    except TypeError as error:
        raise ExportError(f"export_web: {name} holds {leaf!r:.60}, which is no array and no ShapeDtypeStruct") from error


class Argument(NamedTuple):
    """An argument of a function: a part of the state by name, or an input."""

    name: str
    value: Any
    is_state: bool


def arguments_of(name: str, function: Function, state: Mapping[str, Any]) -> list[Argument]:
    """Return the arguments of a page's function.

    Raises `ExportError` for a name that is not in the state, a shape without a dtype, or arguments that do not fit the function.
    """
    arguments = []
    _check_count(name, function)
    for parameter, value in zip(_parameters(function), function.arguments, strict=True):
        if isinstance(value, tuple) and value and all(type(size) is int for size in value):
            raise ExportError(f"export_web: the input {parameter} of {name!r} has no dtype: give a ShapeDtypeStruct({value}, 'float32')")
        if not isinstance(value, str):
            arguments.append(Argument(parameter, value, False))
        elif value in state:
            arguments.append(Argument(value, state[value], True))
        else:
            raise ExportError(f"export_web: the function {name!r} takes {value!r}, but the state has {sorted(state)}")
    return arguments


def _check_count(name: str, function: Function) -> None:
    try:
        signature(function.function).bind(*function.arguments)
    except TypeError as error:
        raise ExportError(f"export_web: the function {name!r} is called with {len(function.arguments)} arguments: {error}") from None
    except ValueError:  # one without a signature
        pass


def _parameters(function: Function) -> Iterator[str]:
    """Yield the names of as many parameters as there are arguments."""
    declared = signature_of(function.function)
    kinds = [] if declared is None else declared.parameters.values()
    names = [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for number in range(len(function.arguments)):
        yield names[number] if number < len(names) else f"input{number}"


# Write a planned program as JSON: its slots, pipelines and commands.

#: WebGPU's limits that a page asks for if a program needs more than every device has.
_GUARANTEED = {
    "maxStorageBuffersPerShaderStage": 8,
    "maxStorageBufferBindingSize": 1 << 27,
    "maxBufferSize": 1 << 28,
    "maxComputeWorkgroupStorageSize": 1 << 14,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupsPerDimension": 65535,
}


class ProgramWriter:
    """Writes the programs of a page, which share shaders and data."""

    def __init__(self) -> None:
        self.data = Data()
        self._shaders: dict[str, int] = {}

    @property
    def shaders(self) -> list[str]:
        """The WGSL of all programs, by number."""
        return list(self._shaders)

    def write(self, plan: ProgramPlan) -> dict[str, Any]:
        """Return a program as JSON.

        Slots are ["argument", number], ["result", number, bytes], ["temporary", block], ["constant", offset, bytes] or ["grids", bytes].
        A pipeline is [shader, number of bindings, written bindings].
        """
        slots: list[list[Any]] = [["argument", number] for number in range(len(plan.arguments))]
        slots += [["result", number, size] for number, size in zip(plan.own_results, plan.result_sizes, strict=True)]
        slots += [["temporary", block] for block in plan.block_of]
        slots += [["constant", *self._constant(array)] for array in plan.constants]
        slots += [["grids", size] for size in plan.regions]
        pipelines = _Pipelines(self._shaders)
        commands = [_write_command(command, pipelines) for command in plan.commands]
        return {
            "slots": slots,
            "temporaries": plan.block_sizes,
            "pipelines": pipelines.rows,
            "commands": commands,
            "results": [self._result(output, plan) for output in plan.outputs],
        }

    def _constant(self, array: np.ndarray) -> tuple[int, int]:
        block = self.data.add(array if array.nbytes else np.zeros(1, np.int64))
        return block["offset"], block["bytes"]

    def write_wasm(self, program: WasmProgram) -> dict[str, Any]:
        """Return a program of WebAssembly as JSON.

        `from` has for each result ["argument", number], ["result", number] or ["constant", offset, bytes].
        """
        return {
            "words": program.words,
            "launches": list(program.launches.items()),
            "slots": program.slots,
            "results": program.results,
            "reuse": program.reuse,
            "offsets": program.offsets,
            "arena": program.arena,
            "constants": [self._constant(array) for array in program.constants],
            "from": [self._source(output) for output in program.outputs],
        }

    def _source(self, output: Output) -> list[Any]:
        if output.constant is not None:
            return ["constant", *self._constant(np.asarray(output.constant))]
        return ["result", output.result] if output.result is not None else ["argument", output.argument]

    def _result(self, output: Output, plan: ProgramPlan) -> list[Any]:
        """Return the kind and number of a result's slot, or a constant's range."""
        if output.result is not None:
            return ["argument", plan.reuse[output.result]] if output.result in plan.reuse else ["result", output.result]
        if output.argument is not None:
            return ["argument", output.argument]
        return ["constant", *self._constant(np.asarray(output.constant))]


class _Pipelines:
    def __init__(self, shaders: dict[str, int]) -> None:
        self._shaders = shaders
        self._numbers: dict[Any, int] = {}
        self.rows: list[list[Any]] = []

    def number(self, run: Run) -> int:
        if run.key not in self._numbers:
            self._numbers[run.key] = len(self.rows)
            self.rows.append([self._shaders.setdefault(run.source, len(self._shaders)), len(run.ranges), sorted(run.written_bindings)])
        return self._numbers[run.key]


def _write_command(command: Command, pipelines: _Pipelines) -> list[Any]:
    """Return a command: its kind, and what it needs.

    ["run", pipeline, bindings, groups], ["indirect", pipeline, bindings, slot, offset], ["loop", number, iterations, commands],
    ["while", slot, offset, commands] or ["submit"].
    """
    if isinstance(command, Run):
        bindings = [_binding(span) for span in command.ranges]
        if command.region is None:
            return ["run", pipelines.number(command), bindings, list(command.workgroups)]
        offset = 4 * command.region.branches + 12 * command.entry
        return ["indirect", pipelines.number(command), bindings, command.region.grids.number, offset]
    if isinstance(command, For):
        return ["loop", command.number, command.iterations, [_write_command(inner, pipelines) for inner in command.body]]
    if isinstance(command, While):
        return ["while", command.flag.slot.number, command.flag.offset, [_write_command(inner, pipelines) for inner in command.body]]
    assert not isinstance(command, Host), "export_web refuses programs with steps on the host"
    assert isinstance(command, Submit)
    return ["submit"]


def _binding(span: BufferRange) -> list[Any]:
    """Return a slot, an offset and a size.

    If iterations of loops move it, pairs of a loop and the bytes per iteration follow.
    """
    return [span.slot.number, span.offset, span.size, *([[list(pair) for pair in span.strides]] if span.strides else [])]


def required_limits(plans: Sequence[ProgramPlan], largest: int) -> dict[str, int]:
    """Return the limits that programs need and not every WebGPU device has.

    `largest` is the bytes of the largest array.
    """
    dispatches = [run for plan in plans for run in runs(plan.commands)]
    buffers = [size for plan in plans for size in (*plan.block_sizes, *plan.result_sizes, *[a.nbytes for a in plan.arguments])]
    invocations = max([run.shader.invocations for run in dispatches], default=0)
    needed = {
        "maxStorageBuffersPerShaderStage": max([len(run.ranges) for run in dispatches], default=0),
        "maxStorageBufferBindingSize": max([span.size for run in dispatches for span in run.ranges], default=0),
        "maxBufferSize": max([largest, *buffers]),
        "maxComputeWorkgroupStorageSize": max([sum(v.bytes for v in run.shader.workgroup_variables) for run in dispatches], default=0),
        "maxComputeInvocationsPerWorkgroup": invocations,
        "maxComputeWorkgroupSizeX": invocations,
        "maxComputeWorkgroupsPerDimension": max([max(run.workgroups) for run in dispatches], default=0),
    }
    return {name: value for name, value in needed.items() if value > _GUARANTEED[name]}


# Make the manifest of a page: arrays, functions, shaders and limits, as JSON.

#: The version of the format, which the runtime checks.
VERSION = 1

#: Remedies for primitives that only a host has.
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


def make_manifest(
    state: Mapping[str, Any], functions: Mapping[str, Function], profile: DeviceProfile, storage: str, wasm: bool = False
) -> Manifest:
    """Plan the functions of a page; with `wasm`, compile them to WebAssembly, too.

    Raises `ExportError` for what a page cannot do, naming the function and the user's line.
    """
    _check_parts(state, functions)
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
    if wasm:
        builder.add_wasm(json)
    return Manifest(json, builder.writer.data.block(), builder.plans)


def _check_parts(state: Any, functions: Any) -> None:
    """Raise `ArgumentTypeError` unless both are dictionaries, one of `Function`."""
    if not isinstance(state, Mapping):
        raise ArgumentTypeError(f"export_web: the state is a dictionary of its parts, as {{'model': model}}, got {type(state).__name__}")
    if not isinstance(functions, Mapping):
        raise ArgumentTypeError(f"export_web: the functions are a dictionary, as {{'predict': …}}, got {type(functions).__name__}")
    for name, function in functions.items():
        if not isinstance(function, Function):
            raise ArgumentTypeError(
                f"export_web: {name!r} is a web.Function, which names arguments and results: web.Function(f, ['model', x], ['y']), "
                f"got {type(function).__name__}"
            )


class _Builder:
    def __init__(self, profile: DeviceProfile, storage: str) -> None:
        self.profile, self.storage = profile, storage
        self.target, self.routines = WgslTarget(profile.capabilities), RoutineCache()
        self.writer = ProgramWriter()
        self.arrays: list[dict[str, Any]] = []
        self.numbers: dict[str, int] = {}
        self.plans: dict[str, ProgramPlan] = {}
        self.lowered: dict[str, Lowered] = {}

    def add_wasm(self, manifest: dict[str, Any]) -> None:
        """Add the functions as WebAssembly: a module, and a program for each."""
        if not is_installed("llvmlite"):
            raise MissingDependencyError("export_web: wasm=True needs llvmlite, a compiler: pip install 'volta-fn[native]'")
        traced = {name: (lowered.jaxpr, lowered._traced.donated) for name, lowered in self.lowered.items()}
        try:
            compiled = _WASM.compile_programs(traced, pipeline)
        except CompilerError as error:
            raise ExportError(f"export_web: wasm=True: {error.message}; export without it, and the page needs WebGPU") from error
        module = self.writer.data.add(np.frombuffer(compiled.code, np.uint8))
        manifest["wasm"] = module | {"length": len(compiled.code), "data": compiled.data_bytes}
        for name, program in compiled.programs.items():
            manifest["functions"][name]["wasm"] = self.writer.write_wasm(program)

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
        lowered = self._lower(function, arguments)
        plan = self._plan(name, lowered)
        self.plans[name], self.lowered[name] = plan, lowered
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

    def _lower(self, function: Function, arguments: list[Argument]) -> Lowered:
        names = [argument.name for argument in arguments if argument.is_state]
        updated = [i for i, a in enumerate(arguments) if a.is_state and a.name in function.results and names.count(a.name) == 1]
        values = [argument.value for argument in arguments]
        return jit(function.function, donate_argnums=tuple(updated)).lower(*values)

    def _plan(self, name: str, lowered: Lowered) -> ProgramPlan:
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


# Write web pages: one self-contained file, or a module and its data.

_FOLDER = Path(__file__).parent

#: The modules of the runtime, in an order in which each is declared before it is used.
_RUNTIME = ("errors", "arrays", "device", "memory", "pipelines", "program", "wasm", "safetensors", "application")

#: The names of the runtime that pages can use.
_PUBLIC = ("Application", "PageError", "decoded", "encoded", "open", "openDevice", "openWasm", "openPacked", "sizeOf", "unpack")

#: The comment in a page of one's own that is replaced by the runtime, the programs and the data.
_MARK = "<!-- volta_fn -->"
#: Opens the application of a page, as the module's function of the same name.
_LOAD = "const load = () => openPacked(...['manifest', 'data'].map(name => document.getElementById(name).textContent));"


@dataclass(frozen=True)
class ExportedPage:
    """The files that `export_web` has written, and figures about them.

    Attributes:
        files: the files.
        bytes: the bytes of all of them.
        shaders: the number of shaders.
        dispatches: for each function the dispatches of a call.
        peak_memory: for each function the bytes on the GPU during a call, arguments and results included.
    """

    files: tuple[Path, ...]
    bytes: int
    shaders: int
    dispatches: dict[str, int]
    peak_memory: dict[str, int]


@explained
def export_web(
    path: str | os.PathLike[str],
    *,
    state: Mapping[str, Any],
    functions: Mapping[str, Function],
    page: Layout | str | os.PathLike[str] | None = None,
    format: str = "html",
    storage: str = "float32",
    limits: str | Mapping[str, int] | DeviceProfile = "webgpu",
    wasm: bool = False,
) -> ExportedPage:
    """Write functions as a web page that runs them on the GPU of whoever opens it.

    A step of training may be one of them. The page needs neither a server nor a network. Its GPU holds the state, which functions
    overwrite. No GPU is needed to export.

    Args:
        path: the file to write. For the format "module" a JavaScript module; its data are next to it, in a file that ends with ``.bin``.
        state: pytrees of arrays by name, such as a model and an optimizer's moments, that live on the page's GPU.
        functions: the functions by name; see `vf.web.Function`.
        page: what the page shows: `vf.web.Plain` (the default), `vf.web.Digits`, `vf.web.Text`, or the path of an HTML file of one's own,
            in which the comment ``<!-- volta_fn -->`` is replaced by programs, data and runtime: ``volta.load()`` opens the GPU.
        format: "html", one file, or "module", for pages of one's own: its function ``load()`` opens the GPU.
        storage: "float16" or "bfloat16" store float32 parameters in the file in 16 bits. The page computes with float32.
        limits: the limits that the programs may use, as for `Lowered.plan`; the page asks the browser for those that it needs.
        wasm: whether the page has the functions as WebAssembly, too, which a browser without WebGPU runs on its CPU. That needs llvmlite.

    Raises:
        ExportError: a function has a step on the host (`eig`, callbacks) or an array of a dtype that WebGPU lacks, does not fit the limits,
            is called with other arguments than it takes, or returns a state that differs from what it takes; with `wasm`, it has a step
            that WebAssembly cannot do.
        MissingDependencyError: `wasm`, and llvmlite is not installed.
        ArgumentError: an option is unknown, or the page needs a function, an input or a result that is not there.
        ArgumentTypeError: `state` or `functions` is not a dictionary, or a function is not a `Function`.
        SerializationError: a file cannot be read or written.

    >>> import tempfile
    >>> step = vf.web.Function(lambda w, x: (w - 0.1 * x, (w * x).sum()), ["w", vf.ShapeDtypeStruct((3,), "float32")], ["w", "loss"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = vf.export_web(f"{folder}/page.html", state={"w": vf.numpy.ones(3)}, functions={"step": step})
    >>> page.shaders, page.dispatches
    (1, {'step': 1})
    """
    if format not in ("html", "module"):
        raise ArgumentError(f"export_web: the formats are 'html' and 'module', got {format!r}")
    if storage not in STORAGES:
        raise ArgumentError(f"export_web: storage is one of {STORAGES}, got {storage!r}")
    manifest = make_manifest(state, functions, profile_of(limits), storage, wasm)
    target = Path(path)
    texts = _module(target, manifest) if format == "module" else {target: _page(page or Plain(), manifest).encode()}
    for file, text in texts.items():
        with replacing(file) as temporary:
            temporary.write_bytes(text)
    return ExportedPage(
        files=tuple(texts),
        bytes=sum(map(len, texts.values())),
        shaders=len(manifest.json["shaders"]),
        dispatches={name: plan.dispatches() for name, plan in manifest.plans.items()},
        peak_memory={name: plan.memory.peak for name, plan in manifest.plans.items()},
    )


def runtime_source() -> str:
    """Return the runtime as one script, without imports and exports."""
    texts = [(_FOLDER / "runtime" / f"{name}.js").read_text("utf-8") for name in _RUNTIME]
    return "\n".join([re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.M), flags=re.M) for text in texts])


def _module(path: Path, manifest: Manifest) -> dict[Path, bytes]:
    """Return the files of a JavaScript module."""
    data = path.with_suffix(".bin")
    text = (
        f"{runtime_source()}\n/** What the page runs. */\nexport const manifest = {_inline_json(manifest.json)};\n\n"
        "/** Opens the GPU, and returns the application. */\nexport async function load(data = undefined) {\n"
        f"  data ??= await (await fetch(new URL({json.dumps(data.name)}, import.meta.url))).arrayBuffer();\n"
        f"  return open(manifest, new Uint8Array(data));\n}}\n\nexport {{{', '.join(_PUBLIC)}}};\n"
    )
    return {path: text.encode(), data: manifest.data}


def _page(page: Layout | str | os.PathLike[str], manifest: Manifest) -> str:
    if isinstance(page, Layout):
        return _render_layout(page, manifest)
    try:
        text = Path(page).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise SerializationError(f"export_web: the page {os.fspath(page)!r} cannot be read: {error}") from error
    if text.count(_MARK) != 1:
        raise ArgumentError(f"export_web: the page {os.fspath(page)!r} has the comment {_MARK} {text.count(_MARK)} times, not once")
    return text.replace(_MARK, _scripts(manifest, "", {}))


def _render_layout(page: Layout, manifest: Manifest) -> str:
    content = _asset(f"{page.kind}.html").replace("<!-- training -->", _asset("training.html") if page.train else "")
    style = _FOLDER / "pages" / f"{page.kind}.css"
    fields = {
        "title": html.escape(page.title),
        "style": _asset("common.css") + (style.read_text("utf-8") if style.exists() else ""),
        "description": html.escape(page.description),
        "content": content.replace("<!-- weights -->", _asset("weights.html")),
        "volta_fn": _scripts(manifest, _asset("common.js") + _asset(f"{page.kind}.js"), page.settings(manifest.json)),
    }
    return re.sub(r"<!-- (\w+) -->", lambda match: fields[match[1]], _asset("shell.html"))


def _scripts(manifest: Manifest, script: str, settings: Mapping[str, Any]) -> str:
    """Return the elements that hold programs, data, settings and scripts."""
    kind = 'type="application/gzip;base64"'
    rows = [
        f'<script {kind} id="manifest">{_compress(_inline_json(manifest.json).encode())}</script>',
        f'<script {kind} id="data">{_compress(manifest.data)}</script>',
        f'<script type="application/json" id="settings">{_inline_json(settings)}</script>',
        f"<script>\nconst volta = (() => {{\n{runtime_source()}\n{_LOAD}\nreturn {{load, {', '.join(_PUBLIC)}}};\n}})();\n</script>",
    ]
    return "\n".join([*rows, *([f"<script>\n{script}\n</script>"] if script else [])])


def _asset(name: str) -> str:
    return (_FOLDER / "pages" / name).read_text("utf-8")


def _compress(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _inline_json(value: Any) -> str:
    """Return JSON that may stand in a script.

    Texts have no end of an element in them, nor the beginning of a comment, after which the end of the script would not be found.
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


# The layouts of pages: fields, digits to draw, or a text that a model continues.


@dataclass(frozen=True)
class Layout:
    """The settings of all pages.

    Args:
        title: the page's title.
        description: a sentence or two below it.
        train: the name of the function that makes a step of training, if the page has one.
        loss: its result that the page shows as a curve.
        counter: its input for the number of the step, from 0, as to fold into a random key; None if it has none.
        file: the name of the file that weights are downloaded as.
    """

    title: str = "A model in this page"
    description: str = ""
    train: str | None = None
    loss: str = "loss"
    counter: str | None = None
    file: str = "weights"

    #: The file's name in `pages/`, without its suffix.
    kind: ClassVar[str] = ""

    def settings(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the page's script.

        Raises `ArgumentError` if a function, input or result of these names is not there.
        """
        if self.train is not None:
            check_names(manifest, self.train, [self.counter] if self.counter else [], [self.loss])
        return {"train": self.train, "loss": self.loss, "counter": self.counter, "file": self.file}


@dataclass(frozen=True)
class Plain(Layout):
    """A page for any functions: fields for inputs, tables and charts for results.

    Scalars get a number field, square pictures a canvas, other arrays a field for numbers or a CSV file. If `train` is given there are
    buttons that train, pause and reset, with the loss as a live curve; weights can be downloaded and loaded. For arguments see `Layout`.
    """

    kind: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Digits(Layout):
    """A page on which one draws, and the network says what it is.

    It trains, and learns from corrections.

    Args:
        predict: the function from a picture to probabilities.
        image: its input, a square picture of numbers from 0 to 1.
        probabilities: its result, one for each label.
        learn: a function that trains on one picture and its label; None if the page does not learn from corrections.
        label: its input for the number of the label. Its picture is `image`, too.
        evaluate: a function without inputs that returns the accuracy on unseen pictures; None if there is none.
        accuracy: its result.
        labels: the names of the classes.
        pen: the width of the pen, of 280 pixels of the drawing.
        margin: pixels of the picture around what is drawn.
        corrections: the steps that a correction takes.
        trained: whether the exported state is trained; else the page calls answers guesses until it has learned something.

    For the other arguments see `Layout`.
    """

    title: str = "Digits"
    train: str | None = "train"
    predict: str = "predict"
    image: str = "image"
    probabilities: str = "probabilities"
    learn: str | None = None
    label: str = "label"
    evaluate: str | None = None
    accuracy: str = "accuracy"
    labels: Sequence[str] = tuple("0123456789")
    pen: int = 30
    margin: float = 0
    corrections: int = 5
    trained: bool = False

    kind: ClassVar[str] = "digits"

    def settings(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the page's script."""
        settings = super().settings(manifest)
        picture = check_names(manifest, self.predict, [self.image], [self.probabilities])[0]
        size = _size(picture["shape"])
        side = round(size**0.5)
        if side * side != size:
            raise ArgumentError(f"Digits: expected a square picture, got {self.image} of shape {tuple(picture['shape'])}")
        if self.learn is not None:
            check_names(manifest, self.learn, [self.image, self.label], [])
        if self.evaluate is not None:
            check_names(manifest, self.evaluate, [], [self.accuracy])
        names = ("predict", "image", "probabilities", "learn", "label", "evaluate", "accuracy", "pen", "margin", "corrections", "trained")
        return settings | {name: getattr(self, name) for name in names} | {"labels": list(self.labels), "side": side, "evaluateEvery": 20}


@dataclass(frozen=True)
class Text(Layout):
    """A page with a text, which a language model of characters continues as one types.

    Args:
        write: the function from the last characters to the next characters.
        prompt: its input, the numbers of the last characters (int32). Shorter texts are filled up from the left.
        seed: its input for a number that decides what is drawn (uint32).
        temperature: its input for the temperature (float32); None if it has none.
        characters: its result, the numbers of the next characters (int32).
        symbols: all characters by their numbers.
        filler: the character that fills up short texts.
        prompt_text: the initial text.
        initial_temperature: the initial temperature.

    For the other arguments see `Layout`.
    """

    title: str = "Text"
    write: str = "write"
    prompt: str = "prompt"
    seed: str = "seed"
    temperature: str | None = None
    characters: str = "characters"
    symbols: str = ""
    filler: str = "\n"
    prompt_text: str = ""
    initial_temperature: float = 0.7

    kind: ClassVar[str] = "text"

    def settings(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the page's script."""
        settings = super().settings(manifest)
        if self.filler not in self.symbols:
            raise ArgumentError(f"Text: the filler {self.filler!r} is not among the symbols")
        fields = [self.prompt, self.seed, *([self.temperature] if self.temperature else [])]
        length = _size(check_names(manifest, self.write, fields, [self.characters])[0]["shape"])
        names = ("write", "prompt", "seed", "temperature", "characters", "symbols", "prompt_text", "initial_temperature")
        return settings | {name: getattr(self, name) for name in names} | {"length": length, "filler": self.symbols.index(self.filler)}


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def check_names(manifest: Mapping[str, Any], name: str, inputs: Sequence[str], results: Sequence[str]) -> list[dict[str, Any]]:
    """Return the inputs of a function.

    Raises `ArgumentError` if it, one of them, or a result is not there.
    """
    if name not in manifest["functions"]:
        raise ArgumentError(f"the page needs a function {name!r}, but there are {sorted(manifest['functions'])}")
    arrays = {array["name"]: array for array in manifest["arrays"]}
    parameters = [array.removeprefix(f"{name}/") for array in arrays if array.startswith(f"{name}/")]
    returned = [result["name"] for result in manifest["functions"][name]["results"]]
    for kind, required, available in (("input", inputs, parameters), ("result", results, returned)):
        for one in required:
            if one not in available:
                raise ArgumentError(f"the page needs the {kind} {one!r} of {name!r}, which has {available}")
    return [arrays[f"{name}/{one}"] for one in inputs]
