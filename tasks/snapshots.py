"""Snapshots of a crawl: which ones there are, and the sources that stand for them.

A source whose `uris` hold `{dump}` stands for every snapshot whose name fits its `dump`, the oldest first, so
that of two near-duplicates the one that was there before stays.
"""

import fnmatch
import json
import re
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.utils import glob_translate

from pipeline_config.errors import SettingsError, SourceError, error_kind
from pipeline_config.settings import DUMP, Settings, Source
from tasks.lineage import RunRecord, all_runs, corpus_version
from tasks.markup import escaped, table
from tasks.sources import join_uri

MOST_NAME_CHARACTERS = 64


@dataclass
class News:
    """What is new since the last run of a preset that finished."""

    settings: Settings
    snapshots: list[str]
    since: str

    def version(self) -> int:
        """The version of the newest corpus: how many different ones the preset's runs have made."""
        return corpus_version(self.settings.name)

    def page(self, reason: str) -> str:
        """Markdown: what was found, and the corpus that came of it."""
        states = dict.fromkeys(self.snapshots, "new")
        rows = [(source.name, states.get(source.name, "known")) for source in self.settings.sources]
        corpus = f"Corpus {escaped(self.settings.name)}, version {self.version()}"
        return "\n\n".join(filter(None, [corpus, escaped(reason), table(["snapshot", ""], rows)]))


def new_snapshots(settings: Settings) -> News:
    """The snapshots that the last finished run of these settings' name had not.

    Raises:
        SettingsError: no source of the settings stands for snapshots.
    """
    if not any(is_pattern(source) for source in settings.sources):
        raise SettingsError(
            f"{settings.name}: no source stands for snapshots. Write {DUMP} in its uris where their names "
            "are, and a pattern of names as its dump"
        )
    expanded = with_snapshots(settings)
    last = last_corpus(settings.name)
    known = known_sources(last)
    names = [source.name for source in expanded.sources if source.name not in known]
    return News(expanded, names, last.id if last else "")


def last_corpus(name: str) -> RunRecord | None:
    """The last run of a name that finished and made a corpus."""
    runs = [run for run in all_runs() if run.name == name and run.status == "finished"]
    return next((run for run in reversed(runs) if run.last("document_split")), None)


def known_sources(run: RunRecord | None) -> set[str]:
    """Names of the sources that a run had."""
    return {source["name"] for source in run.settings["sources"]} if run else set()


def with_snapshots(settings: Settings) -> Settings:
    """Settings with each source that stands for snapshots replaced by one source for each of them.

    Raises:
        SourceError: there is no snapshot.
        UnreachableError: the storage does not answer.
    """
    if not any(is_pattern(source) for source in settings.sources):
        return settings
    sources = [one for source in settings.sources for one in snapshots_of(source)]
    return Settings.model_validate({**dict(settings), "sources": tuple(sources)})


def is_pattern(source: Source) -> bool:
    """Whether a source stands for snapshots."""
    return source.is_pattern


def snapshots_of(source: Source) -> list[Source]:
    """The sources that a source stands for: itself, or one for each snapshot, oldest first.

    Raises:
        SourceError: there is no snapshot.
    """
    if not is_pattern(source):
        return [source]
    found = found_snapshots(source)
    if not found:
        raise SourceError(
            f"source {source.name}: no snapshot fits dump={source.dump!r}"
            f"{f' from {source.since}' if source.since else ''} in {source.snapshots or source.base}"
        )
    return found


def found_snapshots(source: Source) -> list[Source]:
    """A source for each snapshot that there is now, oldest first; perhaps none."""
    names = _listed_names(source) if source.snapshots else _found_names(source)
    fitting = {name for name in names if fnmatch.fnmatchcase(name, source.dump) and name >= source.since}
    return [_snapshot(source, name) for name in sorted(fitting)]


def _snapshot(source: Source, name: str) -> Source:
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", f"{source.name}-{name}")[-MOST_NAME_CHARACTERS:].lstrip("._-")
    changes: dict[str, Any] = {"name": plain, "dump": name, "snapshots": "", "since": ""}
    for field in ("uris", "index"):
        changes[field] = tuple(uri.replace(DUMP, name) for uri in getattr(source, field))
    return source.model_copy(update=changes)


def _listed_names(source: Source) -> list[str]:
    """Names from a list: a line each, or JSON (names, or objects with an `id`)."""
    uri = join_uri(source.base, source.snapshots)
    try:
        with fsspec.open(uri, "rb") as file:
            text = file.read().decode("utf-8")
    except Exception as error:
        raise error_kind(error)(
            f"source {source.name}: cannot read the list of snapshots {uri}: {error!r}"
        ) from None
    if not text.lstrip().startswith(("[", "{")):
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        return [_name_in(entry) for entry in json.loads(text)]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"source {source.name}: the list of snapshots {uri} is neither lines nor JSON with names, or "
            f"objects with an id: {error!r}"
        ) from None


def _name_in(entry: Any) -> str:
    return entry if isinstance(entry, str) else entry["id"]


def _found_names(source: Source) -> list[str]:
    """Names that the storage itself has files for."""
    pattern = next(uri for uri in (*source.uris, *source.index) if DUMP in uri)
    where = join_uri(source.base, pattern)
    fs, path = url_to_fs(where.replace(DUMP, source.dump))
    name_at = glob_translate(url_to_fs(where.replace(DUMP, "\0"))[1])
    name_at = name_at.replace("\0", "(?P<dump>[^/]+)", 1).replace("\0", "(?P=dump)")
    try:
        found = fs.glob(path)
    except Exception as error:
        raise error_kind(error)(f"source {source.name}: cannot list {where}: {error!r}") from None
    matches = (re.match(name_at, name) for name in found)
    return [match["dump"] for match in matches if match]
