"""Any GPU through wgpu: Vulkan, Metal and DirectX 12.

`library` loads wgpu's C interface, `adapters` lists the machine's GPUs and opens them, and `driver` implements the interface of GPU
drivers (`gpu.device.driver`).
"""
