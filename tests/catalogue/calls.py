"""The calls of all namespaces."""

from __future__ import annotations

from tests.catalogue import lax_calls, nn_calls, numpy_calls, random_calls
from tests.catalogue.call import Calls

CALLS: Calls = {**numpy_calls.CALLS, **lax_calls.CALLS, **nn_calls.CALLS, **random_calls.CALLS}
