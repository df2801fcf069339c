"""Half spectra of long real signals.

The rules are those of `spectra`, and neighbouring numbers are the lanes of vectors.
"""

from __future__ import annotations

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.fourier import spectra
from volta_fn.targets.cpu.fourier.buffers import Buffers
from volta_fn.targets.cpu.fourier.butterflies import Complex
from volta_fn.targets.cpu.fourier.groups import Groups
from volta_fn.targets.cpu.fourier.roots import Roots
from volta_fn.targets.cpu.library.entry_points import RoutineWriter, task_range
from volta_fn.targets.cpu.scalars import Number, load, store
from volta_fn.targets.cpu.scalars.number import element
from volta_fn.targets.cpu.scalars.values import Lanes

_MOST_TASKS = 16
#: Nanoseconds for a number.
_NUMBER = 0.5


class Pairs:
    """Makes half spectra X of spectra Z of m pairs, or joins them to those.

    Both are in memory as complex numbers one after another, X with one more.
    """

    def __init__(self, dtype: np.dtype, lanes: int, m: int, joins: bool) -> None:
        self.dtype = dtype
        self.lanes = lanes
        self.m = m
        self.joins = joins

    def launch(self, writer: RoutineWriter, count: int, source: int, target: int) -> None:
        """Add an entry point for so many spectra, with the numbers of two of its arrays."""
        pairs = (self.m - 1) // 2
        groups = Groups(pairs, self.lanes)
        tasks = min(_MOST_TASKS, count * groups.runs)

        def task(f: Function, pointers: list[Value], number: Value) -> None:
            buffers = Buffers(f, element(self.dtype), self.lanes)
            table = buffers.table("lanes.half", np.arange(self.lanes), 2 * self.m, self.lanes, less_one=True)
            roots = Roots(buffers, 2 * self.m)

            def one(index: Value, _: list[Value]) -> None:
                signal, inside = f.divided(index, groups.runs)
                given, made = (
                    f.at(pointers[which], f"[{self.dtype.itemsize * (self.m + more)} x i8]", signal)
                    for which, more in ((source, self.joins), (target, not self.joins))
                )

                def group(first: Value) -> None:
                    k = f.plus(first, i64(1))
                    self._group(f, given, made, k, roots.power(k).grown(buffers.load(table, i64(0))))

                f.branch(f.compare("icmp eq", inside, i64(0)), lambda: self._ends(f, given, made))
                groups.emit(f, inside, group)

            f.loop(*task_range(f, number, count * groups.runs, tasks), 1, [], one)

        writer.launch(tasks, _NUMBER * count * self.m, task)

    def _ends(self, f: Function, given: Value, made: Value) -> None:
        """Emit the numbers without a partner."""
        m, first = self.m, self._load(f, given, i64(0), 1)
        if self.joins:
            self._store(f, made, i64(0), spectra.join_ends(first, self._load(f, given, i64(m), 1)))
        else:
            for number, end in zip((0, m), spectra.split_ends(first), strict=True):
                self._store(f, made, i64(number), end)
        if m % 2 == 0:
            self._store(f, made, i64(m // 2), self._load(f, given, i64(m // 2), 1).conjugate())

    def _group(self, f: Function, given: Value, made: Value, k: Value, root: Complex) -> None:
        """Emit numbers from k on, and their partners, which are in descending order."""
        mirror = f.minus(i64(self.m - self.lanes + 1), k)
        here, there = self._load(f, given, k, self.lanes), self._load(f, given, mirror, self.lanes)
        rule = spectra.join_pair if self.joins else spectra.split_pair
        first, second = rule(here, self._reversed(there).conjugate(), root)
        self._store(f, made, k, first)
        self._store(f, made, mirror, self._reversed(second))

    def _reversed(self, z: Complex) -> Complex:
        return Complex(*[component.taken(range(self.lanes - 1, -1, -1)) for component in z])

    def _load(self, f: Function, base: Value, number: Value, lanes: int) -> Complex:
        """Emit the load of neighbouring numbers."""
        found = load(f, self.dtype, self._at(f, base, number), lanes)
        return Complex(*[Lanes(f, component) for component in found.components])

    def _store(self, f: Function, base: Value, number: Value, z: Complex) -> None:
        """Emit the store of neighbouring numbers."""
        store(f, Number(self.dtype, (z.re.value, z.im.value)), self._at(f, base, number))

    def _at(self, f: Function, base: Value, number: Value) -> Value:
        return f.at(base, f"[{self.dtype.itemsize} x i8]", number)
