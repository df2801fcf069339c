"""Any GPU through wgpu: Vulkan, Metal and DirectX 12.

`library` loads wgpu's C interface, `replay` writes recorded dispatches by machine code, `driver` implements the interface of GPU drivers
(`gpu.device.driver`), and `adapters` lists the machine's GPUs and opens them.
"""
