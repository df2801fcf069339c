"""Fine-tune a small language model by LoRA, and make a web page of it.

    python examples/web_lora.py            # writes results/lora.html, to be opened in any browser with WebGPU

A model with Llama's parts learns the characters of Python's source code. Adapters of rank 4 then learn the prose of Python's manual while
the model stays as it is. The page trains the adapters further, and writes with a cache of keys and values on the GPU of whoever opens it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import char_lstm
import common
import web_text

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, io, lax, nn, optim, random

LENGTH, PROMPT, BATCH, RANK = web_text.LENGTH, web_text.PROMPT, web_text.BATCH, 4


def loss(trained: Any, frozen: Any, inputs: vf.Array, targets: vf.Array) -> vf.Array:
    """Return the mean loss per character of the model that two parts make."""
    model = nn.combine(trained, frozen)
    return nn.cross_entropy(model(inputs), targets, axis=-1)


def train(trained: Any, frozen: Any, numbers: Any, optimizer: Any, steps: int, seed: int) -> tuple[Any, float]:
    """Train a part of a model on windows of a text.

    Returns it and the mean of the last losses.
    """

    @functools.partial(vf.jit, donate_argnums=(0, 2))
    def update(trained: Any, frozen: Any, moments: Any, inputs: vf.Array, targets: vf.Array) -> tuple[Any, Any, vf.Array]:
        value, gradient = vf.value_and_grad(loss)(trained, frozen, inputs, targets)
        updates, moments = optimizer.update(gradient, moments, trained)
        return optim.apply_updates(trained, updates), moments, value

    loader = data.DataLoader(numbers, 2 * BATCH, shuffle=True, key=seed, drop_last=True)
    batches = itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps)
    trained = vf.tree.map(jnp.array, trained)  # a copy, since steps overwrite it
    moments, losses = optimizer.init(trained), []
    for inputs, targets in data.progress(batches, "training", total=steps):
        trained, moments, value = update(trained, frozen, moments, inputs, targets)
        losses.append(value)
    return trained, float(jnp.mean(jnp.stack(losses[-20:])))


def write(trained: Any, frozen: Any, prompt: vf.Array, seed: vf.Array, temperature: vf.Array) -> vf.Array:
    """Draw the characters after a prompt."""
    model = nn.combine(trained, frozen)

    def draw(logits: vf.Array, key: vf.Array) -> vf.Array:
        return random.categorical(key, logits[0, -1] / temperature).astype("int32")

    def step(state: Any, key: vf.Array) -> tuple[Any, vf.Array]:
        number, cache = state
        logits, cache = model(number[None, None], cache=cache)
        return (draw(logits, key), cache), number

    first, rest = random.split(random.fold_in(random.key(0), seed))
    logits, cache = model(prompt[None], cache=model.init_cache(1, LENGTH), prefill=True)
    return lax.scan(step, (draw(logits, first), cache), random.split(rest, LENGTH - PROMPT))[1]


def functions(optimizer: optim.GradientTransformation) -> dict[str, vf.web.Function]:
    """Return what the page calls: writing, and a step of further training."""

    def learn(trained: Any, frozen: Any, moments: Any, text: Any, step: Any) -> tuple[Any, Any, Any]:
        starts = random.randint(random.fold_in(random.key(1), step), (BATCH, 1), 0, len(text) - LENGTH)
        windows = text[starts + jnp.arange(LENGTH + 1)].astype("int32")
        value, gradient = vf.value_and_grad(loss)(trained, frozen, windows[:, :-1], windows[:, 1:])
        updates, moments = optimizer.update(gradient, moments, trained)
        return optim.apply_updates(trained, updates), moments, value

    scalar = functools.partial(vf.ShapeDtypeStruct, ())
    written = ["adapters", "model", vf.ShapeDtypeStruct((PROMPT,), "int32"), scalar("uint32"), scalar("float32")]
    learnt = ["adapters", "model", "moments", "text", scalar("uint32")]
    return {
        "write": vf.web.Function(write, written, ["characters"]),
        "train": vf.web.Function(learn, learnt, ["adapters", "moments", "loss"]),
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, fine-tune, write the files; return the losses and the page."""
    options = common.arguments(__doc__, argv, **char_lstm.OPTIONS)
    steps = options.steps or (120 if options.quick else 1200)
    code, prose = common.text(options.text)[: 2_000_000 if not options.quick else 50_000], web_text.manual()
    vocabulary = data.Vocabulary.of(code + prose)
    windows = [data.CharDataset(text, LENGTH, vocabulary=vocabulary) for text in (code, prose)]
    width, layers = (32, 1) if options.quick else (96, 3)
    config = nn.CausalLMConfig(
        model_type="llama", vocab_size=len(vocabulary), hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH, initializer_range=width**-0.5,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = nn.CausalLM.init(random.key(options.seed), config)
    schedule = optim.warmup_cosine_decay_schedule(0.0, 0.004, steps // 20 + 1, steps, 0.0003)
    model, of_code = train(model, vf.tree.map(lambda _: None, model), windows[0], optim.adamw(schedule), steps, options.seed)
    adapted = nn.lora(model, random.key(options.seed + 1), RANK, alpha=2 * RANK)
    trained, frozen = nn.partition(adapted, nn.lora_filter(adapted))
    first = next(iter(data.DataLoader(windows[1], 2 * BATCH, shuffle=True, key=0)))
    before = float(loss(trained, frozen, *map(jnp.asarray, first)))
    trained, after = train(trained, frozen, windows[1], optim.adamw(0.004), steps // 3, options.seed + 2)
    share = nn.parameter_count(trained) / nn.parameter_count(frozen)
    print(f"{of_code:.2f} nats per character of code; {before:.2f} of prose, {after:.2f} with adapters of {share:.1%} of the parameters")
    options.out.mkdir(parents=True, exist_ok=True)
    adapted = nn.combine(trained, frozen)
    io.save_pretrained(options.out / "lora", nn.merge_lora(adapted))
    io.save_adapter(options.out / "lora" / "adapter", adapted)
    optimizer = optim.adamw(1e-3)
    page = vf.web.Text(
        title="A language model with adapters in this page",
        description="A small model of Python's source code, whose adapters learned the manual's prose. Type; Tab takes what it proposes.",
        train="train",
        counter="step",
        temperature="temperature",
        symbols="".join(vocabulary.symbols),
        prompt_text="The value of the expression is ",
    )
    text = jnp.asarray(vocabulary.encode(prose[-web_text.PAGE_TEXT :])).astype("uint8")
    state = {"adapters": trained, "model": frozen, "moments": optimizer.init(trained), "text": text}
    exported = vf.export_web(options.out / "lora.html", state=state, functions=functions(optimizer), page=page, storage="float16")
    print(f"{exported.files[0]}: {exported.bytes / 1000:.0f} KB with {exported.shaders} shaders")
    return {"code": of_code, "before": before, "after": after, "share": share, "page": exported}


if __name__ == "__main__":
    main()
