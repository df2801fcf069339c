"""Programs as WebAssembly: what they are made of. `tests/web/test_wasm.py` runs some."""

from __future__ import annotations

import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn.compiler import pipeline
from volta_fn.errors import CompilerError, ExportError, MissingDependencyError
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.wasm import FEATURES, MACHINE, compile_module, compile_programs


def test_what_needs_a_library_is_refused_with_the_line() -> None:
    matrix = vf.ShapeDtypeStruct((3, 3), "float32")
    lowered = vf.jit(jnp.linalg.cholesky).lower(matrix)
    with pytest.raises(CompilerError, match=r"in 'f', .*cholesky.*, and a page has no Python"):
        compile_programs({"f": (lowered.jaxpr, [False])}, pipeline)
    with pytest.raises(ExportError, match=r"wasm=True: .*cholesky.*export without it, and the page needs WebGPU"):
        vf.export_web("unwritten.html", state={}, functions={"f": vf.web.Function(jnp.linalg.cholesky, [matrix], ["r"])}, wasm=True)


@pytest.mark.parametrize(
    "function", [jnp.cumsum, lambda x: x + 1, lambda x: jnp.outer(x, x), jnp.sort], ids=["cumsum", "add", "outer", "sort"]
)
def test_float16_is_refused_with_the_line(function) -> None:
    """WebAssembly converts none; LLVM would call functions that no page has, and never ends on vectors of them."""
    lowered = vf.jit(function).lower(vf.ShapeDtypeStruct((9,), "float16"))
    try:
        compiled = compile_programs({"f": (lowered.jaxpr, [False])}, pipeline)
    except CompilerError as error:
        assert "runs on the host" in str(error) and "test_program.py" in str(error)
    else:
        assert b"hfsf2" not in compiled.code and function is jnp.sort, "which sorts keys"


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products_of_float16_are_refused_as_all_numbers_of_float16_are(rows: int) -> None:
    x = vf.ShapeDtypeStruct((rows, 40), "float16")
    for function in (lambda x: x * 2, lambda x: x @ x.T, lambda x: jnp.tanh(x @ x.T)):
        with pytest.raises(CompilerError, match="a page has no Python"):
            compile_programs({"f": (vf.jit(function).lower(x).jaxpr, [False])}, pipeline)


def test_without_llvmlite_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volta_fn.web.export.is_installed", lambda name: name != "llvmlite")
    functions = {"f": vf.web.Function(lambda x: x + 1, [vf.ShapeDtypeStruct((3,), "float32")], ["r"])}
    with pytest.raises(MissingDependencyError, match=r"wasm=True needs llvmlite.*pip install"):
        vf.export_web("unwritten.html", state={}, functions=functions, wasm=True)


@pytest.mark.parametrize("count", [0, 1, 65_536, 65_537, 3_000_000])
def test_a_module_tells_how_many_pages_its_data_take(count: int) -> None:
    table = f'@table = internal constant [{count} x i8] c"{"a" * count}"\n' if count else ""
    address = "@table" if count else "null"
    text = f"{table}define void @f(ptr %buffers, i64 %begin, i64 %end) {{\n  store ptr {address}, ptr %buffers, align 8\n  ret void\n}}"
    module = compile_module([("", Routine(text, ()))])
    assert module.data_bytes == -(-count // 65_536) * 65_536


def test_a_module_exports_its_functions_and_needs_no_linker() -> None:
    assert all(MACHINE.has(feature) for feature in FEATURES)
    empty = compile_module([])
    assert empty.code[:8] == b"\0asm\1\0\0\0"
    assert empty.missing == ()
    lowered = vf.jit(lambda x: x * 2).lower(jnp.ones(5))
    programs = compile_programs({"f": (lowered.jaxpr, [False]), "g": (lowered.jaxpr, [False])}, pipeline)
    names = {name for program in programs.programs.values() for name in program.launches.values()}
    assert len(names) == 1, "equal routines are compiled once"
    assert all(name.encode() in programs.code for name in names)


def test_modules_that_llvm_does_not_link_are_an_error_of_the_compiler() -> None:
    routine = Routine("define void @f(ptr %buffers, i64 %begin, i64 %end) {\n  ret void\n}", ())
    with pytest.raises(CompilerError, match="code generation: LLVM refuses the module: .*multiply defined"):
        compile_module([("", routine), ("", routine)])
