"""Convolutions by patches of images, run by an emulator, beside those in float64 on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.targets.nvidia.matmul.test_compiling import ptx
from tests.targets.nvidia.planning import HOPPER
from tests.targets.nvidia.test_convolution import FLOAT16, FLOAT32, LAST, Case, compare, run
from volta_fn.targets.nvidia import convolution, patches
from volta_fn.targets.nvidia.kernel import header_of
from volta_fn.targets.nvidia.matmul.problem import WindowAxis

EIGHTS, ROWS = "eights", "rows"


class Tiling(NamedTuple):
    """A case, how its windows are columns, and the chunks of its sums."""

    case: Case
    columns: str = EIGHTS
    splits: int = 1


TILINGS = [
    Tiling(Case("windows", (1, 64, 8, 8), (64, 64, 3, 3))),
    Tiling(Case("windows", (2, 64, 5, 7), (64, 64, 3, 3)), ROWS),
    Tiling(Case("several tiles", (1, 64, 18, 20), (72, 64, 3, 3))),
    Tiling(Case("several tiles", (3, 64, 12, 10), (72, 64, 3, 3)), ROWS),
    Tiling(Case("channels last", (2, 8, 8, 64), (3, 3, 64, 72), numbers=LAST)),
    Tiling(Case("channels last", (2, 6, 5, 24), (3, 3, 24, 40), numbers=LAST), ROWS),
    Tiling(Case("few outputs", (2, 64, 6, 8), (3, 64, 3, 3))),
    Tiling(Case("groups", (2, 128, 6, 6), (128, 64, 2, 2), groups=2)),
    Tiling(Case("one axis", (2, 64, 40), (64, 64, 3), stride=(1,), padding=((1, 1),), dilation=(1,), numbers=("NCH", "OIH", "NCH"))),
    Tiling(Case("stride", (2, 64, 13, 11), (64, 64, 3, 3), stride=(2, 2))),
    Tiling(Case("asymmetric", (2, 64, 13, 11), (64, 64, 2, 3), stride=(2, 1), padding=((0, 2), (2, 0)), dilation=(1, 2)), ROWS),
    Tiling(Case("cut", (2, 64, 9, 8), (64, 64, 3, 2), padding=((-1, 1), (0, -2)))),
    Tiling(Case("float16", (2, 64, 5, 4), (64, 64, 2, 2), dtype=FLOAT16), ROWS),
    Tiling(Case("in float32", (2, 64, 5, 4), (64, 64, 2, 2), preferred=np.float32)),
    Tiling(Case("by x", (2, 64, 8, 8), (64, 64, 3, 3), "x")),
    Tiling(Case("chunks", (1, 128, 8, 8), (64, 128, 3, 3)), splits=2),
    Tiling(Case("in TF32", (1, 8, 8, 64), (3, 3, 64, 64), numbers=LAST, dtype=FLOAT32, precision="tensorfloat32"), splits=2),
    Tiling(Case("in TF32", (2, 24, 6, 8), (40, 24, 3, 3), dtype=FLOAT32, precision="tensorfloat32")),
]  # fmt: skip


def choose(tiling: Tiling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have convolutions by patches, of the fewest tiles."""

    def chosen(problem: patches.Patches, device: Any, most_splits: int) -> patches.PatchSchedule:
        options = [s for s in patches.schedules(problem, device.block_memory, most_splits) if s.splits == tiling.splits]
        return max((s for s in options if s.tile.is_strip == (tiling.columns == EIGHTS)), key=lambda s: s.columns)

    monkeypatch.setattr(convolution, "_FEWEST", 1)
    monkeypatch.setattr(convolution, "_FEWEST_WINDOWS", 1)
    monkeypatch.setattr(patches, "estimated", chosen)
    monkeypatch.setattr(patches, "cost", lambda problem, schedule, processors: 0)


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: f"{tiling.case.name} {tiling.columns}")
def test_convolutions(tiling: Tiling, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(tiling, monkeypatch)
    compare(tiling.case, HOPPER)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinite_pixels_stay_in_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    equation = Case("", (2, 64, 8, 8), (64, 64, 3, 3)).equation()
    choose(Tiling(Case("", (), ())), monkeypatch)
    x, w = [np.ones(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    x[1, 7, 3, 0] = np.inf
    routine = convolution.conv_general_dilated(tuple([atom.aval for atom in equation.invars]), equation.params, HOPPER)
    assert routine is not None
    result = np.zeros(equation.outvars[0].aval.shape, x.dtype)
    run(routine, [x, w, result, *[np.zeros(size, np.uint8) for size in routine.workspaces]])
    infinite = np.argwhere(~np.isfinite(result.astype(np.float32)))
    assert {tuple(place) for place in infinite[:, [0, 2, 3]]} == {(1, y, x) for y in (2, 3, 4) for x in (0, 1)}


@pytest.mark.parametrize("numbers", ["first", "last"])
@pytest.mark.parametrize("columns", [EIGHTS, ROWS])
def test_llvm_compiles_kernels(columns: str, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("", (64, 64, 30, 30), (64, 64, 3, 3))
    if numbers == "last":
        case = Case("", (64, 30, 30, 64), (3, 3, 64, 64), numbers=LAST, stride=(2, 2))
    choose(Tiling(case, columns), monkeypatch)
    equation = case.equation()
    routine = convolution.conv_general_dilated(tuple([atom.aval for atom in equation.invars]), equation.params, HOPPER)
    assert routine is not None
    (kernel,) = [dispatch.source for dispatch in routine.dispatches if header_of(dispatch.source)]
    code = ptx(kernel, tmp_path, "sm_90a")
    assert "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier" in code
    assert "wgmma.mma_async" in code
    assert ".local" not in code


def test_residues_have_all_taps_of_an_axis() -> None:
    for axis in (WindowAxis(9, 5, 2, 3, 1, 1), WindowAxis(20, 4, 4, 6, 2, 3), WindowAxis(20, 9, 1, 5, 3, 2), WindowAxis(30, 5, 3, 7, 2, 0)):
        places = {}
        for r in patches.residues(axis):
            places |= {r.tap + k * r.step: (r.first + k * r.apart) * axis.step + r.remainder for k in range(r.taps)}
        assert places == {tap: tap * axis.dilation - axis.low for tap in range(axis.taps)}


@pytest.mark.parametrize("shape", [(64, 64, 32, 32), (32, 256, 14, 14), (64, 512, 4, 4), (8, 128, 128, 128)])
def test_schedules_fit(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    problems = []
    monkeypatch.setattr(patches, "estimated", lambda problem, device, most_splits: problems.append(problem))
    equation = Case("", shape, (64, shape[1], 3, 3)).equation()
    convolution.conv_general_dilated(tuple([atom.aval for atom in equation.invars]), equation.params, HOPPER)
    (problem,) = problems
    schedules = [*patches.schedules(problem, HOPPER.block_memory, 4)]
    assert schedules
    for schedule in schedules:
        tile = schedule.tile
        assert schedule.shared <= HOPPER.block_memory
        assert tile.columns <= 256
        assert tile.columns >= tile.images * tile.height * tile.width
