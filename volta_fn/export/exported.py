"""Exported functions: `export`, `deserialize`, and the functions that they return.

A function is traced once for each sample of symbolic sizes. The file records how arguments were split between devices.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value, host_buffer
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.devices.device import current_default_device
from volta_fn.core.devices.sharding import NamedSharding, PartitionSpec
from volta_fn.core.dimension import Dimension, Size, divided
from volta_fn.core.jaxpr import ClosedJaxpr, format_jaxpr
from volta_fn.core.staging import eval_jaxpr
from volta_fn.core.trace import bind
from volta_fn.dtypes import INEXACT
from volta_fn.errors import (
    ArgumentError,
    ArgumentTypeError,
    CorruptFileError,
    ExportError,
    GradientError,
    ShapeError,
    UnsupportedError,
    VoltaError,
)
from volta_fn.export import values
from volta_fn.export.programs import ProgramWriter, output_types, pack, read_constants, read_program, struct_of, unpack
from volta_fn.export.symbolic import Generalizer, SymbolicScope, sample_count
from volta_fn.export.values import INVALID, check_nodes, damaged, describe, first_line, treedef_of
from volta_fn.jit import jit
from volta_fn.jit.compile import with_wide_inputs
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.elementwise.cast import convert_element_type, widened
from volta_fn.settings import current as settings
from volta_fn.transforms.custom_derivatives import custom_vjp
from volta_fn.transforms.grad import vjp

# The shardings of an exported function's arguments.


def described_shardings(arguments: Any) -> dict[str, Any] | None:
    """Return the JSON of the arguments' shardings; None if they have none."""
    shardings = [getattr(leaf, "sharding", None) for leaf in tree.leaves(arguments)]
    named = [s for s in shardings if isinstance(s, NamedSharding)]
    if not named:
        return None
    axes = named[0].mesh.shape
    if any(s.mesh.shape != axes for s in named):
        raise ArgumentError("export: all arguments must be split along the axes of one mesh")
    specs = [[[str(n) for n in s.spec.axes_of(i)] for i in range(len(s.spec))] if isinstance(s, NamedSharding) else None for s in shardings]
    return {"axes": [[str(name), size] for name, size in axes.items()], "inputs": specs}


def check_shardings(description: Any, count: int) -> None:
    """Raise `CorruptFileError` unless this is the JSON of `count` shardings, or None."""
    if description is None:
        return
    axes, specs = description["axes"], description["inputs"]
    names = [name for name, _ in axes]
    is_valid = all(type(name) is str and type(size) is int and size > 0 for name, size in axes) and len({*names}) == len(names)
    for spec in specs:
        is_valid = is_valid and (spec is None or all(isinstance(some, list) and {*some} <= {*names} for some in spec))
    if not is_valid or len(specs) != count:
        raise damaged("it has not one sharding for each argument")


def shardings_on(mesh: Any, description: Mapping[str, Any] | None, count: int) -> tuple[Any, ...]:
    """Return shardings on a mesh, given their JSON."""
    if description is None:
        return (None,) * count
    axes, specs = dict(description["axes"]), description["inputs"]
    if {str(name): size for name, size in mesh.shape.items()} != axes:
        raise ArgumentError(f"in_shardings_jax: the function was exported for axes {axes}, but the mesh has {dict(mesh.shape)}")
    return tuple([None if spec is None else NamedSharding(mesh, PartitionSpec(*map(tuple, spec))) for spec in specs])


# Traced functions on their way to a file: one program for each sample of sizes.

