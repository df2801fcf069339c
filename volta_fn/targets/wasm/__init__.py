"""WebAssembly: the CPU's routines for web pages without WebGPU.

LLVM, which llvmlite contains, generates WebAssembly from the same LLVM IR as machine code. In the order in which to read: `program` (a
program as routines, commands and slots), `module` (routines as one module, which needs no linker).
"""
