"""A pretrained voice detector, Silero VAD: convolutions over the spectrum of a recording, an LSTM cell that remembers, real weights."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.data_files import data_dir
from volta_fn import io, lax, nn, random

CHUNK, CONTEXT = 512, 64  # samples that come at a time, and earlier ones that are looked at again


class SileroVAD(nn.Module):
    """The probability of speech in each chunk of a recording. The fields have PyTorch's names."""

    stft_conv: nn.Conv1d
    conv1: nn.Conv1d
    conv2: nn.Conv1d
    conv3: nn.Conv1d
    conv4: nn.Conv1d
    lstm_cell: nn.LSTMCell
    final_conv: nn.Conv1d

    @classmethod
    def init(cls, key: vf.Array) -> SileroVAD:
        """Return a detector with random weights."""
        keys = random.split(key, 7)
        conv = lambda i, into, out, stride: nn.Conv1d.init(keys[i], into, out, 3, stride=stride, padding=1)
        return cls(
            stft_conv=nn.Conv1d.init(keys[0], 1, 258, 256, stride=128, bias=False),
            conv1=conv(1, 129, 128, 1),
            conv2=conv(2, 128, 64, 2),
            conv3=conv(3, 64, 64, 2),
            conv4=conv(4, 64, 128, 1),
            lstm_cell=nn.LSTMCell.init(keys[5], 128, 128),
            final_conv=nn.Conv1d.init(keys[6], 128, 1, 1),
        )

    def features(self, chunks: vf.Array) -> vf.Array:
        """Return what the convolutions make of chunks with their context (N, CONTEXT + CHUNK): (N, 128)."""
        padded = jnp.pad(chunks, ((0, 0), (0, CONTEXT)), mode="reflect")
        real, imaginary = jnp.split(self.stft_conv(padded[:, None]), 2, axis=1)
        x = jnp.sqrt(real**2 + imaginary**2)
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = nn.relu(conv(x))
        return x[:, :, 0]

    def __call__(self, samples: vf.Array) -> vf.Array:
        """Return the probabilities (N,) for the samples (N * CHUNK,) of a recording."""
        news = samples.reshape(-1, CHUNK)
        olds = jnp.pad(news[:-1, -CONTEXT:], ((1, 0), (0, 0)))

        def hear(carry: Any, feature: vf.Array) -> tuple[Any, vf.Array]:
            carry = self.lstm_cell(feature, carry)
            return carry, carry[0]

        zeros = jnp.zeros(self.lstm_cell.hidden_size)
        _, hidden = lax.scan(hear, (zeros, zeros), self.features(jnp.concatenate([olds, news], axis=1)))
        return nn.sigmoid(self.final_conv(nn.relu(hidden)[:, :, None]))[:, 0, 0]


@pytest.fixture(scope="module")
def folder() -> Path:
    return data_dir("models/silero_vad")


@pytest.fixture(scope="module")
def model(folder: Path) -> SileroVAD:
    """The detector with its real weights."""
    detector = SileroVAD.init(random.key(0))
    return io.load_state_dict(detector, io.from_torch(detector)(io.open_safetensors(folder / "weights.safetensors")))


def test_only_the_matrices_of_the_lstm_are_laid_out_otherwise(model: SileroVAD, folder: Path) -> None:
    by_hand = io.StateDictMapper().transpose("lstm_cell.weight_ih", "lstm_cell.weight_hh")
    for name, expected in by_hand(io.load_safetensors(folder / "weights.safetensors")).items():
        np.testing.assert_array_equal(io.state_dict(model)[name], expected)


@pytest.fixture(scope="module")
def samples(folder: Path) -> np.ndarray:
    """The recording, between -1 and 1."""
    with wave.open(str(folder / "test.wav")) as recording:
        assert (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) == (16000, 1, 2)
        pcm = np.frombuffer(recording.readframes(recording.getnframes()), "<i2")
    return pcm[: len(pcm) // CHUNK * CHUNK].astype(np.float32) / 32768


def test_probabilities_agree_with_the_reference(model: SileroVAD, samples: np.ndarray, folder: Path) -> None:
    expected = np.load(folder / "reference.npz")["probabilities"]
    actual = vf.jit(model)(samples)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_cut_recording_gives_the_same_beginning(model: SileroVAD, samples: np.ndarray, folder: Path) -> None:
    expected = np.load(folder / "reference.npz")["probabilities"][:20]
    np.testing.assert_allclose(model(samples[: 20 * CHUNK]), expected, rtol=1e-5, atol=1e-6)
