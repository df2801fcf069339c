"""Convolutions on matrix units, run by an emulator, beside those in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.nvidia.emulation import Emulator
from tests.targets.nvidia.matmul.test_compiling import ptx
from tests.targets.nvidia.planning import AMPERE, HOPPER, NONE
from tests.targets.nvidia.translation import emulation
from volta_fn import lax
from volta_fn.compiler.passes.expansions import transpose_convolution_operands
from volta_fn.compiler.pipeline import lower
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.config import default_matmul_precision
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.core.staging import eval_jaxpr
from volta_fn.targets.nvidia import convolution, patches
from volta_fn.targets.nvidia.kernel import header_of
from volta_fn.targets.nvidia.matmul.problem import AnySchedule, Schedule, WarpSchedule
from volta_fn.targets.nvidia.target import NvidiaTarget
from volta_fn.targets.wgsl.routine import Routine

BFLOAT16, FLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")

#: Bytes around arrays that kernels must not write.
_AROUND = 1 << 14


def convolutions(program: ClosedJaxpr, device: TargetCapabilities) -> list[Equation]:
    """Return the convolutions of a program that is lowered for a device."""
    nodes = [item.node for item in lower(program, NvidiaTarget(device)).items]
    return [node for node in nodes if isinstance(node, Equation) and node.primitive.name == "conv_general_dilated"]


class Case(NamedTuple):
    """A convolution, and of what it is the gradient: "x", "w", or "" for itself."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    wrt: str = ""
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[tuple[int, int], ...] = ((1, 1), (1, 1))
    dilation: tuple[int, ...] = (1, 1)
    numbers: tuple[str, str, str] = FIRST
    groups: int = 1
    dtype: np.dtype = BFLOAT16
    preferred: Any = None
    precision: str | None = None

    def convolve(self, x: Any, w: Any) -> Any:
        """Return the result."""
        preferred = None if x.dtype == np.float64 else self.preferred
        return lax.conv_general_dilated(
            x, w, self.stride, self.padding, rhs_dilation=self.dilation, dimension_numbers=self.numbers, feature_group_count=self.groups,
            precision=self.precision, preferred_element_type=preferred,
        )  # fmt: skip

    def function(self) -> Callable[..., Any]:
        """Return the function of two operands that is computed."""
        if not self.wrt:
            return self.convolve
        if self.wrt == "x":
            return lambda ct, w: vf.vjp(lambda x: self.convolve(x, w), vnp.zeros(self.x, w.dtype))[1](ct)[0]
        return lambda x, ct: vf.vjp(lambda w: self.convolve(x, w), vnp.zeros(self.w, x.dtype))[1](ct)[0]

    def equation(self) -> Equation:
        """Return the convolution of the function's program."""
        types = [vf.ShapeDtypeStruct(shape, self.dtype) for shape in (self.x, self.w)]
        y = vf.eval_shape(self.convolve, *types)
        operands = {"": types, "x": [y, types[1]], "w": [types[0], y]}[self.wrt]
        (equation,) = convolutions(vf.jit(self.function()).lower(*operands).jaxpr, NONE)
        return equation


#: Those whose windows do not overlap, with operands that are matrices in place.
MATRICES = [
    Case("matrices of images", (2, 64, 6, 4), (72, 64, 1, 1)),
    Case("matrices of images by x", (2, 64, 6, 4), (72, 64, 1, 1), "x"),
    Case("matrices of images by w", (3, 64, 6, 4), (72, 64, 1, 1), "w"),
    Case("one matrix", (2, 4, 5, 64), (1, 1, 64, 72), numbers=LAST),
    Case("one matrix by x", (2, 4, 5, 64), (1, 1, 64, 72), "x", numbers=LAST),
    Case("one matrix by w", (2, 4, 5, 64), (1, 1, 64, 72), "w", numbers=LAST),
    Case("matrices of groups", (2, 128, 4, 4), (144, 64, 1, 1), groups=2),
    Case("one window of an image", (64, 64, 2, 4), (64, 64, 2, 4)),
]

