"""The pipeline: every pass from a traced jaxpr to a lowered program, in order.

`lower` makes the programs that code generators get, `plan` the straight-line program that NumPy gets; both begin with `optimize`.
`passes_of` lists all passes for a target, by name and description. Programs of control flow (bodies, branches) pass through the same
pipeline, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from volta_fn.compiler.fusion import fuse
from volta_fn.compiler.ir.index import can_be_kernel, is_elementwise, is_product
from volta_fn.compiler.ir.kernel import FusedProgram, ProgramNode, simplify_nested
from volta_fn.compiler.lowering import as_kernel
from volta_fn.compiler.node_passes import drop_aliases, split_concatenations
from volta_fn.compiler.passes.dce import overlap_sums
from volta_fn.compiler.passes.expansions import (
    expand_interior_padding,
    expand_onehot_indexing,
    expand_outer_products,
    expand_random_bits,
)
from volta_fn.compiler.passes.loops import choose_branches, hoist_invariants, move_products_out, simplify_loops
from volta_fn.compiler.passes.shards import local_program as local_program
from volta_fn.compiler.passes.simplify import simplify_equations
from volta_fn.compiler.passes.updates import UPDATES, mask_updates, read_before_updates
from volta_fn.compiler.passes.wide_rows import chunk_wide_rows
from volta_fn.compiler.plans import Plan, make_plan
from volta_fn.compiler.target import CONTROL_FLOW, CommandPass, Item, LoweredProgram, NodePass, Pass, ProgramPass, RoutineKey, Target
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, fixed_point_cache, inline_calls, primitives_of, program_cache
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.collectives import psum_p
from volta_fn.primitives.data_movement.slicing import pad_p
from volta_fn.primitives.loops import cond_p, while_p
from volta_fn.primitives.scan import scan_p
from volta_fn.settings import current as settings
from volta_fn.transforms.differentiation import eliminate_dead_code

_VERIFICATION = deferred("volta_fn.compiler.verification")

#: The primitives of loops and of conditionals.
LOOPS, BRANCHES = frozenset({scan_p, while_p}), frozenset({cond_p})

#: Simplification: these, then the nested programs, again and again until no control flow changes (`simplify`).
EQUATION_PASSES = (
    ProgramPass("inline", "Replace calls by the bodies of the functions that they call.", inline_calls),
    ProgramPass("equations", "Fold constants, apply algebraic identities and merge equal equations, in one walk.", simplify_equations),
    ProgramPass("masked updates", "Update an array under a mask rather than select between it and its update.", mask_updates),
    ProgramPass("dead code", "Drop what no output and no effect needs, inside control flow too.", eliminate_dead_code),
    ProgramPass(
        "early reads", "Read arrays before they are updated, so that they are updated in place.", read_before_updates, subjects=UPDATES
    ),
)
LOOP_PASSES = (
    ProgramPass(
        "known branches", "Replace conditionals on a known index, or with equal branches, by a call.", choose_branches, subjects=BRANCHES
    ),
    ProgramPass("loop variance", "Turn carries that no iteration changes into constants of the loop.", simplify_loops, subjects=LOOPS),
    ProgramPass(
        "invariant code motion", "Compute before a loop what is the same in all of its iterations.", hoist_invariants, subjects=LOOPS
    ),
)
#: Then once, followed by simplification if it changed the program (`optimize`).
LOOP_FISSION = ProgramPass(
    "loop fission", "Hoist matrix products that do not depend on the carry out of scans.", move_products_out, subjects=frozenset({scan_p})
)
#: Then the target's own `ProgramPass`es, and these, right before fusion, as kernels compute them where they are used.
OVERLAP = ProgramPass(
    "overlapped sums", "Start sums between processes early, and await them late.", overlap_sums, subjects=frozenset({psum_p})
)
EXPANSIONS = (
    ProgramPass(
        "wide rows", "Compute softmaxes of large products, and what follows, by chunks of rows.", chunk_wide_rows, simplify_after=True
    ),
    ProgramPass("random bits", "Expand random bits to integer operations on counters.", expand_random_bits),
    ProgramPass("one-hot indexing", "Expand gathers and scatters of one element per row to comparisons.", expand_onehot_indexing),
    ProgramPass(
        "interior padding",
        "Pad between elements to whole steps, and slice.",
        expand_interior_padding,
        subjects=frozenset({pad_p}),
    ),
    ProgramPass("outer products", "Expand products without contracted axes to broadcasts and multiplications.", expand_outer_products),
    OVERLAP,
)


def _kept_calls(target: Target) -> ProgramPass:
    return ProgramPass("kept calls", "Replace the calls that the target has routines for, and inline the others.", target.keep_calls)


def expansions_of(target: Target) -> list[ProgramPass]:
    """Return the passes between optimization and fusion: first the target's."""
    return [*[p for p in target.passes() if isinstance(p, ProgramPass)], *EXPANSIONS]


