"""LLVM IR as text (`text`), indices in it (`whole`), the machine that it is compiled for (`host`), and the compiler (`machine`)."""