#: What functions may raise when they are traced for symbolic sizes: Python's functions of integers take none.
_UNTRACEABLE = (VoltaError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Source:
    """A function that was traced for samples of the sizes of its symbolic axes.

    Where the programs of the samples are not the same but for polynomials, or these are not right for `small` sizes, the program that was
    traced for symbolic sizes is written: `symbolic` traces it. A source of this program alone has one stage.
    """

    def __init__(
        self,
        stages: Sequence[Any],
        samples: Sequence[Mapping[str, int]],
        symbolic: Callable[[], Source] | None = None,
        small: Sequence[tuple[Mapping[str, int], Any]] = (),
    ) -> None:
        self.stages, self.samples, self.symbolic, self.small = stages, samples, symbolic, small

    def manifest(self, platforms: Sequence[str], constraints: Sequence[str]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Return the manifest for all sizes, and the constants."""
        try:
            manifest, constants = self._merged()
        except ExportError as error:
            if self.symbolic is None:
                raise
            try:
                return self.symbolic().manifest(platforms, constraints)
            except _UNTRACEABLE as reason:
                raise ExportError(f"{error.message}; and for symbolic sizes it has no program: {first_line(reason)}") from error
        for sizes, stage in self.small:
            same_types, same_program = _compared(manifest, constants, sizes, stage)
            if not same_program and self.symbolic is not None:
                with suppress(*_UNTRACEABLE):
                    return self.symbolic().manifest(platforms, constraints)
            if not same_types:
                raise ExportError(
                    f"the program for the sizes {dict(sizes)} has results of other types than those of large sizes give; export it for "
                    "each size, or add constraints"
                )
        return manifest | {"platforms": [*platforms], "constraints": [*constraints]}, constants

    def _merged(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        manifests = [_manifest(stage) for stage in self.stages]
        constants = manifests[0][1]
        for _, others in manifests[1:]:
            if len(others) != len(constants) or any(a.tobytes() != b.tobytes() for a, b in zip(constants, others, strict=True)):
                raise ExportError("the function has constants that depend on symbolic sizes; compute them by arange, ones, … of volta_fn")
        manifest = manifests[0][0]
        if len(manifests) > 1:
            manifest = Generalizer(self.samples).merge([m for m, _ in manifests])
        return manifest, constants

    def vjp(self) -> Source:
        """Return the function of the arguments and cotangents that pulls these back."""
        symbolic = self.symbolic
        pulled = None if symbolic is None else lambda: symbolic().vjp()
        small = []
        for sizes, stage in self.small:
            with suppress(*_UNTRACEABLE):
                small.append((sizes, _trace_vjp(stage)))
        return Source([_trace_vjp(stage) for stage in self.stages], self.samples, pulled, small)


def traced_source(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Source, SymbolicScope]:
    """Trace a jitted function for descriptions of arguments."""
    leaves, structure = tree.flatten((args, kwargs))
    symbolic: list[Any] = [d for leaf in leaves if isinstance(leaf, ShapeDtypeStruct) for d in leaf.shape if isinstance(d, Dimension)]
    scopes = list({id(d.scope): d.scope for d in symbolic if d.scope is not None}.values())
    if settings.permissive and len(scopes) > 1:
        other = next(d for d in symbolic if d.scope is scopes[1])
        raise ArgumentError(
            f"invalid mixing of symbolic scopes: the size {other} is of another call of symbolic_shape than {symbolic[0]}, with "
            f"constraints {list(scopes[1].constraints)} beside {list(scopes[0].constraints)}; pass scope=, or use symbolic_args_specs for "
            "all arguments"
        )
    scope = SymbolicScope([c for s in scopes for c in s.constraints])
    names = sorted(frozenset().union(*[d.variables for d in symbolic]))
    replaced = {factor for monomial in scope.rules for factor, _ in monomial if isinstance(factor, str)}
    if unknown := sorted({name for relation in scope.relations for name in relation.names}.difference(names, replaced)):
        raise ArgumentError(
            f"Encountered dimension variable '{unknown[0]}' in the constraints {list(scope.constraints)} that is not appearing in the "
            "shapes of the arguments; write a constraint of their variables"
        )

    def traced(sizes: Mapping[str, int]) -> Any:
        positional, keywords = tree.unflatten(structure, [_with_sizes(leaf, sizes) for leaf in leaves])
        return function.trace(*positional, **keywords)

    def traced_symbolically() -> Source:
        return Source([function.trace(*args, **kwargs)], [{}])

    if not names:
        return Source([traced({})], [{}]), scope
    try:
        samples = scope.assignments(names, sample_count(names))
        stages = [traced(sizes) for sizes in samples]
        small = []
        for sizes in scope.small_assignments(names):
            with suppress(*_UNTRACEABLE):  # a function need not take them
                small.append((sizes, traced(sizes)))
        return Source(stages, samples, traced_symbolically, small), scope
    except (ArgumentError, ShapeError):  # no samples, or sizes that fit only where they are related
        try:
            source = traced_symbolically()
            source.manifest((), ())
        except _UNTRACEABLE:
            source = None
        if source is None:
            raise
        return source, scope


def _compared(manifest: dict[str, Any], constants: Sequence[np.ndarray], sizes: Mapping[str, int], stage: Any) -> tuple[bool, bool]:
    """Return whether a manifest has the result types and the program of a stage."""
    expected, stage_constants = _manifest(stage)
    try:
        program = read_program(manifest, read_constants(manifest["constants"], [c.tobytes() for c in constants]), sizes)
    except (ShapeError, CorruptFileError):
        return True, False  # it raises for these sizes
    writer = ProgramWriter()
    writer.write(program)
    same = writer.programs == expected["programs"] and [c.tobytes() for c in writer.constants] == [c.tobytes() for c in stage_constants]
    return [a.shape for a in program.out_avals] == [a.shape for a in stage.jaxpr.out_avals], same


def _with_sizes(leaf: Any, sizes: Mapping[str, int]) -> Any:
    if not isinstance(leaf, ShapeDtypeStruct) or not any(isinstance(d, Dimension) for d in leaf.shape):
        return leaf
    return leaf.update(shape=tuple([_number(d, sizes) for d in leaf.shape]))


def _number(size: Any, sizes: Mapping[str, int]) -> int:
    if not isinstance(size, Dimension):
        return int(size)
    value = size.evaluate(sizes)
    if value.denominator != 1 or value < 0:
        raise ArgumentError(f"the symbolic size {size} is {value} for {dict(sizes)}; add constraints, such as 'b >= 4'")
    return int(value)


def _manifest(stage: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    if stage._traced.captured:
        raise ExportError("an exported function cannot depend on traced arrays; export it outside of transforms")
    writer = ProgramWriter()
    main = writer.write(stage.jaxpr)
    manifest = {
        "name": stage.fun_name,
        "in_tree": describe(stage.in_tree),
        "out_tree": describe(stage.out_tree),
        "arguments": len(stage._arguments),
        "in_full": list(stage._traced.wide_inputs),
        "programs": writer.programs,
        "main": main,
        "constants": writer.types,
    }
    return manifest, writer.constants


def _trace_vjp(stage: Any) -> Any:
    """Trace a function's vector-Jacobian product, by its inexact arguments."""
    arguments, results = stage._arguments, stage.jaxpr.out_avals
    inexact_arguments = [i for i, a in enumerate(arguments) if a.dtype in INEXACT]
    inexact_results = [i for i, a in enumerate(results) if a.dtype in INEXACT]

    def pull_back(*values: Array) -> list[Array]:
        primals, cotangents = list(values[: len(arguments)]), values[len(arguments) :]

        def outputs(*inexact: Array) -> list[Array]:
            merged = list(primals)
            for i, value in zip(inexact_arguments, inexact, strict=True):
                merged[i] = value
            outs = eval_jaxpr(stage.jaxpr, *with_wide_inputs(merged, stage._traced))
            return [outs[i] for i in inexact_results]

        _, backward = vjp(outputs, *[primals[i] for i in inexact_arguments])
        return list(backward(list(cotangents)))

    pull_back.__name__ = f"vjp of {stage.fun_name}"
    structs = [ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in arguments]
    return jit(pull_back).trace(*structs, *[ShapeDtypeStruct(results[i].shape, results[i].dtype) for i in inexact_results])


# `export` and `deserialize`, and the functions that they return.

_PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu")
#: Platforms on which JAX reuses the memory of donated arguments.
_DONATING_PLATFORMS = frozenset({*_PLATFORMS, "neuron"})
#: The oldest and newest of JAX's calling conventions that calls follow: arguments are flat, and sizes follow from their shapes.
minimum_supported_calling_convention_version, maximum_supported_calling_convention_version = 9, 10
#: Errors that compiling a program with wrong parameters may raise. Files hold no code of users, which could raise them too.
_UNTYPED = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
#: The most derivatives of derivatives in a file.
_HIGHEST_ORDER = 8


def default_export_platform() -> str:
    """Return the platform of the default device, for which functions are exported.

    >>> default_export_platform() in ("cpu", "gpu")
    True
    """
    return current_default_device().platform


class DisabledSafetyCheck:
    """The name of a safety check of JAX, none of which is made here; see `export`.

    >>> DisabledSafetyCheck.platform()
    DisabledSafetyCheck(platform)
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Return the check of the platform; programs run on all."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> DisabledSafetyCheck:
        """Return the check of a custom call; programs have none."""
        return cls(f"custom_call:{target_name}")

    def is_custom_call(self) -> str | None:
        """Return the target of the custom call; None for another check.

        >>> DisabledSafetyCheck.custom_call("solve").is_custom_call()
        'solve'
        """
        kind, _, target = self.name.partition(":")
        return target if kind == "custom_call" else None

    def __repr__(self) -> str:
        return f"DisabledSafetyCheck({self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DisabledSafetyCheck) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def export(fun_jit: Any, *, platforms: Sequence[str] | None = None, disabled_checks: Sequence[Any] = ()) -> Callable[..., Exported]:
    """Return a function of arguments that exports a jitted function for them.

    ``export(fun_jit)(*args)`` takes arrays or `ShapeDtypeStruct`, whose sizes may be symbolic (`symbolic_shape`).

    Args:
        fun_jit: a function from `jit`.
        platforms: some of "cpu", "gpu", "cuda", "rocm", "tpu", which are recorded in the file; in JAX's mode any names. A program runs on
            every platform nevertheless.
        disabled_checks: accepted for compatibility.

    Raises:
        ArgumentTypeError: `fun_jit` is not jitted. ArgumentError: a platform is unknown, a constraint has a variable that no shape has, or,
            in JAX's mode, sizes are of several scopes.
        ExportError: the function calls Python, or its programs for several sizes of a symbolic axis are not the same but for sizes.
        UnsupportedError: in JAX's mode, an argument is donated, which some of the platforms support and others do not.

    >>> shape = vf.export.symbolic_shape("b, 2")
    >>> exported = vf.export.export(vf.jit(lambda x: x.sum(1)))(vf.ShapeDtypeStruct(shape, "float32"))
    >>> exported.call(vf.numpy.ones((3, 2)))
    Array([2., 2., 2.], dtype=float32)
    """
    if not hasattr(fun_jit, "trace") and callable(fun_jit) and str(getattr(fun_jit, "__module__", "")).startswith("volta_fn."):
        fun_jit = jit(fun_jit)
    if not hasattr(fun_jit, "trace"):
        raise ArgumentTypeError(f"export takes a jitted function, got {fun_jit!r:.80}; write export(jit(f))")
    chosen = (default_export_platform(),) if platforms is None else tuple(platforms)
    if not settings.permissive and (unknown := [p for p in chosen if p not in _PLATFORMS]):
        raise ArgumentError(f"export: unknown platforms {unknown}; there are {list(_PLATFORMS)}")

    oldest, newest = minimum_supported_calling_convention_version, maximum_supported_calling_convention_version
    if not oldest <= settings.calling_convention <= newest:
        raise ArgumentError(
            f"The requested export calling convention version {settings.calling_convention} is outside the range of supported versions "
            f"[{oldest}..{newest}]; set jax_export_calling_convention_version to one of them"
        )

    def exporting(*args: Any, **kwargs: Any) -> Exported:
        source, scope = traced_source(fun_jit, args, kwargs)
        if settings.permissive and source.stages[0].donate_argnums:
            check_donation(chosen)
        return _from_source(source, chosen, scope.constraints, source.stages[0].out_tree, described_shardings((args, kwargs)))

    return exporting


def check_donation(platforms: Sequence[str]) -> None:
    """Raise `UnsupportedError` if some of the platforms support donation, but not all."""
    supporting = [platform for platform in platforms if platform in _DONATING_PLATFORMS]
    if 0 < len(supporting) < len(platforms):
        raise UnsupportedError(
            f"In multi-platform lowering either all or no lowering platforms should support donation, but of {list(platforms)} only "
            f"{supporting} do; export for these, or without donate_argnums and donate_argnames"
        )


def deserialize(blob: bytes | bytearray) -> Exported:
    """Return the function of a file's bytes, from `Exported.serialize`.

    Nothing in a file is executed but its programs, whose types are checked first.

    Raises:
        CorruptFileError: the file is damaged, or of another kind.
        SerializationError: it is of a newer version.
        ArgumentTypeError: `blob` is not bytes.
    """
    first, chunks = unpack(blob)
    manifest: dict[str, Any] | None = first
    exported: Exported | None = None
    levels = []
    while manifest is not None:
        _check(manifest)
        count = len(manifest["constants"])
        levels.append((manifest, read_constants(manifest["constants"], chunks[:count])))
        manifest, chunks = manifest.get("vjp"), chunks[count:]
    if chunks or len(levels) > _HIGHEST_ORDER + 1:
        raise damaged("it has constants or derivatives too many")
    for text, constants in reversed(levels):
        exported = Exported(text, constants, exported, None)
    assert exported is not None
    return exported


def _from_source(
    source: Source, platforms: Sequence[str], constraints: Sequence[str], out_tree: tree.TreeDef, shardings: Mapping[str, Any] | None = None
) -> Exported:
    manifest, constants = source.manifest(platforms, constraints)
    manifest |= {} if shardings is None else {"shardings": shardings}
    types = manifest["constants"]
    exported = Exported(manifest, read_constants(types, [c.tobytes() for c in constants]), None, source)
    exported.out_tree = out_tree
    return exported


def _check(manifest: Any) -> None:
    names = {"name", "in_tree", "out_tree", "arguments", "in_full", "programs", "main", "constants", "platforms", "constraints"}
    if not isinstance(manifest, dict) or not names <= manifest.keys() <= names | {"vjp", "shardings"}:
        raise damaged(f"its manifest must have {sorted(names)}")
    lists = ("in_full", "programs", "constants", "platforms", "constraints")
    texts = (
        [manifest["name"], *manifest["platforms"], *manifest["constraints"]] if all(isinstance(manifest[k], list) for k in lists) else [0]
    )
    if not all(type(text) is str for text in texts):
        raise damaged(f"{', '.join(lists)} must be lists, its name, platforms and constraints texts")


class Exported:
    """A function with its program, from `export` or `deserialize`.

    >>> exported = vf.export.export(vf.jit(lambda x: x * x))(3.0)
    >>> exported.in_avals, exported.has_vjp()
    ((f32[],), True)
    >>> vf.grad(exported.call)(3.0)
    Array(6., dtype=float32, weak_type=True)
    """

    def __init__(self, manifest: Mapping[str, Any], constants: Sequence[Any], derivative: Exported | None, source: Source | None) -> None:
        self._manifest, self._constants = manifest, constants
        self._derivative, self._source = derivative, source
        self._functions: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._lock = threading.Lock()
        try:
            self._prepare()
        except CorruptFileError:
            raise
        except INVALID as error:
            raise damaged(error) from error
        if not self._names:
            self._program({})

    def _prepare(self) -> None:
        manifest = self._manifest
        #: The function's name.
        self.fun_name: str = manifest["name"]
        #: The platforms that it was exported for; it runs on all.
        self.platforms: tuple[str, ...] = tuple(manifest["platforms"])
        program = manifest["programs"][manifest["main"]]
        arguments = program["inputs"][: manifest["arguments"]]
        #: The types and structures of the arguments, as ``(args, kwargs)``, and of the results.
        self.in_avals = tuple([struct_of(kind) for kind in arguments])
        self.out_avals = tuple([struct_of(kind) for kind in output_types(program, manifest["constants"])])
        self.in_tree = treedef_of(manifest["in_tree"], self.in_avals)
        self.out_tree = treedef_of(manifest["out_tree"], self.out_avals)
        wide = manifest["in_full"]
        if any(not 0 <= i < len(arguments) for i in wide) or len(program["inputs"]) != len(arguments) + len(wide):
            raise damaged("its program does not fit its structures")
        sizes: list[Any] = [d for aval in self.in_avals for d in aval.shape if isinstance(d, Dimension)]
        self._names = sorted(frozenset().union(*[d.variables for d in sizes]))
        self._scope = SymbolicScope(manifest["constraints"])
        check_shardings(manifest.get("shardings"), len(self.in_avals))

    def __repr__(self) -> str:
        return f"<exported {self.fun_name}: {list(self.in_avals)} to {list(self.out_avals)}>"

    #: The version of JAX's calling convention that `call` follows.
    calling_convention_version = maximum_supported_calling_convention_version

    #: Effects, of which exported functions have none, and the safety checks that were switched off: there are none.
    ordered_effects: tuple[Any, ...] = ()
    unordered_effects: tuple[Any, ...] = ()
    disabled_safety_checks: tuple[Any, ...] = ()

    @property
    def module_kept_var_idx(self) -> tuple[int, ...]:
        """The positions of the arguments that the program takes: of all."""
        return tuple(range(len(self.in_avals)))

    @property
    def uses_global_constants(self) -> bool:
        """Whether there are symbolic sizes, or several platforms."""
        return bool(self._names) or len(self.platforms) > 1

    @property
    def nr_devices(self) -> int:
        """The number of devices that the arguments were split between; 1 if they were not."""
        return math.prod([size for _, size in self._manifest.get("shardings", {}).get("axes", ())])

    def in_shardings_jax(self, mesh: Any) -> tuple[Any, ...]:
        """Return the shardings of the arguments' leaves on a mesh; None for those without.

        Raises `ArgumentError` if the mesh has not the axes that the function was exported with.
        """
        return shardings_on(mesh, self._manifest.get("shardings"), len(self.in_avals))

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program.

        Raises `ShapeError` if it has symbolic sizes, so that there is one for each.
        """
        if self._names:
            raise ShapeError(f"{self.fun_name} has a program for each size of {', '.join(self._names)}; export it for one to see it")
        return self._program({})

    def mlir_module(self, serialized: bool = True) -> Any:
        """Return the program's text in JAX's notation: there is no MLIR.

        Unless `serialized`, return the program. Raises `ShapeError` if a number in it depends on a symbolic size.

        >>> struct = vf.ShapeDtypeStruct(vf.export.symbolic_shape("b"), "float32")
        >>> print(vf.export.export(vf.jit(lambda x: x + 1))(struct).mlir_module())
        { lambda ; a:f32[b]. let
            b:f32[b] = add a 1.0:f32[]
          in (b,) }
        """
        program = self._program({name: Dimension.variable(name, self._scope) for name in self._names})
        return format_jaxpr(program.jaxpr) if serialized else program

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, eagerly or in a function that is transformed.

        Nodes of classes that this process has not registered for files are returned as dictionaries of their children.

        Raises:
            TreeError, ShapeError, ArgumentTypeError: the arguments have other structures or types than those it was exported for.
            GradientError: it is differentiated, but the file has no derivative (`serialize`).
        """
        leaves = values.flatten(self._manifest["in_tree"], (args, kwargs))
        results = self._call_flat(leaves)
        if self._source is None:
            return values.unflatten(self._manifest["out_tree"], iter(results))
        return tree.unflatten(self.out_tree, results)

    def _call_flat(self, leaves: Sequence[Any]) -> Sequence[Array]:
        values = [as_value(x) for x in leaves]
        sizes = self._solve_sizes([v.shape for v in values])
        values = [converted(v, a, f"argument {i} of {self.fun_name}") for i, (v, a) in enumerate(zip(values, self.in_avals, strict=True))]
        try:
            results: Sequence[Array] = self._function(sizes)(*values)
        except _UNTYPED as error:
            if self._source is not None or isinstance(error, VoltaError):
                raise
            raise damaged(f"it cannot be compiled: {first_line(error)}") from error
        return results

    def _function(self, sizes: Mapping[str, Size]) -> Callable[..., Any]:
        key = tuple([size if isinstance(size, int) else (size, id(size.scope)) for size in sizes.values()])
        with self._lock:
            function = self._functions.get(key)
        if function is None:
            compiled = self._compiled(self._program(sizes))
            with self._lock:
                function = self._functions.setdefault(key, compiled)
        return function

    def _program(self, sizes: Mapping[str, Size]) -> ClosedJaxpr:
        return read_program(self._manifest, self._constants, sizes)

    def _compiled(self, program: ClosedJaxpr) -> Callable[..., Any]:
        wide = self._manifest["in_full"]

        def run(*values: Array) -> list[Array]:
            extra = widened([values[i] for i in wide], range(len(wide)))
            return list(bind(jit_p, *values, *extra, **call_params(program, self.fun_name)))

        run.__name__ = self.fun_name
        function = custom_vjp(run)
        function.defvjp(lambda *values: (run(*values), values), partial(self._pull_back, program))
        return jit(function)

    def _pull_back(self, program: ClosedJaxpr, values: Sequence[Array], cotangents: Sequence[Array]) -> tuple[Any, ...]:
        inexact = [c for c, a in zip(cotangents, program.out_avals, strict=True) if a.dtype in INEXACT]
        gradients = iter(self.vjp()._call_flat([*values, *inexact]))
        return tuple([next(gradients) if v.dtype in INEXACT else None for v in values])

    def has_vjp(self) -> bool:
        """Return True if the function can be differentiated."""
        return self._derivative is not None or self._source is not None

    def vjp(self) -> Exported:
        """Return the function from the arguments' leaves and cotangents to cotangents.

        Cotangents are those of the inexact results, in their order; the result is a list of those of the inexact arguments. Raises
        `GradientError` if the file has no derivative of this order.
        """
        if self._derivative is None:
            if self._source is None:
                raise GradientError(
                    f"{self.fun_name} was saved without this derivative; save it by serialize(vjp_order=…) with a larger order"
                )
            source = self._source.vjp()
            self._derivative = _from_source(source, self.platforms, self._manifest["constraints"], source.stages[0].out_tree)
        return self._derivative

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """Return the bytes of a file with the function, and derivatives up to an order.

        The format is that of docs/export.md.

        Args:
            vjp_order: how often the loaded function can be differentiated in reverse mode.

        Raises:
            ArgumentError: the order is negative, or larger than 8; in JAX's mode, arguments or results have nodes of a class that is not
                registered for files.
            ArgumentTypeError: the keys of a dictionary are no texts or integers.
        """
        if not isinstance(vjp_order, int) or not 0 <= vjp_order <= _HIGHEST_ORDER:
            raise ArgumentError(f"serialize: vjp_order must be from 0 to {_HIGHEST_ORDER}, got {vjp_order!r}")
        levels = [self]
        for _ in range(vjp_order):
            levels.append(levels[-1].vjp())
        manifest: dict[str, Any] | None = None
        for level in reversed(levels):
            check_nodes(level._manifest["in_tree"])
            check_nodes(level._manifest["out_tree"])
            fields = {key: value for key, value in level._manifest.items() if key != "vjp"}
            manifest = fields if manifest is None else fields | {"vjp": manifest}
        assert manifest is not None
        return pack(manifest, [host_buffer(c) for level in levels for c in level._constants])

    def _solve_sizes(self, shapes: Sequence[tuple[Size, ...]]) -> dict[str, Size]:
        """Return the sizes of symbolic axes, given the arguments' shapes.

        They are symbolic themselves where the function is called in another export.
        """
        symbolic_shapes = [aval.shape for aval in self.in_avals]
        pairs: list[tuple[Any, Size]] = []
        for i, (symbolic, shape) in enumerate(zip(symbolic_shapes, shapes, strict=True)):
            if len(symbolic) != len(shape):
                raise ShapeError(f"argument {i} of {self.fun_name} must have shape {symbolic}, got {shape}")
            pairs += zip(symbolic, shape, strict=True)
        sizes: dict[str, Size] = {}
        unsolved = [(d, size) for d, size in pairs if isinstance(d, Dimension)]
        while len(sizes) < len(self._names):
            count = len(sizes)
            for dimension, size in unsolved:
                sizes |= solution(dimension, size, sizes)
            if len(sizes) == count:
                raise ShapeError(f"the sizes {self._names} of {self.fun_name} do not follow from its arguments' shapes {symbolic_shapes}")
        wrong = [(d, size) for d, size in pairs if (d.substitute(sizes) if isinstance(d, Dimension) else d) != size]
        if wrong:
            raise ShapeError(
                f"{self.fun_name} takes arguments of shapes {symbolic_shapes}, got {list(shapes)}: {wrong[0][0]} is not {wrong[0][1]}"
            )
        if (violated := self._scope.violated(sizes)) is not None:
            raise ShapeError(f"{self.fun_name} takes sizes with {list(self._scope.constraints)}, got {sizes}: {violated}")
        return dict(sorted(sizes.items()))


# Arguments: their conversion to the types of an exported function, and the sizes that follow from their shapes.


def converted(value: Array, target: ShapedArray, name: str) -> Array:
    """Return an argument in its wanted type; Python numbers take any dtype of a kind."""
    if value.dtype == target.dtype and value.aval.weak_type == target.weak_type:
        return value
    if value.dtype != target.dtype and not value.aval.weak_type:
        raise ArgumentTypeError(
            f"{name} must be {ShapedArray((), target.dtype)} of shape {target.shape}, got {value.aval}; convert it by astype"
        )
    return convert_element_type(value, target.dtype, weak_type=target.weak_type)


def solution(dimension: Dimension, size: Size, sizes: Mapping[str, Size]) -> dict[str, Size]:
    """Return the variable that a size, maybe symbolic, determines."""
    unknown = [name for name in dimension.variables if name not in sizes]
    if len(unknown) != 1:
        return {}
    (name,) = unknown
    at = [dimension.substitute({**sizes, name: n}) for n in (0, 1, 2)]
    slope = at[1] - at[0]
    if at[2] - at[1] != slope or slope == 0:
        return {}
    value, remainder = divided(size - at[0], slope)
    return {name: value} if remainder == 0 else {}
