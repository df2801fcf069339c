"""PTX of translated shaders, by a process that LLVM may end: it reads shaders as JSON from its input, and writes their PTX."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

_TRIPLE, _LEVEL = "nvptx64-nvidia-cuda", 1


def ptx_of(sources: Sequence[str], processor: str = "sm_80") -> list[str]:
    """Return the PTX of shaders. Raises `subprocess.CalledProcessError` if LLVM has no instruction for something."""
    command = [sys.executable, "-m", __name__, processor]
    output = subprocess.run(command, input=json.dumps(list(sources)), capture_output=True, text=True, check=True).stdout
    return list(json.loads(output))


def compile_shader(source: str, processor: str) -> str:
    """Return the PTX of a shader, in this process."""
    import llvmlite.binding as llvm

    from volta_fn.targets.nvidia.translation import translate

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(_TRIPLE).create_target_machine(cpu=processor, opt=_LEVEL)
    module = llvm.parse_assembly(translate(source).llvm_ir)
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=_LEVEL))
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


if __name__ == "__main__":
    json.dump([compile_shader(source, sys.argv[1]) for source in json.load(sys.stdin)], sys.stdout)
