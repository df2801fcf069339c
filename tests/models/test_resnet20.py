"""The pretrained ResNet-20 of the example `load_pytorch`: real weights of PyTorch's, real photographs, PyTorch's logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import load_pytorch
import numpy as np
import pytest

import volta_fn as vf
from tests.data_files import data_dir
from volta_fn import data, io, nn, random
from volta_fn.errors import StateDictError

COUNT = 250


@pytest.fixture(scope="module")
def folder() -> Path:
    return data_dir("models/resnet20_cifar10")


@pytest.fixture(scope="module")
def network(folder: Path) -> tuple[nn.Sequential, Any]:
    return load_pytorch.load(folder / "weights.safetensors")


@pytest.fixture(scope="module")
def photographs() -> data.CIFAR10:
    return data.CIFAR10(data_dir("cifar10/test_batch_first1000.bin"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return np.load(folder / "reference.npz")


def test_logits_agree_with_the_reference(network: tuple[nn.Sequential, Any], photographs: data.CIFAR10, reference: Any) -> None:
    model, state = network
    expected = reference["logits"][:COUNT]
    actual, _ = vf.jit(model)(load_pytorch.PREPARE(photographs.images[:COUNT]), state)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_labels_are_those_of_the_reference(photographs: data.CIFAR10, reference: Any) -> None:
    np.testing.assert_array_equal(photographs.labels, reference["labels"])
    assert (reference["logits"].argmax(axis=1) == photographs.labels).mean() == 0.915


def test_one_photograph_gives_what_it_gives_among_others(
    network: tuple[nn.Sequential, Any], photographs: data.CIFAR10, reference: Any
) -> None:
    model, state = network
    one = vf.jit(lambda image: model(image[None], state)[0][0])
    images = load_pytorch.PREPARE(photographs.images[:4])
    np.testing.assert_allclose(vf.vmap(one)(images), reference["logits"][:4], rtol=1e-5, atol=4e-4)
    np.testing.assert_allclose(one(images[3]), reference["logits"][3], rtol=1e-5, atol=4e-4)


def test_its_own_files_are_loaded_as_they_are(network: tuple[nn.Sequential, Any], tmp_path: Path) -> None:
    io.save_safetensors(tmp_path / "own.safetensors", network, max_shard_size="200KB")
    loaded = io.load_state_dict(load_pytorch.resnet20(random.key(1)), io.load_safetensors(tmp_path))
    for ours, theirs in zip(vf.tree.leaves(loaded), vf.tree.leaves(network), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_without_a_mapping_it_is_refused(folder: Path) -> None:
    model, _ = load_pytorch.resnet20(random.key(0))
    with pytest.raises(StateDictError, match="linear.weight"):
        io.load_state_dict(model, io.load_safetensors(folder / "weights.safetensors"))


def test_another_network_is_refused(tmp_path: Path) -> None:
    weights = {"linear.weight": np.ones((10, 64), np.float32), "bn.running_mean": np.ones(3, np.float32)}
    io.save_safetensors(tmp_path / "other.safetensors", weights)
    with pytest.raises(StateDictError, match="conv1.weight"):
        load_pytorch.load(tmp_path / "other.safetensors")
