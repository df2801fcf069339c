"""Functions of `jax.numpy` that move or compare elements, also of random keys."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from volta_fn import numpy as _numpy
from volta_fn.extend.key_arrays import of_keys as _of_keys
from volta_fn.extend.key_arrays import of_two_keys as _of_two_keys
from volta_fn.random.keys import PRNGKeyArray as _PRNGKeyArray

_COMPARISONS = {
    "allclose": lambda x, y: (x == y).all(),
    "array_equal": lambda x, y: (x == y).all() if x.shape == y.shape else _numpy.array(False),
    "equal": operator.eq,
    "isclose": operator.eq,
    "not_equal": operator.ne,
}


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """Vectorise a function of scalars, or of the core dimensions in `signature`.

    An array of keys is one of scalars.

    >>> import volta_fn as vf
    >>> keys = vf.random.split(vf.random.key(0), 3)
    >>> vectorize(lambda key: vf.random.normal(key, (2,)), signature="()->(n)")(keys).shape
    (3, 2)
    """
    plain = _numpy.vectorize(pyfunc, excluded=excluded, signature=signature)

    @functools.wraps(pyfunc)
    def call(*args: Any, **kwargs: Any) -> Any:
        impls = {i: x._impl for i, x in enumerate(args) if isinstance(x, _PRNGKeyArray) and i not in excluded}
        if not impls:
            return plain(*args, **kwargs)

        def of_words(*values: Any, **named: Any) -> Any:
            return pyfunc(*[_PRNGKeyArray(x, impls[i]) if i in impls else x for i, x in enumerate(values)], **named)

        mapped = [i for i in range(len(args)) if i not in excluded]
        inputs, arrow, outputs = (signature or f"{','.join(['()'] * len(mapped))}->()").partition("->")
        cores = re.findall(r"\(([^)]*)\)", inputs)
        if len(cores) == len(mapped):  # else `vectorize` says what is wrong
            inputs = ",".join(
                f"({','.join(filter(None, (core.strip(), 'words_of_key')))})" if i in impls else f"({core})"
                for i, core in zip(mapped, cores, strict=True)
            )
        words = [x._data if i in impls else x for i, x in enumerate(args)]
        return _numpy.vectorize(of_words, excluded=excluded, signature=inputs + arrow + outputs)(*words, **kwargs)

    return call


def reshape(a: Any, shape: Any, order: Any = "C", *, copy: bool | None = None, out_sharding: Any = None) -> Any:
    """Return the elements in another shape.

    A NumPy array stays one, so that its elements stay known where a function is traced.

    >>> reshape(np.arange(4), (2, 2))
    array([[0, 1],
           [2, 3]])
    """
    if isinstance(a, (np.ndarray, np.generic)) and out_sharding is None:
        return a.reshape(shape, order=order)
    return _of_keys(_numpy.reshape)(a, shape, order, copy=copy, out_sharding=out_sharding)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if name in _COMPARISONS:
        return _of_two_keys(getattr(_numpy, name), _COMPARISONS[name])
    return _of_keys(getattr(_numpy, name))
