"""The program of each device of a mesh, from shards to shards.

A traced program computes with whole values, but for the functions that `shard_map` maps. All devices run it, each with its shards where
they are known, and with all elements elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler.ir.kernel import simplify_nested
from volta_fn.compiler.passes.dce import communicates, with_positions
from volta_fn.core.arrays.array import ConcreteArray
from volta_fn.core.devices.device import Device
from volta_fn.core.devices.placement import moved, same_placement
from volta_fn.core.devices.propagation import program_shardings
from volta_fn.core.devices.sharding import Mesh, NamedSharding, PartitionSpec
from volta_fn.core.jaxpr import (
    Atom,
    ClosedJaxpr,
    Equation,
    Jaxpr,
    Var,
    constraints_of,
    dce_jaxpr,
    inline_calls,
    process_axes,
    program_cache,
    sub_jaxprs,
)
from volta_fn.core.trace import ProcessAxis
from volta_fn.primitives.call import jit_p
from volta_fn.primitives.collectives import shard_p, whole_p


class LocalProgram(NamedTuple):
    """A program that each of several devices runs."""

    closed: ClosedJaxpr
    #: How arguments and results are split between the devices.
    in_shardings: list[NamedSharding]
    out_shardings: list[NamedSharding]

    def at(self, device: Device) -> ClosedJaxpr:
        """Return the program of a device, on which its constants are.

        Without collectives, its positions along axes are constants.
        """
        placed = _placed(self.closed, device)
        return placed if communicates(placed) else _numbered(placed, device)


@program_cache
def local_program(closed: ClosedJaxpr, devices: tuple[Device, ...], shardings: tuple[NamedSharding | None, ...]) -> LocalProgram:
    """Return the program of each of some devices, for arguments with these shardings.

    An argument without one is split as the function needs it that alone uses it, or is whole everywhere.
    """
    return _Localisation(closed, devices, shardings).program()


def _placed(closed: ClosedJaxpr, device: Device) -> ClosedJaxpr:
    """Return a program in terms of shards, with constants on a device."""
    if not _depends_on_device(closed):
        return closed
    flat = inline_calls(inline_calls(inline_calls(closed, of=jit_p), of=shard_p), of=whole_p)
    placed = ClosedJaxpr(flat.jaxpr, [moved(c, device) for c in flat.consts if isinstance(c, ConcreteArray)])
    return simplify_nested(placed, lambda inner: _placed(inner, device))


def _numbered(closed: ClosedJaxpr, device: Device) -> ClosedJaxpr:
    """Return a program with constants for a device's positions."""

    def position(eqn: Equation) -> int:
        (axis,) = eqn.params["axis_names"]
        return int(axis.grid.group((axis.name,), device.id).index(device.id))

    return simplify_nested(with_positions(closed, position), lambda inner: _numbered(inner, device))


@program_cache
def _depends_on_device(closed: ClosedJaxpr) -> bool:
    """Return whether a program names axes of devices, or has constants."""
    return bool(closed.consts or process_axes(closed)) or any(_depends_on_device(p) for eqn in closed.eqns for p in sub_jaxprs(eqn.params))


def _split(sharding: NamedSharding, ndim: int) -> tuple[tuple[ProcessAxis, ...], ...]:
    """Return the axes that split each dimension."""
    grid = sharding.mesh.grid
    return tuple([tuple([ProcessAxis(n, grid) for n in sharding.spec.axes_of(i) if n in grid.names]) for i in range(ndim)])


def _sharding(split: tuple[tuple[ProcessAxis, ...], ...]) -> NamedSharding:
    """Return the sharding of shards."""
    (grid,) = {axis.grid for axes in split for axis in axes}
    mesh = Mesh(np.array(grid.devices, object).reshape(grid.shape), grid.names)
    length = max([i + 1 for i, axes in enumerate(split) if axes])
    return NamedSharding(mesh, PartitionSpec(*[tuple([axis.name for axis in axes]) for axes in split[:length]]))


