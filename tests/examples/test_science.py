"""The examples of science and of learning by reward, in their quick versions: they learn, and draw what they say."""

from __future__ import annotations

from pathlib import Path

import diffusion
import gaussian_process
import hamiltonian_monte_carlo
import neural_ode
import physics_informed
import pytest
import reinforcement_learning


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The command line of a quick version."""
    return ["--quick", "--out", str(tmp_path)]


def is_drawn(folder: Path, name: str) -> bool:
    """Return True if there is a picture of some size."""
    return (folder / f"{name}.png").stat().st_size > 10_000


def test_a_law_of_motion_is_learnt(arguments: list[str], tmp_path: Path) -> None:
    errors = neural_ode.main(arguments)
    assert errors["trained"] < 0.5 * errors["untrained"]
    assert is_drawn(tmp_path, "neural_ode")


def test_a_gaussian_process_finds_the_noise_and_knows_its_error(arguments: list[str], tmp_path: Path) -> None:
    found = gaussian_process.main(arguments)
    assert found["noise"] == pytest.approx(0.1, abs=0.04)
    assert found["error"] < 0.1
    assert found["inside"] > 0.85
    assert is_drawn(tmp_path, "gaussian_process")


def test_the_chains_have_the_moments_of_the_distribution(arguments: list[str], tmp_path: Path) -> None:
    found = hamiltonian_monte_carlo.main(arguments)
    assert abs(found["mean of x"]) < 0.1
    assert found["variance of x"] == pytest.approx(1, abs=0.15)
    assert abs(found["mean of y"]) < 0.2
    assert found["variance of y"] == pytest.approx(2.25, abs=0.6)
    assert found["accepted"] > 0.8
    assert found["R hat"] < 1.1
    assert is_drawn(tmp_path, "hamiltonian_monte_carlo")


def test_the_heat_equation_is_obeyed_better(arguments: list[str], tmp_path: Path) -> None:
    errors = physics_informed.main(arguments)
    assert errors["trained"] < 0.5 * errors["untrained"]
    assert is_drawn(tmp_path, "physics_informed")


def test_noise_becomes_moons(arguments: list[str], tmp_path: Path) -> None:
    found = diffusion.main(arguments)
    assert found["samples"] < 0.6 * found["noise"]
    assert is_drawn(tmp_path, "diffusion")


def test_the_pole_stays_up_longer(arguments: list[str], tmp_path: Path) -> None:
    found = reinforcement_learning.main(arguments)
    assert found["last"] > 2 * found["first"]
    assert is_drawn(tmp_path, "reinforcement_learning")
