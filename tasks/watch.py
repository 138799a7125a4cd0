"""Watches for new snapshots of the presets' sources, and says so with an event once each of them is whole."""

import time
from collections.abc import Sequence
from typing import Any

from fsspec.core import url_to_fs
from prefect.logging import get_logger

from pipeline_config.presets import load_settings
from pipeline_config.settings import Settings, Source
from tasks.events import announce_snapshot
from tasks.lineage import all_runs
from tasks.snapshots import is_pattern, snapshots_of
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
        self.known: set[str] | None = _computed(settings.name)
        self.seen: dict[str, Listing] = {}
        self.problem = ""

    def look(self) -> list[str]:
        """Announces the snapshots that are new and did not change since the last look; returns them."""
        if self.known is None:
            self.known = {one.name for source in self.settings.sources for one in snapshots_of(source)}
        announced = []
        for source in filter(is_pattern, self.settings.sources):
            for snapshot in snapshots_of(source):
                if snapshot.name in self.known:
                    continue
                listing = files_of(snapshot)
                if self.seen.get(snapshot.name) == listing:
                    self.known.add(snapshot.name)
                    announce_snapshot(self.settings.name, source.name, snapshot.dump)
                    announced.append(snapshot.dump)
                self.seen[snapshot.name] = listing
        return announced


def files_of(source: Source) -> Listing:
    """Path and size of all files that a source's `uris` name."""
    found: Listing = []
    for uri in source.uris:
        fs, path = url_to_fs(join_uri(source.base, uri))
        paths = fs.glob(path) if any(character in uri for character in "*?[") else [path]
        found += [(name, fs.info(name).get("size")) for name in sorted(paths)]
    return found


def _computed(name: str) -> set[str] | None:
    """Snapshots in the last finished run of a name, if there is one: nobody needs to be told of these."""
    runs = [run for run in all_runs() if run.name == name and run.status == "finished"]
    return {source["name"] for source in runs[-1].settings["sources"]} if runs else None
