"""`einsum`, contracted two operands at a time in the order NumPy's planner finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.core.memory.transfer import constrained
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.jit.fused import fused
from volta_fn.primitives.contraction import dot_general
from volta_fn.primitives.data_movement.movement import broadcast_in_dim, reshape, squeeze, transpose
from volta_fn.primitives.data_movement.slicing import slice_in_dim
from volta_fn.primitives.declare import promote_args
from volta_fn.primitives.elementwise.arithmetic import mul
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.reduction import reduce_or, reduce_sum

#: An operand and the letter of each of its dimensions.
Labelled = tuple[Array, str]
DotGeneral = Callable[..., Array]


@fused
def einsum(subscripts: Any, /, *operands: Any, out: None = None, optimize: Any = "optimal", precision: Any = None,
           preferred_element_type: Any = None, _dot_general: DotGeneral = dot_general, out_sharding: Any = None) -> Array:  # fmt: skip
    """Sum the products that `subscripts` describe, such as ``"bij,bjk->bik"``.

    Every form of NumPy's is understood: implicit results, ``...``, repeated letters for diagonals, and alternating operands and lists of
    integers. `_dot_general` is what multiplies two operands, as in JAX. Raises `ArgumentError` for invalid subscripts and `ShapeError`
    for operands that do not fit them.

    >>> jnp.einsum("ij,ij->i", jnp.ones((2, 3)), jnp.ones((2, 3)))
    Array([3., 3.], dtype=float32)
    """
    if not isinstance(subscripts, str):
        subscripts, operands = _from_lists((subscripts, *operands))
    values = promote_args("einsum", operands, dtypes.ALL) if operands else []
    inputs, result = _parse(subscripts, values)
    sizes = _letter_sizes(inputs, values)
    terms: list[Labelled] = [_simplify(v, letters, sizes) for v, letters in zip(values, inputs, strict=True)]
    for pair in _order(inputs, result, values, optimize):
        term, *others = [terms.pop(i) for i in sorted(pair, reverse=True)]
        while others:
            other = others.pop()
            needed = set(result).union(*[letters for _, letters in (*terms, *others)])
            term = _contract(term, other, needed, preferred_element_type, _dot_general)
        terms.append(term)
    array, letters = _sum_unneeded(terms[0], set(result))
    return constrained(_arrange(array, letters, result, sizes), out_sharding)


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "greedy") -> tuple[list[Any], str]:
    """Return the contraction order of NumPy's planner (by the shapes), and its report.

    >>> jnp.einsum_path("ij,jk,k->i", jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.ones(4))[0]
    ['einsum_path', (1, 2), (0, 1)]
    """
    stand_ins = [np.broadcast_to(np.zeros(()), np.shape(v)) if not isinstance(v, (list, tuple)) else v for v in operands]
    return np.einsum_path(subscripts, *stand_ins, optimize=optimize)


def _from_lists(args: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Convert the form (operand, [0, 1], operand, [1, 2], [0, 2]) to letters."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def spell(numbers: Sequence[Any]) -> str:
        return "".join("..." if n is Ellipsis else letters[n] for n in numbers)

    count = len(args) // 2
    text = ",".join(spell(args[2 * i + 1]) for i in range(count))
    if len(args) % 2:
        text += "->" + spell(args[-1])
    return text, tuple(args[0 : 2 * count : 2])


def _parse(subscripts: str, values: Sequence[Array]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result, with ``...`` expanded."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(values):
        raise ArgumentError(f"einsum {subscripts!r} describes {len(inputs)} operands, but {len(values)} are given")
    unused = list(map(chr, range(ord("α"), ord("α") + 60)))
    ranks = [v.ndim - len(term.replace("...", "")) for term, v in zip(inputs, values, strict=True)]
    widest = max([r for term, r in zip(inputs, ranks, strict=True) if "..." in term], default=0)
    hidden = "".join(unused[:widest])
    spelled = []
    for term, rank, value in zip(inputs, ranks, values, strict=True):
        if rank < 0 or (rank and "..." not in term):
            raise ShapeError(f"einsum {subscripts!r}: the operand of shape {value.shape} does not have the dimensions {term!r}")
        spelled.append(term.replace("...", hidden[widest - rank :]) if "..." in term else term)
    if arrow:
        result = right.replace("...", hidden)
    else:
        counts = Counter("".join(term.replace("...", "") for term in inputs))
        result = hidden + "".join(sorted(c for c, n in counts.items() if n == 1))
    bad = [c for c in "".join(spelled) + result if not c.isalpha()]
    if bad or len(set(result)) != len(result) or set(result) - set("".join(spelled)):
        raise ArgumentError(f"einsum subscripts {subscripts!r} are not valid: results have distinct letters, each from an operand")
    return spelled, result


def _letter_sizes(inputs: Sequence[str], values: Sequence[Array]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for letters, value in zip(inputs, values, strict=True):
        for letter, size in zip(letters, value.shape, strict=True):
            known = sizes.get(letter, 1)
            if size != known and 1 not in (size, known):
                raise ShapeError(
                    f"einsum: the index {letter!r} has size {known} in one operand and {size} in another of shape {value.shape}"
                )
            sizes[letter] = size if known == 1 else known
    return sizes


def _simplify(value: Array, letters: str, sizes: dict[str, int]) -> Labelled:
    """Reduce repeated letters to diagonals, and drop broadcast dimensions of size 1."""
    for letter in [c for c, n in Counter(letters).items() if n > 1]:
        while letters.count(letter) > 1:
            value, letters = _diagonal(value, letters, letter)
    stretched = [i for i, c in enumerate(letters) if value.shape[i] == 1 and sizes[c] != 1]
    if stretched:
        value = squeeze(value, stretched)
        letters = "".join(c for i, c in enumerate(letters) if i not in stretched)
    return value, letters


def _diagonal(value: Array, letters: str, letter: str) -> Labelled:
    """Merge two dimensions of one letter: every (n + 1)-th element of the square."""
    first = letters.index(letter)
    second = letters.index(letter, first + 1)
    order = [i for i in range(value.ndim) if i not in (first, second)]
    square = transpose(value, [*order, first, second])
    n = square.shape[-1]
    flat = reshape(square, (*square.shape[:-2], n * n))
    rest = "".join(letters[i] for i in order)
    return slice_in_dim(flat, 0, n * n, n + 1, flat.ndim - 1), rest + letter


def _order(inputs: Sequence[str], result: str, values: Sequence[Array], optimize: Any) -> list[tuple[int, ...]]:
    if len(values) <= 2 or not optimize:
        return [(0, 1)] * (len(values) - 1) if len(values) > 1 else [(0,)]
    stand_ins = [np.broadcast_to(np.zeros(()), v.shape) for v in values]
    # The planner takes ASCII letters only.
    names = {c: chr(ord("a") + i) if i < 26 else chr(ord("A") + i - 26) for i, c in enumerate(sorted(set("".join(inputs))))}
    text = ",".join("".join(names[c] for c in term) for term in inputs) + "->" + "".join(names[c] for c in result)
    path, _ = np.einsum_path(text, *stand_ins, optimize="greedy" if len(values) > 4 or optimize == "greedy" else "optimal")
    return [tuple(step) for step in path[1:]]


def _sum_unneeded(term: Labelled, needed: set[str]) -> Labelled:
    """Sum (booleans: or) over the letters that occur in this term alone."""
    value, letters = term
    axes = [i for i, c in enumerate(letters) if c not in needed]
    total = reduce_or if value.dtype in dtypes.BOOL else reduce_sum
    return (total(value, axes), "".join(c for c in letters if c in needed)) if axes else term


def _contract(a: Labelled, b: Labelled, needed: set[str], preferred_element_type: Any, multiply: DotGeneral) -> Labelled:
    """Multiply two terms and sum over the letters that are no longer needed."""
    (x, x_letters), (y, y_letters) = _sum_unneeded(a, needed | set(b[1])), _sum_unneeded(b, needed | set(a[1]))
    shared = [c for c in x_letters if c in y_letters]
    batch = [c for c in shared if c in needed]
    summed = [c for c in shared if c not in needed]
    numbers = (
        (tuple(x_letters.index(c) for c in summed), tuple(y_letters.index(c) for c in summed)),
        (tuple(x_letters.index(c) for c in batch), tuple(y_letters.index(c) for c in batch)),
    )
    free = [c for c in x_letters if c not in shared] + [c for c in y_letters if c not in shared]
    letters = "".join([*batch, *free])
    if not summed and multiply is dot_general:
        product = mul(_spread(x, x_letters, letters), _spread(y, y_letters, letters))
        return product if preferred_element_type is None else convert_element_type(product, preferred_element_type), letters
    return multiply(x, y, numbers, None, preferred_element_type=preferred_element_type), letters


def _spread(value: Array, letters: str, wanted: str) -> Array:
    """Permute to the wanted letters, with size 1 for those that the term lacks."""
    present = [c for c in wanted if c in letters]
    ordered = transpose(value, [letters.index(c) for c in present])
    sizes = dict(zip(present, ordered.shape, strict=True))
    return reshape(ordered, [sizes.get(c, 1) for c in wanted])


def _arrange(value: Array, letters: str, result: str, sizes: dict[str, int]) -> Array:
    """Permute to the result's letters; stretch those of broadcast operands alone."""
    present = [c for c in result if c in letters]
    ordered = transpose(value, [letters.index(c) for c in present])
    if len(present) == len(result):
        return ordered
    return broadcast_in_dim(ordered, [sizes[c] for c in result], [result.index(c) for c in present])
