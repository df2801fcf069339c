"""Recording: noting what a function does to the values that it is differentiated by, without doing it.

What was noted is a program, and its *shape* is all of it but the numbers. All shapes that were met make a tree, whose edges are operations.
A recording walks along it, and finds at each node the types of the results, and at its last one what computes the value and the gradient
at once (`gradient_programs`).

The function cannot tell. As soon as it asks for a number (`if x > 0`), or applies an operation whose result has no derivative or that has
rules of its own, the trace *settles*: what was noted is done step by step by a `LinearizeTrace`, and so is all that follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array, ArraySpec, ConcreteArray, wrap
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, has_effects
from volta_fn.core.primitive import Primitive, parameter_key
from volta_fn.core.trace import EVAL, Tracer, run_under
from volta_fn.primitives.call import jit_p
from volta_fn.transforms.jvp import JVPTrace
from volta_fn.transforms.linearize import LinearizeTrace, linearize_jaxpr

#: Longer functions are done step by step: the work in their operations outweighs the overhead.
_LONGEST = 1000

#: Nodes that the tree of shapes may have before all are dropped, and as how many of them a program counts.
_ROOM = 20_000
PROGRAM = 40

Step = tuple[Primitive, list[int], dict[str, Any]]


class Node:
    """Recordings that have noted the same so far.

    Attributes:
        results: the type of the last operation's result, or the types of its results.
        after: the nodes of those that have noted one operation more, by that.
        programs: what computes them if they end here, by the numbers of the function's results; None at first.
    """

    __slots__ = ("after", "programs", "results")

    def __init__(self, results: Any) -> None:
        self.results = results
        self.after: dict[Any, Node] = {}
        self.programs: dict[tuple[int, ...], Any] = {}


class Shapes:
    """The tree of all shapes that were met; recordings begin at its roots, by the types of their inputs."""

    def __init__(self) -> None:
        self.roots: dict[tuple[ArraySpec, ...], Node] = {}
        self.room = _ROOM

    def root(self, inputs: tuple[ArraySpec, ...]) -> Node:
        """Where a recording with inputs of these types begins."""
        return self.roots.get(inputs) or self.grow(self.roots, inputs, None)

    def grow(self, nodes: dict[Any, Node], key: Any, results: Any) -> Node:
        """Add a node to some of the tree's."""
        self.occupy(1)
        return nodes.setdefault(key, Node(results))

    def occupy(self, size: int) -> None:
        """Make room for so many nodes."""
        self.room -= size
        if self.room < 0:
            self.clear()

    def clear(self) -> None:
        """Drop the tree. Recordings that are under way go on in what they hold of it."""
        self.roots.clear()
        self.room = _ROOM


SHAPES = Shapes()


class RecordedTracer(Tracer):
    """A value that was noted, not computed."""

    __slots__ = ("aval", "number")
    aval: ShapedArray
    number: int
    _trace: RecordingTrace

    def origin(self) -> str:
        """Words for where this tracer comes from."""
        return "a value that is being differentiated"

    # Python may branch on the value, as always under eager differentiation.
    def __bool__(self) -> bool:
        return bool(self._trace.settled(self))

    def __index__(self) -> int:
        return self._trace.settled(self).__index__()

    def __int__(self) -> int:
        return int(self._trace.settled(self))

    def __repr__(self) -> str:
        return repr(self._trace.settled(self))


def _tracer(trace: RecordingTrace, number: int, aval: ShapedArray) -> RecordedTracer:
    tracer = RecordedTracer()
    tracer._trace = trace
    tracer.number = number
    tracer.aval = aval
    return tracer


