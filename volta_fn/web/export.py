"""Write web pages: one file that holds everything, or a module and its data."""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volta_fn.errors import ArgumentError, SerializationError
from volta_fn.io.atomic import replacing
from volta_fn.targets.wgsl.profiles import DeviceProfile, profile_of
from volta_fn.web.data import STORAGES
from volta_fn.web.function import Function
from volta_fn.web.layouts import Layout, Plain
from volta_fn.web.manifest import Manifest, make_manifest

_FOLDER = Path(__file__).parent

#: The modules of the runtime, in an order in which each is declared before it is used.
_RUNTIME = ("errors", "arrays", "device", "memory", "pipelines", "program", "safetensors", "application")

#: What the runtime gives to pages.
_PUBLIC = ("Application", "PageError", "decoded", "encoded", "open", "openDevice", "openPacked", "sizeOf", "unpack")

#: The comment in a page of one's own that is replaced by the runtime, the programs and the data.
_MARK = "<!-- volta_fn -->"
#: Opens the application of a page, as the module's function of the same name.
_LOAD = "const load = () => openPacked(...['manifest', 'data'].map(name => document.getElementById(name).textContent));"


@dataclass(frozen=True)
class ExportedPage:
    """What `export_web` has written.

    Attributes:
        files: the files.
        bytes: the bytes of all of them.
        shaders: the number of shaders.
        dispatches: for each function the dispatches of a call.
        peak_memory: for each function the bytes on the GPU during a call, arguments and results included.
    """

    files: tuple[Path, ...]
    bytes: int
    shaders: int
    dispatches: dict[str, int]
    peak_memory: dict[str, int]


def export_web(
    path: str | os.PathLike[str],
    *,
    state: Mapping[str, Any],
    functions: Mapping[str, Function],
    page: Layout | str | os.PathLike[str] | None = None,
    format: str = "html",
    storage: str = "float32",
    limits: str | Mapping[str, int] | DeviceProfile = "webgpu",
) -> ExportedPage:
    """Write functions as a web page that runs them on the GPU of whoever opens it.

    A step of training may be one of them. The page needs neither a server nor a network. Its GPU holds the state, which functions
    overwrite. No GPU is needed to export.

    Args:
        path: the file to write. For the format "module" a JavaScript module; its data are next to it, in a file that ends with ``.bin``.
        state: pytrees of arrays by name, such as a model and an optimizer's moments, that live on the page's GPU.
        functions: the functions by name; see `vf.web.Function`.
        page: what the page shows: `vf.web.Plain` (the default), `vf.web.Digits`, `vf.web.Text`, or the path of an HTML file of one's own,
            in which the comment ``<!-- volta_fn -->`` is replaced by programs, data and runtime: ``volta.load()`` opens the GPU.
        format: "html", one file, or "module", for pages of one's own: its function ``load()`` opens the GPU.
        storage: "float16" or "bfloat16" store float32 parameters in the file in 16 bits. The page computes with float32.
        limits: the limits that the programs may use, as for `Lowered.plan`; the page asks the browser for those that it needs.

    Raises:
        ExportError: a function has a step on the host (`eig`, callbacks) or an array of a dtype that WebGPU lacks, does not fit the limits,
            or returns a state that differs from what it takes.
        ArgumentError: an option is unknown, or the page needs a function, an input or a result that is not there.
        SerializationError: a file cannot be read or written.

    >>> import tempfile, volta_fn as vf
    >>> step = vf.web.Function(lambda w, x: (w - 0.1 * x, (w * x).sum()), ["w", vf.ShapeDtypeStruct((3,), "float32")], ["w", "loss"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = vf.export_web(f"{folder}/page.html", state={"w": vf.numpy.ones(3)}, functions={"step": step})
    >>> made.shaders, made.dispatches
    (1, {'step': 1})
    """
    if format not in ("html", "module"):
        raise ArgumentError(f"export_web: the formats are 'html' and 'module', got {format!r}")
    if storage not in STORAGES:
        raise ArgumentError(f"export_web: storage is one of {STORAGES}, got {storage!r}")
    manifest = make_manifest(state, functions, profile_of(limits), storage)
    target = Path(path)
    texts = _module(target, manifest) if format == "module" else {target: _page(page or Plain(), manifest).encode()}
    for file, text in texts.items():
        with replacing(file) as temporary:
            temporary.write_bytes(text)
    return ExportedPage(
        files=tuple(texts),
        bytes=sum(map(len, texts.values())),
        shaders=len(manifest.json["shaders"]),
        dispatches={name: plan.dispatches() for name, plan in manifest.plans.items()},
        peak_memory={name: plan.memory.peak for name, plan in manifest.plans.items()},
    )


