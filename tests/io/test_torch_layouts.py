"""Models from PyTorch, loaded by `from_torch` alone, compute the same here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import io, nn
from volta_fn.errors import ArgumentTypeError, StateDictError

torch = pytest.importorskip("torch")

KEY = vf.random.key(0)


def moved(module: Any, template: Any, folder: Path) -> Any:
    """Return the template with the parameters of PyTorch's module, through a file."""
    from safetensors.torch import save_file

    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) - 0.3)
    save_file(module.state_dict(), folder / "model.safetensors")
    return io.load_state_dict(template, io.from_torch(template)(io.load_safetensors(folder / "model.safetensors")))


def assert_agrees(module: Any, layer: Callable[..., Any], *inputs: np.ndarray, tolerance: float = 1e-5) -> None:
    with torch.no_grad():
        expected = module(*map(torch.from_numpy, inputs))
    out = layer(*inputs)
    for a, b in zip(_flat(out), _flat(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def _flat(value: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in vf.tree.leaves(value)]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


LAYERS = {
    "linear": (lambda: torch.nn.Linear(3, 4), lambda: nn.Linear.init(KEY, 3, 4), (2, 3)),
    "square linear": (lambda: torch.nn.Linear(3, 3, bias=False), lambda: nn.Linear.init(KEY, 3, 3, bias=False), (2, 3)),
    "conv1d": (lambda: torch.nn.Conv1d(4, 6, 3, groups=2), lambda: nn.Conv1d.init(KEY, 4, 6, 3, groups=2), (2, 4, 9)),
    "conv2d": (lambda: torch.nn.Conv2d(3, 3, 3), lambda: nn.Conv2d.init(KEY, 3, 3, 3), (2, 3, 5, 5)),
    "conv_transpose2d": (lambda: torch.nn.ConvTranspose2d(4, 6, 3), lambda: nn.ConvTranspose2d.init(KEY, 4, 6, 3), (2, 4, 5, 5)),
    "layer_norm": (lambda: torch.nn.LayerNorm(5), lambda: nn.LayerNorm.init(5), (3, 5)),
    "group_norm": (lambda: torch.nn.GroupNorm(2, 4), lambda: nn.GroupNorm.init(2, 4), (2, 4, 3)),
    "instance_norm": (
        lambda: torch.nn.InstanceNorm1d(4, affine=True),
        lambda: nn.InstanceNorm1d.init(4, affine=True),
        (2, 4, 6),
    ),
    "weight_norm": (
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 4)),
        lambda: nn.WeightNorm.init(nn.Linear.init(KEY, 3, 4)),
        (2, 3),
    ),
    "weight_norm of a convolution": (
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 2)),
        lambda: nn.WeightNorm.init(nn.Conv1d.init(KEY, 3, 4, 2)),
        (2, 3, 5),
    ),
    "stack": (
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Linear(4, 2))),
        lambda: nn.Sequential(encoder=nn.Linear.init(KEY, 3, 4), act=nn.relu, head=nn.Sequential(out=nn.Linear.init(KEY, 4, 2))),
        (2, 3),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, tmp_path):
    theirs, ours, shape = LAYERS[name]
    module = theirs().eval()
    assert_agrees(module, moved(module, ours(), tmp_path), random(*shape))


def test_bilinear(tmp_path):
    module = torch.nn.Bilinear(3, 4, 5)
    assert_agrees(module, moved(module, nn.Bilinear.init(KEY, 3, 4, 5), tmp_path), random(2, 3), random(2, 4))


@pytest.mark.wide
def test_embeddings_are_not_transposed(tmp_path):
    """Keep embeddings, even square ones next to linear layers of the same shape."""
    module = torch.nn.Sequential(torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4))
    model = moved(module, nn.Sequential(nn.Embedding.init(KEY, 4, 4), nn.Linear.init(KEY, 4, 4)), tmp_path)
    assert_agrees(module, model, np.array([[0, 3], [1, 2]]))


OPTIONS = [{}, {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "bias": False}]


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_recurrent_layers(name, options, tmp_path):
    module = getattr(torch.nn, name)(3, 4, **options, batch_first=True)
    layer = moved(module, getattr(nn, name).init(KEY, 3, 4, **options), tmp_path)
    assert_agrees(lambda x: module(x)[0], lambda x: layer(x)[0], random(2, 5, 3))