def _fusion(target: Target) -> list[Pass]:
    """Return fusion, and then the `NodePass`es: last the target's."""
    most = target.capabilities.kernel_buffers
    return [
        Pass(
            "fusion", "Group equations into kernels; recompute cheap values rather than store and load them.", partial(fuse, target=target)
        ),
        NodePass(
            "wide concatenations", "Split concatenations of more arrays than a kernel can bind.", partial(split_concatenations, most=most)
        ),
        NodePass("aliases", "Let reshapes of values in memory share that memory.", drop_aliases),
        *[p for p in target.passes() if isinstance(p, NodePass)],
    ]


def passes_of(target: Target) -> list[Pass]:
    """Return all passes for a target, in order."""
    optimization = (*EQUATION_PASSES, *LOOP_PASSES, LOOP_FISSION)
    commands = [p for p in target.passes() if isinstance(p, CommandPass)]
    return [_kept_calls(target), *optimization, *expansions_of(target), *_fusion(target), *commands]


#: Called after each pass on a program itself, not on nested ones, with (pass, program before, program after).
Observer = Callable[[Pass, Any, Any], None]
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)

#: The description, for observers, of simplification within nested programs.
NESTED = Pass("nested programs", "Simplify the programs of control flow.", lambda program: program)


@contextmanager
def observed(observer: Observer | None) -> Iterator[None]:
    """Tell `observer` of each pass while a block runs, not of cached results."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def _run(pass_: Pass, program: Any) -> Any:
    is_idle = isinstance(pass_, ProgramPass) and pass_.subjects and pass_.subjects.isdisjoint(primitives_of(program))
    return _notify(pass_, program, program if is_idle else pass_.run(program))


def _simplify_nested(closed: ClosedJaxpr, rewrite: Callable[[ClosedJaxpr], ClosedJaxpr]) -> ClosedJaxpr:
    result = closed
    if any(primitive.holds_programs for primitive in primitives_of(closed)):
        with observed(None):
            result = simplify_nested(closed, rewrite)
    _notify(NESTED, closed, result)
    return result


def _notify(pass_: Pass, before: Any, after: Any) -> Any:
    if settings.verify:
        _VERIFICATION.verify_pass(pass_.name, before, after)
    observer = _observer.get()
    if observer is not None:
        observer(pass_, before, after)
    return after


#: A bound only: each round works on the results of the one before, and two or three reach the fixed point.
_ROUNDS = 8


@fixed_point_cache
def simplify(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a program with the same bits, inputs and effects that does less."""
    program, done = closed, False
    for _ in range(_ROUNDS):
        program, done = _round(program)
        if done:
            break
    return program


def _round(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, bool]:
    """Run the simplification passes once.

    The flag is True if another round would find nothing, because no control flow changed.
    """
    for simplification in EQUATION_PASSES:
        closed = _run(simplification, closed)
    before_loops = closed
    for simplification in LOOP_PASSES:
        closed = _run(simplification, closed)
    closed = _simplify_nested(closed, simplify)
    return closed, closed is before_loops


