"""A small crawl from the documentation of the installed Python packages, as WARC files of HTML pages.

Modules are read with `ast`; nothing is imported. Each module with enough documentation becomes a page with
the usual furniture (navigation, side bar, footer) around its docstrings, at a URL like pydoc's.
"""

import ast
import base64
import gzip
import hashlib
import inspect
import os
import sysconfig
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline_config.settings import SampleCrawl
from tasks.steps.shards import (
    FATE,
    REMOVED_SCHEMA,
    DecidingStep,
    Fate,
    ShardCounts,
    TableWriter,
    failed,
    join_parent,
    removed,
    removed_row,
)

SITE = "https://pydoc.example"
CRAWL_DATE = "2000-01-01T00:00:00Z"  # the pages have no date; one that never changes
MODULE_PATH = "_module_path"
SKIPPED_FOLDERS = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Module:
    """A module's file and dotted name."""

    name: str
    path: Path


def installed_modules() -> list[Module]:
    """Modules of the standard library and of site-packages, in a fixed pseudo-random order."""
    paths = sysconfig.get_paths()
    roots = [Path(paths["stdlib"]), *sorted({Path(paths["purelib"]), Path(paths["platlib"])})]
    found: dict[str, Module] = {}
    for root in roots:
        for module in _modules_below(root):
            found.setdefault(module.name, module)
    return sorted(found.values(), key=lambda module: hashlib.sha256(module.name.encode()).digest())


def _modules_below(root: Path) -> Iterator[Module]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - SKIPPED_FOLDERS)
        for file in sorted(files):
            if file.endswith(".py"):
                path = Path(folder) / file
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                if name and all(part.isidentifier() for part in name.split(".")):
                    yield Module(name, path)


def docstrings(source: str, min_characters: int) -> list[tuple[str, str]]:
    """(qualified name, docstring) of a module and all in it, if the docstring is long enough.

    Raises:
        SyntaxError: the source is not Python.
    """
    found: list[tuple[str, str]] = []

    def visit(node: ast.AST, name: str) -> None:
        text = ast.get_docstring(node, clean=False)
        if text and len(text) >= min_characters:
            found.append((name, inspect.cleandoc(text)))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{name}.{child.name}" if name else child.name)

    visit(ast.parse(source), "")
    return found


def render_page(name: str, sections: list[tuple[str, str]]) -> str:
    """An HTML page with the documentation of a module."""
    title = escape(name)
    parent = name.rpartition(".")[0]
    body = "\n".join(
        f'<section id="{escape(part)}"><h2>{escape(part or name)}</h2>\n{_render_text(text)}</section>'
        for part, text in sections
    )
    contents = "".join(
        f'<li><a href="#{escape(part)}">{escape(part)}</a></li>' for part, _ in sections if part
    )
    up = f'<a href="/{escape(parent)}.html">{escape(parent)}</a>' if parent else '<a href="/">Index</a>'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title} - documentation</title>'
        "<style>body{font-family:sans-serif}</style><script>window.ready=true</script></head><body>\n"
        f'<header><nav><a href="/">Home</a> <a href="/search.html">Search</a> {up}</nav></header>\n'
        f"<aside><h3>On this page</h3><ul>{contents}</ul></aside>\n"
        f"<main><article><h1>{title}</h1>\n{body}</article></main>\n"
        "<footer><p>Made from the documentation of the installed packages.</p>"
        '<p><a href="/terms.html">Terms</a> | <a href="/contact.html">Contact</a></p></footer>\n'
        "</body></html>\n"
    )


def _render_text(text: str) -> str:
    return "\n".join(_render_block(block) for block in text.split("\n\n") if block.strip())