@pytest.mark.parametrize("name", ["RNNCell", "LSTMCell", "GRUCell"])
def test_recurrent_cells(name, tmp_path):
    module = getattr(torch.nn, name)(3, 3)
    assert_agrees(module, moved(module, getattr(nn, name).init(KEY, 3, 3), tmp_path), random(2, 3))


@pytest.mark.parametrize("sizes", [{}, {"kdim": 5, "vdim": 6}, {"bias": False}], ids=str)
def test_attention(sizes, tmp_path):
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True, **sizes)
    layer = moved(module, nn.MultiHeadAttention.init(KEY, 8, 2, **sizes), tmp_path)
    q, k, v = random(2, 4, 8), random(2, 3, sizes.get("kdim", 8)), random(2, 3, sizes.get("vdim", 8))
    assert_agrees(lambda *x: module(*x)[0], layer, q, k, v)


def test_attention_with_projections_of_their_own(tmp_path):
    """Files that already have three projections, as Llama's, are read as such."""
    mha = nn.MultiHeadAttention.init(KEY, 8, 2)
    saved = {n: v.T if n.endswith("weight") else v for n, v in io.state_dict(mha).items()}
    loaded = io.load_state_dict(mha, io.from_torch(mha)(saved))
    np.testing.assert_array_equal(loaded.k_proj.weight, mha.k_proj.weight)


def test_transformers(tmp_path):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    encoder = moved(module, nn.TransformerEncoder.init(KEY, 2, 8, 2, 16), tmp_path)
    assert_agrees(module, encoder, random(2, 5, 8), tolerance=1e-4)
    layer = torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    module = torch.nn.TransformerDecoder(layer, 2, norm=torch.nn.LayerNorm(8)).eval()
    decoder = moved(module, nn.TransformerDecoder.init(KEY, 2, 8, 2, 16, norm_first=True), tmp_path)
    assert_agrees(module, decoder, random(2, 5, 8), random(2, 3, 8), tolerance=1e-4)


@pytest.mark.wide
@pytest.mark.parametrize(("rank", "shape"), [(1, (4, 3, 5)), (2, (4, 3, 5, 5)), (3, (2, 3, 2, 3, 4))])
def test_batch_norms_give_their_state(rank, shape, tmp_path):
    module = getattr(torch.nn, f"BatchNorm{rank}d")(3)
    module(torch.from_numpy(random(*shape)))
    layer, state = moved(module, getattr(nn, f"BatchNorm{rank}d").init(3), tmp_path)
    assert (state.batches.item(), state.batches.dtype.name) == (1, "int32")
    with torch.no_grad():  # variances are positive
        state = state._replace(var=vf.numpy.abs(state.var))
        module.running_var.abs_()
    assert_agrees(module.eval(), lambda x: layer(x, state)[0], random(*shape), tolerance=1e-4)


class Block(nn.Module):
    conv: nn.Conv2d
    bns: list[nn.BatchNorm2d]

    def __call__(self, x: Any, state: Any, *, training: bool = False) -> Any:
        y, first = self.bns[0](self.conv(x), state["bns"][0], training=training)
        y, second = self.bns[1](y, state["bns"][1], training=training)
        return y, {"bns": [first, second]}


@pytest.mark.wide
def test_states_of_nested_modules(tmp_path):
    class TorchBlock(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 3, 3)
            self.bns = torch.nn.ModuleList([torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)])

        def forward(self, x: Any) -> Any:
            return self.bns[1](self.bns[0](self.conv(x)))

    module = torch.nn.Sequential(TorchBlock(), torch.nn.ReLU()).eval()
    block = Block.join(conv=nn.Conv2d.init(KEY, 2, 3, 3), bns=[nn.BatchNorm2d.init(3), nn.BatchNorm2d.init(3)])
    model, state = moved(module, nn.Sequential.init(block=block, act=nn.relu), tmp_path)
    state = vf.tree.map(abs, state)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if "running" in name:
                buffer.abs_()
    assert_agrees(module, lambda x: model(x, state)[0], random(2, 2, 5, 5), tolerance=1e-4)


@pytest.mark.parametrize("old_style", [False, True])
def test_spectral_norm(old_style, tmp_path):
    wrap = torch.nn.utils.spectral_norm if old_style else torch.nn.utils.parametrizations.spectral_norm
    module = wrap(torch.nn.Linear(3, 4))
    module.train()(torch.ones(1, 3))
    template = nn.SpectralNorm.init(KEY, nn.Linear.init(KEY, 3, 4))
    saved = {name: vf.numpy.asarray(value.detach().numpy()) for name, value in module.state_dict().items()}
    layer, state = io.load_state_dict(template, io.from_torch(template)(saved))
    assert_agrees(module.eval(), lambda x: layer(x, state)[0], random(2, 3))


