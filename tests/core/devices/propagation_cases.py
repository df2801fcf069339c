"""How a library splits results between 4 CPUs: ``python propagation_cases.py jax`` or ``volta_fn`` prints it as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

if __name__ == "__main__" and sys.argv[1] == "volta_fn":
    import volta_fn.jax

    volta_fn.jax.install()

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

Case = tuple[Any, ...]


def split_arrays(axis_type: Any) -> dict[str, Any]:
    """Return arrays on meshes whose axes have this type, and the shardings of a mesh of one axis."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(axis_type,))
    square = jax.make_mesh((2, 2), ("x", "y"), axis_types=(axis_type,) * 2)

    def put(value: Any, *spec: Any, on: Any = mesh) -> Any:
        return jax.device_put(value, NamedSharding(on, P(*spec)))

    rows, small, cube = jnp.arange(32.0).reshape(8, 4), jnp.arange(16.0).reshape(4, 4) / 7, jnp.arange(64.0).reshape(4, 4, 4)
    return {
        "vector": put(jnp.arange(8.0), "x"), "integers": put(jnp.arange(8), "x"), "rows": put(rows, "x"), "columns": put(rows, None, "x"),
        "grid": put(rows, "x", "y", on=square), "both": put(rows, ("x", "y"), on=square), "tall": put(rows, "x", on=square),
        "small": put(small, "x", on=square), "turned": put(small, "y", "x", on=square), "whole": put(small, on=square),
        "positions": put(jnp.ones((4, 8, 4)), "x", "y", on=square), "cube": put(cube, "x", None, "y", on=square),
        "keys": put(jax.random.split(jax.random.key(0), 4), "x"),
        "by": lambda *spec: NamedSharding(mesh, P(*spec)),
    }  # fmt: skip


def explicit_cases(a: dict[str, Any]) -> dict[str, Case]:
    """Return functions with their arguments, which JAX takes whatever the axes' type."""
    rows, grid, vector = a["rows"], a["grid"], a["vector"]

    def convolved(x: Any) -> Any:
        return lax.conv_general_dilated(x, jnp.ones((3, 4, 8)), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))

    return {
        "add": (lambda x: x + 1, rows), "sin": (jnp.sin, a["columns"]), "two axes": (lambda x: x * 2, a["both"]),
        "broadcast row": (lambda x, y: x + y, rows, np.ones(4, np.float32)), "sum": (lambda x: x.sum(0), grid),
        "keepdims": (lambda x: x.sum(0, keepdims=True), grid), "argmax": (lambda x: x.argmax(1), rows), "transpose": (lambda x: x.T, grid),
        "permuted": (lambda x: jnp.transpose(x, (2, 0, 1)), a["cube"]), "product": (lambda x, y: x @ y, a["tall"], a["whole"]),
        "products": (lambda x: jnp.einsum("bij,bkj->bik", x, x), a["cube"]) if a["is_auto"] else (lambda x: -x, a["cube"]),
        "split": (lambda x: x.reshape(4, 2, 4), rows), "column": (lambda x: x[:, 1], rows),
        "columns": (lambda x: x[:, jnp.array([0, 2])], rows),
        "joined": (lambda x: jnp.concatenate([x, x]), rows), "stacked": (lambda x: jnp.stack([x, x]), rows),
        "top": (lambda x: lax.top_k(x, 2), rows),
        "padded": (lambda x: jnp.pad(x, ((4, 4), (0, 0))), rows), "softmax": (jax.nn.softmax, rows),
        "sorted": (lambda x: jnp.sort(x, 1), rows),
        "convolution of positions": (convolved, a["positions"]),
        "windows": (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "VALID"), rows), "compared": (lambda x: x > 3, rows),
        "gradient": (jax.grad(lambda x: (x**2).sum()), rows),
        "hessian": (jax.hessian(lambda x: (x**3).sum()), vector) if a["is_auto"] else (jnp.cos, vector),
        "vmap": (jax.vmap(jnp.sum), rows), "scan carry": (lambda x: lax.scan(lambda c, _: (c * 2, c.sum(1)), x, None, length=3), rows),
        "scan rows": (lambda x: lax.scan(lambda c, r: (c + r.sum(), r * 2), 0.0, x), a["columns"]),
        "loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: c + 1, x), rows),
        "keys": (lambda k: jax.vmap(lambda k: jax.random.uniform(k, (3,)))(k), a["keys"]), "pair": (lambda x: (x + 1, x.sum()), rows),
    }  # fmt: skip