def runtime_source() -> str:
    """Return the runtime as one script, without imports and exports."""
    texts = [(_FOLDER / "runtime" / f"{name}.js").read_text("utf-8") for name in _RUNTIME]
    return "\n".join([re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.M), flags=re.M) for text in texts])


def _module(path: Path, manifest: Manifest) -> dict[Path, bytes]:
    """Return the files of a JavaScript module."""
    data = path.with_suffix(".bin")
    text = (
        f"{runtime_source()}\n/** What the page runs. */\nexport const manifest = {_compact(manifest.json)};\n\n"
        "/** Opens the GPU, and returns the application. */\nexport async function load(data = undefined) {\n"
        f"  data ??= await (await fetch(new URL({json.dumps(data.name)}, import.meta.url))).arrayBuffer();\n"
        f"  return open(manifest, new Uint8Array(data));\n}}\n\nexport {{{', '.join(_PUBLIC)}}};\n"
    )
    return {path: text.encode(), data: manifest.data}


def _page(page: Layout | str | os.PathLike[str], manifest: Manifest) -> str:
    """Return an HTML page."""
    if isinstance(page, Layout):
        return _laid_out(page, manifest)
    try:
        text = Path(page).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise SerializationError(f"export_web: the page {os.fspath(page)!r} cannot be read: {error}") from error
    if text.count(_MARK) != 1:
        raise ArgumentError(f"export_web: the page {os.fspath(page)!r} has the comment {_MARK} {text.count(_MARK)} times, not once")
    return text.replace(_MARK, _scripts(manifest, "", {}))


def _laid_out(page: Layout, manifest: Manifest) -> str:
    content = _asset(f"{page.kind}.html").replace("<!-- training -->", _asset("training.html") if page.train else "")
    style = _FOLDER / "pages" / f"{page.kind}.css"
    fields = {
        "title": html.escape(page.title),
        "style": _asset("common.css") + (style.read_text("utf-8") if style.exists() else ""),
        "description": html.escape(page.description),
        "content": content.replace("<!-- weights -->", _asset("weights.html")),
        "volta_fn": _scripts(manifest, _asset("common.js") + _asset(f"{page.kind}.js"), page.settings(manifest.json)),
    }
    return re.sub(r"<!-- (\w+) -->", lambda match: fields[match[1]], _asset("shell.html"))


def _scripts(manifest: Manifest, script: str, settings: Mapping[str, Any]) -> str:
    """Return the elements that hold programs, data, settings and scripts."""
    kind = 'type="application/gzip;base64"'
    rows = [
        f'<script {kind} id="manifest">{_packed(_compact(manifest.json).encode())}</script>',
        f'<script {kind} id="data">{_packed(manifest.data)}</script>',
        f'<script type="application/json" id="settings">{_compact(settings)}</script>',
        f"<script>\nconst volta = (() => {{\n{runtime_source()}\n{_LOAD}\nreturn {{load, {', '.join(_PUBLIC)}}};\n}})();\n</script>",
    ]
    return "\n".join([*rows, *([f"<script>\n{script}\n</script>"] if script else [])])


def _asset(name: str) -> str:
    return (_FOLDER / "pages" / name).read_text("utf-8")


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _compact(value: Any) -> str:
    """Return JSON that may stand in a script.

    Texts have no end of an element in them, nor the beginning of a comment, after which the end of the script would not be found.
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
