"""Pretrained networks of PyTorch's, loaded by `from_torch` into templates without numbers, give their reference outputs."""

from __future__ import annotations

import wave
from typing import Any

import numpy as np

import volta_fn as vf
from tests.data_files import data_dir
from volta_fn import io, nn

KEY = vf.random.key(0)


class BasicBlock(nn.Module):
    conv1: nn.Conv2d
    bn1: nn.BatchNorm2d
    conv2: nn.Conv2d
    bn2: nn.BatchNorm2d

    @classmethod
    def init(cls, width_in: int, width: int) -> Any:
        options: dict[str, Any] = {"stride": width // width_in, "padding": 1, "bias": False}
        return cls.join(
            conv1=nn.Conv2d.init(KEY, width_in, width, 3, **options),
            bn1=nn.BatchNorm2d.init(width),
            conv2=nn.Conv2d.init(KEY, width, width, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d.init(width),
        )

    def __call__(self, x: Any, state: Any, *, training: bool = False) -> Any:
        y, first = self.bn1(self.conv1(x), state["bn1"], training=training)
        y, second = self.bn2(self.conv2(nn.relu(y)), state["bn2"], training=training)
        if y.shape != x.shape:
            more = (y.shape[1] - x.shape[1]) // 2
            x = vf.numpy.pad(x[:, :, ::2, ::2], ((0, 0), (more, more), (0, 0), (0, 0)))
        return nn.relu(x + y), {"bn1": first, "bn2": second}


def resnet20() -> Any:
    def stage(width_in: int, width: int) -> Any:
        return nn.Sequential.init(BasicBlock.init(width_in, width), BasicBlock.init(width, width), BasicBlock.init(width, width))

    return nn.Sequential.init(
        conv1=nn.Conv2d.init(KEY, 3, 16, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d.init(16),
        relu=nn.relu,
        layer1=stage(16, 16),
        layer2=stage(16, 32),
        layer3=stage(32, 64),
        pool=lambda x: x.mean((2, 3)),
        linear=nn.Linear.init(KEY, 64, 10),
    )


def test_pretrained_resnet():
    folder = data_dir("models/resnet20_cifar10")
    images = np.fromfile(data_dir("cifar10/test_batch_first1000.bin"), np.uint8, 64 * 3073).reshape(64, 3073)[:, 1:]
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    x = (images.reshape(-1, 3, 32, 32).astype(np.float32) / 255 - mean[:, None, None]) / std[:, None, None]
    template = vf.eval_shape(resnet20)
    model, state = io.load_state_dict(template, io.from_torch(template)(io.open_safetensors(folder / "weights.safetensors")))
    logits, _ = vf.jit(lambda model, x, state: model(x, state))(model, x, state)
    with np.load(folder / "reference.npz") as reference:
        np.testing.assert_allclose(np.asarray(logits), reference["logits"][:64], rtol=1e-3, atol=1e-3)


class VoiceDetector(nn.Module):
    stft_conv: nn.Conv1d
    conv1: nn.Conv1d
    conv2: nn.Conv1d
    conv3: nn.Conv1d
    conv4: nn.Conv1d
    lstm_cell: nn.LSTMCell
    final_conv: nn.Conv1d

    @classmethod
    def init(cls) -> Any:
        sizes = [(129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1)]
        convs = [nn.Conv1d.init(KEY, into, out, 3, stride=stride, padding=1) for into, out, stride in sizes]
        stft = nn.Conv1d.init(KEY, 1, 258, 256, stride=128, bias=False)
        return cls(stft, *convs, nn.LSTMCell.init(KEY, 128, 128), nn.Conv1d.init(KEY, 128, 1, 1))

    def __call__(self, chunk: Any, carry: Any) -> Any:
        padded = vf.numpy.pad(chunk, ((0, 0), (0, 64)), mode="reflect")
        waves = self.stft_conv(padded[:, None])
        x = vf.numpy.sqrt(waves[:, :129] ** 2 + waves[:, 129:] ** 2)
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = nn.relu(conv(x))
        carry = self.lstm_cell(x[:, :, 0], carry)
        return nn.sigmoid(self.final_conv(nn.relu(carry[0])[:, :, None])).mean(), carry


def test_pretrained_voice_detector():
    folder = data_dir("models/silero_vad")
    template = vf.eval_shape(VoiceDetector.init)
    model = io.load_state_dict(template, io.from_torch(template)(io.open_safetensors(folder / "weights.safetensors")))
    with wave.open(str(folder / "test.wav")) as file, np.load(folder / "reference.npz") as reference:
        samples = np.frombuffer(file.readframes(-1), np.int16).astype(np.float32) / 32768
        expected = reference[reference.files[0]]
    count = 200
    padded = np.concatenate([np.zeros(64, np.float32), samples, np.zeros(512, np.float32)])
    step, carry, found = vf.jit(lambda chunk, carry: model(chunk, carry)), (vf.numpy.zeros((1, 128)),) * 2, []
    for i in range(count):
        probability, carry = step(padded[None, 512 * i : 512 * i + 576], carry)
        found.append(probability.item())
    np.testing.assert_allclose(found, expected[:count], atol=1e-4)
