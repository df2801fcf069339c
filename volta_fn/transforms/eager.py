"""Eager gradients: `grad` and `vjp` outside of `jit` run compiled programs.

For a small network Python spends far longer on derivative rules than NumPy on arithmetic, and a training loop that is not jitted
differentiates one function over and over. So a function that is differentiated eagerly is *recorded*, and the recording compiled once:

1. The function runs on `RecordedTracer`s under a `Recording`, which notes each operation and computes nothing.
2. Meanwhile it walks along a *trie*. An edge is an operation: the primitive, its parameters, and its operands, given by their indices
   in the recording or, for values from outside, by their types. So recordings at one node compute the same function of their operands.
   A node knows the types of its operation's results, so only the first recording that reaches it has to infer them.
3. When the function returns, the node has a compiled program of the value and the gradient, which runs in one call.
4. A node compiles a program only when it is asked for the second time, since many functions are differentiated once. The first time
   a `LinearizeTrace` does the steps one by one.
5. An operation can be recorded if each result is a float that has a tangent. Any other result (an integer, a comparison), and any number
   that Python asks for (``if x > 0``), must be known at once, so the recording is *flushed*: one call of a program computes what was
   recorded, with tangents. The `LinearizeTrace` does what cannot be recorded (such as users' custom rules), and the recording goes on.
6. After a flush, and for `vjp`, the gradient is the transpose of the `LinearizeTrace`'s linear program: a few calls of programs.

So on the CPU the first call of a gradient goes step by step, the second and third run the program in NumPy, and later ones in machine
code, which is compiled in the background from the third call on (`runtime/threads.py`).

On the CPU all of these give the same bits. On a GPU they may differ, so a program is compiled the first time there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, TypeGuard

from volta_fn import dtypes
from volta_fn.core.arrays.array import DELETED, Array, ArraySpec, ConcreteArray, alias, array_spec, number_of, wrap
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import CallCache
from volta_fn.core.devices.device import default_device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Var, dce_jaxpr, has_effects, prune_inputs
from volta_fn.core.primitive import Primitive, SharedParams, Zero, parameter_key
from volta_fn.core.staging import trace_to_jaxpr, trace_with_aux
from volta_fn.core.trace import EVAL, Trace, check_alive, current_trace, run_under
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.primitives.elementwise.cast import convert_element_type_p
from volta_fn.settings import current as settings
from volta_fn.transforms.differentiation import (
    DifferentiatedTracer,
    JVPTracer,
    Linearization,
    LinearizeTrace,
    gradient_flat,
    gradient_of_first,
    jvp_jaxpr,
    linearize_flat,
)

_PIPELINE = deferred("volta_fn.compiler.pipeline")

#: A recording of more operations is flushed step by step: compiling it would take longer than many calls.
_LONGEST = 1000
#: A flush of fewer operations goes step by step: that takes less time than a call of a program and of its derivative.
_SHORTEST = 4
#: The trie is dropped when it would have more nodes than this; a compiled program counts as `_PROGRAM_SIZE` of them.
_TRIE_SIZE = 20_000
_PROGRAM_SIZE = 40

#: A primitive, its operands, its parameters. The operand ``i >= 0`` is the i-th value since the last flush, an input or a result of a step;
#: ``~k`` is the k-th value from outside. A plain tuple, since one is made for each operation.
Step = tuple[Primitive, list[int], dict[str, Any]]


class Node:
    """A prefix of recordings: those with the same operations so far.

    Attributes:
        results: the type of the last operation's result, or a list of them.
        children: the nodes of recordings with one more operation, by that operation.
        programs: for recordings that end here, programs by what they return; None if one was asked for once.
    """

    __slots__ = ("children", "programs", "results")

    def __init__(self, results: Any) -> None:
        self.results = results
        self.children: dict[Any, Node] = {}
        self.programs: dict[Any, Any] = {}


#: The nodes at which recordings begin, by the types of their inputs, or by the device after a flush.
_CACHE = CallCache("gradients", ["recordings"], _TRIE_SIZE)
_ROOTS = _CACHE.table("recordings")


def _root(*key: Any) -> Node:
    """Return the node at which recordings with these input types (or device) begin."""
    return _ROOTS.get(key) or _CACHE.add("recordings", key, Node(None))


class RecordedTracer(DifferentiatedTracer):
    """A value of a recorded function: that at `index` in its recording."""

    __slots__ = ("aval", "index")
    aval: ShapedArray
    index: int
    _trace: Recording

    @property
    def primal(self) -> Any:
        """The value without its tangent."""
        return self._trace.value(self).primal

    @property
    def tangent(self) -> Any:
        """The tangent: a value of the linear program, or `Zero`."""
        return self._trace.value(self).tangent

    def constrain(self, sharding: Any) -> Any:
        """Return the value, which is computed now, with its primal split."""
        return self._trace._adopt(self._trace.value(self).constrain(sharding))

    def __repr__(self) -> str:
        return repr(self._trace.value(self)) if self._trace.alive else super().__repr__()


class Recording(Trace):
    """Records operations on its inputs, evaluates all others, flushes when it must.

    Values have indices: first the inputs, then the results of all steps. Those before `start` were flushed, and are in `values`; later
    ones are computed by `steps` from the inputs (before the first flush) and from `operands`, values from outside.
    """

    __slots__ = ("count", "device", "has_python_numbers", "inputs", "lock", "node", "operands", "start", "steps", "stepwise", "values")

    def __init__(self, inputs: Sequence[ConcreteArray], name: str) -> None:
        super().__init__(EVAL, name)
        self.device = inputs[0].device
        # Aliases, since the function may delete its arguments.
        self.inputs = [alias(v) for v in inputs]
        #: Whether Python numbers are differentiated: single steps keep wide values (`primitives.elementwise.cast`), programs do not.
        self.has_python_numbers = any(number_of(v) is not None for v in inputs)
        self.operands: list[Any] = []
        self.steps: list[Step] = []
        self.start, self.count = 0, len(inputs)
        self.node = _root(*[v._spec for v in inputs])
        #: From the first flush on: the trace that differentiates step by step, and the values computed so far.
        self.stepwise: LinearizeTrace | None = None
        self.values: list[Any] = []
        self.lock = threading.RLock()  # a function may hand its values to other threads

    def tracer(self, index: int, aval: ShapedArray) -> RecordedTracer:
        """Make the tracer of the value at an index."""
        tracer = object.__new__(RecordedTracer)  # every operation makes one, without the time of a constructor
        tracer._trace = self
        tracer.index = index
        tracer.aval = aval
        return tracer

    def results_of(self, function: Callable[..., Sequence[Array]]) -> list[Array]:
        """Return the function's results for tracers of the inputs, and no other tracers."""
        outs = list(run_under(self, function, *map(self.tracer, range(self.count), [v.aval for v in self.inputs])))
        for out in outs:
            check_alive(out)
        return outs

    def owns(self, value: Any) -> TypeGuard[RecordedTracer]:
        """Return True if a value is one of this recording."""
        return type(value) is RecordedTracer and value._trace is self

    def process(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Record an operation; evaluate it if it has no traced operand, or must not be."""
        if RecordedTracer not in map(type, args):
            return run_under(EVAL, EVAL.process, primitive, args, params)
        recorded = self._record(primitive, args, params)
        if recorded is None:
            return self._evaluate(primitive, args, params)
        index, results = recorded
        if primitive.multiple_results:
            return tuple([self.tracer(i, aval) for i, aval in enumerate(results, index)])
        return self.tracer(index, results)

    def _record(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> tuple[int, Any] | None:
        """Record an operation; return its results' first index and types, or None."""
        with self.lock:
            if len(self.steps) >= _LONGEST:
                return None
            operands, before = self.operands, len(self.operands)
            indices: list[int] = []
            edge: list[Any] = [primitive]
            for arg in args:
                if type(arg) is RecordedTracer and arg._trace is self:
                    index = arg.index - self.start
                    if index >= 0:
                        indices.append(index)
                        edge.append(index)
                        continue
                    arg = self.values[arg.index]
                if type(arg) is ConcreteArray and arg._spec.device is self.device and arg._buffer is not DELETED:
                    edge.append(arg._spec)
                    # Since the user may delete the array. An alias keeps the Python number, which a spec of kind `exact` promises.
                    arg = alias(arg)
                elif type(arg) is JVPTracer and arg._trace is self.stepwise:
                    edge.append((arg.aval,))
                else:
                    del operands[before:]
                    return None
                indices.append(~len(operands))
                operands.append(arg)
            key = (*edge, *parameter_key(params)) if params else tuple(edge)
            node = self.node.children.get(key)
            if node is None:
                has_tangent = [type(e) is not ArraySpec for e in edge[1:]]  # a spec is an array's from outside
                results = _recordable_results(primitive, args, params, has_tangent)
                if results is None:
                    del operands[before:]
                    return None
                _CACHE.reserve(1)  # which keeps this recording's node
                node = self.node.children.setdefault(key, Node(results))
            self.node = node
            self.steps.append((primitive, indices, params))
            index = self.count
            self.count += len(node.results) if primitive.multiple_results else 1
            return index, node.results

    def _evaluate(self, primitive: Primitive, args: Sequence[Array], params: dict[str, Any]) -> Any:
        """Evaluate an operation; results with tangents become values of the recording."""
        operands = [self.value(a) if self.owns(a) else a for a in args]
        outs = self.flush().process(primitive, operands, params)
        return tuple(map(self._adopt, outs)) if primitive.multiple_results else self._adopt(outs)

    def _adopt(self, value: Array) -> Array:
        if type(value) is not JVPTracer or value._trace is not self.stepwise:
            return value
        with self.lock:
            self.flush()
            self.values.append(value)
            self.start = self.count = len(self.values)
            return self.tracer(self.start - 1, value.aval)

    def value(self, tracer: RecordedTracer) -> Any:
        """Compute a value, with its tangent."""
        check_alive(tracer)
        if tracer.index >= len(self.values):
            self.flush()
        return self.values[tracer.index]

    def flush(self, live: Sequence[int] | None = None) -> LinearizeTrace:
        """Evaluate the recorded operations.

        `live` are the indices of values that are used later (None: all); if it is given, this is the last flush.
        """
        with self.lock:
            inputs: list[Array] = []
            if self.stepwise is None:
                self.stepwise = LinearizeTrace(EVAL, self.name)
                inputs = self.stepwise.start(self.inputs)
            if inputs or self.steps:
                self.values += self._evaluate_steps(self.stepwise, inputs, live)
                self.start = self.count = len(self.values)
                self.steps, self.operands, self.inputs = [], [], []
                self.node = _root(self.device)
            return self.stepwise

    def _evaluate_steps(self, stepwise: LinearizeTrace, inputs: Sequence[Array], live: Sequence[int] | None) -> list[Any]:
        """Compute the inputs and the results of all steps; None stands for dead ones."""
        first, size = len(inputs), self.count - self.start - len(inputs)
        indices = range(size) if live is None else sorted({n - self.start - first for n in live if n >= self.start + first})
        steps, operands = self._operands_by_use(inputs)
        program = None
        if _SHORTEST <= len(steps) < _LONGEST and not self.has_python_numbers:
            program = self.program(("flush", *indices), lambda: call_params(self._trace_steps(steps, operands, indices), self.name))
        if program is None:
            return [*inputs, *replay(steps, stepwise.process, operands)]
        results: list[Any] = [None] * size
        for index, value in zip(indices, stepwise.process(jit_p, operands, program), strict=True):
            results[index] = value
        return [*inputs, *results]

    def _operands_by_use(self, inputs: Sequence[Array]) -> tuple[list[Step], list[Array]]:
        """Return the steps with an operand for each use of an input or outside value."""
        # The operands are in the order in which the backward pass of single steps would add their cotangents, so that the sums have the
        # same bits: from the last step to the first.
        steps: list[Step] = []
        operands: list[Array] = []
        for primitive, indices, params in reversed(self.steps):
            shifted = []
            for index in indices:
                if index >= len(inputs):
                    shifted.append(index - len(inputs))
                else:
                    shifted.append(~len(operands))
                    operands.append(inputs[index] if index >= 0 else self.operands[~index])
            steps.append((primitive, shifted, params))
        return steps[::-1], operands

    def _trace_steps(self, steps: Sequence[Step], operands: Sequence[Array], indices: Sequence[int]) -> ClosedJaxpr:
        """Trace the steps to a program from the operands to the values at the indices."""

        def run(*flat: Array) -> list[Array]:
            values = replay(steps, current_trace().process, flat)
            return [values[i] for i in indices]

        with default_device(self.device):  # where derivative rules make their constants
            return trace_to_jaxpr(run, [v.aval for v in operands], self.name)

    def program(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return a program of this node; None the first time it is asked for on a CPU."""
        programs = self.node.programs
        program = programs.get(key)
        if program is None:
            compiles = key in programs or self.device.platform != "cpu"
            _CACHE.reserve(_PROGRAM_SIZE if compiles else 1)
            program = programs[key] = make() if compiles else None
        return program

    def finish(self) -> None:
        """Mark the trace as over."""
        super().finish()
        if self.stepwise is not None:
            self.stepwise.finish()


def replay(steps: Sequence[Step], process: Callable[..., Any], operands: Sequence[Array], inputs: Sequence[Array] = ()) -> list[Array]:
    """Evaluate the steps; return all values, the inputs first."""
    values = list(inputs)
    for primitive, indices, params in steps:
        out = process(primitive, [values[i] if i >= 0 else operands[~i] for i in indices], params)
        values += out if primitive.multiple_results else (out,)
    return values


def _recordable_results(primitive: Primitive, args: Sequence[Array], params: dict[str, Any], active: list[bool]) -> Any:
    """Return the type or types of an operation's results, or None.

    It is None if the operation cannot be recorded, given which operands have tangents (`active`).
    """
    if primitive is jit_p:
        # A program is not recorded the first time that it is seen: the function may trace a new one in each call.
        closed: ClosedJaxpr = params["jaxpr"]
        was_seen = _SEEN in closed.derived
        closed.derived[_SEEN] = True
        if not was_seen:
            return None
        avals = closed.out_avals
        if not all(a.is_float for a in avals) or any(map(has_effects, closed.eqns)):
            return None
        return avals if all(jvp_jaxpr(closed, active, False)[1]) else None
    if primitive.call_param is not None and type(params) is SharedParams:  # as `custom_call` makes for functions with custom rules
        invars, outvars = [Var(a.aval) for a in args], [Var(a) for a in params[str(primitive.call_param)].out_avals]
        program = ClosedJaxpr(Jaxpr([], invars, [*outvars], [Equation(primitive, [*invars], outvars, params)]))
        has_tangents = all(v.aval.is_float for v in outvars) and all(jvp_jaxpr(program, active, False)[1])
        return program.out_avals if has_tangents else None
    if primitive.derivatives:
        if not args[0].aval.is_float or not any(a and d is not None for a, d in zip(active, primitive.derivatives, strict=True)):
            return None
    elif not (primitive.maps_tangent or primitive.bilinear) or not any(active):
        return None
    aval = primitive.result_avals(tuple([a.aval for a in args]), params)
    needs_number = primitive is convert_element_type_p and args[0].aval.weak_type and aval.dtype in dtypes.WIDE_NUMBERS.values()
    return aval if aval.is_float and not needs_number else None


#: The mark of programs that recordings have called, among their derived results.
_SEEN = "seen in a recording"


class _Gradient(NamedTuple):
    """A compiled program of results and gradient, and the buffers that it `reads`."""

    run: Callable[..., Sequence[Any]]
    reads: list[bool]
    results: list[ArraySpec]
    #: For each input, the type of its cotangent: an aval if that is zero.
    cotangents: list[ArraySpec | ShapedArray]


def gradient_eagerly(
    function: Callable[..., Sequence[Array]], values: Sequence[Array], nonzero: Sequence[bool], name: str, check: Callable[[Any], None]
) -> tuple[list[Array], list[Any]]:
    """Return what `gradient_flat` does, by compiled programs where possible."""
    if not _recordable(values):
        return gradient_flat(function, values, nonzero, name, check)
    trace = Recording(values, name)  # in which all inputs are `nonzero`
    try:
        outs = trace.results_of(function)
        check(outs)
        if trace.stepwise is None and trace.owns(outs[0]):
            indices = tuple([o.index for o in outs if trace.owns(o)])
            gradient: _Gradient | None = trace.program(indices, lambda: _compile_gradient(trace, indices))
            if gradient is not None:
                return _run(gradient, trace, outs)
        linearization = _end_recording(trace, outs)
        return linearization.outs, gradient_of_first(linearization, trace.device)
    finally:
        trace.finish()


def linearize_eagerly(
    function: Callable[..., Sequence[Array]], values: Sequence[Array], nonzero: Sequence[bool], name: str
) -> Linearization:
    """Linearize as `linearize_flat` does, by compiled programs where possible."""
    if not _recordable(values):
        return linearize_flat(function, values, nonzero, name)
    trace = Recording(values, name)
    try:
        return _end_recording(trace, trace.results_of(function))
    finally:
        trace.finish()


def _recordable(values: Sequence[Any]) -> TypeGuard[Sequence[ConcreteArray]]:
    """Return True if `values` are floats on one device, outside of all transforms."""
    if current_trace() is not EVAL or not values or type(values[0]) is not ConcreteArray or settings.sees_results:
        return False
    device = values[0].device
    for value in values:
        if type(value) is not ConcreteArray or value._buffer is DELETED:
            return False
        spec = value._spec
        if spec.device is not device or not spec.aval.is_float:
            return False
    return device.sharding is None


def _end_recording(trace: Recording, outs: Sequence[Array]) -> Linearization:
    """Return the linearization of a recorded function with these results."""
    stepwise = trace.flush([o.index for o in outs if trace.owns(o)])
    return stepwise.end([trace.value(o) if trace.owns(o) else o for o in outs])


def _compile_gradient(trace: Recording, indices: Sequence[int]) -> _Gradient:
    """Compile the values at the indices, and the gradient of the first."""
    count = len(trace.inputs)

    def run(*flat: Array) -> tuple[list[Array], list[Any]]:
        def function(*xs: Array) -> list[Array]:
            values = replay(trace.steps, current_trace().process, flat[count:], xs)
            return [values[i] for i in indices]

        linearization = linearize_flat(function, flat[:count], name=trace.name)
        cotangents = gradient_of_first(linearization, trace.device)
        return [*linearization.outs, *[c for c in cotangents if type(c) is not Zero]], cotangents

    avals = [v.aval for v in (*trace.inputs, *trace.operands)]
    with default_device(trace.device):
        closed, cotangents = trace_with_aux(trace_to_jaxpr, run, avals, trace.name)
    pruned, reads = prune_inputs(dce_jaxpr(closed), [True] * len(closed.in_avals))
    specs = [array_spec(a, trace.device) for a in pruned.out_avals]
    gradient_specs = iter(specs[len(indices) :])
    types = [v.aval if type(c) is Zero else next(gradient_specs) for c, v in zip(cotangents, trace.inputs, strict=True)]
    return _Gradient(_function_of(pruned, trace), reads, specs[: len(indices)], types)


def _function_of(program: ClosedJaxpr, trace: Recording) -> Callable[..., Sequence[Any]]:
    """Return a program as a function; compiled at once if the user jitted some of it."""
    device, avals = trace.device, tuple(program.in_avals)
    if all(primitive is not jit_p for primitive, _, _ in trace.steps):
        # On the CPU a call of a program is a `runtime.threads.Repeated`: NumPy runs it twice, then machine code.
        return device.backend.kernel(jit_p, avals, call_params(program, trace.name), _PIPELINE)
    return partial(device.compile(program, (False,) * len(avals), _PIPELINE).run, False)


def _run(gradient: _Gradient, trace: Recording, outs: Sequence[Array]) -> tuple[list[Array], list[Any]]:
    """Run a compiled gradient; return the function's results and the cotangents."""
    buffers = [v._buffer for v in compress((*trace.inputs, *trace.operands), gradient.reads)]
    outputs = iter(gradient.run(*buffers))
    computed = map(wrap, outputs, gradient.results)
    results = [next(computed) if trace.owns(o) else o for o in outs]
    return results, [wrap(next(outputs), c) if isinstance(c, ArraySpec) else Zero(c) for c in gradient.cotangents]
