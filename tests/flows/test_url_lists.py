"""Lists of URLs in a run: what they remove, and what of them is part of the key."""

import json
from pathlib import Path

import yaml

from flows.build_corpus import build_corpus
from pipeline_config.presets import load_settings
from tasks.steps.sample_crawl import warc_record
from tests.outputs import manifests

URLS = ["https://bad.example/1", "https://bad.example/fine/2", "https://good.example/3", "http://10.0.0.1/4"]


def preset(folder: Path) -> str:
    crawl = b"".join(warc_record(url, b"<p>page</p>") for url in URLS)
    (folder / "a.warc.gz").write_bytes(crawl)
    values = {
        "sources": [{"name": "web", "kind": "warc", "base": str(folder), "uris": ["a.warc.gz"]}],
        "url_filtering": {"use_integrated_lists": False, "extra_domains": ["10.0.0.1"]},
        "execution": {"workers": 1, "until": "url_filtering"},
    }
    (folder / "lists.yaml").write_text(yaml.safe_dump(values))
    return str(folder / "lists.yaml")


def test_lists_decide_and_their_content_is_part_of_the_key(home: Path, tmp_path: Path):
    path, adult = preset(tmp_path), tmp_path / "ut1" / "adult"
    adult.mkdir(parents=True)
    (adult / "domains").write_text("bad.example\n")
    (tmp_path / "allowed.txt").write_text("bad.example/fine\n")
    lists = [
        f"url_filtering.blocklists=[{tmp_path / 'ut1'}]",
        f"url_filtering.allowlists=[{tmp_path / 'allowed.txt'}]",
    ]
    build_corpus(load_settings(path, lists))
    (report,) = home.glob("store/url_filtering/*/report.json")
    assert json.loads(report.read_text())["removed"] == {"blocklist:adult": 1, "domain": 1}
    adult.parent.rename(tmp_path / "moved")
    lists[0] = f"url_filtering.blocklists=[{tmp_path / 'moved'}]"
    build_corpus(load_settings(path, lists))
    assert len(manifests(home)) == 1
    (tmp_path / "moved" / "adult" / "domains").write_text("good.example\n")
    build_corpus(load_settings(path, lists))
    assert len(manifests(home)) == 2