def test_old_weight_norm():
    weight, lengths = random(4, 3), random(4, 1)
    template = nn.WeightNorm.init(nn.Linear.init(KEY, 3, 4, bias=False))
    layer = io.load_state_dict(template, io.from_torch(template)({"weight_v": weight, "weight_g": lengths}))
    np.testing.assert_allclose(layer.unwrapped().weight.T, lengths * weight / np.linalg.norm(weight, axis=1, keepdims=True), rtol=1e-5)


def test_batches_count_from_zero_where_the_file_does_not_say():
    template = nn.BatchNorm1d.init(2)
    saved = {name: np.ones(2, np.float32) for name in ("weight", "bias", "running_mean", "running_var")}
    _, state = io.load_state_dict(template, io.from_torch(template)(saved))
    assert state.batches.item() == 0


def test_counts_that_do_not_fit_are_reported():
    template = nn.BatchNorm1d.init(2)
    saved = {name: np.ones(2, np.float32) for name in ("weight", "bias", "running_mean", "running_var")}
    with pytest.raises(StateDictError, match=r"1\.batches: expected i32\[\], found i64\[\]"):
        io.load_state_dict(template, io.from_torch(template)(saved | {"num_batches_tracked": np.array(2**40)}))


@pytest.mark.wide
def test_templates_without_numbers():
    shapes = vf.eval_shape(lambda: nn.Sequential.init(nn.Linear.init(KEY, 3, 4), nn.BatchNorm1d.init(4)))
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    saved = {name: value.numpy() for name, value in module.state_dict().items()}
    model, state = io.load_state_dict(shapes, io.from_torch(shapes)(saved))
    np.testing.assert_array_equal(np.asarray(model[0].weight), module[0].weight.detach().numpy().T)
    assert state["1"].var.tolist() == [1] * 4


def test_what_does_not_belong_is_reported_and_not_lost():
    linear = nn.Linear.init(KEY, 3, 4)
    out = io.from_torch(linear)({"weight": random(4, 3, 1), "extra": random(1)})
    diff = io.diff_state_dict(linear, out)
    assert (diff.missing, diff.unexpected, [m.actual for m in diff.mismatched]) == (("bias",), ("extra",), ["f32[4,3,1]"])
    model = nn.Sequential(nn.Linear.init(KEY, 1, 1))
    assert io.diff_state_dict(model, io.from_torch(model)({})).missing == ("0.weight", "0.bias")


def test_prefixes_of_checkpoints():
    """Remove a prefix first, as Hugging Face's models have it."""
    linear = nn.Linear.init(KEY, 3, 4)
    mapper = io.StateDictMapper().select_prefix("base.fc") | io.from_torch(linear)
    loaded = io.load_state_dict(linear, mapper({"base.fc.weight": random(4, 3), "base.fc.bias": random(4), "head.weight": random(2)}))
    np.testing.assert_array_equal(np.asarray(loaded.weight), random(4, 3).T)


def test_the_model_comes_before_the_state_dict() -> None:
    torch = pytest.importorskip("torch")
    linear, model = torch.nn.Linear(3, 2), nn.Linear.init(vf.random.key(0), 3, 2)
    with pytest.raises(ArgumentTypeError, match=r"from_torch\(model\)\(torch_model\.state_dict\(\)\)"):
        io.from_torch(linear.state_dict())
    with pytest.raises(ArgumentTypeError, match=r"got StateDictMapper\. Call the mapper with a state dict first"):
        io.load_state_dict(model, io.from_torch(model))
    loaded = io.load_state_dict(model, io.from_torch(model)(linear.state_dict()))
    expected = linear.weight.detach().numpy().T.copy()
    with torch.no_grad():
        linear.weight.zero_()
    np.testing.assert_array_equal(loaded.weight, expected)


def test_tensors_of_every_kind_are_taken() -> None:
    torch = pytest.importorskip("torch")
    model = nn.Linear.init(vf.random.key(0), 3, 2, dtype="bfloat16")
    arguments = {"weight": torch.nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16).T), "bias": torch.zeros(2, dtype=torch.bfloat16)}
    assert io.load_state_dict(model, io.from_torch(model)(arguments)).weight.dtype == "bfloat16"