def auto_cases(a: dict[str, Any]) -> dict[str, Case]:
    """Return those that JAX refuses where axes are explicit, or which name shardings by themselves."""
    rows, by = a["rows"], a["by"]

    def constrained(x: Any) -> Any:
        return lax.with_sharding_constraint(x * 2, by("x"))

    plain = np.arange(8, dtype=np.float32)
    return {
        "contracted": (lambda x, y: x.T @ y, rows, rows), "conflict": (lambda x, y: x @ y, a["tall"], a["turned"]),
        "row": (lambda x: x[0], rows),
        "chosen rows": (lambda x: x[jnp.array([0, 2])], rows), "embedding": (lambda i: jnp.ones((8, 3))[i], a["integers"]),
        "updated": (lambda x: x.at[:, 1].add(1.0), rows), "tiled": (lambda x: jnp.tile(x, (2, 1)), rows), "merged": (jnp.ravel, a["grid"]),
        "scan over split": (lambda x: lax.scan(lambda c, r: (c + r.sum(), r * 2), 0.0, x), rows),
        "map": (lambda x: lax.map(lambda r: r * 2, x), a["columns"]),
        "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(4)), a["small"]), "fft": (jnp.fft.fft, rows),
        "cond": (lambda x: lax.cond(x[0, 0] > 1, lambda x: x, lambda x: -x, x), rows),
        "segments": (lambda x: jax.ops.segment_sum(x, jnp.zeros(8, int), 2), rows),
        "convolution": (lambda x: lax.conv_general_dilated(x[:, None], jnp.ones((1, 1, 3)), (1,), "SAME"), rows),
        "constraint": (constrained, plain), "inner constraint": (jax.jit(constrained), plain),
        "mapped constraint": (jax.vmap(constrained), np.ones((3, 8), np.float32)),
        "constraint along columns": (jax.vmap(constrained, in_axes=1, out_axes=1), np.ones((8, 3), np.float32)),
        "mapped call": (jax.vmap(jax.jit(constrained)), np.ones((3, 8), np.float32)),
        "differentiated call": (jax.grad(lambda x: (jax.jit(constrained)(x) ** 2).sum()), plain),
        "differentiated constraint": (jax.grad(lambda x: (constrained(x) ** 2).sum()), plain),
        "checkpoint": (jax.checkpoint(constrained), plain),
        "constraint in scan": (lambda x: lax.scan(lambda c, _: (constrained(c), None), x, None, length=2)[0], plain),
        "constraint in cond": (lambda x: lax.cond(x[0] > 0, constrained, lambda x: x, x), plain),
        "in_shardings": (jax.jit(lambda x, y: (x, y, y + 1), in_shardings=(by("x"), None)), plain, plain),
        **{f"{name}, differentiated": (derivatives_of(f), plain) for name, f in constraints(by("x")).items()},
    }  # fmt: skip


def constraints(sharding: NamedSharding) -> dict[str, Any]:
    """Return functions of a vector that split a value inside, by what that stands in."""

    def nonlinear(x: Any) -> Any:
        return lax.with_sharding_constraint(jnp.tanh(x), sharding)

    def linear(x: Any) -> Any:
        return lax.with_sharding_constraint(x * 2, sharding)

    def closed_over(x: Any) -> Any:
        return jax.jit(lambda y: lax.with_sharding_constraint(jnp.tanh(y * x), sharding))(x + 1)

    return {
        "nonlinear": nonlinear, "linear": linear, "closed over": closed_over, "nonlinear call": jax.jit(nonlinear),
        "linear call": jax.jit(linear), "call in a call": jax.jit(jax.jit(nonlinear)),
        "checkpointed call": jax.checkpoint(jax.jit(nonlinear)),
        "linear checkpoint": jax.checkpoint(linear), "nonlinear checkpoint": jax.checkpoint(nonlinear),
        "call in scan": lambda x: lax.scan(lambda c, _: (jax.jit(nonlinear)(c), None), x, None, length=2)[0],
        "linear scan": lambda x: lax.scan(lambda c, _: (linear(c), None), x, None, length=2)[0],
        "call in cond": lambda x: lax.cond(x[0] < 1, jax.jit(nonlinear), linear, x),
    }  # fmt: skip


def derivatives_of(function: Any) -> Any:
    """Return a function of the value and all derivatives of another."""

    def derivatives(x: Any) -> Any:
        value, pull_back = jax.vjp(function, x)
        pushed = jax.linearize(function, x)[1](x)
        return value, pull_back(x)[0], jax.grad(lambda x: function(x).sum())(x), pushed, jax.jvp(function, (x,), (x,))[1]

    return derivatives