class RecordingTrace(JVPTrace):
    """Notes operations on values that depend on its inputs, and does all others."""

    __slots__ = ("buffers", "count", "device", "lock", "node", "results", "specs", "steps", "stepwise", "values")

    def __init__(self, values: Sequence[ConcreteArray], name: str) -> None:
        super().__init__(EVAL, name)
        self.values = values
        self.device = values[0].device
        #: The buffers and types of the inputs and then of the constants. Buffers, since a function may delete an array that it has used.
        self.buffers = [v._buffer for v in values]
        self.specs = [v._spec for v in values]
        #: How many values have numbers: the inputs, and the results of all steps. The constant at place k has the number ~k.
        self.count = len(values)
        #: Primitives, numbers of their operands, parameters.
        self.steps: list[Step] = []
        self.node = SHAPES.root(tuple(self.specs))
        #: What does the operations once there is no other way, and all numbered values by then.
        self.stepwise: LinearizeTrace | None = None
        self.results: list[Array] = []
        self.lock = threading.Lock()

    def start(self) -> list[RecordedTracer]:
        """Tracers of the inputs."""
        return [_tracer(self, i, v.aval) for i, v in enumerate(self.values)]

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Note an operation; or do it, if it is on known values or the trace has settled."""
        if self.stepwise is None:
            if RecordedTracer not in map(type, args):
                return run_under(EVAL, EVAL.process, primitive, args, params)
            noted = self._note(primitive, args, params)
            if noted is not None:
                number, results = noted
                if not primitive.multiple_results:
                    return _tracer(self, number, results)
                return tuple([_tracer(self, i, aval) for i, aval in enumerate(results, number)])
        operands = [self.settled(a) if type(a) is RecordedTracer and a._trace is self else a for a in args]
        return self.settle().process(primitive, operands, params)

    def _note(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> tuple[int, Any] | None:
        """Note an operation: the number of its first result, and the types of all.

        None if it has other operands than tracers and constants, if its rules do not allow it, or if there are too many steps.
        """
        buffers, specs = self.buffers, self.specs
        with self.lock:
            if self.stepwise is not None or len(self.steps) >= _LONGEST:
                return None
            numbers: list[int] = []
            edge: list[Any] = [primitive]
            for arg in args:
                if type(arg) is RecordedTracer and arg._trace is self:
                    numbers.append(arg.number)
                    edge.append(arg.number)
                elif type(arg) is ConcreteArray and arg._spec.device is self.device and arg._buffer is not None:
                    numbers.append(~len(buffers))
                    buffers.append(arg._buffer)
                    specs.append(arg._spec)
                    edge.append(arg._spec)
                else:
                    return None
            key = (*edge, *parameter_key(params)) if params else tuple(edge)
            node = self.node.after.get(key)
            if node is None:
                results = _noted_results(primitive, args, params)
                if results is None:
                    return None
                node = SHAPES.grow(self.node.after, key, results)
            self.node = node
            self.steps.append((primitive, numbers, params))
            number = self.count
            self.count += len(node.results) if primitive.multiple_results else 1
            return number, node.results

    def settled(self, tracer: RecordedTracer) -> Array:
        """A value with its tangent."""
        self.settle()
        return self.results[tracer.number]

    def settle(self) -> LinearizeTrace:
        """Do what was noted; from now on, all is done step by step."""
        with self.lock:  # a function may hand its values to other threads
            if self.stepwise is None:
                stepwise = LinearizeTrace(EVAL, self.name)
                constants = [wrap(b, s) for b, s in zip(self.buffers, self.specs, strict=True)]
                self.results = redo(self.steps, stepwise.process, stepwise.start(self.values), constants)
                self.stepwise = stepwise
            return self.stepwise

    def finish(self) -> None:
        """Mark the trace as over."""
        super().finish()
        if self.stepwise is not None:
            self.stepwise.finish()


def _noted_results(primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
    """The type of an operation's result, or types of its results, if it may be noted: its rules are known, all results have tangents."""
    if primitive is jit_p:
        return _results_of_call(params, tuple([type(a) is RecordedTracer for a in args]))
    if primitive.derivatives:
        if not args[0].aval.is_float or (None in primitive.derivatives and not _differentiable(primitive, args)):
            return None
    elif not (primitive.maps_tangent or primitive.bilinear):
        return None
    aval = primitive.result_avals(tuple([a.aval for a in args]), params)
    return aval if aval.is_float else None


def _differentiable(primitive: Primitive, args: Sequence[Array]) -> bool:
    """Whether an elementwise operation has a derivative by an operand that is no constant."""
    return any(type(a) is RecordedTracer and rule is not None for a, rule in zip(args, primitive.derivatives, strict=True))


def _results_of_call(params: dict[str, Any], active: tuple[bool, ...]) -> list[ShapedArray] | None:
    """The same of a call, if its program was met before: one that is made afresh for each derivative is not worth keeping."""
    closed: ClosedJaxpr = params["jaxpr"]
    key = ("noted", active)
    if key in closed.cache:
        return closed.cache[key]
    if "met" not in closed.cache:
        closed.cache["met"] = True
        return None
    parts = linearize_jaxpr(closed, active, params["name"])
    avals = closed.out_avals
    fine = parts is not None and all(parts.out_nonzero) and all(a.is_float for a in avals) and not any(map(has_effects, closed.eqns))
    closed.cache[key] = avals if fine else None
    return closed.cache[key]


def redo(steps: Sequence[Step], process: Callable[..., Any], inputs: Sequence[Array], constants: Sequence[Array]) -> list[Array]:
    """Do the steps on other values: all those with numbers."""
    values = list(inputs)
    for primitive, numbers, params in steps:
        out = process(primitive, [values[n] if n >= 0 else constants[~n] for n in numbers], params)
        values += out if primitive.multiple_results else (out,)
    return values