#: Those of few channels, whose taps of a row become channels.
COLOURS = [
    Case("colours", (2, 3, 9, 8), (40, 3, 3, 3)),
    Case("colours, channels last", (2, 17, 16, 3), (5, 7, 3, 64), stride=(2, 2), padding=((2, 2), (3, 3)), numbers=LAST),
    Case("colours, asymmetric", (2, 5, 9, 11), (40, 5, 2, 3), stride=(2, 1), padding=((0, 2), (2, 0)), dilation=(1, 2)),
    Case("colours by w", (4, 3, 9, 8), (40, 3, 3, 3), "w"),
    Case("colours by w, channels last", (4, 17, 16, 3), (5, 7, 3, 64), "w", stride=(2, 2), padding=((2, 2), (3, 3)), numbers=LAST),
    Case("colours by x of few outputs", (2, 40, 8, 9), (8, 40, 3, 3), "x"),
    Case("colours by w, asymmetric", (4, 5, 9, 11), (40, 5, 2, 3), "w", stride=(2, 1), padding=((0, 2), (2, 0)), dilation=(1, 2)),
]

CASES = [
    Case("windows", (2, 64, 5, 4), (64, 64, 3, 3)),
    Case("channels last", (2, 5, 4, 64), (2, 3, 64, 72), numbers=LAST),
    Case("few channels", (2, 24, 7, 6), (40, 24, 3, 3)),
    Case("asymmetric", (3, 64, 9, 7), (64, 64, 2, 3), stride=(2, 1), padding=((0, 2), (2, 0)), dilation=(1, 2)),
    Case("cut", (2, 64, 9, 8), (64, 64, 3, 2), padding=((-1, 1), (0, -2))),
    Case("1x1", (2, 64, 6, 6), (64, 64, 1, 1), padding=((0, 0), (0, 0))),
    Case("1x1 with stride", (2, 64, 13, 12), (64, 64, 1, 1), stride=(2, 2), padding=((0, 0), (0, 0))),
    Case("groups", (2, 128, 4, 4), (48, 64, 2, 2), groups=2),
    Case("one axis", (2, 64, 40), (64, 64, 3), stride=(2,), padding=((1, 1),), dilation=(1,), numbers=("NCH", "OIH", "NCH")),
    Case(
        "three axes", (1, 64, 5, 4, 4), (64, 64, 2, 3, 2), stride=(1, 1, 1), padding=((1, 0), (1, 1), (0, 1)), dilation=(1, 1, 1),
        numbers=("NCDHW", "OIDHW", "NCDHW"),
    ),
    Case("float16", (2, 64, 5, 4), (64, 64, 2, 2), dtype=FLOAT16),
    Case("in float32", (2, 64, 5, 4), (64, 64, 2, 2), preferred=np.float32),
    Case("by x", (2, 64, 4, 4), (64, 64, 3, 3), "x"),
    Case("by x with stride", (2, 64, 8, 8), (64, 64, 3, 3), "x", stride=(2, 2)),
    Case("by x with strides", (2, 64, 12, 10), (64, 64, 4, 3), "x", stride=(3, 1), padding=((0, 1), (2, 0))),
    Case("by x with columns apart", (2, 64, 6, 12), (64, 64, 2, 4), "x", stride=(1, 3), padding=((0, 1), (1, 0))),
    Case("by x, few channels", (2, 64, 16, 16), (40, 64, 2, 2), "x", stride=(2, 2), padding=((0, 0), (0, 0))),
    Case("by x with stride, dilated", (2, 64, 13, 11), (64, 64, 3, 3), "x", stride=(2, 2), dilation=(2, 1)),
    Case("by x of 1x1 with stride", (2, 64, 16, 16), (64, 64, 1, 1), "x", stride=(2, 2), padding=((0, 0), (0, 0))),
    Case("by w", (2, 64, 6, 5), (64, 64, 2, 2), "w"),
    Case("by w, channels last", (2, 6, 5, 64), (2, 2, 64, 64), "w", numbers=LAST),
    Case("by w with stride", (3, 64, 10, 9), (72, 64, 2, 2), "w", stride=(2, 2)),
    Case("by w, asymmetric", (2, 64, 9, 10), (64, 64, 2, 3), "w", stride=(2, 1), padding=((0, 2), (2, 0)), dilation=(1, 2)),
    Case("by w of 1x1 with stride", (3, 64, 13, 12), (64, 64, 1, 1), "w", stride=(2, 2), padding=((0, 0), (0, 0))),
    Case("by w in groups", (2, 128, 5, 5), (128, 64, 2, 1), "w", groups=2),
    Case("by w, few channels", (2, 24, 7, 6), (40, 24, 3, 3), "w"),
    Case("by w, few channels, channels last", (2, 7, 6, 24), (3, 3, 24, 40), "w", numbers=LAST),
    *[case._replace(padding=((0, 0), (0, 0))) for case in MATRICES],
    *COLOURS,
    *[case._replace(name=f"{case.name}, in TF32", dtype=FLOAT32, precision="tensorfloat32") for case in [
        Case("windows", (2, 64, 5, 4), (64, 64, 3, 3)),
        Case("few channels", (2, 24, 7, 6), (40, 24, 3, 3)),
        Case("groups", (2, 64, 4, 4), (48, 32, 2, 2), groups=2),
        Case("by x with stride", (2, 64, 8, 8), (64, 64, 3, 3), "x", stride=(2, 2)),
        Case("by w", (4, 64, 6, 5), (64, 64, 2, 2), "w"),
        Case("by w, channels last", (2, 6, 5, 96), (2, 2, 96, 40), "w", numbers=LAST),
        Case("by w, few channels", (4, 20, 6, 5), (40, 20, 2, 2), "w"),
        Case("by w, asymmetric", (4, 32, 9, 10), (64, 32, 2, 3), "w", stride=(2, 1), padding=((0, 2), (2, 0)), dilation=(1, 2)),
        Case("by w in groups", (4, 64, 5, 5), (128, 32, 2, 1), "w", groups=2),
        *[case._replace(padding=((0, 0), (0, 0))) for case in MATRICES],
        *COLOURS,
    ]],
]  # fmt: skip


