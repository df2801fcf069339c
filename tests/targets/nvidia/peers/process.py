"""A process with an emulated GPU, which shares memory with those of others: `process.py SCRIPT …` runs a script on it.

python -m volta_fn.launch -n 2 tests/targets/nvidia/peers/process.py tests/distributed/law_cases.py --every 20
"""

from __future__ import annotations

import ctypes
import mmap
import os
import runpy
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.targets.nvidia import emulated_gpu
from tests.targets.nvidia.fake_cuda import FakeCuda, at
from tests.targets.nvidia.peers.emulated_peers import SCHEDULE, PeerEmulator
from volta_fn.targets.nvidia import collectives as kernels
from volta_fn.targets.nvidia import compilation, library
from volta_fn.targets.nvidia import peers as memory
from volta_fn.targets.nvidia.kernel import header_of


class _Machine(FakeCuda):
    """A library of a machine with a GPU for each process."""

    def __init__(self) -> None:
        super().__init__(("an emulated GPU",) * int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]), eager=True)
        self.strict, self.capability, self._files = False, (8, 0), dict[int, mmap.mmap]()

    def _mapped(self, path: Path) -> int:
        with path.open("r+b") as file:
            room = mmap.mmap(file.fileno(), memory.SIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(room))
        self._files[address] = room
        return address

    def do_cuMemAlloc_v2(self, result: int, size: int) -> int:
        if size != memory.SIZE:
            return super().do_cuMemAlloc_v2(result, size)
        number = os.memfd_create("region")  # a file without a folder, which ends with the process
        os.truncate(number, size)
        path = Path(f"/proc/{os.getpid()}/fd/{number}")
        at(result, ctypes.c_uint64).value = address = self._mapped(path)
        self.context.memory[address] = path
        return 0

    def do_cuIpcGetMemHandle(self, result: int, address: int) -> None:
        ctypes.memmove(result, str(self.context.memory[address]).encode().ljust(64, b"\0"), 64)

    def do_cuIpcOpenMemHandle_v2(self, result: int, handle: library.IpcHandle, flags: int) -> None:
        at(result, ctypes.c_uint64).value = self._mapped(Path(bytes(handle).rstrip(b"\0").decode()))


class Compiler(emulated_gpu._Compiler):
    """Kernels in LLVM IR are their own machine code, too."""

    def ask(self, request: list[bytes]) -> list[bytes]:
        header = header_of(request[0].decode())
        if header is None:
            return super().ask(request)
        return [b"ptx", compilation._THREADS.pack(header.threads, 1, 1), request[0]]


class Kernels(emulated_gpu._Kernels):
    """Those that talk to other processes are emulated thread by thread."""

    def __init__(self) -> None:
        self.emulators: dict[tuple[str, int], PeerEmulator] = {}
        #: Held by kernels that wait for no other, whose emulation has memory of its own once only.
        self._alone = threading.Lock()

    def __getitem__(self, source: str) -> Any:
        if header_of(source) is None:
            kernel = super().__getitem__(source)

            def run_alone(words: list[int], grid: tuple[int, int, int]) -> None:
                with self._alone:
                    kernel(words, grid)

            return run_alone

        def run(words: list[int], grid: tuple[int, int, int]) -> None:
            key = source, threading.get_ident()  # the threads of several GPUs run it at once
            emulator = self.emulators.get(key) or self.emulators.setdefault(key, PeerEmulator(source))
            arrays: Any = [SimpleNamespace(ctypes=SimpleNamespace(data=word)) for word in words[:-1]]
            emulator.run(arrays, grid[0])

        return run


def main(arguments: list[str]) -> None:
    """Run a script on an emulated GPU."""
    fake = _Machine()
    fake.kernels = Kernels()
    patch = pytest.MonkeyPatch()
    patch.setenv("VOLTA_GPU_DRIVER", "nvidia")
    patch.setenv("VOLTA_DEVICE", "gpu")
    patch.setattr(library, "open_library", lambda: fake)
    patch.setattr(compilation, "pool", Compiler)
    patch.setattr(compilation, "cache_dir", lambda: None)
    patch.setattr(kernels, "SCHEDULE", SCHEDULE)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
