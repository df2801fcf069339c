"""NVIDIA's driver: its functions, their errors, GPUs and contexts.

`libcuda.so.1` comes with the driver of the GPU; nothing else of CUDA is needed. Functions are declared here, and called through
ctypes. Handles and addresses are Python integers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import time
from types import TracebackType
from typing import Any, NamedTuple

from volta_fn.errors import DeviceError, OutOfMemoryError, VoltaError
from volta_fn.targets.gpu.driver import FORKED, LOST, log

# Declare the functions.
#
# The names are those of the library's symbols: a suffix is the version of a function's parameters, which newer drivers keep.

_HANDLE, _INT, _UNSIGNED, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
#: An address in the GPU's memory, flags of 64 bits, and an address of the result of a function.
_ADDRESS, _FLAGS, _RESULT = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: memory of a GPU, for other processes."""

    _fields_ = (("bytes", ctypes.c_uint8 * 64),)


#: The parameters of each function. All return a status.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UNSIGNED,),
    "cuDriverGetVersion": (_RESULT,),
    "cuGetErrorName": (_INT, _RESULT),
    "cuGetErrorString": (_INT, _RESULT),
    "cuDeviceGetCount": (_RESULT,),
    "cuDeviceGet": (_RESULT, _INT),
    "cuDeviceGetName": (_RESULT, _INT, _INT),
    "cuDeviceGetUuid": (_RESULT, _INT),
    "cuDeviceTotalMem_v2": (_RESULT, _INT),
    "cuDeviceGetAttribute": (_RESULT, _INT, _INT),
    "cuCtxCreate_v2": (_RESULT, _UNSIGNED, _INT),
    "cuCtxDestroy_v2": (_HANDLE,),
    "cuCtxEnablePeerAccess": (_HANDLE, _UNSIGNED),
    "cuCtxPushCurrent_v2": (_HANDLE,),
    "cuCtxPopCurrent_v2": (_RESULT,),
    "cuMemAlloc_v2": (_RESULT, _SIZE),
    "cuMemFree_v2": (_ADDRESS,),
    "cuIpcGetMemHandle": (_RESULT, _ADDRESS),
    "cuIpcOpenMemHandle_v2": (_RESULT, IpcHandle, _UNSIGNED),
    "cuIpcCloseMemHandle": (_ADDRESS,),
    "cuMemHostAlloc": (_RESULT, _SIZE, _UNSIGNED),
    "cuMemFreeHost": (_HANDLE,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _HANDLE, _SIZE, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (_HANDLE, _ADDRESS, _SIZE, _HANDLE),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _HANDLE),
    "cuStreamCreate": (_RESULT, _UNSIGNED),
    "cuStreamQuery": (_HANDLE,),
    "cuEventCreate": (_RESULT, _UNSIGNED),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventQuery": (_HANDLE,),
    "cuEventElapsedTime": (_RESULT, _HANDLE, _HANDLE),
    "cuLinkCreate_v2": (_UNSIGNED, _HANDLE, _HANDLE, _RESULT),
    "cuLinkAddData_v2": (_HANDLE, _INT, _HANDLE, _SIZE, ctypes.c_char_p, _UNSIGNED, _HANDLE, _HANDLE),
    "cuLinkComplete": (_HANDLE, _RESULT, _RESULT),
    "cuLinkDestroy": (_HANDLE,),
    "cuLibraryLoadData": (_RESULT, _HANDLE, _HANDLE, _HANDLE, _UNSIGNED, _HANDLE, _HANDLE, _UNSIGNED),
    "cuLibraryGetModule": (_RESULT, _HANDLE),
    "cuLibraryUnload": (_HANDLE,),
    "cuModuleGetFunction": (_RESULT, _HANDLE, ctypes.c_char_p),
    "cuFuncSetAttribute": (_HANDLE, _INT, _INT),
    "cuTensorMapEncodeTiled": (_HANDLE, _INT, _UNSIGNED, _ADDRESS, *[_HANDLE] * 4, *[_INT] * 4),
    "cuTensorMapEncodeIm2col": (_HANDLE, _INT, _UNSIGNED, _ADDRESS, *[_HANDLE] * 4, *[_UNSIGNED] * 2, _HANDLE, *[_INT] * 4),
    "cuLaunchKernel": (_HANDLE, *[_UNSIGNED] * 7, _HANDLE, _HANDLE, _HANDLE),
    "cuLaunchKernelEx": (_HANDLE, _HANDLE, _HANDLE, _HANDLE),
    "cuGraphCreate": (_RESULT, _UNSIGNED),
    "cuGraphAddKernelNode_v2": (_RESULT, _HANDLE, _HANDLE, _SIZE, _HANDLE),
    "cuGraphKernelNodeSetAttribute": (_HANDLE, _INT, _HANDLE),
    "cuGraphConditionalHandleCreate": (_RESULT, _HANDLE, _HANDLE, _UNSIGNED, _UNSIGNED),
    "cuGraphAddNode": (_RESULT, _HANDLE, _HANDLE, _SIZE, _HANDLE),
    "cuGraphDestroy": (_HANDLE,),
    "cuGraphInstantiateWithFlags": (_RESULT, _HANDLE, _FLAGS),
    "cuGraphUpload": (_HANDLE, _HANDLE),
    "cuGraphLaunch": (_HANDLE, _HANDLE),
    "cuGraphExecKernelNodeSetParams_v2": (_HANDLE, _HANDLE, _HANDLE),
    "cuGraphExecDestroy": (_HANDLE,),
}

