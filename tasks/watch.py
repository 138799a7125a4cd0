"""Watches for new snapshots of the presets' sources, and says so with an event once each of them is whole."""

import time
from collections.abc import Sequence
from typing import Any

from fsspec.core import url_to_fs
from prefect.logging import get_logger

from pipeline_config.presets import load_settings
from pipeline_config.settings import Settings, Source
from tasks.events import announce_snapshot
from tasks.snapshots import found_snapshots, is_pattern, known_sources, last_corpus
from tasks.sources import join_uri

Listing = list[tuple[str, Any]]


def watch(presets: Sequence[str], seconds: float) -> None:
    """Looks again and again; a storage that does not answer is asked again later."""
    watched = [load_settings(preset) for preset in presets]
    watchers = [Watcher(settings) for settings in watched if any(map(is_pattern, settings.sources))]
    while watchers:
        for watcher in watchers:
            try:
                watcher.look()
                watcher.problem = ""
            except Exception as error:
                if watcher.problem != str(error):  # once is enough
                    get_logger("watch").warning("%s: %s", watcher.settings.name, error)
                watcher.problem = str(error)
        time.sleep(seconds)


class Watcher:
    """Knows which snapshots of a preset's sources were announced, and how the others looked last time.

    What is there at the first look is no news, unless the preset has been run and that run had not had it.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        last = last_corpus(settings.name)
        self.known: set[str] | None = known_sources(last) if last else None
        self.seen: dict[str, Listing] = {}
        self.problem = ""

    def look(self) -> list[str]:
        """Announces the snapshots that are new and did not change since the last look; returns them."""
        patterns = filter(is_pattern, self.settings.sources)
        found = [(source, snapshot) for source in patterns for snapshot in found_snapshots(source)]
        if self.known is None:
            self.known = {snapshot.name for _, snapshot in found}
        announced = []
        for source, snapshot in found:
            if snapshot.name in self.known:
                continue
            listing = files_of(snapshot)
            if listing and self.seen.get(snapshot.name) == listing:
                self.known.add(snapshot.name)
                announce_snapshot(self.settings.name, source.name, snapshot.dump)
                announced.append(snapshot.dump)
            self.seen[snapshot.name] = listing
        return announced


def files_of(source: Source) -> Listing:
    """Path and size of all files that a source names; nothing as long as one of its `uris` names none."""
    found: Listing = []
    for uri in (*source.uris, *source.index):
        fs, path = url_to_fs(join_uri(source.base, uri))
        try:
            paths = fs.glob(path) if any(character in uri for character in "*?[") else [path]
            files = [(name, fs.info(name).get("size")) for name in sorted(paths)]
        except FileNotFoundError:
            return []
        if not files:
            return []
        found += files
    return found
