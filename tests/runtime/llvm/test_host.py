"""The width of vectors: what this CPU has, and narrower ones by VOLTA_VECTOR_BYTES."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from volta_fn.errors import ArgumentError
from volta_fn.runtime.llvm import machine
from volta_fn.runtime.llvm.host import Host, llvm, this_cpu, vector_widths
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
