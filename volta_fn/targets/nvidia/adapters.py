"""The GPUs of NVIDIA's driver, and what programs may use of them."""

from __future__ import annotations

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.errors import DeviceError, OutOfMemoryError
from volta_fn.settings import value_of
from volta_fn.targets.gpu.device.driver import Description
from volta_fn.targets.nvidia.compilation import missing_compiler
from volta_fn.targets.nvidia.driver import NvidiaDriver, destroy_unused
from volta_fn.targets.nvidia.library import GpuModel, gpus

#: Bytes of workgroup memory that a kernel may declare, invocations of a workgroup, in its last dimension, and workgroups along one.
_WORKGROUP_MEMORY, _INVOCATIONS, _DEPTH, _GROUPS = 48 << 10, 1024, 64, 65535
#: Bindings of a shader: their parameters fit in the 4 KiB that all drivers pass.
_BINDINGS = 64
#: Bytes of a binding: its elements are numbered by 32 bits.
_LARGEST_BINDING = (1 << 31) - 4
_SUBGROUP = 32
#: Bytes of the largest access, of which addresses are multiples.
_ALIGNMENT = 16
_FEATURES = ("shader-f16", "shader-f64", "shader-int64", "subgroup", "timestamp-query")


def matrix_units_of(capability: tuple[int, int]) -> str:
    """Return `TargetCapabilities`' name of the matrix units of a compute capability."""
    return "wgmma" if capability == (9, 0) else "mma" if capability >= (8, 0) else ""


def describe(model: GpuModel) -> Description:
    """Return what programs may use of a GPU, by VOLTA_GPU_LIMITS."""
    least = value_of("VOLTA_GPU_LIMITS") == "webgpu"
    capabilities = TargetCapabilities(fp_contract=False, subgroup_least=_SUBGROUP, subgroup_most=_SUBGROUP, adapter=model.name)
    if not least:
        capabilities = capabilities._replace(
            matrix_units=matrix_units_of(model.capability),
            processors=model.processors,
            block_memory=model.block_memory,
            float16=True,
            float64=True,
            int64=True,
            subgroups=True,
            buffers=_BINDINGS,
            binding=_LARGEST_BINDING,
            workgroup_memory=_WORKGROUP_MEMORY,
            invocations=_INVOCATIONS,
            groups=_GROUPS,
            alignment=_ALIGNMENT,
        )
    largest = _WEBGPU_LARGEST if least else model.memory
    limits = {
        "max-storage-buffers-per-shader-stage": capabilities.buffers,
        "max-storage-buffer-binding-size": capabilities.binding,
        "max-compute-workgroup-storage-size": capabilities.workgroup_memory,
        "max-compute-invocations-per-workgroup": capabilities.invocations,
        "max-compute-workgroup-size-x": capabilities.invocations,
        "max-compute-workgroup-size-y": capabilities.invocations,
        "max-compute-workgroup-size-z": _DEPTH,
        "max-compute-workgroups-per-dimension": capabilities.groups,
        "min-storage-buffer-offset-alignment": capabilities.alignment,
        "max-buffer-size": largest,
    }
    kind = "integrated" if model.integrated else "discrete"
    return Description(model.name, kind, capabilities, largest, () if least else _FEATURES, limits)


#: Bytes of the largest buffer that every WebGPU device has.
_WEBGPU_LARGEST = 1 << 28


class NvidiaAdapter:
    """A GPU that can be opened through NVIDIA's driver."""

    driver = "nvidia"

    def __init__(self, model: GpuModel) -> None:
        self.model = model
        self.name = model.name
        #: Its number among the driver's GPUs: equal ones have equal names.
        self.index = model.ordinal

    def open(self) -> NvidiaDriver:
        """Open the device.

        Raises `DeviceError` if it cannot be opened.
        """
        destroy_unused()
        try:
            return NvidiaDriver(self.model, describe(self.model))
        except OutOfMemoryError as error:
            raise DeviceError(f"the GPU {self.name} cannot be opened: {error.message}") from error

    def again(self) -> NvidiaAdapter:
        """Return itself: a reset leaves the order of GPUs."""
        return self


def adapters() -> list[NvidiaAdapter]:
    """Return the GPUs of NVIDIA's driver, in its order.

    Raises `DeviceError` if there is no driver, no GPU, or no compiler of shaders.
    """
    missing = missing_compiler()
    if missing is not None:
        raise DeviceError(missing)
    return [NvidiaAdapter(model) for model in gpus()]
