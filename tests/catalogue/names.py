"""Which names JAX and Optax have, and why some are not here."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import types
from pathlib import Path
from typing import Any, NamedTuple

_DISTRIBUTIONS = """bernoulli beta betabinom binom cauchy chi2 dirichlet expon gamma gennorm geom gumbel_l gumbel_r laplace logistic
    multinomial multivariate_normal nbinom norm pareto poisson t truncnorm uniform vonmises wrapcauchy"""
_SCIPY = """special linalg stats signal fft ndimage interpolate optimize integrate cluster.vq sparse.linalg spatial.transform"""


class Namespace(NamedTuple):
    """A namespace of a library, and where its names are here."""

    library: str
    path: str
    ours: str

    @property
    def title(self) -> str:
        """Return its name, as programs import it."""
        return ".".join(filter(None, (self.library, self.path)))


#: Namespaces of JAX, which are here at the same path.
JAX = (
    *"numpy numpy.linalg numpy.fft random nn nn.initializers lax lax.linalg ops image".split(),
    *[f"scipy.{name}" for name in _SCIPY.split()],
    *[f"scipy.stats.{name}" for name in _DISTRIBUTIONS.split()],
)
#: Namespaces of Optax. Its `tree_utils` has the functions of `tree`, as ``tree_*``.
OPTAX = (
    "assignment",
    "contrib",
    "losses",
    "microbatching",
    "perturbations",
    "projections",
    "schedules",
    "second_order",
    "transforms",
    "tree",
)

NAMESPACES = (
    *[Namespace("jax", path, path) for path in JAX],
    Namespace("optax", "", "optim"),
    *[Namespace("optax", path, f"optim.{path}") for path in OPTAX],
)

_MESHES = "moves values between devices, while an array here lies on one"
_ALGORITHMS = "a choice among XLA's algorithms; each target here has one"
_ROOT = Path(__file__).resolve().parents[2]


def _left_out_of_optax() -> dict[str, str]:
    """Return the names of docs/left_out.md that are Optax's, by their path here."""
    rows = re.findall(r"^\| `optax\.([\w.]+)` \| (.+) \|$", (_ROOT / "docs" / "left_out.md").read_text(), re.MULTILINE)
    return {f"optim.{name}": reason for name, reason in rows}


#: Names that are left out, with the reason.
LEFT_OUT: dict[str, str] = {
    **{f"lax.{name}": _MESHES for name in "pbroadcast precv psend ragged_all_to_all".split()},
    **{f"lax.linalg.{name}": _ALGORITHMS for name in "EigImplementation EighImplementation".split()},
    "lax.scaled_dot": "`nn.scaled_matmul` and `nn.scaled_dot_general` multiply block-scaled numbers",
    "lax.rng_uniform": "draws from a hidden state; `random.uniform` takes a key",
    "lax.stage": "an internal of JAX's tracing",
    **_left_out_of_optax(),
}


def resolve(library: str, path: str) -> Any:
    """Return the object at a dotted path of a library; raise `AttributeError` if there is none."""
    owner = importlib.import_module(library)
    for name in filter(None, path.split(".")):
        owner = getattr(owner, name) if hasattr(owner, name) else _submodule(owner, name)
    return owner


def _submodule(owner: Any, name: str) -> Any:
    if not isinstance(owner, types.ModuleType):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"{owner.__name__}.{name}")
    except ModuleNotFoundError:
        raise AttributeError(name) from None


def exists(library: str, path: str) -> bool:
    """Return True if a library has something at a dotted path."""
    try:
        resolve(library, path)
    except AttributeError:
        return False
    return True


#: Names of JAX that its documentation does not have.
UNDOCUMENTED = set(
    "lax.conv_general_permutations lax.conv_general_shape_tuple lax.conv_shape_tuple lax.conv_transpose_shape_tuple lax.dce_sink "
    "lax.reduce_window_shape_tuple lax.shape_as_value lax.pcast".split()
)


@functools.cache
def public_names(namespace: Namespace) -> tuple[str, ...]:
    """Return the public names of a namespace: no modules, and none of the objects that JAX calls primitives.

    Of Optax itself, those that are in none of its namespaces.
    """
    module = resolve(namespace.library, namespace.path)
    names = [name for name in dir(module) if not name.startswith("_") and not name.endswith("_p")]
    names = [n for n in names if not inspect.ismodule(getattr(module, n)) and f"{namespace.path}.{n}" not in UNDOCUMENTED]
    inner = {name for path in OPTAX for name in dir(resolve("optax", path))} if namespace.title == "optax" else set()
    return tuple([name for name in names if name not in inner])
