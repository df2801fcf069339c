"""Functions in TensorFlow's programs, and TensorFlow's functions in programs.

The names are those of `jax.experimental.jax2tf`. The package `tensorflow` must be installed to call `convert`, `dtype_of_val` and
`call_tf`. Calls cross by the host: what is converted is a step of TensorFlow's program that calls this process, which a file
(`tf.saved_model.save`) and XLA (``jit_compile=True``) cannot hold; `volta_fn.export` and `volta_fn.onnx` write files.

>>> import volta_fn as vf
>>> struct = vf.ShapeDtypeStruct((8, 3), "float32")
>>> eval_polymorphic_shape(lambda x: x.T, polymorphic_shapes=["b, _"])(struct)
(ShapeDtypeStruct(shape=(3, b), dtype=float32), '(3, b)')
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from volta_fn import dtypes, tree
from volta_fn.core.arrays.array import as_value
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.staging import check_callable, eval_shape, wraps
from volta_fn.core.trace import Tracer
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, GradientError, MissingDependencyError, ShapeError, TracerError
from volta_fn.export.exported import DisabledSafetyCheck
from volta_fn.export.symbolic import PolyShape, symbolic_args_specs
from volta_fn.jit.function import jit
from volta_fn.lazy_imports import load
from volta_fn.primitives.call import io_callback, pure_callback
from volta_fn.transforms.custom_derivatives import custom_vjp
from volta_fn.transforms.grad import vjp

__all__ = ["DisabledSafetyCheck", "PolyShape", "call_tf", "convert", "dtype_of_val", "eval_polymorphic_shape"]


def _tensorflow() -> Any:
    try:
        return load("tensorflow")  # optional, and slow to load
    except ImportError as error:
        raise MissingDependencyError(
            "jax2tf needs the package tensorflow; install it by: pip install tensorflow-cpu. "
            "volta_fn.export and volta_fn.onnx write functions to files without it"
        ) from error


# Shapes.


@dataclass(frozen=True)
class _TensorType:
    """The shape and dtype of a tensor; sizes that TensorFlow learns later are None."""

    shape: tuple[int | None, ...]
    dtype: np.dtype


def eval_polymorphic_shape(fun_jax: Callable[..., Any], *, polymorphic_shapes: Any = None) -> Callable[..., Any]:
    """Return a function that computes types of results for symbolic sizes.

    It takes descriptions of the arguments, and returns those of the results, and their shapes as texts, which `polymorphic_shapes` of
    `convert` and of this function take.

    Args:
        fun_jax: a function of arrays.
        polymorphic_shapes: as of `convert`.

    >>> struct = vf.ShapeDtypeStruct((8, 3), "float32")
    >>> eval_polymorphic_shape(lambda x: x.sum(0), polymorphic_shapes=["b, c"])(struct)
    (ShapeDtypeStruct(shape=(c,), dtype=float32), '(c,)')
    """
    check_callable(fun_jax, "eval_polymorphic_shape")

    def evaluate(*args_specs: Any) -> tuple[Any, Any]:
        results = eval_shape(fun_jax, *symbolic_args_specs(args_specs, polymorphic_shapes))
        return results, tree.map(lambda result: str(result.shape), results)

    return evaluate


# Functions of volta_fn in TensorFlow.


def dtype_of_val(val: Any) -> Any:
    """Return the TensorFlow dtype of a value that a converted function takes.

    It has 32 bits unless 64 are enabled. Raises `MissingDependencyError` without TensorFlow, `DTypeError` for dtypes that arrays lack.
    """
    return _as_tensor(val).dtype


def _as_tensor(value: Any) -> Any:
    tensorflow = _tensorflow()
    if isinstance(value, Tracer):
        raise TracerError(f"convert: {value!r} is being traced; call converted functions outside of transformations, or by call_tf")
    if isinstance(value, (tensorflow.Tensor, tensorflow.Variable)):
        dtype = dtypes.as_dtype(value.dtype.as_numpy_dtype)
        return tensorflow.convert_to_tensor(value) if value.dtype == dtype else tensorflow.cast(value, dtype)
    return tensorflow.constant(np.asarray(as_value(value)))


def _type_of(tensor: Any) -> _TensorType:
    if tensor.shape.rank is None:
        raise ShapeError(f"convert: the number of dimensions of {tensor!r} is unknown; give it by tf.ensure_shape")
    return _TensorType(tuple(tensor.shape), np.dtype(tensor.dtype.as_numpy_dtype))


def _is_inexact(dtype: Any) -> bool:
    return dtypes.issubdtype(dtype, np.inexact)


def _refuse_gradient(*cotangents: Any) -> Any:
    raise GradientError("this function was made by jax2tf.convert(with_gradient=False), so it has no gradient")


class _TensorFunction:
    """A function of flat arrays that takes and returns tensors.

    It returns the leaves of the function's result.

    Both its call and its gradient are steps of a TensorFlow program that call jitted functions.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = jit(function)
        self._pull_backs: dict[Any, _TensorFunction] = {}

    def __call__(self, tensors: Sequence[Any], types: Sequence[Any], with_gradient: bool) -> list[Any]:
        """Return the results as tensors.

        They are of `types`, whose symbolic sizes TensorFlow learns when the program runs.
        """
        tensorflow = _tensorflow()
        if not types:
            return []

        shapes = [[size if isinstance(size, int) else None for size in t.shape] for t in types]

        def step(*operands: Any) -> list[Any]:
            if tensorflow.executing_eagerly():
                return [tensorflow.constant(result) for result in self._on_host(*[x.numpy() for x in operands])]
            results = tensorflow.numpy_function(self._on_host, operands, [tensorflow.as_dtype(t.dtype) for t in types], stateful=False)
            results = results if isinstance(results, (list, tuple)) else [results]
            return [tensorflow.ensure_shape(x, shape) for x, shape in zip(results, shapes, strict=True)]

        @tensorflow.custom_gradient
        def differentiable(*operands: Any) -> tuple[list[Any], Callable[..., Any]]:
            return step(*operands), functools.partial(self._gradients, operands, types) if with_gradient else _refuse_gradient

        return list(differentiable(*tensors))

    def _on_host(self, *values: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(result) for result in tree.leaves(self.function(*values))]

    def _gradients(self, operands: Sequence[Any], types: Sequence[Any], *cotangents: Any) -> list[Any]:
        """Return the cotangents of the operands, None for integers.

        TensorFlow's of complex numbers are the conjugates of those that transposed linear functions have.
        """
        tensorflow = _tensorflow()
        inexact = tuple([i for i, x in enumerate(operands) if _is_inexact(x.dtype.as_numpy_dtype)])
        differentiable = tuple([i for i, t in enumerate(types) if _is_inexact(t.dtype)])
        gradients: list[Any] = [None] * len(operands)
        if differentiable:
            pull_back = self._pull_back(len(operands), inexact, differentiable)
            incoming = [tensorflow.math.conj(cotangents[i]) for i in differentiable]
            outgoing = pull_back([*operands, *incoming], [_type_of(operands[i]) for i in inexact], True)
            for i, gradient in zip(inexact, outgoing, strict=True):
                gradients[i] = tensorflow.math.conj(gradient)
        return gradients

    def _pull_back(self, count: int, inexact: tuple[int, ...], differentiable: tuple[int, ...]) -> _TensorFunction:
        """Return the function of operands and cotangents that pulls these back.

        There are `count` operands; it returns the cotangents of the inexact ones.
        """

        def pull_back(*values: Any) -> list[Any]:
            operands, cotangents = list(values[:count]), list(values[count:])

            def of_inexact(*numbers: Any) -> list[Any]:
                for i, number in zip(inexact, numbers, strict=True):
                    operands[i] = number
                results = tree.leaves(self.function(*operands))
                return [results[i] for i in differentiable]

            return list(vjp(of_inexact, *[operands[i] for i in inexact])[1](cotangents))

        return self._pull_backs.setdefault((count, inexact, differentiable), _TensorFunction(pull_back))


