"""The mini crawl: books, plants, and the funnel against DataTrove's FineWeb steps.

The reference funnel was made with trafilatura 1.11, the newest that DataTrove 0.10 allows, with its
order-dependent deduplication and a wall-clock limit. Where the texts are the same, so are all decisions;
this is why stages before extraction must agree exactly, and later ones within stated bounds.
"""

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from datatrove.data import Document
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
)

from flows.build_corpus import build_corpus
from pipeline_config.curation import LanguageIdentification, QualityFiltering, UrlFiltering
from pipeline_config.presets import load_settings
from tasks.audit.ledger import Ledger as AuditLedger
from tasks.audit.trace import trace
from tasks.audit.verification import verify
from tasks.lineage import find_run
from tasks.reports.corpus_statistics import corpus_statistics
from tasks.reports.figures import sankey_links
from tasks.steps.language_identification import IdentifyLanguage, PackagedLid
from tasks.steps.pages.charset import decode_page
from tasks.steps.quality_filtering import FilterQuality
from tasks.steps.selection import Selector
from tasks.steps.shards import FATE
from tasks.steps.url_filtering import FilterUrls
from tasks.steps.warc.records import read_record
from tasks.store import MANIFEST, Store
from tests.outputs import manifests
from tests.services.postgres import Postgres
from tests.services.served import Served
from tests.services.servers import Bucket

pytestmark = pytest.mark.slow
FINEWEB = {
    "text_extraction.engine": "trafilatura",
    "text_extraction.favour_precision": True,
    "text_extraction.comments": False,
    "text_extraction.fall_back": False,
}
SNAPSHOTS = {"cc-2024-10": "CC-MAIN-2024-10-MINI", "cc-2024-18": "CC-MAIN-2024-18-MINI"}
Ledger = dict[str, tuple[str, str, dict[str, Any]]]


