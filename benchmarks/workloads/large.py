"""Work that keeps a GPU busy: `python -m benchmarks.gpu`."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.workloads import calls, operations, products
from benchmarks.workloads.attention import attention, attention_gradient
from benchmarks.workloads.case import Workload
from benchmarks.workloads.convolutions import Kind, forward, gradients
from benchmarks.workloads.linear_algebra import FACTORISATIONS, factorisation
from benchmarks.workloads.networks import lenet, mlp, resnet18
from benchmarks.workloads.sequences import SMALL_GPT, gpt, lstm
from benchmarks.workloads.training import adam_step

MLP, SMALL_MLP = {"batch": 128, "widths": (784, 1024, 1024, 10)}, {"batch": 4, "widths": (7, 6, 5, 3)}
GPT = {"batch": 8, "tokens": 128, "width": 256, "layers": 4, "heads": 4, "vocabulary": 256}
MEDIUM_GPT = {"batch": 8, "tokens": 512, "width": 768, "layers": 6, "heads": 12, "vocabulary": 8192}
HEADS, SMALL_HEADS = {"batch": 8, "tokens": 1024, "heads": 16, "width": 64}, {"batch": 2, "tokens": 5, "heads": 2, "width": 4}

TRAINING = [
    Workload("gpu train/mlp", mlp, MLP, SMALL_MLP),
    Workload("gpu train/lenet", lenet, {"batch": 64}, {"batch": 2}),
    Workload("gpu train/resnet-18", resnet18, {"batch": 64, "width": 64}, {"batch": 2, "width": 2}),
    Workload("gpu train/lstm", lstm, {"batch": 32, "steps": 64, "width": 256}, {"batch": 2, "steps": 3, "width": 4}),
    Workload("gpu train/gpt small", gpt, GPT, SMALL_GPT),
    Workload("gpu train/gpt medium", gpt, MEDIUM_GPT, SMALL_GPT),
]

#: Training steps in the precisions that matrix units have.
PRECISIONS = [
    replace(work, name=f"{work.name}@{precision}", precision=precision) for precision in ("tensorfloat32", "bfloat16") for work in TRAINING
]


def _matrix(rows: int, columns: int, **others: int | None) -> dict[str, int | None]:
    return {"rows": rows, "columns": columns, **others}


_SMALL = operations.SMALL_MATRIX

#: What moves bytes, and what computes, as fast as anything does.
COPY = Workload("gpu op/copy 64M", operations.negative, {"count": 2**26}, {"count": 100})
SQUARE = Workload("gpu product/4096×4096×4096", products.matmul, {"m": 4096, "k": 4096, "n": 4096}, products.QUICK)

OPERATIONS = [
    COPY,
    Workload("gpu op/add 64M", operations.add, {"count": 2**26}, {"count": 100}),
    Workload("gpu op/gelu 64M", operations.gelu, {"count": 2**26, "approximate": True}, {"count": 100}),
    *(Workload(f"gpu op/softmax {m}×{n}", operations.softmax, _matrix(m, n), _SMALL) for m, n in ((65536, 1024), (32768, 4096))),
    Workload("gpu op/softmax gradient 32768×1024", operations.softmax_gradient, _matrix(32768, 1024), _SMALL),
    *(
        Workload(f"gpu op/layer norm {m}×{n}", operations.layer_norm, {"rows": m, "width": n}, {"rows": 5, "width": 16})
        for m, n in ((65536, 1024), (32768, 4096))
    ),
    Workload(
        "gpu op/layer norm gradient 32768×1024", operations.layer_norm_gradient, {"rows": 32768, "width": 1024}, {"rows": 5, "width": 16}
    ),
    Workload("gpu op/sum 8192×8192", operations.total, _matrix(8192, 8192, axis=None), _SMALL),
    Workload("gpu op/sum of rows 8192×8192", operations.total, _matrix(8192, 8192, axis=1), _SMALL),
    Workload("gpu op/sum of columns 8192×8192", operations.total, _matrix(8192, 8192, axis=0), _SMALL),
    Workload("gpu op/cumsum 1×16M", operations.cumsum, _matrix(1, 2**24), _SMALL),
    Workload("gpu op/cumsum 8192×2048", operations.cumsum, _matrix(8192, 2048), _SMALL),
    Workload("gpu op/sort 1M", operations.sort, _matrix(1, 2**20), _SMALL),
    Workload("gpu op/sort 4096×1024", operations.sort, _matrix(4096, 1024), _SMALL),
    Workload("gpu op/transpose 8192×8192", operations.transpose, {"side": 8192}, {"side": 16}),
    Workload("gpu op/gather 16384 of 32768×256", operations.gather, operations.TABLE, operations.SMALL_TABLE),
    Workload("gpu op/embedding gradient 16384 to 32768×256", operations.embedding_gradient, operations.TABLE, operations.SMALL_TABLE),
    Workload("gpu op/random normal 16M", operations.random_normal, {"count": 2**24}, {"count": 100}),
    Workload("gpu op/Adam step of 16 × 4M", adam_step, {"count": 16, "size": 2**22}, {"count": 3, "size": 7}),
    Workload("gpu op/attention 8×1024×16×64", attention, HEADS, SMALL_HEADS),
    Workload("gpu op/attention gradient 8×1024×16×64", attention_gradient, HEADS, SMALL_HEADS),
]

_SHAPES = [(s, s, s) for s in (512, 1024, 2048)]
_SHAPES += [
    (8192, 1024, 1024),
    (1024, 8192, 256),
    (64, 4096, 4096),
    (4096, 64, 4096),
    (128, 784, 1024),
    (1024, 256, 768),
    (1024, 1024, 256),
]
PRODUCTS = [
    SQUARE,
    *(Workload(f"gpu product/{m}×{k}×{n}", products.matmul, {"m": m, "k": k, "n": n}, products.QUICK) for m, k, n in _SHAPES),
    Workload("gpu product/transposed 1024×8192×1024", products.by_transposed, {"m": 1024, "k": 8192, "n": 1024}, products.QUICK),
    Workload(
        "gpu product/batched 64 of 512×512×512",
        products.batched,
        {"batch": 64, "m": 512, "k": 512, "n": 512},
        products.QUICK | {"batch": 2},
    ),
    Workload(
        "gpu product/batched 96 of 128×64×128", products.batched, {"batch": 96, "m": 128, "k": 64, "n": 128}, products.QUICK | {"batch": 2}
    ),
]

_KINDS = {
    "3×3 16×64×32×32": (Kind(3), {"batch": 16, "channels": 64, "outputs": 64, "side": 32}),
    "3×3 8×64×56×56": (Kind(3), {"batch": 8, "channels": 64, "outputs": 64, "side": 56}),
    "3×3 32×256×14×14": (Kind(3), {"batch": 32, "channels": 256, "outputs": 256, "side": 14}),
    "1×1 32×256×56×56": (Kind(1), {"batch": 32, "channels": 256, "outputs": 64, "side": 56}),
    "5×5 64×6×14×14": (Kind(5), {"batch": 64, "channels": 6, "outputs": 16, "side": 14}),
    "7×7 stride 2 32×3×224×224": (Kind(7, stride=2), {"batch": 32, "channels": 3, "outputs": 64, "side": 224}),
    "depthwise 3×3 32×128×56×56": (Kind(3, depthwise=True), {"batch": 32, "channels": 128, "outputs": 128, "side": 56}),
}
CONVOLUTIONS = [
    Workload(f"gpu conv/{name} {run.__name__}", run, {"kind": kind} | sizes, {"batch": 2, "side": 9})
    for name, (kind, sizes) in _KINDS.items()
    for run in (forward, gradients)
]

FACTORED = [
    Workload(f"gpu linalg/{name} {label}", factorisation, {"shape": shape, "name": name}, {"shape": (2, 3, 3), "name": name})
    for label, shape in {"256×256": (256, 256), "16×(256×256)": (16, 256, 256), "256×(32×32)": (256, 32, 32)}.items()
    for name in FACTORISATIONS
]

CALLS = [
    Workload("gpu call/jitted add", calls.add, {"jit": True}),
    Workload("gpu call/eager value and gradient", calls.value_and_gradient, {"jit": False}),
    Workload("gpu call/jitted update of 100 arrays", calls.update, {"count": 100}, {"count": 3}),
]

WORKLOADS: list[Workload] = [*TRAINING, *PRECISIONS, *OPERATIONS, *PRODUCTS, *CONVOLUTIONS, *FACTORED, *CALLS]
