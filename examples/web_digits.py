"""Make a web page whose network learns handwritten digits in the browser.

    python examples/web_digits.py            # writes results/digits.html, to be opened in any browser with WebGPU

The page trains the LeNet of `mnist_cnn.py` on the GPU of whoever opens it, draws its batches there, reads what one draws, and learns from
corrections. It shows the accuracy on digits that it never trains on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import mnist_cnn

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, lax, nn, optim, random

BATCH, CHUNK = 64, 40


def arrays(digits: data.Dataset) -> dict[str, vf.Array]:
    """Return all images and labels of a dataset."""
    images, labels = next(iter(data.DataLoader(digits, len(digits))))
    return {"images": jnp.asarray(images), "labels": jnp.asarray(labels)}


def functions(optimizer: optim.GradientTransformation) -> dict[str, vf.web.Function]:
    """Return what the page calls: training, learning, reading, and the accuracy."""
    learned = ["model", "statistics", "moments"]

    def update(model: Any, statistics: Any, moments: Any, images: Any, labels: Any) -> tuple[Any, ...]:
        (loss, statistics), grads = vf.value_and_grad(mnist_cnn.loss, has_aux=True)(model, statistics, images, labels)
        updates, moments = optimizer.update(grads, moments, model)
        return optim.apply_updates(model, updates), statistics, moments, loss

    def train(model: Any, statistics: Any, moments: Any, digits: Any, step: Any) -> tuple[Any, ...]:
        chosen = random.randint(random.fold_in(random.key(1), step), (BATCH,), 0, len(digits["labels"]))
        return update(model, statistics, moments, digits["images"][chosen], digits["labels"][chosen])

    def learn(model: Any, statistics: Any, moments: Any, digits: Any, image: Any, label: Any) -> tuple[Any, ...]:
        # Among other digits, so that the network does not forget them.
        some, eight = BATCH - 8, (8, *image.shape)
        images = jnp.concatenate([digits["images"][:some], jnp.broadcast_to(image, eight)])
        labels = jnp.concatenate([digits["labels"][:some], jnp.broadcast_to(label, 8)])
        return update(model, statistics, moments, images, labels)

    def predict(model: Any, statistics: Any, image: Any) -> Any:
        return nn.softmax(model(image[None], statistics)[0])[0]

    def evaluate(model: Any, statistics: Any, unseen: Any) -> Any:
        count = len(unseen["labels"]) // CHUNK * CHUNK
        images, labels = unseen["images"][:count], unseen["labels"][:count]
        chunks = images.reshape(-1, CHUNK, *images.shape[1:]), labels.reshape(-1, CHUNK)
        right = lax.map(lambda chunk: jnp.argmax(model(chunk[0], statistics)[0], axis=1) == chunk[1], chunks)
        return jnp.mean(right.astype(jnp.float32))

    image, label = vf.ShapeDtypeStruct((1, 8, 8), "float32"), vf.ShapeDtypeStruct((), "int32")
    return {
        "train": vf.web.Function(train, [*learned, "digits", vf.ShapeDtypeStruct((), "uint32")], [*learned, "loss"]),
        "learn": vf.web.Function(learn, [*learned, "digits", image, label], [*learned, "loss"]),
        "predict": vf.web.Function(predict, ["model", "statistics", image], ["probabilities"]),
        "evaluate": vf.web.Function(evaluate, ["model", "statistics", "unseen"], ["accuracy"]),
    }


def main(argv: Sequence[str] | None = None) -> vf.web.ExportedPage:
    """Write the page, and return what was written."""
    options = common.arguments(__doc__, argv)
    digits, unseen = map(arrays, common.digits(None))
    model, statistics = mnist_cnn.build(random.key(options.seed), side=8)
    rate = optim.exponential_decay(3e-3, 100, 0.5, end_value=3e-4)  # so that later steps, and corrections, change little
    optimizer = optim.adamw(rate, weight_decay=1e-2)
    state = {"model": model, "statistics": statistics, "moments": optimizer.init(model), "digits": digits, "unseen": unseen}
    page = vf.web.Digits(
        title="A network that learns in this page",
        description=f"Train it on {len(digits['labels']):,} handwritten digits, then draw your own, and correct it where it is wrong.",
        counter="step",
        learn="learn",
        evaluate="evaluate",
    )
    options.out.mkdir(parents=True, exist_ok=True)
    exported = vf.export_web(options.out / "digits.html", state=state, functions=functions(optimizer), page=page, wasm=True)
    size = f"{exported.bytes / 1000:.0f} KB with {exported.shaders} shaders"
    print(f"{exported.files[0]}: {size}; a step of training is {exported.dispatches['train']} dispatches")
    return exported


if __name__ == "__main__":
    main()
