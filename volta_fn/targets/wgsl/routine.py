"""Routines: the GPU code of kernels and equations, and shaders under construction.

A routine is a list of *dispatches*, each a compute shader over a number of workgroups; a dispatch begins when those before it are done.
Every array is a storage buffer that holds the bytes of NumPy's contiguous array, rounded up to a multiple of four: 32-bit numbers are
stored as themselves, complex64 as ``vec2<f32>``, and dtypes of one or two bytes (bool, int8, float16, bfloat16, …) are packed in ``u32``
words, low bits first. Bytes after the last element are undefined.

Sizes are literals in a shader: there are no uniforms. Equal texts are one pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from volta_fn.codegen.scalars import kind
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.scalars.number import ONE, Number, bits_of_half, half_of_bits, wgsl_type
from volta_fn.targets.wgsl.shader import Binding, Builtin, Declaration, Function, Module, ShaderModule, WorkgroupVariable


@dataclass(frozen=True)
class Dispatch:
    """One run of a compute shader."""

    #: Its i-th binding is the i-th of `buffers`.
    shader: ShaderModule
    #: Distinct buffer numbers: operands, results and workspaces are numbered in this order.
    buffers: tuple[int, ...]
    #: Workgroups along x, y and z.
    workgroups: tuple[int, int, int]
    #: Multiplications, or other iterations of innermost loops, if there may be very many.
    work: int = 0
    #: Generates a faster module that takes longer to compile and gives the same bits; None if there is none.
    faster: Callable[[], ShaderModule] | None = field(default=None, compare=False)

    @property
    def source(self) -> str:
        """The text of its shader: WGSL, or LLVM IR with a header (`nvidia.kernel`)."""
        return self.shader.text

    @property
    def fastest(self) -> str:
        """The text of the fastest shader, however long it takes to compile."""
        return self.source if self.faster is None else self.faster().text

    @property
    def written_buffers(self) -> frozenset[int]:
        """The numbers of the buffers that it writes."""
        return frozenset([self.buffers[binding] for binding in self.written_bindings])

    @property
    def written_bindings(self) -> frozenset[int]:
        """The numbers of the bindings that the shader declares as ``read_write``."""
        return frozenset([number for number, binding in enumerate(self.shader.bindings) if binding.written])


@dataclass(frozen=True)
class Routine:
    """The dispatches of a kernel or an equation."""

    dispatches: tuple[Dispatch, ...]
    #: Bytes of each workspace, a buffer with undefined contents.
    workspaces: tuple[int, ...] = ()


class Workspaces:
    """The workspaces of a routine, numbered after its operands and results."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.sizes: list[int] = []

    def new(self, size: int) -> int:
        """Add a workspace of `size` bytes, and return its buffer's number."""
        self.sizes.append(size)
        return self._first + len(self.sizes) - 1

    def words(self, count: int) -> int:
        """Add a workspace of `count` words of 32 bits, and return its buffer's number."""
        return self.new(4 * count)

    def size_of(self, number: int) -> int:
        """Return the bytes of a workspace by its buffer's number."""
        return self.sizes[number - self._first]


