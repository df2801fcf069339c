"""Signatures of functions whose annotations may name what is not defined yet.

From Python 3.14 on, annotations are evaluated when they are read (PEP 649). They may then name a class that is defined later, or that is
imported for type checkers alone, and reading them as `inspect` does by default raises `NameError`. A name that is not defined stays a
`ForwardRef` here: the package reads the names and kinds of parameters, hardly their types.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

if sys.version_info >= (3, 14):
    import annotationlib

    def signature(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function.

        Raises `TypeError` or `ValueError` for a function without one.
        """
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)

    def has_annotations(cls: type) -> bool:
        """Return True if a class, its bases aside, has annotations."""
        return bool(annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF))

else:

    def signature(function: Callable[..., Any]) -> inspect.Signature:
        """Return the signature of a function.

        Raises `TypeError` or `ValueError` for a function without one.
        """
        return inspect.signature(function)

    def has_annotations(cls: type) -> bool:
        """Return True if a class, its bases aside, has annotations."""
        return bool(inspect.get_annotations(cls))


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, or None if it has none.

    >>> print(signature_of(lambda x, *, axis=0: x))
    (x, *, axis=0)
    """
    try:
        return signature(function)
    except (TypeError, ValueError):
        return None


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters; none if it has no signature.

    >>> parameter_names(lambda x, *, axis=0: x)
    ['x', 'axis']
    """
    declared = signature_of(function)
    return [] if declared is None else list(declared.parameters)
