"""Traced functions on their way to a file: one program for each sample of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.dimension import Dimension
from volta_fn.core.staging import eval_jaxpr
from volta_fn.dtypes import INEXACT
from volta_fn.errors import ArgumentError, ExportError
from volta_fn.export.generalizing import Generalizer, sample_count
from volta_fn.export.structures import describe
from volta_fn.export.symbolic import SymbolicScope
from volta_fn.export.writing import ProgramWriter
from volta_fn.jit import jit
from volta_fn.jit.compile import with_full
from volta_fn.transforms.grad import vjp


class Source:
    """A function that was traced for samples of the sizes of its symbolic axes."""

    def __init__(self, stages: Sequence[Any], samples: Sequence[Mapping[str, int]]) -> None:
        self.stages, self.samples = stages, samples

    def manifest(self, platforms: Sequence[str], constraints: Sequence[str]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Return the manifest for all sizes, and the constants."""
        made = [_manifest(stage) for stage in self.stages]
        constants = made[0][1]
        for _, others in made[1:]:
            if len(others) != len(constants) or any(a.tobytes() != b.tobytes() for a, b in zip(constants, others, strict=True)):
                raise ExportError("the function has constants that depend on symbolic sizes; compute them by arange, ones, … of volta_fn")
        manifest = made[0][0]
        if len(made) > 1:
            manifest = Generalizer(self.samples).merge([m for m, _ in made])
        return manifest | {"platforms": [*platforms], "constraints": [*constraints]}, constants

    def vjp(self) -> Source:
        """Return the function of the arguments and cotangents that pulls these back."""
        return Source([_pulled_back(stage) for stage in self.stages], self.samples)


def traced_source(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Source, SymbolicScope]:
    """Trace a jitted function for descriptions of arguments."""
    leaves, structure = tree.flatten((args, kwargs))
    symbolic: list[Any] = [d for leaf in leaves if isinstance(leaf, ShapeDtypeStruct) for d in leaf.shape if isinstance(d, Dimension)]
    scopes = list({id(d.scope): d.scope for d in symbolic if d.scope is not None}.values())
    scope = SymbolicScope([c for s in scopes for c in s.constraints])
    names = sorted(frozenset().union(*[d.variables for d in symbolic]))
    samples = scope.assignments(names, sample_count(names)) if names else [{}]

    def traced(sizes: Mapping[str, int]) -> Any:
        given, keywords = tree.unflatten(structure, [_with_sizes(leaf, sizes) for leaf in leaves])
        return function.trace(*given, **keywords)

    return Source([traced(sizes) for sizes in samples], samples), scope


def _with_sizes(leaf: Any, sizes: Mapping[str, int]) -> Any:
    if not isinstance(leaf, ShapeDtypeStruct) or not any(isinstance(d, Dimension) for d in leaf.shape):
        return leaf
    return leaf.update(shape=tuple([_number(d, sizes) for d in leaf.shape]))


def _number(size: Any, sizes: Mapping[str, int]) -> int:
    if not isinstance(size, Dimension):
        return int(size)
    found = size.evaluate(sizes)
    if found.denominator != 1 or found < 0:
        raise ArgumentError(f"the symbolic size {size} is {found} for {dict(sizes)}; add constraints, such as 'b >= 4'")
    return int(found)


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
        "in_full": list(stage._traced.in_full),
        "programs": writer.programs,
        "main": main,
        "constants": writer.types,
    }
    return manifest, writer.constants


def _pulled_back(stage: Any) -> Any:
    """Trace a function's vector-Jacobian product, by its inexact arguments."""
    arguments, results = stage._arguments, stage.jaxpr.out_avals
    moved = [i for i, a in enumerate(arguments) if a.dtype in INEXACT]
    shown = [i for i, a in enumerate(results) if a.dtype in INEXACT]

    def pull_back(*values: Array) -> list[Array]:
        given, cotangents = list(values[: len(arguments)]), values[len(arguments) :]

        def outputs(*chosen: Array) -> list[Array]:
            merged = list(given)
            for i, value in zip(moved, chosen, strict=True):
                merged[i] = value
            outs = eval_jaxpr(stage.jaxpr, *with_full(merged, stage._traced))
            return [outs[i] for i in shown]

        _, backward = vjp(outputs, *[given[i] for i in moved])
        return list(backward(list(cotangents)))

    pull_back.__name__ = f"vjp of {stage.fun_name}"
    structs = [ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in arguments]
    return jit(pull_back).trace(*structs, *[ShapeDtypeStruct(results[i].shape, results[i].dtype) for i in shown])
