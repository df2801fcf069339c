"""The examples about pictures, in their quick versions: they learn, and write what they say."""

from __future__ import annotations

from pathlib import Path

import dcgan
import load_pytorch
import matplotlib.image
import mnist_cnn
import mnist_rnn
import numpy as np
import pytest
import super_resolution
import vae
import xor

from tests.data_files import ROOT, data_dir


def arguments(out: Path) -> list[str]:
    """Return the command line of a quick version."""
    return ["--quick", "--out", str(out)]


def assert_picture(path: Path, rows: int, columns: int) -> None:
    """Check that a file is a PNG with a grid of images that are not all the same."""
    pixels = matplotlib.image.imread(path)
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    parts = [pixels[i * height : (i + 1) * height, j * width : (j + 1) * width] for i in range(rows) for j in range(columns)]
    assert len({part.tobytes() for part in parts}) > len(parts) // 2


def test_xor_is_learnt_saved_and_loaded(tmp_path: Path) -> None:
    result = xor.main(arguments(tmp_path))
    assert result["accuracy"] == 1
    assert result["loss"] < 0.01
    assert (tmp_path / "xor.safetensors").exists()


def test_a_convolutional_network_reads_digits(tmp_path: Path) -> None:
    assert mnist_cnn.main(arguments(tmp_path))["accuracy"] > 0.95


def test_the_same_seed_gives_the_same_bits(tmp_path: Path) -> None:
    runs = [vae.main([*arguments(tmp_path), "--epochs", "1"]) for _ in range(2)]
    other = vae.main([*arguments(tmp_path), "--epochs", "1", "--seed", "1"])
    assert runs[0] == runs[1] != other


def test_an_lstm_reads_digits(tmp_path: Path) -> None:
    assert mnist_rnn.main(arguments(tmp_path))["accuracy"] > 0.7


def test_an_autoencoder_draws_digits(tmp_path: Path) -> None:
    result = vae.main(arguments(tmp_path))
    assert result["nats"] < 28 < result["untrained"]
    assert_picture(tmp_path / "vae_samples.png", 4, 16)
    assert_picture(tmp_path / "vae_reconstructions.png", 2, 16)


def test_an_adversarial_network_draws_digits(tmp_path: Path) -> None:
    result = dcgan.main(arguments(tmp_path))
    assert result["distance"] < result["untrained"] / 3
    assert_picture(tmp_path / "dcgan.png", 4, 16)


def test_a_network_enlarges_better_than_interpolation(tmp_path: Path) -> None:
    result = super_resolution.main(arguments(tmp_path))
    assert result["network"] > result["bicubic"] + 2 > result["nearest"] + 2
    assert_picture(tmp_path / "super_resolution.png", 4, 16)


def test_the_signal_to_noise_ratio_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    truth, images = rng.uniform(size=(2, 5, 1, 8, 8)).astype(np.float32)
    expected = 20 * np.log10(1 / np.sqrt(((images - truth) ** 2).mean()))
    np.testing.assert_allclose(super_resolution.psnr(images, truth), expected, rtol=1e-5)


def test_a_network_of_pytorch_classifies_photographs(tmp_path: Path) -> None:
    data_dir("models/resnet20_cifar10")
    result = load_pytorch.main([*arguments(tmp_path), "--data", str(ROOT)])
    assert result["accuracy"] > 0.85
    assert result["difference"] < 4e-4


def test_the_example_says_which_file_it_misses(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot read the data: .*test_batch_first1000"):
        load_pytorch.main([*arguments(tmp_path), "--data", str(tmp_path)])
