"""Write a page of the reference for each public module, before Sphinx reads the pages.

Each public name is an entry with its docstring; one without an example gets one, or the reason why not (`reference_examples.py`).
"""

from __future__ import annotations

import importlib
import inspect
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from reference_examples import example, reason

import volta_fn as vf


class Page(NamedTuple):
    """A module's page: its name, and a sentence that says what it is for."""

    module: str
    text: str


PAGES = [
    Page("volta_fn", "Transforms of functions, devices, and the types of arrays."),
    Page("volta_fn.numpy", "NumPy's functions for immutable arrays, with JAX's names and dtypes."),
    Page("volta_fn.numpy.linalg", "Linear algebra with NumPy's names."),
    Page("volta_fn.numpy.fft", "Discrete Fourier transforms."),
    Page("volta_fn.lax", "The primitives, control flow and collectives, with JAX's names."),
    Page("volta_fn.lax.linalg", "Factorisations and solvers as primitives."),
    Page("volta_fn.random", "Random numbers from explicit keys."),
    Page("volta_fn.nn", "Modules: layers, activations, initializers, attention, recurrent networks."),
    Page("volta_fn.nn.losses", "Loss functions, as PyTorch defines them."),
    Page("volta_fn.nn.metrics", "Metrics that accumulate over batches."),
    Page("volta_fn.nn.initializers", "Initial values of parameters."),
    Page("volta_fn.optim", "Optimizers, schedules and transformations of gradients, with Optax's names."),
    Page("volta_fn.optim.losses", "Optax's loss functions."),
    Page("volta_fn.optim.tree_utils", "Arithmetic on pytrees."),
    Page("volta_fn.optim.contrib", "Optimizers from recent papers."),
    Page("volta_fn.vision.ops", "Boxes and regions of images."),
    Page("volta_fn.vision.transforms", "Changes of images, and random ones for training."),
    Page("volta_fn.data", "Datasets, loaders and progress bars."),
    Page("volta_fn.io", "State dicts, safetensors, checkpoints, and loggers."),
    Page("volta_fn.chat", "Conversations with language models."),
    Page("volta_fn.web", "Web pages that run and train models."),
    Page("volta_fn.export", "Jitted functions as files, with the names of `jax.export`."),
    Page("volta_fn.onnx", "ONNX models as functions, and functions as models."),
    Page("volta_fn.tree", "Functions of pytrees."),
    Page("volta_fn.scipy.special", "Special functions."),
    Page("volta_fn.scipy.linalg", "Linear algebra with SciPy's signatures."),
    Page("volta_fn.scipy.stats", "Probability distributions and statistics."),
    Page("volta_fn.scipy.signal", "Convolution and spectra."),
    Page("volta_fn.scipy.fft", "Cosine transforms."),
    Page("volta_fn.scipy.optimize", "Minimisation."),
    Page("volta_fn.scipy.sparse.linalg", "Iterative solvers."),
    Page("volta_fn.scipy.spatial.transform", "Rotations."),
    Page("volta_fn.debug", "Printing and callbacks from running programs."),
    Page("volta_fn.test_util", "Checks of derivatives against finite differences."),
    Page("volta_fn.profiler", "Profiles of programs: what the host and the devices did, and when."),
    Page("volta_fn.distributed", "One program on several processes, through MPI."),
    Page("volta_fn.stages", "The stages between a function and its program."),
    Page("volta_fn.sharding", "Meshes and shardings."),
    Page("volta_fn.dtypes", "Dtypes and their promotion."),
    Page("volta_fn.ops", "Sums and extrema of segments."),
    Page("volta_fn.image", "Resizing of images."),
    Page("volta_fn.flatten_util", "Pytrees as vectors."),
    Page("volta_fn.custom_batching", "Batching rules of one's own."),
    Page("volta_fn.custom_derivatives", "Derivative rules of one's own."),
    Page("volta_fn.ad_checkpoint", "Recomputation in the backward pass."),
    Page("volta_fn.experimental.checkify", "Checks inside of compiled programs."),
    Page("volta_fn.experimental.ode", "Ordinary differential equations."),
    Page("volta_fn.experimental.sparse", "Sparse arrays."),
    Page("volta_fn.experimental.sparse.linalg", "Eigenvalues and linear systems of sparse matrices."),
    Page("volta_fn.experimental.jet", "Taylor-mode differentiation."),
    Page("volta_fn.config", "Settings."),
]
#: The distributions of scipy.stats are small modules.
DISTRIBUTIONS = [name for name in dir(vf.scipy.stats) if inspect.ismodule(getattr(vf.scipy.stats, name))]


