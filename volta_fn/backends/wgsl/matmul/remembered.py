"""What is known of devices: for each adapter by name, the fastest schedules of classes of contractions.

Some come with the package, in a JSON file; others were learnt in this process, or in an earlier one and are in such a file in the user's
cache folder. What is not known can be found out, if somebody is there who measures on the device (see `tuning`).
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

from volta_fn.backends.folder import folder
from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.schedule import Schedule
from volta_fn.backends.wgsl.matmul.working import Working
from volta_fn.compiler.contractions.maps import Contraction, Map

#: The schedules that come with the package.
SHIPPED = Path(__file__).with_name("tuned.json")

#: Schedules by adapter and class.
Choices = dict[str, dict[str, Schedule]]


def class_of(c: Contraction) -> str:
    """What contractions have in common that one schedule serves: dtypes, sizes, and how operands and results lie in memory."""
    dtypes = ",".join(x.dtype.name for x in (c.lhs, c.rhs, c.target))
    forms = _form(c.lhs), _form(c.rhs), "4" if c.target.fours else "1"
    return f"{dtypes} {c.batch}x{c.m}x{c.n}x{c.k} {' '.join(forms)}"


#: What is behind the class where a product is one among others in a program, which may be done beside it: another schedule may serve then.
AMONG = " among others"


def _form(map_: Map) -> str:
    """How neighbours lie: fours along the index summed over (k4), or along the other (o4), or neither; with how many bounds."""
    fours = [name for name, inner in (("k4", True), ("o4", False)) if map_.fours(along_inner=inner)]
    return "".join(fours or ["1"]) + ("b" * len(map_.bounds))


def read(path: Path) -> Choices:
    """The schedules that a file has; none if there is no such file, or if it is not one of ours."""
    try:
        content = json.loads(path.read_text())
        return {adapter: {key: Schedule(**value) for key, value in known.items()} for adapter, known in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write(path: Path, choices: Choices) -> None:
    """Write a file that `read` reads."""
    content = {adapter: {key: value.as_dict() for key, value in sorted(known.items())} for adapter, known in sorted(choices.items())}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


@functools.cache
def shipped() -> Choices:
    """The schedules that come with the package."""
    return read(SHIPPED)


def users_file() -> Path | None:
    """Where schedules that were found on the user's devices are; None if nothing is kept."""
    where = folder()
    return None if where is None else where / "schedules.json"


@functools.cache
def _users() -> Choices:
    where = users_file()
    return {} if where is None else read(where)


#: What has been learnt in this process.
_learnt: Choices = {}

#: What finds the fastest schedule of a contraction: for devices, by their adapters' names, where that is wanted.
Finder = Callable[[Contraction, Working, Facts], Schedule]
_finders: dict[str, Finder] = {}


def learn(choices: Choices) -> None:
    """Remember schedules in this process."""
    for adapter, known in choices.items():
        _learnt.setdefault(adapter, {}).update(known)


def find_by(adapter: str, finder: Finder) -> None:
    """Have schedules that are not known found out from now on."""
    _finders[adapter] = finder


def remembered(c: Contraction, work: Working, facts: Facts, *, among: bool = False) -> Schedule | None:
    """The schedule that was found to be the fastest on a device of this name, or is found to be now, if it fits this one.

    If the product is one `among` others, the fastest one in their company is, if that is known.
    """
    name = class_of(c)
    for key in [name + AMONG, name] if among else [name]:
        for choices in (_learnt, _users(), shipped()):
            found = choices[facts.adapter].get(key) if facts.adapter in choices else None
            if found is not None and found.fits(work, facts):
                return found
    finder = _finders.get(facts.adapter)
    return None if finder is None else finder(c, work, facts)
