"""The width of vectors: what this CPU has, and narrower ones by VOLTA_VECTOR_BYTES."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from volta_fn.errors import ArgumentError, CompilerError
from volta_fn.runtime.llvm import machine
from volta_fn.runtime.llvm.host import Host, generating_for, host, llvm, this_cpu, vector_widths
from volta_fn.targets.cpu.runtime import artifact

#: A sum of vectors of 64 bytes, more of them than there are registers.
SUM = """define void @f(ptr %x, ptr %y) {{
{loads}
{adds}
store <16 x float> %s{last}, ptr %y
ret void
}}""".format(
    loads="\n".join(
        f"%p{k} = getelementptr <16 x float>, ptr %x, i64 {k}\n%v{k} = load volatile <16 x float>, ptr %p{k}" for k in range(40)
    ),
    adds="\n".join(f"%s{k} = fadd <16 x float> %v{k}, %{'v0' if k == 1 else f's{k - 1}'}" for k in range(1, 40)),
    last=39,
)
X86 = llvm().get_process_triple().startswith("x86_64")


@pytest.fixture(params=vector_widths())
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """This machine, with each width of vectors."""
    monkeypatch.setenv("VOLTA_VECTOR_BYTES", str(request.param))
    result = this_cpu.__wrapped__()
    assert result.vector_bytes == request.param
    return result


def test_vectors_are_as_wide_as_they_are_wanted(forced: Host) -> None:
    assert [forced.lanes(size) for size in (1, 2, 4, 8)] == [forced.vector_bytes // size for size in (1, 2, 4, 8)]
    assert forced.vector_registers == (32 if forced.vector_bytes == 64 or not X86 else 16)


def test_the_widest_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOLTA_VECTOR_BYTES", raising=False)
    assert this_cpu.__wrapped__().vector_bytes == vector_widths()[-1]
    monkeypatch.setenv("VOLTA_VECTOR_BYTES", "")
    assert this_cpu.__wrapped__().vector_bytes == vector_widths()[-1]


@pytest.mark.skipif(not X86, reason="the registers' names are those of x86-64")
def test_no_wider_registers_are_used(forced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "host", lambda: forced)
    text = machine._target_machine().emit_assembly(llvm().parse_assembly(SUM))
    used = {(name, int(number)) for name, number in re.findall(r"%([xyz]mm)(\d+)", text)}
    assert ("zmm" in {name for name, _ in used}) == (forced.vector_bytes == 64)
    assert max(number for _, number in used) < forced.vector_registers


@pytest.mark.parametrize("wanted", ["8", "48", "1024", "wide", "-16", "16.0"])
def test_any_other_width_is_refused_with_those_there_are(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_VECTOR_BYTES", wanted)
    with pytest.raises(ArgumentError, match=f"VOLTA_VECTOR_BYTES is '{wanted}'; this CPU has vectors of 16"):
        this_cpu.__wrapped__()


def test_compiled_code_of_each_width_has_its_own_name_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "host", this_cpu.__wrapped__)
    monkeypatch.setattr(artifact, "_kind", artifact._kind.__wrapped__)
    names = set()
    for width in vector_widths():
        monkeypatch.setenv("VOLTA_VECTOR_BYTES", str(width))
        names.add(artifact.name_of("a routine"))
    assert len(names) == len(vector_widths())


@pytest.mark.parametrize(("text", "can_emit"), [("not LLVM IR", True), ("define void @f() {\n  ret void\n}", False)])
def test_errors_of_llvm_are_those_of_the_compiler_and_keep_the_target_machine(
    text: str, can_emit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_code(*args: object) -> bytes:
        raise RuntimeError("there is no code for it")

    machine.compile_object("define void @f() {\n  ret void\n}")
    idle = list(machine._idle[host()])
    if not can_emit:
        monkeypatch.setattr(machine, "emit", without_code)
    with pytest.raises(CompilerError, match="LLVM refuses the module: (LLVM cannot parse|there is no code)"):
        machine.compile_object(text)
    assert machine._idle[host()] == idle


def test_machines_of_another_cpu_are_kept_apart() -> None:
    """Code for another CPU leaves the machines of this one for later."""
    machine.compile_object("define void @f() {\n  ret void\n}")
    idle = list(machine._idle[host()])
    with generating_for(host()._replace(cpu="generic", features="")):
        machine.compile_object("define void @f() {\n  ret void\n}")
        machine.compile_object("define void @f() {\n  ret void\n}")
        assert len(machine._idle[host()]) == 1
    assert machine._idle[host()] == idle
