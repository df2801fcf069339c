"""Additions as CONTRIBUTING.md shows them, which `test_new_primitive.py` makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Addition(NamedTuple):
    """Texts to be added to files, and the most files and lines that are not blank.

    A file is followed by the line below which the text goes, if that is not the end: "tests/a.py: CASES = {".
    """

    texts: dict[str, str]
    most_files: int
    length: int

    def count(self) -> tuple[int, int]:
        """Count the files and the lines that are not blank."""
        return len(self.texts), sum(bool(row.strip()) for text in self.texts.values() for row in text.splitlines())

    def put(self, root: Path) -> None:
        """Put the texts into the files below a folder, their imports at the imports."""
        for name, text in self.texts.items():
            file, _, anchor = name.partition(": ")
            path = root / file
            before = path.read_text() if path.exists() else ""
            if anchor:
                assert before.count(anchor + "\n") == 1
                path.write_text(before.replace(anchor + "\n", f"{anchor}\n{text.strip(chr(10))}\n"))
                continue
            if before:
                imports = "".join(_IMPORT.findall(text))
                before, text = _FIRST.sub(lambda first: imports + first.group(), before, count=1), _IMPORT.sub("", text)
            path.write_text(before + text)


_IMPORT = re.compile(r"^from .* import .*\n", re.MULTILINE)
_FIRST = re.compile(r"^from volta_fn", re.MULTILINE)

#: A unary primitive: x / (1 + |x|).
UNARY = Addition(
    {
        "volta_fn/primitives/elementwise/arithmetic.py": """
softsign: Elementwise = elementwise(
    "softsign",
    lambda x: x / (1 + np.abs(x)),
    formula=lambda x: x / (x.abs() + 1.0),
    operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x: g / (1.0 + abs(x)) ** 2],
    domain=Domain(avoid=(0.0,)),
    doc="x / (1 + |x|), between -1 and 1.",
)
""",
        "volta_fn/lax.pyi": "from volta_fn.primitives.elementwise.arithmetic import softsign as softsign\n",
    },
    most_files=2,
    length=12,
)

#: A reduction: log(Σ exp(x)).
REDUCTION = Addition(
    {
        "volta_fn/primitives/elementwise/arithmetic.py": """
from volta_fn.core.primitive import Reduction
from volta_fn.primitives.reduction import Reducer, reduce_sum, reduction, repeated

reduce_logsumexp: Reducer = reduction(
    "reduce_logsumexp",
    Reduction("logaddexp", lambda dtype: -np.inf, rounds=True),
    operands=dtypes.FLOATS,
    tangent=lambda t, x, out, axes: reduce_sum(t * exp(x - repeated(out, x.shape, axes)), axes),
    doc="The logarithm of the sum of exponentials along `axes`.",
)
""",
        "volta_fn/lax.pyi": "from volta_fn.primitives.elementwise.arithmetic import reduce_logsumexp as reduce_logsumexp\n",
        "tests/samples/reduction.py": """
SAMPLES += _family("reduce_logsumexp", np.logaddexp, ("float32", "float64"), normal())
""",
    },
    most_files=3,
    length=12,
)

#: A layer with a parameter: x + sin²(a x) / a (Ziyin et al. 2020).
LAYER = Addition(
    {
        "volta_fn/nn/activations.py": '''
__all__ += ["Snake"]


class Snake(Module):
    """Computes x + sin(a x)² / a with a frequency for each feature (Ziyin et al. 2020).

    >>> import volta_fn as vf
    >>> vf.nn.Snake.init(2)(vf.numpy.array([0.0, 1.0])).round(4)
    Array([0.    , 1.7081], dtype=float32)
    """

    a: Array

    @classmethod
    def init(cls, features: int) -> Self:
        """Create the layer with frequencies 1."""
        return cls(lax.full((features,), 1.0))

    def __call__(self, x: Any) -> Array:
        """Apply the layer to an array whose last axis has the features."""
        return x + lax.sin(self.a * x) ** 2 / self.a
''',
        "tests/nn/test_every_layer.py: LAYERS: dict[str, tuple[tuple[int, ...], Any, Callable[..., Any]]] = {": """
    "Snake": ((4,), nn.Snake.init(4), plain),
""",
    },
    most_files=2,
    length=18,
)

#: An optimizer: a chain of transformations.
OPTIMIZER = Addition(
    {
        "volta_fn/optim/optimizers.py": '''
from volta_fn.optim.transforms.scaling import normalize_by_update_norm

__all__ += ["heavy_ball"]


def heavy_ball(learning_rate: ScalarOrSchedule, momentum: Any = 0.9) -> GradientTransformationExtraArgs:
    """Create gradient descent with a decaying sum of normalised gradients (Polyak, 1964).

    >>> import volta_fn as vf
    >>> optimizer = vf.optim.heavy_ball(0.1)
    >>> state = optimizer.init(vf.numpy.ones(2))
    >>> optimizer.update(vf.numpy.array([3.0, 4.0]), state, vf.numpy.ones(2))[0].round(2)
    Array([-0.06, -0.08], dtype=float32)
    """
    return chain(normalize_by_update_norm(), trace(momentum), scale_by_learning_rate(learning_rate))
''',
        "tests/optim/test_optimizers.py: OPTIMIZERS = {": """
    "heavy_ball": lambda o: o.heavy_ball(0.1) if o is optim else o.chain(o.normalize_by_update_norm(), o.sgd(0.1, momentum=0.9)),
""",
    },
    most_files=2,
    length=16,
)

ADDITIONS = {"softsign": UNARY, "reduce_logsumexp": REDUCTION, "Snake": LAYER, "heavy_ball": OPTIMIZER}
