"""The calls of all namespaces."""

from __future__ import annotations

from tests.catalogue import lax_calls, nn_calls, numpy_calls, optim_calls, random_calls, scipy_calls, special_calls, stats_calls
from tests.catalogue.call import Calls

_MODULES = (numpy_calls, lax_calls, nn_calls, random_calls, special_calls, stats_calls, scipy_calls, optim_calls)

CALLS: Calls = {path: call for module in _MODULES for path, call in module.CALLS.items()}