def convert(
    fun_jax: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    with_gradient: bool = True,
    enable_xla: Any = None,
    native_serialization: Any = None,
    native_serialization_platforms: Sequence[str] | None = None,
    native_serialization_disabled_checks: Sequence[DisabledSafetyCheck] = (),
) -> Callable[..., Any]:
    """Return a function of TensorFlow's tensors that computes `fun_jax`.

    It runs eagerly or in a `tf.function`.

    It takes tensors, variables, arrays and numbers in trees, and returns tensors. Its gradient, of any order, is that of `fun_jax`.

    Args:
        fun_jax: a function of arrays.
        polymorphic_shapes: for arguments with sizes that TensorFlow does not know before the program runs, texts such as "b, ..." (or
            a `PolyShape`), in a prefix of the tree of the positional arguments; None where all sizes are fixed.
        polymorphic_constraints: texts such as "b >= 2", as of `export.symbolic_shape`.
        with_gradient: whether the result can be differentiated; otherwise its gradient raises `GradientError`.
        enable_xla, native_serialization, native_serialization_platforms, native_serialization_disabled_checks: have no effect.

    Raises:
        MissingDependencyError: TensorFlow is not installed; raised by the call.
        ArgumentError: a size is unknown, and `polymorphic_shapes` does not name it.
        TracerError: an argument is being traced.
    """
    check_callable(fun_jax, "convert")
    functions: dict[Any, _TensorFunction] = {}
    results: dict[Any, tuple[list[Any], Any]] = {}

    def call(structure: Any, values: Sequence[Any]) -> Any:
        positional, named = tree.unflatten(structure, list(values))
        return fun_jax(*positional, **named)

    @wraps(fun_jax)
    def converted(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        tensors = [_as_tensor(leaf) for leaf in leaves]
        types = tuple([_type_of(tensor) for tensor in tensors])
        if structure not in functions:
            functions[structure] = _TensorFunction(lambda *values: call(structure, values))
        if (structure, types) not in results:
            positional, named = tree.unflatten(structure, types)
            positional = symbolic_args_specs(positional, polymorphic_shapes, polymorphic_constraints)
            structs = tree.leaves((positional, symbolic_args_specs(named, None)))
            results[structure, types] = tree.flatten(eval_shape(functions[structure].function, *structs))
        result_types, result_structure = results[structure, types]
        return tree.unflatten(result_structure, functions[structure](tensors, result_types, with_gradient))

    return converted


# Functions of TensorFlow in volta_fn.


class UnspecifiedOutputShapeDtype:
    """The default of `call_tf`: TensorFlow says which results a function has."""


def call_tf(
    callable_tf: Callable[..., Any],
    has_side_effects: bool = True,
    ordered: bool = False,
    output_shape_dtype: Any = UnspecifiedOutputShapeDtype(),  # noqa: B008  # without a state
    call_tf_graph: bool = False,
) -> Callable[..., Any]:
    """Return a function of arrays that calls one of TensorFlow's tensors.

    Its gradient is TensorFlow's.

    Eagerly it is called with eager tensors; in programs it is a callback.

    Args:
        callable_tf: a function of tensors in trees, which returns such.
        has_side_effects: whether calls remain whose results are unused.
        ordered: whether these calls happen in the order of the program.
        output_shape_dtype: the types of the results, in their tree; by default TensorFlow traces the function to learn them.
        call_tf_graph: has no effect.

    Raises:
        MissingDependencyError: TensorFlow is not installed; raised by the call.
        ShapeError: the sizes of the results are unknown to TensorFlow, and not given.
        CallbackError: the function raised in a program, or its results are not those that were announced.
    """
    check_callable(callable_tf, "call_tf")

    @custom_vjp
    def call(*args: Any) -> Any:
        return _call(callable_tf, args, has_side_effects, ordered, output_shape_dtype)

    def forward(*args: Any) -> Any:
        results = call(*args)
        return results, (args, results)

    def backward(residuals: Any, cotangents: Any) -> Any:
        args, results = residuals
        leaves, structure = tree.flatten(args)
        inexact = [i for i, leaf in enumerate(leaves) if _is_inexact(as_value(leaf).dtype)]
        differentiable = [i for i, result in enumerate(tree.leaves(results)) if _is_inexact(result.dtype)]
        incoming = [tree.leaves(cotangents)[i].conj() for i in differentiable]
        types = [ShapeDtypeStruct.like(leaves[i]) for i in inexact]

        def pull_back(operands: Any, cotangents: Any) -> Any:
            return _tape_gradients(callable_tf, tree.unflatten(structure, operands), inexact, differentiable, cotangents)

        gradients: list[Any] = [None] * len(leaves)
        outgoing = call_tf(pull_back, False, False, types)(leaves, incoming) if inexact and differentiable else []
        for i, gradient in zip(inexact, outgoing, strict=False):
            gradients[i] = gradient.conj()
        return tree.unflatten(structure, gradients)

    call.defvjp(forward, backward)
    return wraps(callable_tf)(lambda *args: call(*args))


def _tape_gradients(
    callable_tf: Callable[..., Any], args: Any, inexact: Sequence[int], differentiable: Sequence[int], cotangents: Sequence[Any]
) -> list[Any]:
    """Return TensorFlow's cotangents of the inexact arguments."""
    tensorflow = _tensorflow()
    leaves = tree.leaves(args)
    sources = [leaves[i] for i in inexact]
    with tensorflow.GradientTape() as tape:
        tape.watch(sources)
        results = tree.leaves(callable_tf(*args))
        targets = [tensorflow.convert_to_tensor(results[i]) for i in differentiable]
    zero = tensorflow.UnconnectedGradients.ZERO
    gradients = tape.gradient(targets, sources, output_gradients=list(cotangents), unconnected_gradients=zero)
    return [tensorflow.convert_to_tensor(gradient) for gradient in gradients]  # of rows that an index names, a dense one


def _call(callable_tf: Callable[..., Any], args: tuple[Any, ...], has_side_effects: bool, ordered: bool, types: Any) -> Any:
    """Call a function of tensors with arrays.

    It is called at once, or in the program that is being traced.
    """
    leaves, structure = tree.flatten(args)
    arrays = [as_value(leaf) for leaf in leaves]

    def on_host(*values: Any) -> Any:
        tensorflow = _tensorflow()
        tensors = [tensorflow.constant(np.asarray(value)) for value in values]
        return tree.map(_as_array, callable_tf(*tree.unflatten(structure, tensors)))

    if not any(isinstance(array, Tracer) for array in arrays):
        results = tree.map(as_value, on_host(*arrays))
        if not isinstance(types, UnspecifiedOutputShapeDtype):
            _check_results(results, types)
        return results
    if isinstance(types, UnspecifiedOutputShapeDtype):
        types = _result_types(callable_tf, structure, arrays)
    return io_callback(on_host, types, *arrays, ordered=ordered) if has_side_effects or ordered else pure_callback(on_host, types, *arrays)


def _as_array(result: Any) -> np.ndarray:
    if hasattr(result, "numpy"):
        result = result.numpy()
    values = np.asarray(result)
    try:
        return values.astype(dtypes.as_dtype(values.dtype), copy=False)
    except DTypeError as error:
        raise ArgumentTypeError(f"call_tf: the function returns {result!r}, which is no array") from error


def _check_results(results: Any, types: Any) -> None:
    leaves, structure = tree.flatten(results)
    structs, declared_structure = tree.flatten(types)
    if structure != declared_structure:
        raise ArgumentError(f"call_tf: the function returns {structure}, but output_shape_dtype has the tree {declared_structure}")
    for leaf, struct in zip(leaves, structs, strict=True):
        shape, dtype = tuple(struct.shape), dtypes.as_dtype(struct.dtype)
        if (leaf.shape, leaf.dtype) != (shape, dtype):
            raise ArgumentError(
                f"call_tf: the function returns an array of shape {leaf.shape} and dtype {leaf.dtype.name}, "
                f"but output_shape_dtype says {shape} and {dtype.name}"
            )


def _result_types(callable_tf: Callable[..., Any], structure: Any, arrays: Sequence[Any]) -> Any:
    """Return the types of a function's results, which TensorFlow infers by tracing it."""
    tensorflow = _tensorflow()
    structures = []

    def flat(*tensors: Any) -> list[Any]:
        leaves, results = tree.flatten(callable_tf(*tree.unflatten(structure, list(tensors))))
        structures.append(results)
        return leaves

    specs = [tensorflow.TensorSpec(array.shape, array.dtype) for array in arrays]
    results = tensorflow.function(flat, autograph=False).get_concrete_function(*specs).structured_outputs
    for result in results:
        if not result.shape.is_fully_defined():
            raise ShapeError(f"call_tf: TensorFlow infers the shape {result.shape} of a result; give its sizes by output_shape_dtype")
    return tree.unflatten(structures[-1], [ShapeDtypeStruct(tuple(r.shape), dtypes.as_dtype(r.dtype.as_numpy_dtype)) for r in results])
