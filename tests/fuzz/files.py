"""Damage files at random: every loader refuses them by a typed error, or gives what is in them.

`python -m tests.fuzz.files --count 1000000` changes so many files, in turn for all loaders, by bytes and, where there is a header in
JSON, by its structure. An untyped error, data that differ from the reference library's, or more than 100 MB is a fault. A checkpoint is
never restored with other elements. What was once wrong is among the seeds of a format.
"""

from __future__ import annotations

import argparse
import gzip
import io as streams
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import data, export, io
from volta_fn.errors import VoltaError
from volta_fn.export import programs
from volta_fn.lazy_imports import is_installed

#: The most that the process may grow by, in bytes.
MEMORY = 100_000_000
_NUMBERS = (0, 1, -1, 7, 64, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**64 - 1, 2**64, 10**20)
_TEXTS = ("", "F32", "F64", "I8", "BOOL", "../x", "/etc/passwd", "\0", "a" * 300, "\ud800", "__metadata__", "é", "a.b." * 200)
_FIELDS = (
    b",",
    b'"',
    b"\n",
    b"\r",
    b"\0",
    b"nan",
    b"-inf",
    b"1_000",
    b"9" * 400,
    b"1e999",
    b"\xff",
    b"\xef\xbb\xbf",
    b"0x10",
    b"\xe2\x80\xa8",
)

ARRAYS = {
    "w": np.arange(12, dtype=np.float32).reshape(4, 3),
    "b": np.ones(3, np.float16),
    "flag": np.array([True, False]),
    "e": np.ones((0, 2), np.int64),
    "i": np.arange(8, dtype=np.int32).reshape(2, 2, 2),
}


