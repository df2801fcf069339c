"""A chat in the terminal: `python -m volta_fn.chat MODEL`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence

from volta_fn.chat.conversation import Conversation
from volta_fn.commands import run
from volta_fn.errors import VoltaError

_HELP = "/reset forgets the conversation, /exit ends; Ctrl-C stops an answer"


def main(arguments: Sequence[str] | None = None) -> int:
    """Talk until the end of the input; return 1 if the model cannot be loaded."""
    parser = argparse.ArgumentParser(prog="python -m volta_fn.chat", description=f"Talk with a language model. {_HELP}.")
    parser.add_argument("model", help="a folder as Hugging Face saves it, or a GGUF file")
    parser.add_argument("--system", help="instructions for the model")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="the longest answer (default: 512)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 chooses the most probable tokens (default: 0.7)")
    parser.add_argument("--top-k", type=int, default=50, help="sample from so many tokens (default: 50)")
    parser.add_argument("--top-p", type=float, default=0.9, help="and from the most probable of them that reach it (default: 0.9)")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="above 1 avoids repetitions (default: 1)")
    parser.add_argument("--seed", type=int, default=None, help="for the same answers again")
    parser.add_argument("--dtype", help="convert the weights, for example to float32")
    parser.add_argument("--speed", action="store_true", help="print the tokens per second")
    options = parser.parse_args(arguments)
    seed = time.time_ns() % 2**32 if options.seed is None else options.seed
    choices = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    try:
        conversation = Conversation.from_pretrained(
            options.model, dtype=options.dtype, system=options.system, max_new_tokens=options.max_new_tokens, seed=seed,
            repetition_penalty=options.repetition_penalty, **choices,
        )  # fmt: skip
    except VoltaError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    if sys.stdin.isatty():
        print(_HELP)
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return 0
        if text == "/exit":
            return 0
        if text == "/reset":
            conversation.reset()
        elif text:
            _answer(conversation, text, options.speed)


def _answer(conversation: Conversation, text: str, speed: bool) -> None:
    """Print an answer as it comes."""
    start, pieces = time.perf_counter(), 0
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(conversation.ask(text)) as answer:  # type: ignore[type-var]
        for piece in answer:
            print(piece, end="", flush=True)
            pieces += 1
    seconds = time.perf_counter() - start
    print(f"\n({pieces / max(seconds, 1e-9):.1f} pieces a second)" if speed else "", flush=True)


if __name__ == "__main__":
    run(main)