def named_cases(a: dict[str, Any]) -> dict[str, Case]:
    """Return those with the sharding of a result that explicit axes do not determine."""
    rows, by = a["rows"], a["by"]
    indices = np.array([0, 1, 2, 3])
    return {
        "gathered by": (lambda x: x.at[:, indices].get(out_sharding=by("x", None)), a["columns"]),
        "updated by": (lambda x: x.at[indices[:2]].set(0.0, out_sharding=by("x", None)), rows),
        "summed by": (lambda x: lax.reduce_sum(x, (0,), out_sharding=by("x")), rows),
    }


def jitted_cases(a: dict[str, Any]) -> dict[str, Case]:
    """Return programs with results that depend on no argument."""
    return {"constant": (lambda x: (x.sum(), jnp.ones(3)), a["rows"]), "unused": (lambda x: jnp.ones(3), a["rows"])}


def eager_cases(a: dict[str, Any]) -> dict[str, Case]:
    """Return what takes over an array's sharding outside of programs alone."""
    rows = a["rows"]

    def described(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return {
        "zeros": (jnp.zeros_like, a["grid"]), "ones": (jnp.ones_like, rows), "full": (lambda x: jnp.full_like(x, 3), rows),
        "lax": (lambda x: lax.full_like(x, 2), rows), "described": (lambda x: jnp.zeros_like(described(x)), rows),
        "another shape": (lambda x: jnp.zeros_like(x, shape=(4, 4)), rows),
    }  # fmt: skip


def placement(x: Any) -> Any:
    """Return how an array is split, and on how many devices each of its parts is."""
    spec = str(tuple(x.sharding.spec)) if hasattr(x.sharding, "spec") else "on one device"
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.asarray(x)[shard.index])
    shards = sorted([shard.device.id, str(shard.index), shard.replica_id] for shard in x.addressable_shards)
    values = np.asarray(x, np.float64 if x.dtype.kind != "c" else np.complex128).ravel()
    return [spec, x.sharding.is_fully_replicated, shards, list(x.shape), float(abs(values).sum().round(2))]


def facts() -> dict[str, Any]:
    """Return where every case leaves its results, eagerly and jitted."""
    result: dict[str, Any] = {}
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        a = split_arrays(axis_type) | {"is_auto": axis_type is AxisType.Auto}
        cases = explicit_cases(a) | (auto_cases(a) if a["is_auto"] else named_cases(a))
        for name, (function, *arguments) in (cases | (jitted_cases(a) if a["is_auto"] else {})).items():
            result[f"{axis_type} {name}"] = [placement(x) for x in jax.tree.leaves(jax.jit(function)(*arguments))]
        for name, (function, *arguments) in (eager_cases(a) | ({} if sys.argv[1] == "jax" else cases)).items():
            key = f"{axis_type} {name}"
            eager = [placement(x) for x in jax.tree.leaves(function(*arguments))]
            if key in result:  # here both are compared; operations of JAX one by one take long to compile
                assert [p[:4] for p in eager] == [p[:4] for p in result[key]], (key, eager, result[key])
            result[key] = result.get(key, eager)
        f = jax.jit(lambda x: (x + 1, x.sum()))
        for described in (a["vector"], jax.ShapeDtypeStruct((8,), np.float32, sharding=a["by"]("x"))):
            compiled = f.lower(described).compile()
            shardings = jax.tree.leaves([compiled.input_shardings, compiled.output_shardings])
            result[f"{axis_type} stages {type(described) is type(a['vector'])}"] = [str(tuple(s.spec)) for s in shardings]
    result["shape"] = str(jax.eval_shape(jax.jit(lambda x: x + 1, out_shardings=a["by"]("x")), np.ones(8, np.float32)).sharding.spec)
    result["types"] = [str(jax.typeof(x).sharding.spec) for x in (a["vector"], a["rows"], jnp.ones((2, 3)), jnp.ones(()))]
    types = [split_arrays(t)["rows"].sharding for t in (AxisType.Auto, AxisType.Explicit, AxisType.Auto)]
    result["equality"] = [s == types[0] for s in types] + [P("x") == P("x", None), bool(P("x") == ("x",))]  # type: ignore[comparison-overlap]  # JAX says no
    return result


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    print(json.dumps(facts()))
