"""Make a web page with a small language model that goes on as one types.

    python examples/web_text.py            # writes results/text.html, to be opened in any browser with WebGPU

The transformer of `char_transformer.py` first learns from Python's source code, then, in fewer steps, from the prose of Python's manual.
The page trains it further, and writes with a cache of keys and values on the GPU of whoever opens it.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from typing import Any

import char_lstm
import common
from char_transformer import CharTransformer

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, lax, optim, random

LENGTH, PROMPT, BATCH = 64, 32, 16
PAGE_TEXT = 60_000  # characters of the manual that the page trains on


def manual() -> str:
    """Return the prose of Python's language reference."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def train(model: Any, text: str, vocabulary: data.Vocabulary, optimizer: Any, steps: int, seed: int) -> tuple[Any, float]:
    """Train on windows of a text; return the model and the last losses' mean."""

    @functools.partial(vf.jit, donate_argnums=(0, 1))
    def update(model: Any, moments: Any, inputs: vf.Array, targets: vf.Array) -> tuple[Any, Any, vf.Array]:
        value, grads = vf.value_and_grad(char_lstm.loss)(model, inputs, targets)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), moments, value

    windows = data.CharDataset(text, LENGTH, vocabulary=vocabulary)
    loader = data.DataLoader(windows, 2 * BATCH, shuffle=True, key=seed, drop_last=True)
    batches = itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps)
    moments, losses = optimizer.init(model), []
    for inputs, targets in data.progress(batches, "training", total=steps):
        model, moments, value = update(model, moments, inputs, targets)
        losses.append(value)
    return model, float(jnp.mean(jnp.stack(losses[-20:])))


def write(model: CharTransformer, prompt: vf.Array, seed: vf.Array, temperature: vf.Array) -> vf.Array:
    """Draw the characters after a prompt."""

    def draw(hidden: vf.Array, key: vf.Array) -> vf.Array:
        return random.categorical(key, model.out(hidden[0, -1]) / temperature).astype(jnp.int32)

    def step(state: Any, key: vf.Array) -> tuple[Any, vf.Array]:
        number, cache = state
        hidden, cache = model.layers(model.embed(number[None, None]), cache=cache)
        return (draw(hidden, key), cache), number

    first, rest = random.split(random.fold_in(random.key(0), seed))
    hidden, cache = model.layers(model.embed(prompt[None]), cache=model.layers.init_cache(1, LENGTH))
    return lax.scan(step, (draw(hidden, first), cache), random.split(rest, LENGTH - PROMPT))[1]


def functions(optimizer: optim.GradientTransformation) -> dict[str, vf.web.Function]:
    """Return what the page calls: writing, and a step of further training."""

    def learn(model: Any, moments: Any, text: Any, step: Any) -> tuple[Any, Any, Any]:
        starts = random.randint(random.fold_in(random.key(1), step), (BATCH, 1), 0, len(text) - LENGTH)
        windows = text[starts + jnp.arange(LENGTH + 1)].astype(jnp.int32)
        value, grads = vf.value_and_grad(char_lstm.loss)(model, windows[:, :-1], windows[:, 1:])
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), moments, value

    scalar = functools.partial(vf.ShapeDtypeStruct, ())
    written = ["model", vf.ShapeDtypeStruct((PROMPT,), "int32"), scalar("uint32"), scalar("float32")]
    return {
        "write": vf.web.Function(write, written, ["characters"]),
        "train": vf.web.Function(learn, ["model", "moments", "text", scalar("uint32")], ["model", "moments", "loss"]),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, write the page, and return the losses and what was written."""
    options = common.arguments(__doc__, argv, **char_lstm.OPTIONS)
    steps = options.steps or (20 if options.quick else 1200)
    code, prose = common.text(options.text)[: 2_000_000 if not options.quick else 50_000], manual()
    vocabulary = data.Vocabulary.of(code + prose)
    width, layers = (32, 1) if options.quick else (96, 3)
    model = CharTransformer.init(random.key(options.seed), len(vocabulary), width=width, layers=layers, heads=4, length=LENGTH)
    start = time.perf_counter()
    schedule = optim.warmup_cosine_decay_schedule(0.0, 0.016, steps // 20 + 1, steps, 0.0003)
    model, before = train(model, code, vocabulary, optim.muon(schedule, consistent_rms=0.2), steps, options.seed)
    model, after = train(model, prose, vocabulary, optim.adamw(1e-3), steps // 3, options.seed + 1)
    print(f"{before:.2f} nats per character of code, then {after:.2f} of prose, after {time.perf_counter() - start:.0f} s")
    optimizer = optim.adamw(5e-4)
    numbers = jnp.asarray(vocabulary.encode(prose[-PAGE_TEXT:])).astype("uint8")
    page = vf.web.Text(
        title="A language model in this page",
        description="A small transformer that learned Python's source code, then the manual's prose. Type; Tab takes what it proposes.",
        train="train",
        counter="step",
        temperature="temperature",
        symbols="".join(vocabulary.symbols),
        prompt_text="The value of the expression is ",
    )
    options.out.mkdir(parents=True, exist_ok=True)
    state = {"model": model, "moments": optimizer.init(model), "text": numbers}
    exported = vf.export_web(options.out / "text.html", state=state, functions=functions(optimizer), page=page, storage="float16")
    print(f"{exported.files[0]}: {exported.bytes / 1000:.0f} KB with {exported.shaders} shaders")
    return {"code": before, "prose": after, "page": exported}


if __name__ == "__main__":
    main()
