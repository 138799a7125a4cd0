"""Finds the lists that the settings name, and what names their content."""

import hashlib
from collections.abc import Iterator

from fsspec.core import url_to_fs

from pipeline_config.curation import UrlFiltering
from pipeline_config.errors import SettingsError, SourceError, error_kind
from tasks.steps.urls.lists import Kind, UrlList, Use, read_list

KINDS: dict[str, Kind] = {"domains": "domains", "urls": "urls", "expressions": "expressions"}
FOLDERS_DEEP = 2  # <folder>/<category>/<kind>
KNOWN_SHOWN = 100  # categories in an error


def find_lists(settings: UrlFiltering) -> tuple[UrlList, ...]:
    """The files of block lists, UT1's categories and allow lists, in order.

    Raises:
        SourceError: a file or folder is missing, holds no list, or cannot be read.
        UnreachableError: its storage does not answer.
        SettingsError: the folder of UT1 has no such category.
    """
    lists = [found for uri in settings.blocklists for found in _lists_at(uri, "block")]
    if settings.ut1:
        lists += _categories(settings.ut1, settings.ut1_categories)
    lists += [found for uri in settings.allowlists for found in _lists_at(uri, "allow")]
    return tuple(lists)


def without_places(settings: UrlFiltering) -> UrlFiltering:
    """The settings as part of a key: what the lists hold counts, not where they lie."""
    return settings.model_copy(update={"blocklists": (), "allowlists": (), "ut1": "", "ut1_categories": ()})


def _lists_at(uri: str, use: Use) -> list[UrlList]:
    if not _is_folder(uri):
        name, kind = _name_and_kind(uri)
        return [_identified(name, kind or "entries", use, uri)]
    found = [_identified(name, kind, use, file) for name, kind, file in _files_below(uri)]
    if not found:
        raise SourceError(
            f"the folder of lists {uri} holds no file called {', '.join(KINDS)}: name the file itself"
        )
    return found


def _categories(folder: str, wanted: tuple[str, ...]) -> list[UrlList]:
    files = list(_files_below(folder)) if _is_folder(folder) else []
    known = sorted({name for name, *_ in files})
    for category in wanted:
        if category not in known:
            there = ", ".join(known[:KNOWN_SHOWN]) or "none"
            raise SettingsError(
                f"url_filtering.ut1_categories: there is no category {category!r} in {folder}; "
                f"there are: {there}"
            )
    return [
        _identified(name, kind, "block", uri)
        for category in wanted
        for name, kind, uri in files
        if name == category
    ]


def _files_below(folder: str) -> Iterator[tuple[str, Kind, str]]:
    fs, path = url_to_fs(folder)
    try:
        files = sorted(fs.find(path, maxdepth=FOLDERS_DEEP))
    except Exception as error:
        raise error_kind(error)(f"cannot list the folder of lists {folder}: {error!r}") from None
    for file in files:
        name, kind = _name_and_kind(file)
        if kind:
            yield name, kind, fs.unstrip_protocol(file) if "://" in folder else file


def _name_and_kind(path: str) -> tuple[str, Kind | None]:
    """Category and kind that a file's name says: `adult.domains.txt.gz` and `adult/domains` alike."""
    *folders, file = path.rstrip("/").split("/")
    stem = file.removesuffix(".gz").removesuffix(".txt")
    name, _, last = stem.rpartition(".")
    if last in KINDS:
        return name or (folders[-1] if folders else last), KINDS[last]
    return stem, None


def _is_folder(uri: str) -> bool:
    try:
        fs, path = url_to_fs(uri)
        return bool(fs.isdir(path))
    except Exception as error:
        raise error_kind(error)(f"cannot read the list {uri}: {error!r}") from None


def _identified(name: str, kind: Kind, use: Use, uri: str) -> UrlList:
    return UrlList(name, kind, use, uri, hashlib.sha256(read_list(uri)).hexdigest())