@fixed_point_cache
def optimize(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Simplify a program and move products out of scans: what all targets begin with."""
    program = simplify(closed)
    after_fission = _run(LOOP_FISSION, _simplify_nested(program, optimize))
    return program if after_fission is program else simplify(after_fission)


def plan(closed: ClosedJaxpr, donated: Sequence[bool] = (), writes: Callable[[Equation], Sequence[int]] = lambda eqn: ()) -> Plan:
    """Return the straight-line program that NumPy runs.

    `writes` says which results an equation's kernel writes into given arrays.
    """
    program = _run(OVERLAP, optimize(closed))
    result = make_plan(program, donated, writes)
    if settings.verify:
        _VERIFICATION.verify_plan(result, program, donated)
    return result


def fused(closed: ClosedJaxpr, target: Target, *, nested: bool = False) -> FusedProgram:
    """Return a program as kernel calls and equations, before it gets routines."""
    program = optimize(_run(_kept_calls(target), closed))
    for expansion in expansions_of(target):
        changed = _run(expansion, program)
        program = simplify(changed) if expansion.simplify_after and changed is not program else changed
    fusion, *node_passes = _fusion(target)
    fused_program: FusedProgram = _run(fusion, program)._replace(nested=nested)
    for node_pass in node_passes:
        fused_program = _run(node_pass, fused_program)
    return fused_program


@program_cache
def lower(closed: ClosedJaxpr, target: Target, nested: bool = False) -> LoweredProgram:
    """Lower a program for a target.

    The outputs of a `nested` program, in control flow, are stored separately.
    """
    fused_program = fused(closed, target, nested=nested)
    items = [_item(node, target) for node in fused_program.nodes]
    last_use: dict[Var, int] = {}
    producers: dict[Var, int] = {}
    for number, item in enumerate(items):
        last_use.update({fused_program.root(v): number for v in item.operands if isinstance(v, Var)})
        producers.update(dict.fromkeys(item.results, number))
    last_use.update({fused_program.root(v): len(items) for v in fused_program.outputs if isinstance(v, Var)})
    program = LoweredProgram(target, fused_program.closed, tuple(items), dict(fused_program.roots), last_use, producers)
    if settings.verify:
        _VERIFICATION.verify_lowered(program)
    return program


def _item(node: ProgramNode, target: Target) -> Item:
    """Give a node the key of its routine, if the target has one.

    An equation without a routine becomes a kernel if it can.
    """
    if isinstance(node, Equation):
        key = _equation_key(node, target)
        kernel = as_kernel(node) if key is None and can_be_kernel(node) and target.computes(node) else None
        if kernel is None:
            programs = () if key is not None else tuple([lower(p, target, True) for p in nested_programs(node)])
            loop = target.loop_key(node, programs) if programs else None
            if loop is not None:  # the target has one routine for all of the control flow
                key, programs = loop, ()
            return Item(node, tuple(node.invars), tuple(node.outvars), key, programs)
        node = kernel
    routine = partial(target.kernel_routine, node.kernel, node.deferred_work)
    return Item(node, node.operands, node.results, RoutineKey(("kernel", node.kernel, node.deferred_work), routine))


def _equation_key(eqn: Equation, target: Target) -> RoutineKey | None:
    name, avals = eqn.primitive.name, tuple([v.aval for v in eqn.invars])
    # An elementwise equation that kernels support is always a kernel. The only elementwise routines are conversions of dtypes that kernels
    # lack, such as float8.
    if name not in target.equations or (is_elementwise(eqn) and target.computes(eqn)):
        return None
    key = (name, tuple([(a.shape, a.dtype) for a in avals]), tuple(sorted(eqn.params.items())))
    return RoutineKey(key, partial(target.equations[name], avals, eqn.params))


def nested_programs(eqn: Equation) -> list[ClosedJaxpr]:
    """Return the programs of control flow, in the order of `Item.programs`."""
    if eqn.primitive not in CONTROL_FLOW:
        return []
    params = eqn.params
    if "branches" in params:
        return list(params["branches"])
    return [params["jaxpr"]] if "jaxpr" in params else [params["cond_jaxpr"], params["body_jaxpr"]]


def early_routine_keys(closed: ClosedJaxpr, target: Target) -> Iterator[RoutineKey]:
    """Yield the keys of equations that fusion leaves alone.

    Their code can be compiled while fusion, which takes long, still runs.
    """
    for eqn in optimize(_run(_kept_calls(target), closed)).eqns:
        key = None if is_product(eqn) or can_be_kernel(eqn) else _equation_key(eqn, target)
        if key is not None:
            yield key