class _Localisation:
    """The rewriting of a program for shards."""

    def __init__(self, closed: ClosedJaxpr, devices: tuple[Device, ...], shardings: tuple[NamedSharding | None, ...]) -> None:
        is_asked = constraints_of(closed) or any(s is not None for s in (*shardings, *[c.device.sharding for c in closed.consts]))
        self._asked = program_shardings(closed, shardings) if is_asked else [None] * len(closed.out_avals)
        self._flat = inline_calls(closed, of=jit_p)
        self._devices, self._shardings = devices, shardings
        self._everywhere = NamedSharding(Mesh(np.array(devices, object), "devices"), PartitionSpec())
        #: The shards that are known of values, which are whole, too, as far as anything reads that.
        self._shards: dict[Atom, tuple[Var, NamedSharding]] = {}
        self._renamed: dict[Atom, Atom] = {}
        self._eqns: list[Equation] = []

    def program(self) -> LocalProgram:
        """Return the program of each device."""
        jaxpr = self._flat.jaxpr
        inputs = [self._input(v, sharding) for v, sharding in zip(jaxpr.invars, self._shardings, strict=True)]
        for eqn in jaxpr.eqns:
            self._add(eqn)
        outputs = [self._output(atom, asked) for atom, asked in zip(jaxpr.outvars, self._asked, strict=True)]
        local = Jaxpr(jaxpr.constvars, [v for v, _ in inputs], [v for v, _ in outputs], self._eqns)
        return LocalProgram(dce_jaxpr(ClosedJaxpr(local, self._flat.consts)), [s for _, s in inputs], [s for _, s in outputs])

    def _input(self, var: Var, sharding: NamedSharding | None) -> tuple[Var, NamedSharding]:
        if sharding is None:
            uses = [eqn for eqn in self._flat.eqns if var in eqn.invars]
            splits = {eqn.params["split"] if eqn.primitive is shard_p else () for eqn in uses}
            if len(splits) != 1 or () in splits or var in self._flat.jaxpr.outvars:
                return var, self._everywhere
            sharding = _sharding(splits.pop())
        if sharding.is_fully_replicated:
            return var, sharding
        shard = Var(var.aval.update(shape=sharding.shard_shape(var.aval.shape)))
        self._know(var, shard, sharding)
        return shard, sharding

    def _know(self, var: Var, shard: Var, sharding: NamedSharding) -> None:
        """Note the shards of a value, and append what makes it whole."""
        self._shards[var] = shard, sharding
        split = _split(sharding, var.aval.ndim)
        self._eqns.append(Equation(whole_p, [shard], [var], _params(split)))

    def _read(self, atom: Atom) -> Atom:
        return self._renamed.get(atom, atom)

    def _add(self, eqn: Equation) -> None:
        """Append an equation, of shards if it can be."""
        eqn = eqn.replace(invars=[self._read(v) for v in eqn.invars])
        if eqn.primitive is whole_p:
            (shard,), (var,) = eqn.invars, eqn.outvars
            if isinstance(shard, Var):
                self._shards[var] = shard, _sharding(eqn.params["split"])
        elif eqn.primitive is shard_p:
            shard_of = self._shards.get(eqn.invars[0])
            if shard_of is not None and same_placement(shard_of[1], _sharding(eqn.params["split"]), eqn.invars[0].aval.shape):
                self._renamed[eqn.outvars[0]] = shard_of[0]
                return
        elif (sharding := self._common(eqn)) is not None:
            shape = sharding.shard_shape(eqn.outvars[0].aval.shape)
            shard = Var(eqn.outvars[0].aval.update(shape=shape))
            operands = [self._shards[v][0] if v in self._shards else v for v in eqn.invars]
            self._eqns.append(eqn.replace(invars=operands, outvars=[shard]))
            self._know(eqn.outvars[0], shard, sharding)
            return
        self._eqns.append(eqn)

    def _common(self, eqn: Equation) -> NamedSharding | None:
        """Return the sharding by which an elementwise equation can be computed on shards."""
        if not eqn.primitive.arity or eqn.primitive.multiple_results:
            return None
        shape = eqn.outvars[0].aval.shape
        arrays = [v for v in eqn.invars if v.aval.shape]
        shardings = [self._shards[v][1] for v in arrays if v in self._shards]
        if not shardings or len(shardings) < len(arrays) or any(v.aval.shape != shape for v in arrays):
            return None
        return shardings[0] if all(same_placement(shardings[0], other, shape) for other in shardings[1:]) else None

    def _output(self, atom: Atom, asked: NamedSharding | None) -> tuple[Atom, NamedSharding]:
        atom, shape = self._read(atom), atom.aval.shape
        if asked is not None and (asked.mesh.grid is None or set(asked.mesh.devices.flat) != set(self._devices)):
            asked = None
        if atom in self._shards:
            shard, sharding = self._shards[atom]
            if asked is None or same_placement(asked, sharding, shape):
                return shard, asked or sharding
        if asked is None or asked.is_fully_replicated:
            return atom, asked or self._everywhere
        shard = Var(atom.aval.update(shape=asked.shard_shape(shape)))
        self._eqns.append(Equation(shard_p, [atom], [shard], _params(_split(asked, len(shape)))))
        return shard, asked


def _params(split: tuple[tuple[ProcessAxis, ...], ...]) -> dict[str, Any]:
    return {"axis_names": tuple([axis for axes in split for axis in axes]), "split": split}
