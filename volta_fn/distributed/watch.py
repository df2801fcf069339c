"""The thread that watches over a process's collectives.

A collective waits in MPI's code, where nothing can be raised. So a thread listens to the other processes. It ends this process, after a
message that says why, when another one has failed or is lost. When a collective takes longer than `_ASK`, it asks the others where they
are: those that have not come to it are missing. If a missing process waits for this one in another collective, or has ended, or the limit
is over, the process ends with an error that names them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, NoReturn

from volta_fn.distributed.calls import Call, Calls
from volta_fn.distributed.control import Connection, Message
from volta_fn.distributed.report import is_launched, report

#: Seconds between two looks, and after which the others are asked.
_LOOK, _ASK = 0.1, 1.0
#: Seconds that others have to read of a failure before this process ends, and with it maybe the switchboard.
LAST_WORDS = 0.3


class Watch:
    """Watches over the collectives of this process."""

    def __init__(self, connection: Connection, calls: Calls, limit: float) -> None:
        self.connection, self.calls, self.limit = connection, calls, limit
        self._answers: dict[int, Message] = {}
        self._left: set[int] = set()
        self._asked: Call | None = None
        self._next_question = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="volta_fn watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say that this process needs no others any more."""
        self._stopped = True
        self.connection.send("left")
        self._thread.join()
        self.connection.close()

    def fail(self, text: str) -> None:
        """Tell the others that this process has failed."""
        self._stopped = True
        report(self.connection.rank, "failed", text, self.connection.rank)
        self.connection.send("failed", text=text)

    def _watch(self) -> None:
        while not self._stopped:
            for message in self.connection.messages(_LOOK):
                self._on_message(message)
            for call in self.calls.current():
                self._look_at(call)

    def _on_message(self, message: Message) -> None:
        kind, rank = message["kind"], message["rank"]
        if self._stopped:
            return
        if kind == "lost":
            self._end("lost", f"process {rank} has died", rank)
        elif kind == "failed":
            self._end("ended", f"process {rank} has failed: {message['text']}", rank)
        elif kind == "left":
            self._left.add(rank)
        elif kind == "where":
            self.connection.send("here", to=rank, call=message["call"], **self._position(message["call"]))
        elif kind == "here" and self._asked is not None and message["call"][1:] == _named(self._asked)[1:]:
            self._answers[rank] = message

    def _position(self, call: Any) -> dict[str, Any]:
        """Say how far this process is in a group's calls, and what it waits for."""
        _, ranks, thread, _ = call
        return {"count": self.calls.count(tuple(ranks), thread), "waits": [_named(c) for c in self.calls.current()]}

    def _look_at(self, call: Call) -> None:
        """Find out why a call waits for long; end the process if it is in vain."""
        now = time.monotonic()
        if now - call.since < _ASK:
            return
        if self._asked != call:
            self._asked, self._answers, self._next_question = call, {}, now
        others = [r for r in call.ranks if r != self.connection.rank]
        missing = [r for r in others if not self._has_come(r, call)]
        for rank in others:
            if reason := self._never_comes(rank, call, rank in missing):
                self._end("failed", f"process {self.connection.rank} waits for process {rank} in {call.description}, but {reason}", rank)
        if now - call.since > self.limit:
            who = f"{missing} have not come" if missing else "all others have come"
            text = f"process {self.connection.rank} has waited longer than {self.limit:g} s in {call.description}: of the processes {who}"
            self._end("failed", text, missing[0] if missing else None)
        if now >= self._next_question:
            self._next_question = now + _ASK
            self.connection.send("where", call=_named(call))

    def _has_come(self, rank: int, call: Call) -> bool:
        answer = self._answers.get(rank)
        return answer is not None and answer["count"] >= call.number

    def _never_comes(self, rank: int, call: Call, missing: bool) -> str | None:
        """Return why a process does not join a call, if that is known."""
        if missing and rank in self._left:
            return "that has ended"
        answer = self._answers.get(rank)
        for description, ranks, thread, number in answer["waits"] if answer is not None else ():
            in_same = (tuple(ranks), thread, number) == call[1:4] and description != call.description
            waits_for_this = missing and self.connection.rank in ranks and self.calls.count(tuple(ranks), thread) < number
            if in_same or waits_for_this:
                return f"that waits for it in {description}: the processes run different programs, or the same with different shapes"
        return None

    def _end(self, kind: str, text: str, rank: int | None) -> NoReturn:
        """End this process."""
        report(self.connection.rank, kind, text, rank)
        if kind == "failed":
            self.connection.send("failed", text=text)
        if not is_launched():
            print(f"volta_fn: {text}. Process {self.connection.rank} ends.", file=sys.stderr, flush=True)
        sys.stdout.flush()
        time.sleep(LAST_WORDS)
        os._exit(1)


def _named(call: Call) -> list[Any]:
    """Return what identifies a call, as JSON has it."""
    return [call.description, list(call.ranks), call.thread, call.number]
