"""Finds the files of a source and names their content, without reading more than it must."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from pipeline_config.errors import SourceError, error_kind
from pipeline_config.settings import Source
from tasks.steps.takedown import TakedownList, parse_takedown_list
from tasks.store import Store, digest_of, file_digest, write_json

PATHS_LIST = ".paths.gz"  # Common Crawl's lists of files, one path a line
PARALLEL_REQUESTS = 16
HTTP_NOT_FOUND = 404


@dataclass(frozen=True)
class SourceFile:
    """A file of a source: `path` goes into the documents, `uri` is where it is read."""

    path: str
    uri: str
    identity: str


@dataclass(frozen=True)
class Origin:
    """Content from outside the store, as the records name it."""

    name: str
    uri: str
    digest: str


def origin_of(source: Source, content: Any) -> Origin:
    """A source as an input of a stage; `content` is what names its content in the stage's key."""
    uri = source.dataset or "/".join(filter(None, (source.base, *(source.uris or source.index)[:1])))
    return Origin(source.name, uri, digest_of(content))


def source_files(source: Source, store: Store, fresh: bool = False) -> list[SourceFile]:
    """The files of a source (of its index, if it has one) in order, each with an identity of its content.

    The identity of a local file is its SHA-256 (remembered by path, size and time of change); of a remote
    one, its path, size and ETag.

    Args:
        fresh: read local files again instead of trusting what was remembered.

    Raises:
        SourceError: a file or folder is missing, empty or unreadable, or a pattern matches nothing.
        UnreachableError: the storage does not answer.
    """
    given = source.uris or source.index
    paths = list(dict.fromkeys(path for uri in given for path in _expand(source, uri)))
    return identified(source, paths[: source.max_warcs], store, fresh)


def identified(source: Source, paths: Sequence[str], store: Store, fresh: bool = False) -> list[SourceFile]:
    """Files of a source, by their paths below its base, as `source_files` names them."""
    uris = [join_uri(source.base, path) for path in paths]
    digests = _Digests(store, fresh)
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        identities = list(pool.map(lambda uri: _identity(source, uri, digests), uris))
    digests.save()
    return [SourceFile(*parts) for parts in zip(paths, uris, identities, strict=True)]


def takedown_lists(source: Source) -> list[TakedownList]:
    """The lists of documents that must go from a source.

    Raises:
        SourceError: a list cannot be read.
        UnreachableError: its storage does not answer.
        SettingsError: a list is not of the form that it must have.
    """
    return [read_takedown_list(uri) for uri in source.takedown]


def read_takedown_list(uri: str) -> TakedownList:
    """One list, from any fsspec URL."""
    try:
        with fsspec.open(uri, "rb") as file:
            data = file.read()
    except Exception as error:
        raise error_kind(error)(f"cannot read the takedown list {uri}: {error!r}") from None
    return parse_takedown_list(data, uri)


def dataset_identity(source: Source, store: Store) -> dict[str, Any]:
    """What names the content of a Hugging Face dataset: its revision, or the files of a local folder."""
    identity = source.model_dump(
        mode="json", include={"dataset", "dataset_config", "dataset_split", "dataset_shards", "revision"}
    )
    folder = Path(source.dataset or "")
    if source.dataset and folder.is_dir():
        digests = _Digests(store)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        identity["dataset"] = {path.relative_to(folder).as_posix(): digests.of(path) for path in files}
        digests.save()
    return identity


def _expand(source: Source, uri: str) -> Iterator[str]:
    where = join_uri(source.base, uri)
    if uri.endswith(PATHS_LIST):
        yield from _read_paths_list(source, where)
        return
    fs, path = url_to_fs(where)
    wildcards = "*" if "http" in where.partition("://")[0] else "*?["  # ? begins a query there
    if not any(character in uri for character in wildcards):
        yield uri
        return
    try:
        found = sorted(fs.glob(path))
    except Exception as error:
        raise error_kind(error)(f"source {source.name}: cannot list {where}: {error!r}") from None
    if not found:
        raise SourceError(f"source {source.name}: no file matches {where}. Check sources.*.base and .uris")
    root = url_to_fs(source.base)[1].rstrip("/") + "/" if source.base else ""
    yield from (name.removeprefix(root) for name in found)


def _read_paths_list(source: Source, uri: str) -> list[str]:
    try:
        with fsspec.open(uri, "rt", compression="gzip", encoding="utf-8") as file:
            paths = [line.strip() for line in file if line.strip()]
    except Exception as error:
        raise error_kind(error)(
            f"source {source.name}: cannot read the list of files {uri}: {error!r}"
        ) from None
    if not paths:
        raise SourceError(f"source {source.name}: the list of files {uri} is empty")
    return paths


def join_uri(base: str, path: str) -> str:
    """Address of a file: `path`, which may be whole, relative to `base`."""
    if not base or "://" in path or path.startswith("/"):
        return path
    return f"{base.rstrip('/')}/{path}"


def _identity(source: Source, uri: str, digests: "_Digests") -> str:
    fs, path = url_to_fs(uri)
    try:
        info = fs.info(path)
    except FileNotFoundError as error:
        # fsspec says this of a server that does not answer, too
        if error.__cause__ is None or getattr(error.__cause__, "status", None) == HTTP_NOT_FOUND:
            raise SourceError(f"source {source.name}: there is no file {uri}") from None
        raise error_kind(error)(f"source {source.name}: cannot reach {uri}: {error.__cause__!r}") from None
    except Exception as error:
        raise error_kind(error)(f"source {source.name}: cannot reach {uri}: {error!r}") from None
    if info.get("type") == "directory":
        raise SourceError(f"source {source.name}: {uri} is a folder; name its files, for example {uri}/*")
    if info.get("size") == 0:
        raise SourceError(f"source {source.name}: {uri} is empty (0 bytes)")
    if "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)):
        try:
            return digests.of(Path(path))
        except OSError as error:
            raise SourceError(f"source {source.name}: cannot read {uri}: {error.strerror}") from None
    return f"{uri} {info.get('size')} {info.get('ETag') or info.get('etag') or ''}".strip()


class _Digests:
    """SHA-256 of local files, remembered by path, size and time of change."""

    def __init__(self, store: Store, fresh: bool = False):
        self.path = store.root / ".locks" / "digests.json"
        self.known = {} if fresh else self._load()
        self.used: dict[str, list[Any]] = {}

    def of(self, path: Path) -> str:
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        entry = self.known.get(str(path))
        digest = entry[1] if entry and entry[0] == stamp else file_digest(path)
        self.used[str(path)] = [stamp, digest]
        return digest

    def save(self) -> None:
        merged = self._load() | self.used
        if merged != self.known:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, merged)

    def _load(self) -> dict[str, list[Any]]:
        import json

        try:
            return json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
