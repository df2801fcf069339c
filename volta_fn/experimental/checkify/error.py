"""`Error`: what went wrong first in a checked function, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, from_host
from volta_fn.core.trace import Tracer, bind
from volta_fn.errors import CheckError
from volta_fn.experimental.checkify.checks import Message, check_p


class Error:
    """The first failed check of a call, if any; a pytree.

    `code` is 0 if none failed, else k for the k-th of `messages`, whose values are in `values`.
    """

    def __init__(self, code: Any, values: Sequence[Sequence[Any]], messages: Sequence[Message]) -> None:
        self.code = code
        self.values = [list(v) for v in values]
        self.messages = tuple(messages)

    def get(self) -> str | None:
        """Return the error message, or None; one for each stacked call that failed.

        It is JAX's, and then a line with the primitive and the user's line.
        """
        codes = np.asarray(self.code)
        if not codes.ndim:
            return self._text(()) if codes else None
        found = [f"at mapped index {', '.join(map(str, i))}: {self._text(tuple(i))}" for i in np.argwhere(codes)]
        return "\n".join(found) or None

    def _text(self, index: tuple[Any, ...]) -> str:
        number = int(np.asarray(self.code)[index]) - 1
        message = self.messages[number]
        return message.text([np.asarray(v)[index] for v in self.values[number]]) + message.origin

    def throw(self) -> None:
        """Raise `CheckError` with the message if a check failed."""
        check_error(self)

    def __repr__(self) -> str:
        if isinstance(self.code, Tracer):
            return "Error(traced)"
        return f"Error({self.get() or ''})"


tree.register_pytree_node(
    Error, lambda error: ((error.code, error.values), error.messages), lambda messages, children: Error(children[0], children[1], messages)
)


def init_error() -> Error:
    """Return the error of no check.

    >>> import volta_fn as vf
    >>> vf.experimental.checkify.init_error().get() is None
    True
    """
    return Error(from_host(np.zeros((), np.int32)), (), ())


def check_error(error: Error) -> None:
    """Raise `CheckError` if a check failed; inside of `checkify`, check it there.

    >>> import volta_fn as vf
    >>> checkify = vf.experimental.checkify
    >>> error, _ = checkify.checkify(lambda x: 1 / x, errors=checkify.div_checks)(vf.numpy.float32(0))
    >>> checkify.check_error(error)
    Traceback (most recent call last):
    volta_fn.errors.CheckError: division by zero...
    """
    code: Any = error.code
    if not isinstance(code, Tracer):
        if (message := error.get()) is not None:
            raise CheckError(message)
        return
    for number, (message_of, values) in enumerate(zip(error.messages, error.values, strict=True), 1):
        given: list[Array] = values
        bind(check_p, code != number, *given, message=message_of, debug=False)
