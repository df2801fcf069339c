"""The examples of several processes in their quick form: one process learns, and two end with the same losses."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.launching import needs_mpi, run

EXAMPLES = Path(__file__).parents[2] / "examples"


def alone(name: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the losses of one process."""
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    losses: list[float] = importlib.import_module(name).main(["--quick"])
    return losses


@pytest.mark.parametrize("name", ["data_parallel", "tensor_parallel", "pipeline"])
def test_one_process_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = alone(name, monkeypatch)
    assert np.all(np.isfinite(losses))
    assert losses[-1] < losses[0] or name == "data_parallel"  # whose batches differ


@needs_mpi
@pytest.mark.parametrize("name", ["tensor_parallel", "pipeline"])
def test_two_processes_have_the_losses_of_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    completed = run(2, str(EXAMPLES / f"{name}.py"), "--quick")
    shown = re.findall(r"losses \[(.*)\]", completed.stdout)
    assert len(shown) == 1, completed.stdout + completed.stderr
    np.testing.assert_allclose([float(x) for x in shown[0].split(", ")], alone(name, monkeypatch), atol=1.01e-4)
