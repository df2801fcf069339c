"""Make the buffers that a call of a program returns.

A result that takes a donated argument's memory is the argument's own buffer, if its type is the same: a training step returns most of its
arguments so, and nothing is called more often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter

from volta_fn.compiler.buffers.memory_layout import Output
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.runtime.device.memory import SMALL_READBACK, Buffer, Lease
from volta_fn.targets.wgsl.runtime.submission.readback import Readbacks

#: Calls for which readbacks of a result are requested eagerly after one was read.
_AHEAD = 16

#: Makes a buffer from a call's arguments, their memory, and the new blocks of the call.
_Maker = Callable[[Sequence[Buffer], Sequence[Lease], Sequence[Lease]], Buffer]


class Results:
    """The results of a program's calls.

    Args:
        outputs: descriptions of the results.
        constants: the buffers of those that are constants.
        made: the types of the values that the program computes.
        reuse: which of these take the memory of a donated argument: computed value -> argument.
        arguments: the arguments' types.
        reads_ahead: whether to request readbacks of small results eagerly if those of earlier calls were read.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        constants: Sequence[Buffer],
        made: Sequence[ShapedArray],
        reuse: Mapping[int, int],
        arguments: Sequence[ShapedArray],
        *,
        reads_ahead: bool,
    ) -> None:
        self.made, self.reuse, self.arguments, self.constants = made, reuse, arguments, constants
        self.uses = Counter([output.made for output in outputs])
        #: The computed values in blocks of their own, and the bytes of these.
        self.own = [number for number in range(len(made)) if number not in reuse]
        self.blocks = [max(made[number].nbytes, 4) for number in self.own]
        #: The makers of buffers that are neither arguments nor constants.
        self.makers: list[_Maker] = []
        #: The arguments that become results and may hold knowledge of their old elements.
        self.renewed: list[int] = []
        waiting = iter(range(len(arguments), len(arguments) + len(constants)))
        numbers = [next(waiting) if output.constant is not None else self._number(output) for output in outputs]
        #: Selects the results from arguments, constants and new buffers.
        self.pick: Callable[[Sequence[Buffer]], tuple[Buffer, ...]]
        self.pick = itemgetter(*numbers) if len(numbers) > 1 else lambda found: tuple([found[n] for n in numbers])
        small = [i for i, o in enumerate(outputs) if o.made is not None and 0 < made[o.made].nbytes <= SMALL_READBACK]
        #: For how many more calls readbacks are requested eagerly, by result.
        self.asked: dict[int, int] = {}
        #: The results that may be read ahead, and callbacks for when they are read.
        self.askable = [(i, partial(self.asked.__setitem__, i, _AHEAD)) for i in small if reads_ahead]

    def _number(self, output: Output) -> int:
        """Return the position of a result in (arguments, constants, new buffers)."""
        argument_number, aval = output.argument, None
        if output.made is not None:
            aval = self.made[output.made]
            argument_number = self.reuse.get(output.made) if self.uses[output.made] == 1 else None
        if argument_number is not None:
            argument = self.arguments[argument_number]
            if argument.shape == output.shape and (aval is None or aval.dtype == argument.dtype):
                if aval is not None and aval.nbytes <= SMALL_READBACK:
                    self.renewed.append(argument_number)
                return argument_number
        self.makers.append(self._maker(output))
        return len(self.arguments) + len(self.constants) + len(self.makers) - 1

    def _maker(self, output: Output) -> _Maker:
        shape = output.shape
        if output.made is None:
            argument = output.argument or 0
            return lambda arguments, given, new: shaped(arguments[argument], shape)
        dtype, size = self.made[output.made].dtype, self.made[output.made].nbytes
        if output.made in self.reuse:
            argument_number = self.reuse[output.made]
            return lambda arguments, given, new: Buffer(given[argument_number], shape, dtype, size)
        block = self.own.index(output.made)
        return lambda arguments, given, new: Buffer(new[block], shape, dtype, size)

    def of(self, arguments: Sequence[Buffer], given: Sequence[Lease], new: Sequence[Lease]) -> tuple[Buffer, ...]:
        """Return the results of a call.

        No other buffer shares the memory of the arguments that are overwritten.
        """
        for number in self.renewed:
            arguments[number].renew()
        return self.pick((*arguments, *self.constants, *[make(arguments, given, new) for make in self.makers]))

    def read_ahead(self, results: Sequence[Buffer], readbacks: Readbacks) -> None:
        """Request readbacks of the results that are likely to be read."""
        asked = self.asked
        for number, ask in self.askable:
            result = results[number]
            result.asked = ask
            if asked and number in asked and result.lease is not None:
                asked[number] -= 1
                if not asked[number]:
                    del asked[number]
                result.readback = readbacks.request(result.lease.block, result.size)


def shaped(buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
    """Return a buffer with the same elements and another shape."""
    if buffer.shape == shape:
        return buffer
    return Buffer(buffer.lease, shape, buffer.dtype, buffer.size, None if buffer.known is None else buffer.known.reshape(shape))