def run(routine: Routine, buffers: list[np.ndarray]) -> int:
    """Run all dispatches on buffers; return how many are no shaders."""
    count = 0
    for dispatch in routine.dispatches:
        arrays = [buffers[number] for number in dispatch.buffers]
        if header_of(dispatch.source):
            count += 1
            Emulator(dispatch.source).run(arrays, dispatch.workgroups[0])
        else:
            emulation.run(dispatch.source, dispatch.workgroups, arrays)
    return count


def layer(x: Any, w: Any) -> Any:
    """Return a loss of a convolution with strides, of what an elementwise function gives."""
    return vnp.sum(Case("", x.shape, w.shape, stride=(2, 2)).convolve(vnp.tanh(x), w) ** 2)


def test_operands_with_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_FEWEST", 1)
    arrays = [np.random.default_rng(0).standard_normal(shape).astype(BFLOAT16) for shape in ((4, 64, 16, 16), (64, 64, 3, 3))]
    before = vf.jit(vf.grad(layer, (0, 1))).lower(*arrays).jaxpr
    lowered = convolutions(before, HOPPER)
    assert len(lowered) == 3
    assert all(eqn.invars[0].aval.shape[-1] == 64 for eqn in lowered)
    images = [eqn.invars[0] for eqn in lowered if eqn.invars[0].aval.shape == (4, 16, 16, 64)]
    assert len(images) == 2
    assert images[0] is images[1]  # the gradient by the weights reads what the result was computed of
    after = transpose_convolution_operands(before, partial(convolution.operand_orders, device=HOPPER))
    for one, other in zip(*[eval_jaxpr(closed, *map(vnp.asarray, arrays)) for closed in (before, after)], strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_convolutions(case: Case, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, Schedule(64, 1, stages=2, splits=splits), monkeypatch)


@pytest.mark.parametrize(
    "name",
    [
        *("channels last", "few channels", "asymmetric", "groups", "three axes", "by x with stride", "by w, asymmetric", "by w in groups"),
        *("matrices of images", "matrices of images by w", "one matrix", "one matrix by w"),
    ],
)
def test_convolutions_of_gpus_without_wgmma(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = [case for case in CASES if case.name == name]
    check(case, WarpSchedule(64, 64, 32, 32, stages=2, splits=2), monkeypatch, AMPERE)


@pytest.mark.parametrize("schedule", convolution.schedules(AMPERE), ids=str)
def test_llvm_compiles_kernels_of_gpus_without_wgmma(schedule: WarpSchedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "schedules", lambda device: (schedule,))
    for wrt in ("", "w"):
        equation = Case("", (64, 64, 30, 30), (64, 64, 3, 3), wrt).equation()
        routine = convolution.conv_general_dilated(tuple([atom.aval for atom in equation.invars]), equation.params, AMPERE)
        assert routine is not None
        (kernel,) = [dispatch.source for dispatch in routine.dispatches if header_of(dispatch.source)]
        code = ptx(kernel, tmp_path, "sm_80")
        assert "cp.async.cg" in code
        assert "mma.sync" in code
        assert ".local" not in code


@pytest.mark.parametrize("schedule", [Schedule(64, 3, stages=2), Schedule(32, 2, blocks=2, stages=3)], ids=str)
def test_rows_in_registers_of_several_warp_groups(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("", (4, 96, 6, 5), (64, 96, 2, 2), "w", dtype=FLOAT32, precision="tensorfloat32")
    check(case, schedule, monkeypatch)


def test_phases_of_few_channels_are_left_to_shaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_FEWEST", 1)
    equation = Case("", (8, 64, 16, 16), (8, 64, 3, 3), "x", stride=(2, 2)).equation()
    assert not convolution.arrangements(tuple([atom.aval for atom in equation.invars]), equation.params, HOPPER)


def test_float32_is_rounded_only_where_its_precision_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_FEWEST", 1)
    for wrt in ("", "x", "w"):
        case = Case("", (2, 64, 16, 16), (64, 64, 3, 3), wrt, dtype=FLOAT32)
        for precision, expected in ((None, 0), ("highest", 0), ("bfloat16_3x", 0), ("high", 1), ("tensorfloat32", 1)):
            equation = case._replace(precision=precision).equation()
            types = tuple([atom.aval for atom in equation.invars])
            assert len(convolution.arrangements(types, equation.params, HOPPER)) == expected
            assert not convolution.arrangements(types, equation.params, AMPERE)
    with default_matmul_precision("tensorfloat32"):
        assert convolution.arrangements(types, case.equation().params, HOPPER)


def check(case: Case, schedule: AnySchedule, monkeypatch: pytest.MonkeyPatch, device: TargetCapabilities = HOPPER) -> None:
    """Compare the results of a convolution by a schedule with those in float64."""
    schedule_by(schedule, monkeypatch)
    compare(case, device)


def compare(case: Case, device: TargetCapabilities) -> None:
    """Compare the results of a convolution with those in float64."""
    equation, rng = case.equation(), np.random.default_rng(len(case.name))
    operands = [rng.standard_normal(atom.aval.shape).astype(atom.aval.dtype) for atom in equation.invars]
    if case.precision:  # numbers that rounding does not change
        operands = [x.astype(BFLOAT16).astype(x.dtype) for x in operands]
    result = computed(equation, operands, device)
    params = equation.params | {"preferred_element_type": None}
    expected = np.asarray(
        vf.jit(lambda x, w: equation.primitive.bind(x, w, **params))(*[vnp.asarray(x.astype(np.float64)) for x in operands])
    )
    tolerance = {BFLOAT16: 8e-3, FLOAT16: 1e-3}.get(result.dtype, 1e-5)
    np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance, atol=1e-2 * tolerance * np.abs(expected).max())


def schedule_by(schedule: AnySchedule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have convolutions by a schedule of slices, of any sizes."""
    monkeypatch.setattr(convolution, "_FEWEST", 1)
    monkeypatch.setattr(convolution, "_FEWEST_WINDOWS", 1)

    def chosen(product: Any, device: Any, schedules: Any, most_splits: int) -> AnySchedule:
        return replace(schedule, splits=min(schedule.splits, most_splits))

    monkeypatch.setattr(convolution, "estimated", chosen)
    monkeypatch.setattr(convolution, "choose", lambda product, device, most_splits: chosen(product, device, (), most_splits))
    monkeypatch.setattr(patches, "estimated", lambda problem, device, most_splits: None)


def computed(equation: Equation, operands: list[np.ndarray], device: TargetCapabilities) -> np.ndarray:
    """Return the result of a convolution; memory around arrays is not written."""
    routine = convolution.conv_general_dilated(tuple([atom.aval for atom in equation.invars]), equation.params, device)
    assert routine is not None
    (out,) = equation.outvars
    sizes = [*[x.nbytes for x in operands], out.aval.size * out.aval.dtype.itemsize, *routine.workspaces]
    memory = [np.full(size + 2 * _AROUND, 0xFF, np.uint8) for size in sizes]  # numbers are NaN
    buffers = [x[_AROUND : _AROUND + size] for x, size in zip(memory, sizes, strict=True)]
    for buffer, x in zip(buffers, operands, strict=False):
        buffer[:] = x.view(np.uint8).reshape(-1)
    assert run(routine, buffers) >= 1
    for x, size in zip(memory, sizes, strict=True):
        assert (x[:_AROUND] == 0xFF).all()
        assert (x[_AROUND + size :] == 0xFF).all()
    return buffers[len(operands)].view(out.aval.dtype).reshape(out.aval.shape)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_infinite_taps_of_a_phase_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    equation = Case("", (2, 64, 8, 8), (64, 64, 3, 3), "x", stride=(2, 2)).equation()
    ct, w = [np.ones(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    w[5, 7, 1, 1] = np.inf
    schedule_by(Schedule(64, 1, stages=2), monkeypatch)
    result = computed(equation, [ct, w], HOPPER).astype(np.float32)
    infinite = np.argwhere(~np.isfinite(result))
    assert 0 < len(infinite) <= result[0, 0].size // 4 * len(result)
    assert len({tuple(place % 2) for place in infinite[:, 2:]}) == 1


@pytest.mark.parametrize("schedule", convolution.schedules(HOPPER), ids=str)
def test_llvm_compiles_kernels_of_windows(schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "schedules", lambda device: (schedule,))
    monkeypatch.setattr(patches, "estimated", lambda problem, device, most_splits: None)
    plain = Case("", (64, 64, 30, 30), (64, 64, 3, 3))
    rounded = plain._replace(dtype=FLOAT32, precision="tensorfloat32")
    for case in (plain, plain._replace(wrt="w"), rounded, *([] if schedule.turns else [rounded._replace(wrt="w")])):
        equation = case.equation()
        routine = convolution.conv_general_dilated(tuple([atom.aval for atom in equation.invars]), equation.params, HOPPER)
        assert routine is not None
        (kernel,) = [dispatch.source for dispatch in routine.dispatches if header_of(dispatch.source)]
        code = ptx(kernel, tmp_path, "sm_90a")
        assert "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier" in code
        assert "wgmma.mma_async" in code
        assert ".local" not in code


def test_tiles_hold_boxes_of_windows_that_sums_are_over() -> None:
    """A box that is larger than its tile brings more bytes than the kernel waits for."""
    for schedule in convolution.schedules(HOPPER):
        assert schedule.copies(False, False)
