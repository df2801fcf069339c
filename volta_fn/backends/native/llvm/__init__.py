"""LLVM IR as text (`text`), the machine that it is compiled for (`host`), and the compiler (`machine`)."""
