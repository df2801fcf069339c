"""The whole idea of volta_fn, in miniature and on NumPy alone: read it in ten minutes, run it to see that volta_fn agrees.

A *primitive* is an operation declared once: how to compute it, and how its result moves with each argument. A *trace* is a way to
read a program: `JVP` carries derivatives along, `Batch` a whole axis, `Jaxpr` writes the program down. `current` says what applying
a primitive means: computing it, unless a trace is at work, which itself works in the way that it found. That is why they compose.
Reverse mode (`grad`) needs no trace of its own: write down the derivative, which is a linear program, and read it backwards.
"""
import contextvars

import numpy as np

current = contextvars.ContextVar("current", default=lambda primitive, *args, **params: primitive.evaluate(*args, **params))

class Primitive:
    """derivatives[i](g, out, *args) is how far `out` moves when args[i] moves by g. Most operations multiply g by a slope, number by
    number: read backwards, they do the same. A linear one moves as it computes, and declares what it is when read backwards."""
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

class Tracer:  # stands for an array while a trace reads the program; only that trace knows what value and tangent mean
    def __init__(self, trace, value, tangent=None):
        self.trace, self.value, self.tangent = trace, value, tangent
        self.shape = np.shape(value)[isinstance(trace, Batch) :]  # a batch hides its axis, the first

class Trace:
    """A transform at work on f. It has a rule for primitives that meet its own tracers; the rest is for the way it found."""
    def __init__(self, f, *columns):
        self.found, self.equations, self.inputs = current.get(), [], [Tracer(self, *fields) for fields in zip(*columns, strict=True)]
        self.output = self.under(self.apply, f, *self.inputs)
    def under(self, way, f, *args, **params):
        context = contextvars.copy_context()
        context.run(current.set, way)
        return context.run(f, *args, **params)
    def owns(self, x):
        return isinstance(x, Tracer) and x.trace is self
    def apply(self, primitive, *args, **params):
        return self.under(self.found, self.rule if any(map(self.owns, args)) else Primitive.__call__, primitive, *args, **params)

class JVP(Trace):
    def rule(self, primitive, *args, **params):
        primals = [a.value if self.owns(a) else a for a in args]
        out = primitive(*primals, **params)
        moves = [d(a.tangent, out, *primals, **params) for d, a in zip(primitive.derivatives, args, strict=True) if self.owns(a)]
        return Tracer(self, out, add(*moves) if len(moves) == 2 else moves[0])

class Batch(Trace):
    def rule(self, primitive, *args, **params):  # axes are counted from the end: a new one in front disturbs no primitive
        size = next(np.shape(a.value)[0] for a in args if self.owns(a))
        wide = [a if type(a) is float or self.owns(a) else spread(a, size=size, axis=-1 - len(np.shape(a))) for a in args]
        return Tracer(self, primitive(*[a.value if self.owns(a) else a for a in wide], **params))

class Jaxpr(Trace):
    def rule(self, primitive, *args, **params):
        out = Tracer(self, primitive.evaluate(*[np.zeros(np.shape(a)) for a in args], **params))  # for its shape alone
        self.equations.append((out, primitive, args, params))
        return out
    def __str__(self):
        names = {id(x): f"{chr(97 + i)}:{x.shape}" for i, x in enumerate([*self.inputs, *[out for out, *_ in self.equations]])}
        lines = [[names[id(out)], "=", p.name, *[names.get(id(a), a) for a in args], k or ""] for out, p, args, k in self.equations]
        return "\n    ".join(["let", *[" ".join(map(str, line)) for line in lines]]) + f"\nin {names[id(self.output)]}"

def jvp(f, primals, tangents):
    out = JVP(f, primals, tangents).output
    return out.value, out.tangent

def vmap(f):
    return lambda *args: Batch(f, args).output.value

def grad(f):
    def gradients(*primals):
        linear = Jaxpr(lambda *tangents: jvp(f, primals, tangents)[1], primals)  # what is known is computed, not written down
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
