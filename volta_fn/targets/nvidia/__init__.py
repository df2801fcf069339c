"""NVIDIA's GPUs through their driver alone: WGSL becomes LLVM IR, PTX, and machine code."""