class WrongDataError(Exception):
    """A loader gave what is not in the file."""


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Change, remove, insert, repeat or swap some bytes."""
    result = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        if not result:
            return bytes([draw.randrange(256)])
        at, other = draw.randrange(len(result)), draw.randrange(len(result))
        width = draw.choice((1, 2, 4, 8))
        match draw.randrange(9):
            case 0:
                result[at] ^= 1 << draw.randrange(8)
            case 1:
                result[at] = draw.randrange(256)
            case 2:
                del result[at:]
            case 3:
                del result[at : at + draw.randrange(1, 16)]
            case 4:
                result[at:at] = draw.randbytes(draw.randrange(1, 16))
            case 5:
                result[at:at] = result[other : other + draw.randrange(1, 64)]
            case 6:
                number = draw.choice(_NUMBERS) % (1 << (8 * width))
                result[at : at + width] = number.to_bytes(width, draw.choice(("little", "big")))  # type: ignore[arg-type]
            case 7:
                result[at], result[other] = result[other], result[at]
            case _:
                result += bytes(draw.randrange(1, 32))
    return bytes(result)


def _some_json(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(6 if depth < 3 else 4)
    if kind == 4:
        return [_some_json(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 5:
        return {draw.choice(_TEXTS): _some_json(draw, depth + 1) for _ in range(draw.randrange(3))}
    return (draw.choice(_NUMBERS), draw.choice((0.5, -0.0, float("nan"), float("inf"))), draw.choice(_TEXTS), draw.choice((None, True)))[
        kind
    ]


def mutated_json(tree: Any, draw: random.Random) -> Any:
    """Change one node of a JSON tree."""
    nodes = [(parent, key) for parent in _containers(tree) for key in (list(parent) if isinstance(parent, dict) else range(len(parent)))]
    if not nodes or draw.random() < 0.03:
        return _some_json(draw)
    parent, key = draw.choice(nodes)
    match draw.randrange(4):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[draw.choice(_TEXTS)] = parent[key]
        case 2 if type(parent[key]) is int:
            parent[key] += draw.choice((-1, 1, 4, -4, 2**32, 2**63))
        case _:
            parent[key] = _some_json(draw)
    return tree


def _containers(tree: Any) -> list[Any]:
    if not isinstance(tree, (dict, list)):
        return []
    children = tree.values() if isinstance(tree, dict) else tree
    return [tree, *[inner for child in children for inner in _containers(child)]]


def mutated_header(content: bytes, draw: random.Random) -> bytes:
    """Change the header of a safetensors file by its structure."""
    length = int.from_bytes(content[:8], "little")
    header = mutated_json(json.loads(content[8 : 8 + length]), draw)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    if draw.random() < 0.05:
        text = b"[" * 50_000 + text
    claimed = len(text) if draw.random() < 0.95 else draw.choice(_NUMBERS) % 2**64
    return claimed.to_bytes(8, "little") + text + content[8 + length :]


def either(content: bytes, draw: random.Random) -> bytes:
    """Change bytes or the header."""
    return (mutated if draw.random() < 0.5 else mutated_header)(content, draw)


def fields(content: bytes, draw: random.Random) -> bytes:
    """Change bytes, and insert what means something in tables."""
    result = mutated(content, draw)
    for _ in range(draw.randrange(3)):
        at = draw.randrange(len(result) + 1)
        result = result[:at] + draw.choice(_FIELDS) + result[at:]
    return result


class Format:
    """A format: files that are right, how to change one, and how to load it."""

    def __init__(self, name: str, seeds: list[bytes], change: Callable[[bytes, random.Random], bytes], load: Callable[[Path], Any]) -> None:
        self.name, self.seeds, self.change, self.load = name, seeds, change, load


def _safetensors(path: Path) -> None:
    actual = {name: np.asarray(value) for name, value in io.load_safetensors(path).items()}
    try:
        wanted = load_file(path)
    except (SafetensorError, AttributeError) as error:
        raise WrongDataError(f"accepted what the library refuses: {error}") from error
    if actual.keys() != wanted.keys() or any(not _same(actual[n], wanted[n]) for n in actual):
        raise WrongDataError("other data than the library's")


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def _state_dict(path: Path) -> None:
    template = {name: jnp.asarray(value) for name, value in ARRAYS.items()}
    result = io.load_state_dict(template, io.load_safetensors(path))
    if any((result[n].shape, result[n].dtype) != (v.shape, v.dtype) for n, v in template.items()):
        raise WrongDataError("other types than the template's")


STATE = {
    "arrays": {n: jnp.asarray(v) for n, v in ARRAYS.items()},
    "key": vf.random.key(3),
    "step": 10**20,
    "name": "é",
    "rate": 0.1,
    "none": None,
}


def _checkpoint(path: Path) -> None:
    restored = io.Checkpointer(path.parent).restore(STATE, 7)
    for (name, a), (_, b) in zip(vf.tree.leaves_with_path(STATE), vf.tree.leaves_with_path(restored), strict=True):
        if type(a) is not type(b) or (not np.array_equal(a, b) if hasattr(a, "dtype") and hasattr(a, "host") else repr(a) != repr(b)):
            raise WrongDataError(f"{vf.tree.keystr(name)} was restored as something else")


def _checkpoint_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        io.Checkpointer(folder).save(7, STATE)
        return (Path(folder) / "step_0000000007.safetensors").read_bytes()


def _idx(path: Path) -> None:
    actual, content = data.read_idx(path), path.read_bytes()
    content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    dtype = np.dtype({8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}[content[2]])
    shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    wanted = np.frombuffer(content[4 + 4 * content[3] :], dtype).reshape(shape)
    if not _same(actual, wanted.astype(dtype.newbyteorder("="))):
        raise WrongDataError("other data than the file's")


def _idx_file(dtype: str, code: int, shape: tuple[int, ...]) -> bytes:
    return (
        bytes([0, 0, code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + (np.arange(np.prod(shape)) % 100).astype(dtype).tobytes()
    )


def _cifar(path: Path) -> None:
    if data.CIFAR10(path).labels.max() > 9:
        raise WrongDataError("a label beyond the classes")


def _csv(path: Path) -> None:
    table = data.CSV(path, missing={"price": 0.0}) if path.stat().st_size % 2 else data.CSV(path)
    values = [np.asarray(value) for value in vf.tree.leaves(table[0])]
    if any(np.isinf(value).any() for value in values if value.dtype.kind == "f") and b"inf" not in path.read_bytes().lower():
        raise WrongDataError("an infinity that the file has not")


def _npy(path: Path) -> None:
    jnp.load(path)


def _npz(path: Path) -> None:
    with jnp.load(path) as archive:
        for name in archive:
            archive[name]


def _npz_file(compressed: bool) -> bytes:
    file = streams.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **{name: ARRAYS[name] for name in ("w", "i")})
    return file.getvalue()


def _npy_file() -> bytes:
    file = streams.BytesIO()
    np.save(file, ARRAYS["w"])
    return file.getvalue()


def _exported(path: Path) -> None:
    loaded = export.deserialize(path.read_bytes())
    if path.stat().st_size % 4 == 0 and all(aval.shape == (3,) for aval in loaded.in_avals):  # compiling takes a while
        vf.tree.leaves(loaded.call(*[np.ones(3, aval.dtype) for aval in loaded.in_avals]))


def _exported_file() -> bytes:
    def function(x: vf.Array) -> dict[str, vf.Array]:
        ordered = jnp.sort(x)[jnp.array([1, 0])] + 1
        last, rows = vf.lax.scan(lambda c, row: (c + row, jnp.tanh(c)), x[0], x)
        return {"ordered": ordered, "last": vf.lax.cond(last > 0, jnp.sin, jnp.cos, last), "rows": rows.astype("bfloat16")}

    struct = vf.ShapeDtypeStruct((3,), "float32")
    return bytes(export.export(vf.jit(function))(struct).serialize(vjp_order=1))


def forged(content: bytes, draw: random.Random) -> bytes:
    """Change bytes of an exported function, or its manifest, with the hash that belongs to it."""
    if draw.random() < 0.2:
        return mutated(content, draw)
    manifest, chunks = programs.unpack(content)
    for _ in range(draw.choice((1, 1, 2))):
        manifest = mutated_json(manifest, draw)
    try:
        return bytes(programs.pack(manifest, [np.frombuffer(chunk, np.uint8) for chunk in chunks]))
    except ValueError:  # NaN, which JSON has not
        return mutated(content, draw)


def _onnx(path: Path) -> None:
    function, params = vf.onnx.load(path)
    function(params, *[np.ones((2, 3), np.float32)] * len(function.input_names))


def _onnx_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        weights = {"w": jnp.ones((3, 4)), "b": jnp.arange(4.0)}
        vf.onnx.save(lambda p, x: jnp.tanh(x @ p["w"] + p["b"]).sum(1), weights, (jnp.ones((2, 3)),), path)
        return [path.read_bytes()]


_TABLE = b'price,rooms,city\n1.5,3,Rome\n,2,Oslo\n"3e4",7,"a,b"\n1e300,-4,"q""q"\n'
_IDX = [_idx_file(*form) for form in (("u1", 8, (5, 4, 4)), ("u1", 8, (5,)), (">i2", 11, (3, 4)), (">f8", 14, (2,)), ("u1", 8, (0, 3)))]
_CIFAR = b"".join(bytes([n]) + bytes(3072) for n in range(2))
_DOTS = save({"a" + ".a" * 20_000: np.ones(1, np.float32)})

FORMATS = [
    Format("safetensors", [save(ARRAYS, {"format": "np"}), _DOTS], either, _safetensors),
    Format("state dict", [save(ARRAYS), _DOTS], either, _state_dict),
    Format("checkpoint", [_checkpoint_file()], either, _checkpoint),
    Format("IDX", _IDX, mutated, _idx),
    Format("IDX in gzip", [gzip.compress(_IDX[0])], mutated, _idx),
    Format("CIFAR", [_CIFAR], mutated, _cifar),
    Format("CSV", [_TABLE, _TABLE.replace(b"1e300", b"1e999")], fields, _csv),
    Format("CSV in gzip", [_TABLE], lambda content, draw: mutated(gzip.compress(fields(content, draw)), draw), _csv),
    Format("npy", [_npy_file()], mutated, _npy),
    Format("npz", [_npz_file(False), _npz_file(True)], mutated, _npz),
    Format("exported function", [_exported_file()], forged, _exported),
    *([Format("ONNX", _onnx_files(), mutated, _onnx)] if is_installed("onnx") else []),
]


def check(count: int, seed: int = 0, until: float = float("inf")) -> tuple[int, Counter[str]]:
    """Load so many changed files; return how many, and what was wrong with the first of each kind."""
    draw, wrong, done = random.Random(seed), Counter[str](), 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step_0000000007.safetensors"
        while done < count and time.monotonic() < until:
            form = FORMATS[done % len(FORMATS)]
            path.write_bytes(form.change(draw.choice(form.seeds), draw))
            fault = _loaded(form, path)
            if fault:
                wrong[f"{form.name}: {fault}"] += 1
            done += 1
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > MEMORY:
        wrong[f"{grown:,} bytes more memory"] += 1
    return done, wrong


def _loaded(form: Format, path: Path) -> str:
    """Return what is wrong with how a file is loaded."""
    begun = time.monotonic()
    try:
        form.load(path)
    except VoltaError as error:
        str(error)
    except WrongDataError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return "more than ten seconds" if time.monotonic() - begun > 10 else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="how many files (default 1,000,000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    done, wrong = check(options.count, options.seed, time.monotonic() + options.seconds)
    print(f"{done:,} files, {sum(wrong.values())} wrong")
    for fault, times in wrong.most_common():
        print(f"{times} times {fault}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
