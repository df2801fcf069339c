"""The layouts of pages: fields, digits to draw, or a text that a model continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from volta_fn.errors import ArgumentError


@dataclass(frozen=True)
class Layout:
    """The settings of all pages.

    Args:
        title: the page's title.
        description: a sentence or two below it.
        train: the name of the function that makes a step of training, if the page has one.
        loss: its result that the page shows as a curve.
        counter: its input for the number of the step, from 0, as to fold into a random key; None if it has none.
        file: the name of the file that weights are downloaded as.
    """

    title: str = "A model in this page"
    description: str = ""
    train: str | None = None
    loss: str = "loss"
    counter: str | None = None
    file: str = "weights"

    #: The file's name in `pages/`, without its suffix.
    kind: ClassVar[str] = ""

    def settings(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the page's script.

        Raises `ArgumentError` if a function, input or result of these names is not there.
        """
        if self.train is not None:
            check_names(manifest, self.train, [self.counter] if self.counter else [], [self.loss])
        return {"train": self.train, "loss": self.loss, "counter": self.counter, "file": self.file}


@dataclass(frozen=True)
class Plain(Layout):
    """A page for any functions: fields for inputs, tables and charts for results.

    Scalars get a number field, square pictures a canvas, other arrays a field for numbers or a CSV file. If `train` is given there are
    buttons that train, pause and reset, with the loss as a live curve; weights can be downloaded and loaded. For arguments see `Layout`.
    """

    kind: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Digits(Layout):
    """A page on which one draws, and the network says what it is.

    It trains, and learns from corrections.

    Args:
        predict: the function from a picture to probabilities.
        image: its input, a square picture of numbers from 0 to 1.
        probabilities: its result, one for each label.
        learn: a function that trains on one picture and its label; None if the page does not learn from corrections.
        label: its input for the number of the label. Its picture is `image`, too.
        evaluate: a function without inputs that returns the accuracy on unseen pictures; None if there is none.
        accuracy: its result.
        labels: the names of the classes.
        pen: the width of the pen, of 280 pixels of the drawing.
        margin: pixels of the picture around what is drawn.
        corrections: the steps that a correction takes.
        trained: whether the exported state is trained; else the page calls answers guesses until it has learned something.

    For the other arguments see `Layout`.
    """

    title: str = "Digits"
    train: str | None = "train"
    predict: str = "predict"
    image: str = "image"
    probabilities: str = "probabilities"
    learn: str | None = None
    label: str = "label"
    evaluate: str | None = None
    accuracy: str = "accuracy"
    labels: Sequence[str] = tuple("0123456789")
    pen: int = 30
    margin: float = 0
    corrections: int = 5
    trained: bool = False

    kind: ClassVar[str] = "digits"

    def settings(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the page's script."""
        settings = super().settings(manifest)
        picture = check_names(manifest, self.predict, [self.image], [self.probabilities])[0]
        size = _size(picture["shape"])
        side = round(size**0.5)
        if side * side != size:
            raise ArgumentError(f"Digits: expected a square picture, got {self.image} of shape {tuple(picture['shape'])}")
        if self.learn is not None:
            check_names(manifest, self.learn, [self.image, self.label], [])
        if self.evaluate is not None:
            check_names(manifest, self.evaluate, [], [self.accuracy])
        names = ("predict", "image", "probabilities", "learn", "label", "evaluate", "accuracy", "pen", "margin", "corrections", "trained")
        return settings | {name: getattr(self, name) for name in names} | {"labels": list(self.labels), "side": side, "evaluateEvery": 20}


@dataclass(frozen=True)
class Text(Layout):
    """A page with a text, which a language model of characters continues as one types.

    Args:
        write: the function from the last characters to the next characters.
        prompt: its input, the numbers of the last characters (int32). Shorter texts are filled up from the left.
        seed: its input for a number that decides what is drawn (uint32).
        temperature: its input for the temperature (float32); None if it has none.
        characters: its result, the numbers of the next characters (int32).
        symbols: all characters by their numbers.
        filler: the character that fills up short texts.
        prompt_text: the initial text.
        initial_temperature: the initial temperature.

    For the other arguments see `Layout`.
    """

    title: str = "Text"
    write: str = "write"
    prompt: str = "prompt"
    seed: str = "seed"
    temperature: str | None = None
    characters: str = "characters"
    symbols: str = ""
    filler: str = "\n"
    prompt_text: str = ""
    initial_temperature: float = 0.7

    kind: ClassVar[str] = "text"

    def settings(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the page's script."""
        settings = super().settings(manifest)
        if self.filler not in self.symbols:
            raise ArgumentError(f"Text: the filler {self.filler!r} is not among the symbols")
        fields = [self.prompt, self.seed, *([self.temperature] if self.temperature else [])]
        length = _size(check_names(manifest, self.write, fields, [self.characters])[0]["shape"])
        names = ("write", "prompt", "seed", "temperature", "characters", "symbols", "prompt_text", "initial_temperature")
        return settings | {name: getattr(self, name) for name in names} | {"length": length, "filler": self.symbols.index(self.filler)}


def _size(shape: Sequence[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def check_names(manifest: Mapping[str, Any], name: str, inputs: Sequence[str], results: Sequence[str]) -> list[dict[str, Any]]:
    """Return the inputs of a function.

    Raises `ArgumentError` if it, one of them, or a result is not there.
    """
    if name not in manifest["functions"]:
        raise ArgumentError(f"the page needs a function {name!r}, but there are {sorted(manifest['functions'])}")
    arrays = {array["name"]: array for array in manifest["arrays"]}
    parameters = [array.removeprefix(f"{name}/") for array in arrays if array.startswith(f"{name}/")]
    returned = [result["name"] for result in manifest["functions"][name]["results"]]
    for kind, required, available in (("input", inputs, parameters), ("result", results, returned)):
        for one in required:
            if one not in available:
                raise ArgumentError(f"the page needs the {kind} {one!r} of {name!r}, which has {available}")
    return [arrays[f"{name}/{one}"] for one in inputs]
