"""A miniature of volta_fn on NumPy alone, to read in ten minutes.

A *primitive* is an operation declared once: how to evaluate it, and how to differentiate it by each argument. A *trace* is a way to
interpret a program: `JVP` propagates derivatives, `Batch` an additional axis, `Jaxpr` records the program. `current` interprets a
primitive: it evaluates it, or calls the innermost trace, whose rule runs under the interpreter that the trace found. So traces nest.
Reverse mode (`grad`) needs no trace of its own: record the derivative, which is a linear program, and transpose it from the end.
"""
import contextvars

import numpy as np

current = contextvars.ContextVar("current", default=lambda primitive, *args, **params: primitive.evaluate(*args, **params))

class Primitive:
    """derivatives[i](g, out, *args) is the tangent of `out` for tangent g of args[i]."""
    # Most multiply g elementwise, which is its own transpose. A linear operation is its own derivative, and declares its transpose.
    def __init__(self, name, evaluate, *derivatives, transpose=None):
        self.name, self.evaluate, self.transposes = name, evaluate, [transpose] if transpose else derivatives
        self.derivatives = derivatives or [lambda g, out, x, **params: self(g, **params)]
    def __call__(self, *args, **params):
        return current.get()(self, *args, **params)

add = Primitive("add", np.add, lambda g, out, x, y: g, lambda g, out, x, y: g)
mul = Primitive("mul", np.multiply, lambda g, out, x, y: mul(g, y), lambda g, out, x, y: mul(g, x))
tanh = Primitive("tanh", np.tanh, lambda g, out, x: mul(g, add(1.0, mul(-1.0, mul(out, out)))))
total = Primitive("total", np.sum, transpose=lambda g, out, x, axis: spread(g, size=x.shape[axis], axis=axis))
spread = Primitive("spread", lambda x, size, axis: np.stack([x] * size, axis), transpose=lambda g, out, x, size, axis: total(g, axis=axis))

class Tracer:  # an array during a trace, which alone interprets value and tangent
    def __init__(self, trace, value, tangent=None):
        self.trace, self.value, self.tangent = trace, value, tangent
        self.shape = np.shape(value)[isinstance(trace, Batch) :]  # a batch hides its axis, the first

class Trace:
    """A transform of f: its rule interprets primitives with its own tracers."""
    rule = Primitive.__call__  # those of subclasses differ
    def __init__(self, f, *columns):
        self.outer, self.equations, self.inputs = current.get(), [], [Tracer(self, *fields) for fields in zip(*columns, strict=True)]
        self.output = self.under(self.apply, f, *self.inputs)
    def under(self, interpreter, f, *args, **params):
        context = contextvars.copy_context()
        context.run(current.set, interpreter)
        return context.run(f, *args, **params)
    def owns(self, x):
        return isinstance(x, Tracer) and x.trace is self
    def apply(self, primitive, *args, **params):
        return self.under(self.outer, self.rule if any(map(self.owns, args)) else Primitive.__call__, primitive, *args, **params)

class JVP(Trace):
    def rule(self, primitive, *args, **params):
        primals = [a.value if self.owns(a) else a for a in args]
        out = primitive(*primals, **params)
        tangents = [d(a.tangent, out, *primals, **params) for d, a in zip(primitive.derivatives, args, strict=True) if self.owns(a)]
        return Tracer(self, out, add(*tangents) if len(tangents) == 2 else tangents[0])

class Batch(Trace):
    def rule(self, primitive, *args, **params):  # axes count from the end, so a new first axis disturbs no primitive
        size = next(np.shape(a.value)[0] for a in args if self.owns(a))
        wide = [a.value if self.owns(a) else a if type(a) is float else spread(a, size=size, axis=-1 - len(np.shape(a))) for a in args]
        return Tracer(self, primitive(*wide, **params))

class Jaxpr(Trace):
    def rule(self, primitive, *args, **params):
        out = Tracer(self, primitive.evaluate(*[np.zeros(np.shape(a)) for a in args], **params))  # for its shape alone
        self.equations.append((out, primitive, args, params))
        return out
    def __str__(self):
        names = {id(x): f"{chr(97 + i)}:{x.shape}" for i, x in enumerate([*self.inputs, *[out for out, *_ in self.equations]])}
        rows = [[names[id(out)], "=", p.name, *[names.get(id(a), a) for a in args], k or ""] for out, p, args, k in self.equations]
        return "\n    ".join(["let", *[" ".join(map(str, row)) for row in rows]]) + f"\nin {names[id(self.output)]}"

def jvp(f, primals, tangents):
    out = JVP(f, primals, tangents).output
    return out.value, out.tangent
def vmap(f):
    return lambda *args: Batch(f, args).output.value

def grad(f):
    def gradients(*primals):
        linear = Jaxpr(lambda *tangents: jvp(f, primals, tangents)[1], primals)    # known values are computed, not recorded
        cotangents = {linear.output: 1.0}
        for out, primitive, args, params in reversed(linear.equations):
            for transpose, arg in zip(primitive.transposes, args, strict=True):
                if linear.owns(arg) and out in cotangents:
                    cotangents[arg] = add(cotangents.get(arg, 0.0), transpose(cotangents[out], None, *args, **params))
        return [cotangents.get(x, 0.0) for x in linear.inputs]
    return gradients

if __name__ == "__main__":
    import volta_fn as vf
    import volta_fn.numpy as jnp

    w, v, xs = (np.random.default_rng(0).normal(size=size).astype(np.float32) for size in [(3, 4), 3, (8, 4)])
    def model(w, x):
        return total(mul(v, tanh(vmap(lambda row: total(mul(row, x), axis=-1))(w))), axis=-1)
    print(Jaxpr(model, (w, xs[0])))
    mine = vmap(lambda x: jvp(lambda w: grad(lambda w: model(w, x))(w)[0], [w], [w])[1])(xs)
    voltas = vf.vmap(lambda x: vf.jvp(vf.grad(lambda w: jnp.dot(v, jnp.tanh(w @ x))), (w,), (w,))[1])(xs)
    np.testing.assert_allclose(mine, voltas, rtol=1e-4)