@pytest.fixture(scope="module")
def crawl_home(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("mini-crawl")
    bases = [f"sources.{number}.base={shared_data / 'crawl'}" for number in range(2)]
    bases += [f"{name}={value}" for name, value in FINEWEB.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_HOME", str(folder))
        build_corpus(load_settings("mini-crawl", [*bases, "execution.workers=4"]))
    return folder


@pytest.fixture(scope="module")
def manifest(shared_data: Path) -> dict[str, dict[str, Any]]:
    """The crawl's own list of responses, by record id."""
    with gzip.open(shared_data / "crawl" / "manifest.jsonl.gz", "rt") as lines:
        return {entry["record_id"].strip("<>"): entry for entry in map(json.loads, lines)}


@pytest.fixture(scope="module")
def ledger(crawl_home: Path) -> Ledger:
    """For every record, the last stage that saw it, its fate there, and the row."""
    found: Ledger = {}
    stages = ("url_filtering", "text_extraction", "language_identification", "quality_filtering")
    for stage in (*stages, "deduplication"):
        for path in crawl_home.glob(f"store/{stage}/*/documents/*.parquet"):
            found |= {row["id"]: (stage, "kept", row) for row in pq.read_table(path).to_pylist()}
        for path in crawl_home.glob(f"store/{stage}/*/removed/*.parquet"):
            found |= {row["id"]: (stage, row["reason"], row) for row in pq.read_table(path).to_pylist()}
    return found


@pytest.fixture(scope="module")
def reports(crawl_home: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Counts by (stage, source)."""
    return {
        (path.parts[-3], source_of(path.parent)): json.loads(path.read_text())
        for path in crawl_home.glob("store/*/*/report.json")
        if (path.parent / "documents").is_dir()
    }


def source_of(folder: Path) -> str:
    first = next(
        row["source"]
        for path in sorted(folder.glob("documents/*"))
        for row in pq.read_table(path).to_pylist()
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    return "all" if manifest["stage"] in ("deduplication", "pii_scrubbing", "document_split") else first


def test_every_response_has_one_fate(ledger: Ledger, manifest: dict[str, Any], reports: dict[Any, Any]):
    assert ledger.keys() == manifest.keys()
    for report in reports.values():
        lost = sum(report["removed"].values()) + sum(report["failed"].values())
        assert report["read"] == report["kept"] + lost


def test_pointers_are_those_of_the_manifest(ledger: Ledger, crawl_home: Path, manifest: dict[str, Any]):
    rows = [
        row
        for path in crawl_home.glob("store/url_filtering/*/documents/*")
        for row in pq.read_table(path).to_pylist()
    ]
    assert len(rows) > 3000
    for row in rows:
        entry = manifest[row["id"]]
        ours = (row["file_path"], row["warc_offset"], row["warc_length"], row["url"], row["payload_digest"])
        assert ours == tuple(entry[name] for name in ("warc", "offset", "length", "url", "payload_digest"))


@pytest.fixture(scope="module")
def audited(crawl_home: Path) -> Iterator[AuditLedger]:
    """The ledger as audits see it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENMILL_HOME", str(crawl_home))
        yield AuditLedger(find_run(), Store(crawl_home / "store"))


def test_the_fates_of_all_urls_add_up_to_the_records_read(audited: AuditLedger, manifest: dict[str, Any]):
    fates = audited.rows(f"SELECT id, count(*) AS fates FROM ({audited.fates('id')}) GROUP BY id")
    assert {row["id"] for row in fates} == manifest.keys()
    assert {row["fates"] for row in fates} == {1}


def test_a_trace_names_the_record_and_one_fate(
    audited: AuditLedger, manifest: dict[str, Any], ledger: Ledger
):
    chosen = random.Random(3).sample(sorted(manifest), 200)
    for identity in chosen:
        entry = manifest[identity]
        answer = trace(audited, Selector("url", entry["url"]), most=100)
        assert sum(row["records"] for row in answer["fates"]) == answer["records"]
        (document,) = [document for document in answer["documents"] if document["id"] == identity]
        record = document["record"]
        assert (record["file_path"], record["warc_offset"]) == (entry["warc"], entry["offset"])
        described = (record["warc_length"], record["payload_digest"])
        assert described == (entry["length"], entry["payload_digest"])
        assert record["digest_agrees"]
        stage, reason, _ = ledger[identity]
        fate = document["fate"]
        assert fate["split"] if reason == "kept" else (fate["stage"], fate["reason"]) == (stage, reason)


def test_an_intact_corpus_passes_verification(audited: AuditLedger):
    answer = verify(audited.run, audited.store)
    assert answer["problems"] == []
    assert answer["files"] > 80


def test_the_funnel_picture_adds_up(audited: AuditLedger, manifest: dict[str, Any]):
    stages = corpus_statistics(audited, samples=1, domains=1, seed=0)
    links = sankey_links(stages["stages"], stages["splits"])
    read = sum(count for start, _, count, _ in links if start.startswith("read: "))
    ends = {end for _, end, *_ in links} - {start for start, *_ in links}
    assert read == len(manifest) == sum(count for _, end, count, _ in links if end in ends)


def test_non_html_plants_are_removed_by_their_type(ledger: Ledger, manifest: dict[str, Any]):
    plants = [identity for identity, entry in manifest.items() if entry["plant"] == "non-html"]
    assert Counter(ledger[identity][:2] for identity in plants) == {("url_filtering", "payload_type"): 54}


def test_blocked_domains_are_removed_by_the_list_that_names_them(ledger: Ledger, manifest: dict[str, Any]):
    plants = [i for i, entry in manifest.items() if (entry["plant"] or "").startswith("blocklisted-domain")]
    fates = Counter(ledger[identity][:2] for identity in plants if ledger[identity][0] == "url_filtering")
    assert fates == {("url_filtering", "domain"): 6}  # those that DataTrove's lists have
    hosts = tuple(urlsplit(manifest[identity]["url"]).hostname for identity in plants)
    step = FilterUrls(UrlFiltering(use_integrated_lists=False, extra_domains=hosts))
    assert len(plants) == 43  # three of them are bare addresses
    for identity in plants:
        fate = step.decide(Document(text="", id=identity, metadata={"url": manifest[identity]["url"]}))
        assert fate is not None
        assert fate.reason in ("domain", "subdomain")


def test_truncated_pages_are_read_and_have_a_fate_of_their_own(ledger: Ledger, manifest: dict[str, Any]):
    plants = [identity for identity, entry in manifest.items() if entry["plant"] == "truncated"]
    fates = Counter(ledger[identity][1] for identity in plants)
    assert len(plants) == 18
    assert fates["no_text"] + fates["kept"] + fates["language"] >= 12
    assert not any(ledger[identity][2].get("fate") == "failed" for identity in plants)


@pytest.mark.parametrize("source", SNAPSHOTS)
def test_the_url_filter_decides_as_the_reference(source: str, reports: dict[Any, Any], shared_data: Path):
    reference = json.loads((shared_data / "crawl" / "reference_funnel.json").read_text())
    expected = reference["snapshots"][SNAPSHOTS[source]][1]
    ours = reports["url_filtering", source]
    cut_in_a_character = {"cc-2024-10": 1, "cc-2024-18": 0}[source]  # DataTrove's reader leaves it out
    assert ours["removed"]["domain"] == expected["dropped_domain"]
    assert ours["kept"] - cut_in_a_character == expected["forwarded"]


@pytest.mark.parametrize(
    ("stage", "step", "tolerance"),
    [
        pytest.param("text_extraction", 2, 0.04, id="extraction: another trafilatura"),
        pytest.param("language_identification", 3, 0.05, id="language: of other texts"),
        pytest.param("quality_filtering", 7, 0.03, id="quality: of other texts"),
    ],
)
@pytest.mark.parametrize("source", SNAPSHOTS)
def test_later_stages_keep_about_what_the_reference_keeps(
    source: str, stage: str, step: int, tolerance: float, reports: dict[Any, Any], shared_data: Path
):
    reference = json.loads((shared_data / "crawl" / "reference_funnel.json").read_text())
    expected = reference["snapshots"][SNAPSHOTS[source]][step]["forwarded"]
    assert reports[stage, source]["kept"] == pytest.approx(expected, rel=tolerance)


def test_texts_are_those_of_datatroves_extractor(ledger: Ledger, crawl_home: Path, shared_data: Path):
    engine = Trafilatura(deduplicate=False)
    paths = sorted(crawl_home.glob("store/text_extraction/*/documents/*"))
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()][::25]
    assert len(rows) > 100
    for row in rows:
        with (shared_data / "crawl" / row["file_path"]).open("rb") as file:
            file.seek(row["warc_offset"])
            record = read_record(file.read(row["warc_length"]))
            html = decode_page(record.payload, record.content_type).text
        assert engine.extract(html) == row["text"]


def texts_of(crawl_home: Path, stage: str) -> list[dict[str, Any]]:
    """The documents that a stage kept, of both snapshots."""
    return [
        row
        for path in sorted(crawl_home.glob(f"store/{stage}/*/documents/*"))
        for row in pq.read_table(path).to_pylist()
    ]


def test_quality_decides_on_every_document_as_datatroves_filters(crawl_home: Path):
    theirs = [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
    ]
    rows, ours, reasons = (
        texts_of(crawl_home, "language_identification"),
        FilterQuality(QualityFiltering()),
        set(),
    )
    assert len(rows) > 1500
    for row in rows:
        document, twin = (Document(text=row["text"], id=row["id"], metadata={}) for _ in range(2))
        fate = ours.decide(document)
        verdicts = (block.filter(twin) for block in theirs)
        verdict = next((verdict for verdict in verdicts if verdict is not True), (True, None))
        assert (fate and fate.reason, document.text) == (verdict[1], twin.text), row["id"]
        reasons.add(verdict[1])
    assert len(reasons) > 15, reasons


def test_languages_are_told_of_every_document_as_by_datatroves_filter(crawl_home: Path):
    theirs = LanguageFilter(languages=["en"])
    theirs.model = PackagedLid(["en"])
    rows = texts_of(crawl_home, "text_extraction")
    made = [Document(text=row["text"], id=row["id"], metadata={}) for row in rows]
    for document in IdentifyLanguage(LanguageIdentification()).run(iter(made)):
        twin = Document(text=document.text, id=document.id)
        assert (FATE not in document.metadata) is bool(theirs.filter(twin))
        assert {name: document.metadata[name] for name in twin.metadata} == twin.metadata
    assert len(rows) > 3000


def test_every_document_has_the_values_that_decided(audited: AuditLedger, ledger: Ledger):
    node = audited.node("quality_filtering")
    rows = audited.rows(audited.annotations(node, "id", "reason", "gopher_short_doc", "line_punct_ratio"))
    read = audited.store.report(node.output)["read"]
    assert len({row["id"] for row in rows}) == len(rows) == read
    for row in rows:
        stage, reason, lost = ledger[row["id"]]
        assert row["reason"] == (reason if stage == "quality_filtering" and reason != "kept" else None)
        if reason in ("gopher_short_doc", "line_punct_ratio"):
            assert lost["value"].split()[0] == f"{row[reason]:.6g}"


def test_identical_recrawls_that_reach_deduplication_are_removed(ledger: Ledger, shared_data: Path):
    with gzip.open(shared_data / "crawl" / "dedup_gold.jsonl.gz", "rt") as lines:
        pairs = [pair for pair in map(json.loads, lines) if pair["kind"] == "recrawl-identical"]
    source_named = {snapshot: source for source, snapshot in SNAPSHOTS.items()}
    fates = {(row["source"], row["url"]): (stage, fate) for stage, fate, row in ledger.values()}
    both = [[fates[source_named[dump], url] for dump, url in (pair["a"], pair["b"])] for pair in pairs]
    reached = [pair for pair in both if all(stage == "deduplication" for stage, _ in pair)]
    assert len(reached) > 50
    assert not [pair for pair in reached if [fate for _, fate in pair].count("kept") == 2]


def test_postgres_and_an_object_store_give_the_same_bytes(
    crawl_home: Path, shared_data: Path, postgres: Postgres, s3: Bucket, tmp_path: Path
) -> None:
    """The same preset with other workers, served, both servers on PostgreSQL, store and artifacts on S3."""
    served = Served(
        tmp_path,
        [],
        PREFECT_SERVER_DATABASE_CONNECTION_URL=postgres.database().url("postgresql+asyncpg"),
        MLFLOW_BACKEND_STORE_URI=postgres.database().url("postgresql+psycopg"),
        MLFLOW_ARTIFACTS_DESTINATION=f"{s3.url}/mlflow",
        TOKENMILL_STORE=f"{s3.url}/store",
        **s3.environment,
    )
    try:
        served.start()
        run = served.run("build-corpus", "mini-crawl", {"execution.workers": 2, **FINEWEB})
        assert served.ended(run, 1200) == "Completed", served.said()
    finally:
        served.end()
    expected = manifests(crawl_home)
    assert manifests(tmp_path) == expected
    names = s3.names()
    assert {f"store/store/{output}/{MANIFEST}" for output in expected} <= set(names)
    assert any(name.startswith("mlflow/") and name.endswith("report.html") for name in names)