def public_names(module: types.ModuleType) -> list[str]:
    """Return a module's public names: those of its stub or `__all__`, else what it defines itself; no modules."""
    names = getattr(module, "__all__", None) or (dir(module) if "__getattr__" in vars(module) else None) or _defined(module)
    return sorted(n for n in names if not n.startswith("_") and not inspect.ismodule(getattr(module, n)))


def _defined(module: types.ModuleType) -> list[str]:
    """Return the names that a module, or a module of the package that it is, defines."""
    name = module.__name__
    own = (lambda origin: f"{origin}.".startswith(f"{name}.")) if hasattr(module, "__path__") else name.__eq__
    return [n for n, value in vars(module).items() if own(getattr(value, "__module__", "") or "")]


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return "autoclass"
    return "autofunction" if callable(value) else "autodata"


def _members(value: Any) -> list[str]:
    """Return the options of a class: its own public methods are listed, those of built-in bases and a record's bare fields are not."""
    if not inspect.isclass(value) or issubclass(value, (np.generic, BaseException)):
        return []
    fields = [field for field in getattr(value, "_fields", ()) if (inspect.getdoc(getattr(value, field)) or "").startswith("Alias for")]
    return ["   :members:", *([f"   :exclude-members: {', '.join(fields)}"] if fields else [])]


def _is_foreign(value: Any) -> bool:
    """Return True for what NumPy, or another library, defines."""
    origin = getattr(value, "__module__", None) or type(value).__module__
    return origin.partition(".")[0] not in ("volta_fn", "builtins", "typing", "types", "functools")


def entry(module: str, name: str, value: Any, documented: dict[int, str]) -> list[str]:
    """Return the directive of a name; a second name for something refers to the first one.

    `documented` has the names of what earlier entries show, by identity.
    """
    if _is_foreign(value):
        origin = getattr(value, "__module__", None) or type(value).__module__
        return [f".. py:data:: {module}.{name}", "", f"   As in {origin.partition('.')[0]}.", ""]
    if (first := documented.setdefault(id(value), f"{module}.{name}")) != f"{module}.{name}":
        return [f".. py:{_kind(value).removeprefix('auto')}:: {module}.{name}", "", f"   Another name of :py:obj:`{first}`.", ""]
    lines = [f".. {_kind(value)}:: {module}.{name}", *_members(value), ""]
    if ">>>" not in (inspect.getdoc(value) or ""):
        lines += [f"   {line}" for line in example(module, name, value) or [f"No example: {reason(module, name, value)}"]] + [""]
    return lines


def page_text(page: Page, documented: dict[int, str]) -> str:
    """Return the text of a module's page, in reStructuredText; `documented` has what earlier pages show."""
    module = find_module(page.module)
    title = page.module
    lines = [title, "=" * len(title), "", page.text, "", f".. currentmodule:: {page.module}", ""]
    for name in public_names(module):
        lines += entry(page.module, name, getattr(module, name), documented)
    for distribution in DISTRIBUTIONS if page.module == "volta_fn.scipy.stats" else ():
        lines += section(f"{page.module}.{distribution}", documented)
    return "\n".join(lines)


def section(name: str, documented: dict[int, str]) -> list[str]:
    """Return the section of a small module on another module's page."""
    module = find_module(name)
    lines = [name, "-" * len(name), "", f".. currentmodule:: {name}", ""]
    return lines + [line for n in public_names(module) for line in entry(name, n, getattr(module, n), documented)]


def find_module(name: str) -> types.ModuleType:
    """Return a public module, which may have another name where it is defined."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return getattr(find_module(parent), last)


def modules_text() -> str:
    """Return the list of modules, which the index of the reference includes."""
    return "".join(f"- [`{page.module}`](api/{page.module}.rst): {page.text.removesuffix('.')}\n" for page in PAGES)


def write_pages(app: Any) -> None:
    """Write the pages that have changed, and the list of them."""
    folder = Path(app.srcdir) / "reference" / "api"
    folder.mkdir(exist_ok=True)
    documented: dict[int, str] = {}
    texts = {f"{page.module}.rst": page_text(page, documented) for page in PAGES} | {"modules.inc": modules_text()}
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
