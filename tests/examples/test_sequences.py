"""The examples of curves, series and texts in their quick form: what they learn is better than what they knew."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs an example in its quick form, its files going to `tmp_path`, and gives what it returns."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return lambda name, *args: importlib.import_module(name).main(["--quick", "--out", str(tmp_path), *args])


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_regression_comes_close_to_least_squares(example: Any, tmp_path: Path) -> None:
    errors = example("regression")
    assert errors["best"] <= errors["loss"] < 1.01 * errors["best"]
    assert errors["distance"] < 0.02
    assert is_png(tmp_path / "regression.png")


def test_forecasts_beat_the_last_value(example: Any, tmp_path: Path) -> None:
    errors = example("time_series")
    assert errors["next"] < 0.5 * errors["next_naive"]
    assert is_png(tmp_path / "time_series.png")


@pytest.mark.parametrize("name", ["char_lstm", "char_transformer"])
def test_language_models_learn_and_write(example: Any, name: str, tmp_path: Path) -> None:
    result = example(name)
    assert is_png(tmp_path / f"{name}.png")
    assert result["loss"] < 0.7 * math.log(result["symbols"])  # all characters alike: log of their number
    assert len(result["sample"]) == 200


def test_adapters_learn_another_text(example: Any, tmp_path: Path) -> None:
    import volta_fn as vf

    result = example("web_lora")
    assert result["after"] < result["before"] - 0.05
    assert result["share"] < 0.2
    model = vf.io.load_pretrained(tmp_path / "lora")
    assert vf.nn.generate(model, [1, 2, 3], 4).shape == (4,)
    assert (tmp_path / "lora" / "adapter" / "adapter_model.safetensors").is_file()
    assert result["page"].shaders > 0


def test_language_models_read_the_text_that_is_given(example: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcd" * 300)
    result = example("char_transformer", "--text", str(text))
    assert result["symbols"] == 4
    assert result["loss"] < 0.1


def test_one_character_at_a_time_gives_what_the_whole_text_gives(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a temperature near 0 each sampled character is the likeliest after all that came before it."""
    import volta_fn as vf
    import volta_fn.numpy as jnp

    lstm, transformer = (importlib.import_module(name) for name in ("char_lstm", "char_transformer"))
    monkeypatch.setattr(lstm, "TEMPERATURE", 1e-4)
    prompt = jnp.array([3, 1, 4, 1, 5, 9, 2, 6])
    for model in (
        lstm.CharLSTM.init(vf.random.key(0), 10, width=16, layers=2),
        transformer.CharTransformer.init(vf.random.key(0), 10, width=16, layers=2, heads=2, length=16),
    ):
        drawn = model.sample(prompt, 8, vf.random.key(1))
        likeliest = jnp.argmax(model(jnp.concatenate([prompt, drawn])[None])[0], axis=-1)
        assert drawn.tolist() == likeliest[7:-1].tolist()
