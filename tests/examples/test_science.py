"""The examples of science and of learning by reward, in their quick versions: they learn, and draw what they say."""

from __future__ import annotations

from pathlib import Path

import banana_hmc
import curve_gp
import heat_equation
import moon_diffusion
import pole_balancing
import pytest
import spiral_ode


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The command line of a quick version."""
    return ["--quick", "--out", str(tmp_path)]


def is_drawn(folder: Path, name: str) -> bool:
    """Return True if there is a picture of some size."""
    return (folder / f"{name}.png").stat().st_size > 10_000


def test_a_law_of_motion_is_learnt(arguments: list[str], tmp_path: Path) -> None:
    errors = spiral_ode.main(arguments)
    assert errors["trained"] < 0.5 * errors["untrained"]
    assert is_drawn(tmp_path, "spiral_ode")


def test_a_gaussian_process_finds_the_noise_and_knows_its_error(arguments: list[str], tmp_path: Path) -> None:
    result = curve_gp.main(arguments)
    assert result["noise"] == pytest.approx(0.1, abs=0.04)
    assert result["error"] < 0.1
    assert result["inside"] > 0.85
    assert is_drawn(tmp_path, "curve_gp")


def test_the_chains_have_the_moments_of_the_distribution(arguments: list[str], tmp_path: Path) -> None:
    result = banana_hmc.main(arguments)
    assert abs(result["mean of x"]) < 0.1
    assert result["variance of x"] == pytest.approx(1, abs=0.15)
    assert abs(result["mean of y"]) < 0.2
    assert result["variance of y"] == pytest.approx(2.25, abs=0.6)
    assert result["accepted"] > 0.8
    assert result["R hat"] < 1.1
    assert is_drawn(tmp_path, "banana_hmc")


def test_the_heat_equation_is_obeyed_better(arguments: list[str], tmp_path: Path) -> None:
    errors = heat_equation.main(arguments)
    assert errors["trained"] < 0.5 * errors["untrained"]
    assert is_drawn(tmp_path, "heat_equation")


def test_noise_becomes_moons(arguments: list[str], tmp_path: Path) -> None:
    result = moon_diffusion.main(arguments)
    assert result["samples"] < 0.6 * result["noise"]
    assert is_drawn(tmp_path, "moon_diffusion")


def test_the_pole_stays_up_longer(arguments: list[str], tmp_path: Path) -> None:
    result = pole_balancing.main(arguments)
    assert result["last"] > 2 * result["first"]
    assert is_drawn(tmp_path, "pole_balancing")