_NAME = "libcuda.so.1"
#: The first driver with all functions, and with version 8.0 of PTX, which shaders of Hopper are in: that of CUDA 12.0.
_OLDEST, _OLDEST_DRIVER = 12000, 525


class Functions:
    """The functions of the library, as attributes that are looked up on first use."""

    def __init__(self, library: Any) -> None:
        """Initialise the driver.

        Raises `DeviceError` if that fails, or if the driver is too old.
        """
        self._library = library
        #: The process that initialised it: a forked process cannot use it.
        self.process = os.getpid()
        check(self, self.cuInit(0), "cuInit")
        version = ctypes.c_int()
        check(self, self.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
        #: The newest version of CUDA that the driver knows, as 12080 for 12.8.
        self.version = version.value
        if self.version < _OLDEST:
            raise DeviceError(f"NVIDIA's driver is of CUDA {_dotted(self.version)}: update it to version {_OLDEST_DRIVER} or later")

    def __getattr__(self, name: str) -> Any:
        """Look a function up, once."""
        if name not in SIGNATURES:
            raise AttributeError(name)
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DeviceError(f"NVIDIA's driver lacks {name}: update it to version {_OLDEST_DRIVER} or later") from None
        function.argtypes, function.restype = SIGNATURES[name], ctypes.c_int
        setattr(self, name, function)
        return function


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


@functools.cache
def _functions() -> Functions:
    return Functions(open_library())


def open_library() -> Any:
    """Load the library; raise `DeviceError` where there is none."""
    try:
        return ctypes.CDLL(_NAME)
    except OSError as error:
        raise DeviceError(f"NVIDIA's driver is not installed ({error})") from None


def functions() -> Functions:
    """Return the functions of the driver, which is loaded on first use.

    Raises `DeviceError` if it is missing, too old or without a GPU, or if this process was forked from one that used it.
    """
    loaded = _functions()
    if loaded.process != os.getpid():
        raise DeviceError(FORKED)
    return loaded


def driver_version(loaded: Functions) -> str:
    """Return CUDA's version, and the driver's own where it can be read."""
    module = ""
    with contextlib.suppress(OSError), open("/sys/module/nvidia/version") as file:
        module = file.read().strip()
    return f"{_dotted(loaded.version)} {module}".strip()


# Raise errors for statuses.

OUT_OF_MEMORY, NOT_READY = 2, 600

#: Statuses after which every call in the context fails: faults of kernels (an address out of range is 700), of the hardware, and contexts
#: that are gone.
_LOSSES = frozenset({4, 46, 201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999})
#: Those among them that the driver also gives to every new context of the process.
_FAULTS = frozenset({700, 714, 715, 716, 717, 718, 719})


def _text(loaded: Functions, status: int) -> str:
    """Return the driver's name and description of a status."""
    texts = []
    for function in (loaded.cuGetErrorName, loaded.cuGetErrorString):
        text = ctypes.c_char_p()
        if not function(status, ctypes.byref(text)) and text.value:
            texts.append(text.value.decode(errors="replace"))
    return ", ".join(texts) or "an unknown error"


def error_of(loaded: Functions, status: int, function: str) -> VoltaError:
    """Return the error of a call that failed, apart from a loss of the device."""
    text = f"{function}: {status} ({_text(loaded, status)})"
    if status in _FAULTS:
        return DeviceError(
            f"a kernel has failed in this process, to which NVIDIA's driver gives no GPU any more: start the process again ({text})"
        )
    if status == OUT_OF_MEMORY:
        return OutOfMemoryError(f"the GPU has no room: {text}")
    return DeviceError(f"the GPU's driver refused: {text}")


def check(loaded: Functions, status: int, function: str) -> None:
    """Raise the error of a call that belongs to no open device, if it failed."""
    if status:
        raise error_of(loaded, status, function)


class CallErrors:
    """The errors of an open device's calls.

    Calls return a status, which `check` turns into an exception at once, so entering this context does nothing.
    """

    def __init__(self, loaded: Functions) -> None:
        self._functions = loaded
        #: Whether the device is known to be lost; then no further call may be made.
        self.device_lost = False
        #: The call that reported the loss, and its status.
        self.loss = ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def check(self, status: int, function: str) -> None:
        """Raise the error of a call, if it failed, and note the loss of the device."""
        if not status:
            return
        if status in _LOSSES:
            self.loss = self.loss or f"{function}: {status} ({_text(self._functions, status)})"
            log.debug("the GPU is lost: %s", self.loss)
            self.device_lost = True
        self.check_device()
        raise error_of(self._functions, status, function)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver, whose status is checked."""
        status = getattr(self._functions, function)(*arguments)
        if status:
            self.check(status, function.removesuffix("_v2"))

    def check_device(self) -> None:
        """Raise `DeviceError` if the device is known to be lost."""
        if self.device_lost:
            raise self.lost()

    def lost(self) -> DeviceError:
        """Return the error of a lost device, whose note says which call reported the loss."""
        error = DeviceError(LOST)
        if self.loss:
            error.add_note(self.loss)
        return error


# Find the GPUs.

_INTEGRATED, _MAJOR, _MINOR, _PROCESSORS, _BLOCK_MEMORY = 18, 75, 76, 16, 97
#: The least compute capability that shaders are compiled for: subgroup operations need it.
_LEAST_CAPABILITY = (7, 0)


class GpuModel(NamedTuple):
    """A GPU that the driver lists."""

    #: Its number among the driver's GPUs, and the driver's handle.
    ordinal: int
    device: int
    name: str
    #: The compute capability, as (9, 0).
    capability: tuple[int, int]
    #: Bytes.
    memory: int
    integrated: bool
    #: Multiprocessors, and the most bytes of shared memory that a launch may give a block.
    processors: int
    block_memory: int


def gpus() -> list[GpuModel]:
    """Return the driver's GPUs that shaders can be compiled for.

    Raises `DeviceError` if there is none.
    """
    loaded = functions()
    count = ctypes.c_int()
    check(loaded, loaded.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    models = [_model(loaded, ordinal) for ordinal in range(count.value)]
    usable = [model for model in models if model.capability >= _LEAST_CAPABILITY]
    if not usable:
        names = ", ".join(model.name for model in models) or "none"
        raise DeviceError(f"NVIDIA's driver lists no GPU of compute capability 7.0 or later (it lists {names})")
    return usable


def _model(loaded: Functions, ordinal: int) -> GpuModel:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    check(loaded, loaded.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    check(loaded, loaded.cuDeviceGetName(name, len(name), device), "cuDeviceGetName")
    check(loaded, loaded.cuDeviceTotalMem_v2(ctypes.byref(memory), device), "cuDeviceTotalMem")

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        check(loaded, loaded.cuDeviceGetAttribute(ctypes.byref(value), number, device), "cuDeviceGetAttribute")
        return value.value

    capability = attribute(_MAJOR), attribute(_MINOR)
    return GpuModel(
        ordinal,
        device.value,
        name.value.decode(errors="replace"),
        capability,
        memory.value,
        bool(attribute(_INTEGRATED)),
        attribute(_PROCESSORS),
        attribute(_BLOCK_MEMORY),
    )


#: Seconds to wait for threads to leave a context that is to be destroyed.
_LEAVE_S = 5.0


class Context:
    """A context of a GPU: its memory, modules and streams.

    Calls are made while it is entered. It is pushed on the thread's stack of contexts and popped again, since other libraries rely on
    theirs.
    """

    def __init__(self, loaded: Functions, device: int, errors: CallErrors) -> None:
        """Create a context. Raises `DeviceError` or `OutOfMemoryError`."""
        handle = ctypes.c_void_p()
        check(loaded, loaded.cuCtxCreate_v2(ctypes.byref(handle), 0, device), "cuCtxCreate")
        self._handle: int | None = handle.value
        #: An element for each thread that has entered it: another one may not destroy it then.
        self._entered: list[None] = []
        self._previous = ctypes.c_void_p()
        self._pop_to = ctypes.byref(self._previous)
        self._push, self._pop, self._destroy = loaded.cuCtxPushCurrent_v2, loaded.cuCtxPopCurrent_v2, loaded.cuCtxDestroy_v2
        #: The libraries that are loaded in it.
        self._libraries: set[int] = set()
        self._unload = loaded.cuLibraryUnload
        self._process, self._errors = loaded.process, errors
        self._pop(self._pop_to)  # a new context is current

    def __enter__(self) -> None:
        self._entered.append(None)
        try:
            handle = self._handle
            if handle is None or self._errors.device_lost or self._process != os.getpid():
                raise self._refusal()
            status = self._push(handle)
            if status:
                self._errors.check(status, "cuCtxPushCurrent")
        except BaseException:
            self._entered.pop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pop(self._pop_to)
        self._entered.pop()

    def _refusal(self) -> DeviceError:
        """Return the error of a call that cannot be made."""
        if self._process != os.getpid() and not self._errors.device_lost:
            return DeviceError(FORKED)
        return self._errors.lost()

    def add_library(self, library: int) -> None:
        """Have a library unloaded when the context is destroyed, if it is not before."""
        self._libraries.add(library)

    def unload(self, library: int) -> int:
        """Unload a library; return the driver's status."""
        self._libraries.discard(library)
        return int(self._unload(library))

    @property
    def handle(self) -> int:
        """The driver's handle; 0 if it is destroyed."""
        return self._handle or 0

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: it is not destroyed, and this process is not a fork."""
        return self._handle is not None and self._process == os.getpid()

    def destroy(self) -> None:
        """Destroy the context with everything in it; do nothing the second time.

        A context in which a call does not return is left.
        """
        handle, self._handle = self._handle, None
        if handle is None or self._process != os.getpid():
            return
        end = time.monotonic() + _LEAVE_S
        while self._entered and time.monotonic() < end:
            time.sleep(1e-3)
        if not self._entered:
            self._destroy(handle)  # whose status says nothing new about a lost device
            for library in [*self._libraries]:  # which belong to the process
                self.unload(library)