def _render_block(block: str) -> str:
    lines = [line for line in block.split("\n") if line.strip()]
    if all(line.startswith(("    ", "\t", ">>>", "...")) for line in lines):
        return f"<pre>{escape(block)}</pre>"
    if lines[0].lstrip().startswith(("- ", "* ")):
        items = inspect.cleandoc(block).replace("\n* ", "\n- ").lstrip("-* ").split("\n- ")
        return "<ul>" + "".join(f"<li>{escape(' '.join(item.split()))}</li>" for item in items) + "</ul>"
    if len(lines) > 1 and set(lines[1].strip()) <= set("-=~^"):
        rest = "\n".join(lines[2:])
        return f"<h3>{escape(lines[0].strip())}</h3>" + (f"\n{_render_block(rest)}" if rest else "")
    return f"<p>{escape(' '.join(block.split()))}</p>"


def warc_record(url: str, html: bytes) -> bytes:
    """A WARC response record with its HTTP header, as one gzip member; the same bytes every time."""
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(
        html
    )
    digest = base64.b32encode(hashlib.sha1(html).digest()).decode()
    head = "\r\n".join(
        [
            "WARC/1.0",
            "WARC-Type: response",
            f"WARC-Record-ID: <urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, url)}>",
            f"WARC-Date: {CRAWL_DATE}",
            f"WARC-Target-URI: {url}",
            f"WARC-Payload-Digest: sha1:{digest}",
            "WARC-Identified-Payload-Type: text/html",
            "Content-Type: application/http; msgtype=response",
            f"Content-Length: {len(http) + len(html)}",
        ]
    )
    return gzip.compress(head.encode() + b"\r\n\r\n" + http + html + b"\r\n\r\n", compresslevel=6, mtime=0)


class ReadModules(PipelineStep):
    """Yields the installed modules, as documents without text."""

    type, name = "READ", "modules"

    def run(self, data: None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        join_parent()
        for module in installed_modules():
            metadata = {"url": f"{SITE}/{module.name}.html", "file_path": module.name}
            yield Document(text="", id=module.name, metadata=metadata | {MODULE_PATH: str(module.path)})


class RenderModule(DecidingStep):
    """Fills in a module's page."""

    name = "page of a module"

    def __init__(self, settings: SampleCrawl):
        super().__init__()
        self.settings = settings
        self.text_bytes = 0

    def decide(self, document: Document) -> Fate | None:
        path = Path(document.metadata[MODULE_PATH])
        try:
            sections = docstrings(path.read_text("utf-8"), self.settings.min_docstring_characters)
        except (SyntaxError, ValueError, RecursionError) as error:
            return failed("not_python", f"{type(error).__name__}: {error}")
        if not sections:
            return removed("undocumented")
        self.text_bytes += sum(len(text.encode("utf-8", "replace")) for _, text in sections)
        document.text = render_page(document.id, sections).encode("utf-8", "replace").decode()
        return None

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for document in super().run(data, rank, world_size):
            yield document
            if self.text_bytes >= self.settings.max_text_bytes:
                return


class WriteCrawl(PipelineStep):
    """Writes pages to WARC files, round robin; and the books."""

    type, name = "WRITE", "WARC files"

    def __init__(self, folder: str, warc_files: int):
        super().__init__()
        self.folder = folder
        self.warc_files = warc_files

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        folder, counts = Path(self.folder), ShardCounts()
        lost = TableWriter(folder / "removed" / "part-00000.parquet", REMOVED_SCHEMA)
        (folder / "warc").mkdir(exist_ok=True)
        paths = [folder / "warc" / f"documentation-{n:05d}.warc.gz" for n in range(self.warc_files)]
        files = [path.open("wb") for path in paths]
        for document in data:
            fate = document.metadata.get(FATE)
            if fate is None:
                file = files[counts.kept % self.warc_files]
                file.write(warc_record(document.metadata["url"], document.text.encode()))
            else:
                lost.add(removed_row(document, fate))
            counts.add(fate, document)
            yield document
        for writer in [*files, lost]:
            writer.close()
        for path in paths[counts.kept :]:  # fewer pages than files
            path.unlink()
        counts.write(folder / "shards" / "00000.json")