def grid(count: int, most: int = 65535) -> tuple[int, int, int]:
    """Return a grid of at least `count` workgroups.

    Shaders index them by ``id.x + id.y * x``; those from `count` on have nothing to do.
    """
    if count <= most:
        return count, 1, 1
    rows = -(-count // most)
    return -(-count // rows), rows, 1


# Arrays in storage buffers: loading and storing numbers.
#
# Dtypes of one and two bytes are packed in words of 32 bits. Invocations that write neighbouring elements one by one change words
# together, which takes atomic operations; fours of elements are words.


class ShaderArray:
    """A storage buffer as an array of numbers of a dtype.

    Indices are expressions of type u32. A *four* is the elements 4 i, …, 4 i + 3. Given the array's `size`, the last four may be
    incomplete: nothing beyond the array's end is accessed, and missing elements are loaded as some element of the array. If the size is a
    multiple of four, fours are accessed as vectors. With other `lanes`, groups of that many narrow numbers, 16 bytes, take the place of
    fours; the size is a multiple of them. Without a size (0), single elements are accessed.
    """

    def __init__(self, f: Function, name: str, dtype: np.dtype, written: bool, size: int = 0, lanes: int = 4) -> None:
        self.name = name
        self.dtype = dtype
        self.written = written
        self.size = size
        self.lanes = lanes
        self._f = f
        self._is_atomic = False
        #: Whether something has been loaded.
        self.is_read = False

    @property
    def _in_fours(self) -> bool:
        return self.size > 0 and self.size % self.lanes == 0 and 8 <= self.lanes * self.dtype.itemsize <= 16

    @property
    def _per_vector(self) -> int:
        """Words of a four."""
        return self.lanes // self._per_word

    @property
    def _per_word(self) -> int:
        """Elements in a word of 32 bits; 1 for wider dtypes, too."""
        return max(4 // self.dtype.itemsize, 1)

    @property
    def element(self) -> str:
        """The type of the buffer's elements."""
        if self._per_word == 1:
            component = wgsl_type(self.dtype)
            return f"vec4<{component}>" if self._in_fours else component
        if self._is_atomic:
            return "atomic<u32>"
        return f"vec{self._per_vector}<u32>" if self._in_fours else "u32"

    @property
    def length(self) -> int:
        """The number of the buffer's elements, given its size."""
        return -(-self.size // (self.lanes if self._in_fours else self._per_word))

    # single elements

    def load(self, index: str) -> Number:
        """Return an element."""
        f, per = self._f, self._per_word
        self.is_read = True
        if per == 1:
            return Number(self.dtype, f.let(wgsl_type(self.dtype), self._component(index)))
        index = f.named("u32", index)
        shift = f"({index} & {per - 1}u) * {32 // per}u"
        shifted = f.let("u32", f"{self._word(f'{index} >> {per.bit_length() - 1}u')} >> ({shift})")
        return self._unpacked(shifted, 0)

    def store(self, index: str, number: Number) -> None:
        """Write an element.

        Others may write neighbors in the same word at the same time, by this method.
        """
        f, per = self._f, self._per_word
        if per == 1:
            return f.emit(f"{self._component(index)} = {number.text};")
        assert not self._in_fours, "an array of which the size is given is written in fours"
        self._is_atomic = True
        index = f.named("u32", index)
        shift = f.let("u32", f"({index} & {per - 1}u) * {32 // per}u")
        word = f.let("u32", f"{index} >> {per.bit_length() - 1}u")
        f.emit(f"atomicAnd(&{self.name}[{word}], ~({self._mask}u << {shift}));")
        return f.emit(f"atomicOr(&{self.name}[{word}], {self._bits(number)} << {shift});")

    def _component(self, index: str) -> str:
        if not self._in_fours:
            return f"{self.name}[{index}]"
        index = self._f.named("u32", index)
        return f"{self.name}[{index} >> 2u][{index} & 3u]"

    # fours

    def load4(self, index: str) -> list[Number]:
        """Return the elements 4 index, …, 4 index + 3, or more lanes."""
        f, type_, per = self._f, wgsl_type(self.dtype), self._per_word
        self.is_read = True
        index = f.named("u32", index)
        if per > 1:
            words = self._words(index)
            return [self._unpacked(words[k // per], k % per) for k in range(self.lanes)]
        if self._in_fours:
            four = f.let(f"vec4<{type_}>", f"{self.name}[{index}]")
            return [Number(self.dtype, f"{four}.{c}") for c in "xyzw"]
        first = f.let("u32", f"{index} * 4u")
        return [Number(self.dtype, f.let(type_, f"{self.name}[{self._bounded(first, k, self.size)}]")) for k in range(4)]

    def store4(self, index: str, numbers: Sequence[Number]) -> None:
        """Write the elements 4 index, …, 4 index + 3, or more lanes, as words."""
        f, type_, per = self._f, wgsl_type(self.dtype), self._per_word
        index = f.named("u32", index)
        if per > 1:
            words = [self._packed(numbers[k : k + per]) for k in range(0, self.lanes, per)]
            f = self._f
            if self._in_fours:
                return f.emit(f"{self.name}[{index}] = vec{self._per_vector}<u32>({', '.join(words)});")
            if len(words) == 1:
                return f.emit(f"store_{self.name}({index}, {words[0]});")
            first = f.let("u32", f"{index} * 2u")
            f.emit(f"store_{self.name}({first}, {words[0]});")
            second = f"store_{self.name}({first} + 1u, {words[1]});"
            count = (self.size + 1) // 2
            return f.emit(f"if ({first} + 1u < {count}u) {{ {second} }}" if self.size % 4 in (1, 2) else second)
        if self._in_fours:
            return f.emit(f"{self.name}[{index}] = vec4<{type_}>({', '.join(x.text for x in numbers)});")
        first = f.let("u32", f"{index} * 4u")
        for k, x in enumerate(numbers):
            statement = f"{self.name}[{first} + {k}u] = {x.text};"
            f.emit(f"if ({first} + {k}u < {self.size}u) {{ {statement} }}" if k and self.size % 4 else statement)
        return None

    @staticmethod
    def _bounded(first: str, k: int, size: int) -> str:
        """Return first + k if that is in range, else an index that is."""
        if k == 0:
            return first
        return f"min({first} + {k}u, {size - 1}u)" if size % 4 else f"{first} + {k}u"

    # words

    @property
    def _mask(self) -> int:
        return (1 << (32 // self._per_word)) - 1

    def _word(self, index: str) -> str:
        if self._in_fours:
            index, per = self._f.named("u32", index), self._per_vector
            return f"{self.name}[{index} >> {per.bit_length() - 1}u][{index} & {per - 1}u]"
        if not self.written:
            return f"{self.name}[{index}]"
        return f"load_{self.name}({index})"  # a later store may make the words atomic

    def _words(self, index: str) -> list[str]:
        f = self._f
        if self._in_fours:
            words = f.let(f"vec{self._per_vector}<u32>", f"{self.name}[{index}]")
            return [f"{words}.{c}" for c in "xyzw"[: self._per_vector]]
        if self._per_word == 4:
            return [f.let("u32", self._word(index))]
        first = f.let("u32", f"{index} * 2u")
        second = f"min({first} + 1u, {(self.size + 1) // 2 - 1}u)" if self.size % 4 in (1, 2) else f"{first} + 1u"
        return [f.let("u32", self._word(first)), f.let("u32", self._word(second))]

    @property
    def accessors(self) -> list[str]:
        """Functions that load and store words of an array that is written."""
        if self._per_word == 1 or not self.written or self._in_fours:
            return []
        load, store = f"{self.name}[i]", f"{self.name}[i] = word"
        if self._is_atomic:
            load, store = f"atomicLoad(&{self.name}[i])", f"atomicStore(&{self.name}[i], word)"
        return [f"fn load_{self.name}(i: u32) -> u32 {{ return {load}; }}", f"fn store_{self.name}(i: u32, word: u32) {{ {store}; }}"]

    # between words and numbers

    def _unpacked(self, word: str, k: int) -> Number:
        f, category, width = self._f, kind(self.dtype), 32 // self._per_word
        if category == "int":
            return Number(self.dtype, f.let("i32", f"bitcast<i32>({word} << {32 - width - k * width}u) >> {32 - width}u"))
        bits = f"(({word} >> {k * width}u) & {self._mask}u)" if k else f"({word} & {self._mask}u)"
        if category == "float":
            return Number(self.dtype, f.let("f32", half_of_bits(f, bits, self.dtype)))
        return Number(self.dtype, f.let("bool", f"{bits} != 0u") if category == "bool" else f.let("u32", bits))

    def _packed(self, numbers: Sequence[Number]) -> str:
        width = 32 // self._per_word
        shifted_bits = [self._bits(x) + (f" << {k * width}u" if k else "") for k, x in enumerate(numbers)]
        return self._f.let("u32", " | ".join(f"({p})" for p in shifted_bits))

    def _bits(self, number: Number) -> str:
        """Return an expression for a number's bits, zeros above."""
        category = kind(self.dtype)
        if category == "bool":
            return f"select(0u, 1u, {number.text})"
        if category == "float":
            return bits_of_half(self._f, number.text, self.dtype)
        return f"(bitcast<u32>({number.text}) & {self._mask}u)" if category == "int" else number.text


class Atomics(ShaderArray):
    """A storage buffer as an array of atomic numbers, of which only the name is used."""

    @property
    def element(self) -> str:
        """The type of the buffer's elements."""
        return f"atomic<{wgsl_type(self.dtype)}>"


# Shaders under construction: the function `main`, with the buffers that it requests. `Shader.dispatch` makes a module of it.


class OtherAccess(Exception):
    """A buffer was requested again, for another kind of access."""


class Shader(Function):
    """A module with the entry point `main`, for workgroups of `invocations`."""

    #: Numbers of the workgroup in the grid and of the invocation in the workgroup, as u32.
    group = "group"
    local = "local"

    def __init__(self, capabilities: TargetCapabilities, invocations: int = 64) -> None:
        super().__init__(Module(capabilities))
        self.invocations = invocations
        self._arrays: dict[int, ShaderArray] = {}
        self._builtins = {"workgroup_id": "vec3<u32>", "local_invocation_index": "u32"}
        self._local = "_local_invocation_index"

    def buffer(self, number: int, dtype: np.dtype, written: bool = False, size: int = 0, lanes: int = 4) -> ShaderArray:
        """Return buffer `number` as an array.

        `size` is needed for accesses in fours, or more `lanes` (see `ShaderArray`).

        An array that is only read may be requested both with and without its size: single elements are accessible in either case. Raises
        `OtherAccess` if it was requested before for another kind of access, or if single elements of it were read before and fours are to
        be read now.
        """
        array = self._arrays.setdefault(number, ShaderArray(self, f"b{number}", dtype, written, size, lanes))
        if not (written or array.written) and 0 in (size, array.size) and not (size and array.is_read):
            array.size = size = max(size, array.size)
        if (array.dtype, array.written, array.size, array.lanes) != (dtype, written, size, lanes):
            raise OtherAccess(f"buffer {number}")
        return array

    def atomics(self, number: int, dtype: np.dtype) -> ShaderArray:
        """Return a buffer as an array of atomic int32 or uint32 numbers."""
        self._arrays[number] = Atomics(self, f"b{number}", dtype, written=True)
        return self._arrays[number]

    def workgroup(self, name: str, type_: str, length: int = 0) -> str:
        """Declare a variable, or an array, that the workgroup shares; return its name.

        It is not initialized.
        """
        return self.module.declare(name, WorkgroupVariable(name, type_, length))

    def tile(self, name: str, dtype: np.dtype, size: int) -> ShaderArray:
        """Return an array in workgroup memory, written in fours."""
        array = ShaderArray(self, name, dtype, written=True, size=size)
        self.module.declare(name, WorkgroupVariable(name, array.element, array.length))
        if array.accessors:
            self.module.declare(f"accessors of {name}", "\n".join(array.accessors))
        return array

    def builtin(self, name: str, type_: str = "u32") -> str:
        """``subgroup_size``, ``subgroup_invocation_id``, … as a name."""
        self._builtins[name] = type_
        return f"_{name}"

    def number_by_subgroups(self) -> None:
        """Order invocations such that those of a subgroup are neighbors.

        All subgroups must be full.
        """
        for name in ("subgroup_id", "subgroup_size", "subgroup_invocation_id"):
            self.builtin(name)
        self._local = "_subgroup_id * _subgroup_size + _subgroup_invocation_id"

    def for_each(self, count: int, body: Callable[[str], None], work: int = 0) -> Dispatch:
        """Return the dispatch with an invocation for each number below `count`."""
        number = self.let("u32", f"{self.group} * {self.invocations}u + {self.local}")
        with self.block(f"if ({number} < {count}u)"):
            body(number)
        return self.dispatch(-(-count // self.invocations), work)

    def dispatch(self, groups: int, work: int = 0) -> Dispatch:
        """Return the dispatch of `groups` workgroups.

        `work` is the number of multiplications in all of them, if that may be very large.
        """
        shape = grid(groups, self.module.capabilities.groups)
        arrays = {number: self._arrays[number] for number in sorted(self._arrays)}
        declarations: list[Declaration] = []
        for array in arrays.values():
            declarations += [Binding(array.name, array.element, array.written), *[f"{accessor}\n" for accessor in array.accessors]]
        begin = [f"  if (group >= {groups}u) {{ return; }}"] if shape[0] * shape[1] > groups else []
        if ONE in self.module:
            begin.append(f"  {ONE} = bitcast<f32>(0x3f800000u | _workgroup_id.z);")
        builtins = tuple([Builtin(name, f"_{name}", type_) for name, type_ in self._builtins.items()])
        module = ShaderModule(
            (*declarations, *self.module.declarations),
            self.invocations,
            builtins,
            "".join([f"{statement}\n" for statement in (*begin, *self.statements)]),
            group=f"_workgroup_id.x + _workgroup_id.y * {shape[0]}u",
            prologue=f"  let local = {self._local};\n",
        )
        return Dispatch(module, tuple(arrays), shape, work)
