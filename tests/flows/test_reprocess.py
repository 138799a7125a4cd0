"""Takedown through the real flow: nothing of an affected document is left in any file of the new run.

The stages' steps run in this process: one of its own for each takes seconds, and other tests have those.
"""

import html
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from datatrove.executor.local import LocalPipelineExecutor
from mlflow.tracking import MlflowClient
from tokenizers import Tokenizer

from flows.build_corpus import build_corpus
from flows.pretrain import pretrain
from flows.reprocess import main, takedown
from model.data import TokenRows
from pipeline_config.environment import tracking_uri
from pipeline_config.settings import Settings, Training
from tasks.audit.ledger import Ledger
from tasks.audit.marks import marks_of
from tasks.lineage import Node, RunRecord, all_runs, find_run
from tasks.store import Store

Row = dict[str, Any]
ODD = ["""it's "quoted"; DROP TABLE x--""", "<script>alert(1)</script>|cell", "../../../etc/passwd"]
TINY_TRAINING = {
    "model": {"layers": 1, "heads": 2, "width": 32, "max_context": 32},
    "steps": 6,
    "rows_per_step": 4,
    "threads": 1,
    "warmup_steps": 2,
    "validation_every_steps": 3,
    "checkpoint_every_steps": 3,
    "device": "cpu",
}
WORDS = ["".join(random.Random(n).choices("abdegiklmnoprstuv", k=2 + n % 7)) for n in range(600)]


def prose(mark: str, words: int = 80) -> str:
    """A text of random words that shares no six words in a row with another; its mark is in it thrice."""
    chosen = random.Random(mark).choices(WORDS, k=words)
    chosen[0] = chosen[words // 2] = chosen[-1] = mark
    return " ".join(chosen)


def mark_of(identity: str) -> str:
    """The word that marks a document's text."""
    return f"mark{identity.replace('-', '')}q"


def document(identity: str, domain: str, words: int = 80, **changes: Any) -> Row:
    """A record of a JSONL source."""
    text = prose(mark_of(identity), words)
    return {"id": identity, "url": f"https://{domain}/page/{identity}", "text": text} | changes


def near(original: Row, identity: str, domain: str) -> Row:
    """A near-duplicate: one word is another."""
    words = original["text"].split()
    words[17] = f"changed{identity.replace('-', '')}"
    return document(identity, domain, text=" ".join(words))


def source_of(folder: Path, name: str, records: list[Row], **settings: Any) -> Row:
    """Writes a source and returns its settings."""
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    stages = ["deduplication", "pii_scrubbing"]
    place = {"base": str(folder), "uris": [f"{name}.jsonl"]}
    return {"name": name, "kind": "documents", "stages": stages, **place} | settings


def settings_of(name: str, *sources: Row, **sections: Any) -> Settings:
    """Settings of a run that takes seconds."""
    return Settings.model_validate(
        {
            "name": name,
            "sources": sources,
            "document_split": {"validation_share": 0.2},
            "bpe_training": {"vocabulary_size": 300},
            "training": TINY_TRAINING,
            "execution": {"workers": 1},
        }
        | sections
    )


def write_list(path: Path, *entries: Row) -> str:
    """A takedown list."""
    values = {"reason": "their owner asked", "date": "2026-11-30", "entries": list(entries)}
    path.write_text(yaml.safe_dump(values), "utf-8")
    return str(path)


def run_here(steps: list[Any], *, tasks: int, logging_dir: Path, **_: Any) -> None:
    """Runs a pipeline of steps in this process."""
    LocalPipelineExecutor(list(steps), tasks=tasks, workers=1, logging_dir=str(logging_dir)).run()


@pytest.fixture(scope="module")
def in_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Makes a data folder and sets it for as long as the next one is not made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.stage.run_pipeline", run_here)
        patch.setattr("tasks.takedown.proof.run_pipeline", run_here)

        def make(name: str) -> Path:
            folder = tmp_path_factory.mktemp(name)
            patch.setenv("TOKENMILL_HOME", str(folder))
            return folder

        yield make


def stories() -> list[Row]:
    """The affected source: five domains, one of them with odd spellings, and a document with two copies."""
    made = [document(f"s-{n:02d}", f"site{n % 5}.example") for n in range(50)]
    long = document("s-50", "site1.example", words=300)
    odd = [
        near(long, "s-51", "site2.example"),
        near(long, "s-52", "x.example"),
        document("s-60", "www.site3.example"),
        document("s-61", "x", url="HTTP://User@SITE3.example:8080/?q=1"),
        document("s-70", "site3.example", text=""),
        document("s-71", "site3.example", text=None),
    ]
    return [*made, long, *odd]


@pytest.fixture(scope="module")
def world(in_home: Callable[[str], Path]) -> SimpleNamespace:
    """A trained run, and a takedown of a domain and of a document with two near-duplicates."""
    home = in_home("takedown")
    (home / "in").mkdir()
    letters = [document(f"l-{n:02d}", "letters.example") for n in range(20)]
    records = stories()
    settings = settings_of(
        "tales", source_of(home / "in", "stories", records), source_of(home / "in", "letters", letters)
    )
    pretrain(settings)
    old = all_runs()[-1]
    odd = [{"id": ODD[0]}, {"id": ODD[1]}, {"url": f"https://a.example/{ODD[2]}"}]
    path = write_list(home / "list.yaml", {"domain": "site3.example"}, {"id": "s-50"}, *odd)
    certificate = takedown(f"file://{path}", old.id)
    gone = {r["id"]: r for r in records if "site3" in r["url"].lower() or r["id"] in ("s-50", "s-51", "s-52")}
    kept = {r["id"]: r for r in [*records, *letters] if r["id"] not in gone}
    return SimpleNamespace(
        home=home, store=Store(home / "store"), old=old, new=find_run(certificate["run_after"]),
        certificate=certificate, gone=gone, kept=kept, list=path,
    )  # fmt: skip


def files_of(world: SimpleNamespace, run: RunRecord) -> list[tuple[Node, Path]]:
    """Every file of every output of a run."""
    return [
        (node, path)
        for node in run.nodes
        for path in sorted(world.store.path(node.output).rglob("*"))
        if path.is_file()
    ]


def readable(world: SimpleNamespace, path: Path) -> str:
    """All that is in a file, as text: Parquet tables as JSON, token shards decoded."""
    if path.suffix == ".parquet":
        return json.dumps(pq.read_table(path).to_pylist(), ensure_ascii=False, default=str)
    data = path.read_bytes()
    if path.suffix == ".ds":
        tokenizer = next(n for n in world.new.nodes if n.stage == "bpe_training")
        file = world.store.path(tokenizer.output) / "tokenizer" / "tokenizer.json"
        return Tokenizer.from_file(str(file)).decode(np.frombuffer(data, "<u2").tolist())
    return html.unescape(data.decode("utf-8", "replace"))


def ids_in(world: SimpleNamespace, run: RunRecord, table: str) -> set[str]:
    """The ids in all tables of a kind of a run."""
    paths = [path for _, path in files_of(world, run) if path.parent.name == table]
    return {row["id"] for path in paths for row in pq.read_table(path, columns=["id"]).to_pylist()}


def test_no_text_of_an_affected_document_is_in_any_file_of_the_new_run(world: SimpleNamespace):
    marks = {mark_of(identity) for identity, row in world.gone.items() if row["text"]}
    found = {mark: set() for mark in [*marks, *map(mark_of, world.kept)]}
    for node, path in files_of(world, world.new):
        shown = readable(world, path)
        for mark in found:
            if mark in shown:
                found[mark].add((node.stage, path.parent.name))
    assert {mark: places for mark, places in found.items() if places and mark in marks} == {}
    for identity in world.kept:  # the search would have found them
        assert {("document_split", "documents"), ("packing", "tokens")} <= found[mark_of(identity)]


def test_no_six_words_of_an_affected_document_are_left(world: SimpleNamespace):
    pages = [readable(world, path) for _, path in files_of(world, world.new)]
    for row in world.gone.values():
        words = (row["text"] or "").split()
        for start in range(0, len(words) - 6, 3):
            assert not any(" ".join(words[start : start + 6]) in page for page in pages), row["id"]


def test_affected_ids_and_urls_are_in_the_ledger_and_nowhere_else(world: SimpleNamespace):
    for node, path in files_of(world, world.new):
        shown = readable(world, path)
        in_ledger = path.parent.name == "removed" and node.stage == "document_import"
        for row in world.gone.values():
            assert in_ledger or row["url"] not in shown, (node.name, path)
            assert in_ledger or f'"{row["id"]}"' not in shown, (node.name, path)


def test_all_other_documents_stay(world: SimpleNamespace):
    assert ids_in(world, world.new, "index") == world.kept.keys()
    assert ids_in(world, world.old, "index") - world.kept.keys() == world.gone.keys() - {
        "s-51", "s-52", "s-70", "s-71"
    }  # fmt: skip


def test_affected_records_have_the_fate_takedown_and_no_excerpt(world: SimpleNamespace):
    ledger = Ledger(world.new, world.store)
    rows = ledger.rows(f"SELECT * FROM ({ledger.all_lost('id', 'reason', 'fate', 'excerpt', 'value')})")
    taken = {row["id"]: row for row in rows if row["reason"] == "takedown"}
    assert taken.keys() == world.gone.keys()
    for row in taken.values():
        assert (row["stage"], row["fate"], row["excerpt"]) == ("document_import", "removed", "")
        assert "of 2026-11-30: their owner asked" in row["value"]
    assert not {row["id"] for row in rows if row["reason"] != "takedown"} & world.gone.keys()


def test_the_stages_of_a_source_that_is_not_affected_are_cached(world: SimpleNamespace):
    assert "document_import letters" in world.certificate["cached"]
    assert "document_import stories" in world.certificate["recomputed"]
    assert {"deduplication all", "document_split all", "packing all"} <= {*world.certificate["recomputed"]}


def test_superseded_outputs_are_marked_and_the_new_ones_are_not(world: SimpleNamespace):
    corpus = world.new.last("document_split").digest
    for stage in ("document_split", "bpe_training", "packing", "corpus_publication"):
        [mark] = marks_of(world.store, stage, world.old.last(stage).key)
        assert mark["what"].startswith("superseded: ")
        assert mark["superseded_by"] == corpus
        assert mark["takedown"] == world.certificate["asked"]["takedown"]
        assert marks_of(world.store, stage, world.new.last(stage).key) == []


def steps_that_saw(world: SimpleNamespace) -> int:
    """Steps of the old training whose rows hold a token of an affected document, token by token."""
    training, folder = Training(**TINY_TRAINING), world.store.path(world.old.last("packing").output)
    affected: dict[str, list[bool]] = {}
    for shard in json.loads((folder / "tokens.json").read_text())["shards"]:
        if shard["split"] == "train":
            flags = affected.setdefault(shard["source"], [])
            for row in pq.read_table(folder / "index" / f"{Path(shard['file']).stem}.parquet").to_pylist():
                flags += [row["id"] in world.gone] * (row["end_token"] - row["start_token"])
    width = training.model.max_context
    rows = TokenRows(folder, "train", width, {"stories": 1.0, "letters": 1.0}, training.seed)
    seen = [
        any(affected[rows.sources[source]][row * width : row * width + width + 1])
        for source, row in rows.schedule(training.steps * training.rows_per_step)
    ]
    per_step = training.rows_per_step
    return sum(any(seen[n * per_step : (n + 1) * per_step]) for n in range(training.steps))


def test_the_old_checkpoint_is_flagged_with_the_steps_that_saw_such_documents(world: SimpleNamespace):
    [mark] = marks_of(world.store, "training", world.old.last("training").key)
    assert 0 < steps_that_saw(world) <= 6
    assert mark["what"].startswith(f"{steps_that_saw(world)} of 6 training steps saw such documents")
    assert marks_of(world.store, "model_publication", world.old.last("model_publication").key)
    found = {row["stage"]: row for row in world.certificate["found"]["outputs"]}
    assert found["training"]["what"] == mark["what"]


def test_mlflow_tags_what_is_superseded(world: SimpleNamespace):
    client, digest = MlflowClient(tracking_uri()), world.certificate["asked"]["takedown"]
    corpus = world.new.last("document_split").digest
    experiment = client.get_experiment_by_name("tokenmill").experiment_id
    for stage in ("document_split", "packing", "training"):
        query = f"tags.digest = '{world.old.last(stage).digest}'"
        runs = client.search_runs([experiment], query)
        assert runs
        for run in runs:
            assert (run.data.tags["superseded_by"], run.data.tags["takedown"]) == (corpus, digest)
    [version] = client.search_model_versions("name = 'tokenmill-tales'")
    assert (version.tags["superseded_by"], version.tags["takedown"]) == (corpus, digest)
    [fresh] = client.search_runs([experiment], f"tags.digest = '{corpus}'")
    assert "superseded_by" not in fresh.data.tags


def test_the_certificate_is_among_the_artifacts_of_the_new_pipeline_run(
    world: SimpleNamespace, tmp_path: Path
):
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name("tokenmill").experiment_id
    [run] = client.search_runs([experiment], f"tags.record = '{world.new.id}'")
    assert run.data.tags["supersedes"] == world.old.id
    names = {file.path for file in client.list_artifacts(run.info.run_id, "takedown")}
    assert names == {"takedown/certificate.json", "takedown/certificate.md"}
    logged = client.download_artifacts(run.info.run_id, "takedown/certificate.json", str(tmp_path))
    assert json.loads(Path(logged).read_text("utf-8")) == world.certificate


def test_the_certificate_names_what_was_asked_found_and_removed(world: SimpleNamespace):
    certificate = world.certificate
    assert certificate["asked"]["reason"] == "their owner asked"
    sites = len([row for row in world.gone.values() if "site3" in row["url"].lower()])
    entries = [{"domain": "site3.example", "records": sites}, {"id": "s-50", "records": 1}]
    assert certificate["asked"]["entries"][:2] == entries
    assert all(entry["records"] == 0 for entry in certificate["asked"]["entries"][2:])
    assert len(certificate["proof"]) == 4
    found = {row["id"]: row["why"] for row in certificate["found"]["records"]}
    assert found.keys() == world.gone.keys()
    assert {i for i, why in found.items() if why == "near-duplicate"} == {"s-51", "s-52"}
    assert certificate["removed"] == {"records": len(world.gone), "rounds": 1}
    for stage in ("document_split", "packing", "corpus_publication"):
        before, after = certificate["before"][stage], certificate["after"][stage]
        assert before["digest"] == world.old.last(stage).digest != after["digest"]
        assert after["digest"] == world.new.last(stage).digest


def test_odd_entries_stay_text_in_the_certificate(world: SimpleNamespace):
    [page] = (path.read_text("utf-8") for path in world.home.glob("takedowns/*/certificate.md"))
    assert "<script" not in page
    shown = html.unescape(page)
    assert all(f"| {entry} | 0 |" in shown for entry in ODD[:2])
    assert f"| https://a.example/{ODD[2]} | 0 |" in shown


@pytest.mark.parametrize(
    ("entry", "run"),
    [
        pytest.param({"domain": "site3.example"}, "latest", id="again"),
        pytest.param({"id": "s-50"}, "latest", id="a_part_of_it_again"),
        pytest.param({"domain": "nowhere.example"}, "old", id="means_nothing"),
        pytest.param({"url_prefix": "https://site1.example/no/"}, "old", id="prefix_of_nothing"),
    ],
)
def test_a_list_that_means_nothing_is_refused(
    world: SimpleNamespace, tmp_path: Path, entry: Row, run: str, capsys: pytest.CaptureFixture[str]
):
    path = write_list(tmp_path / "list.yaml", entry)
    before = len(all_runs())
    with pytest.raises(SystemExit) as caught:
        main(["takedown", path, "--run", world.old.id if run == "old" else run])
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert caught.value.code == 1
    assert "there is nothing to do" in line
    assert next(iter(entry.values())) in line
    assert len(all_runs()) == before


def test_the_lists_of_the_certificate_keep_all_of_it_out_of_later_runs(world: SimpleNamespace):
    settings = Settings.model_validate(world.old.settings)
    lists = world.certificate["lists"]
    sources = [
        s.model_copy(update={"takedown": tuple(filter(None, [lists.get(s.name)]))}) for s in settings.sources
    ]
    made = build_corpus(settings.model_copy(update={"sources": tuple(sources), "name": "later"}))
    assert made.outputs["corpus"].digest == world.new.last("document_split").digest


@pytest.mark.slow
def test_what_is_trained_later_on_a_superseded_corpus_is_marked_and_not_current(world: SimpleNamespace):
    settings = Settings.model_validate(world.old.settings)
    training = settings.training.model_copy(update={"steps": 5})
    pretrain(settings.model_copy(update={"training": training}))
    later = all_runs()[-1]
    for stage in ("training", "model_publication"):
        assert marks_of(world.store, stage, later.last(stage).key)
    client = MlflowClient(tracking_uri())
    versions = client.search_model_versions("name = 'tokenmill-tales'")
    assert len(versions) == 2
    assert all(version.tags["superseded_by"] for version in versions)
    assert not any(version.aliases for version in versions)


@pytest.fixture(scope="module")
def hidden(world: SimpleNamespace, in_home: Callable[[str], Path]) -> Iterator[SimpleNamespace]:
    """A corpus without tokens. A copy of what must go lies in a source that leaves deduplication out.

    The same source has its beginning as a text that is too short to be kept, and another document with the
    same id.
    """
    home = in_home("hidden")
    (home / "in").mkdir()
    gone = document("g-1", "gone.example", words=300)
    beginning = " ".join(gone["text"].split()[:40])
    copies = [near(gone, "c-1", "copy.example"), document("c-2", "short.example", text=beginning)]
    copies += [document("g-1", "other.example", text=prose("otherq")), document("c-3", "c.example")]
    rules = dict.fromkeys(("gopher_repetition", "c4", "fineweb"))
    settings = settings_of(
        "hidden",
        source_of(home / "in", "stories", [gone, document("g-2", "b.example")]),
        source_of(home / "in", "copies", copies, stages=["quality_filtering"]),
        quality_filtering=rules | {"gopher_quality": {"min_stop_words": 0}},
    )
    build_corpus(settings)
    old = all_runs()[-1]
    certificate = takedown(write_list(home / "list.yaml", {"url_prefix": "https://gone.example/"}))
    yield SimpleNamespace(
        home=home, store=Store(home / "store"), old=old, new=find_run(certificate["run_after"]),
        certificate=certificate, gone=gone,
    )  # fmt: skip
    in_home("afterwards")


def test_what_the_clusters_did_not_know_is_found_by_the_proof(hidden: SimpleNamespace):
    found = {(row["source"], row["id"]): row["why"] for row in hidden.certificate["found"]["records"]}
    assert found == {
        ("stories", "g-1"): "asked for",
        ("copies", "c-1"): "found by the proof",
        ("copies", "c-2"): "found by the proof",
    }
    assert hidden.certificate["removed"] == {"records": 3, "rounds": 2}
    shown = {path: readable(hidden, path) for _, path in files_of(hidden, hidden.new)}
    assert [path for path, page in shown.items() if mark_of("g-1") in page] == []
    assert [path for path, page in shown.items() if "otherq" in page]


def test_another_document_with_the_same_id_in_another_source_stays(hidden: SimpleNamespace):
    ledger = Ledger(hidden.new, hidden.store)
    kept = ledger.kept(ledger.node("document_split"), "source", "id")
    found = {(row["source"], row["id"]) for row in ledger.rows(kept)}
    assert found == {("stories", "g-2"), ("copies", "g-1"), ("copies", "c-3")}


def test_outputs_of_the_round_that_the_proof_refused_are_marked(hidden: SimpleNamespace):
    [refused] = [run for run in all_runs() if run.id not in (hidden.old.id, hidden.new.id)]
    assert marks_of(hidden.store, "document_split", refused.last("document_split").key)
    assert marks_of(hidden.store, "document_split", hidden.new.last("document_split").key) == []


def test_a_takedown_of_a_corpus_alone_makes_a_corpus_alone(hidden: SimpleNamespace):
    for when in ("before", "after"):
        assert hidden.certificate[when].keys() == {"document_split", "corpus_publication"}


def test_what_a_list_means_in_other_runs_of_the_store_is_found_and_marked(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    (tmp_path / "in").mkdir()
    pages = [document(f"p-{n}", f"web{n % 3}.example") for n in range(12)]
    for name, records in (("first", pages), ("second", pages[6:])):
        build_corpus(settings_of(name, source_of(tmp_path / "in", name, records)))
    first, second = all_runs()
    certificate = takedown(write_list(tmp_path / "list.yaml", {"domain": "web1.example"}), second.id)
    found = {(row["stage"], row["key"]): row["documents"] for row in certificate["found"]["outputs"]}
    corpora = [run.last("document_split").key for run in (first, second)]
    assert [found["document_split", key] for key in corpora] == [4, 2]
    assert all(marks_of(Store(tmp_path / "home" / "store"), "document_split", key) for key in corpora)


@pytest.mark.slow
def test_retraining_makes_a_model_without_the_documents_and_names_it_current(
    world: SimpleNamespace, hidden: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKENMILL_HOME", str(world.home))
    path = write_list(tmp_path / "list.yaml", {"id": "l-03"})
    certificate = takedown(path, world.new.id, retrain=True)
    run = find_run(certificate["run_after"])
    assert ids_in(world, run, "index") == world.kept.keys() - {"l-03"}
    assert marks_of(world.store, "training", run.last("training").key) == []
    assert {"training", "text_generation", "model_publication"} < certificate["after"].keys()
    client = MlflowClient(tracking_uri())
    version = client.get_model_version_by_alias("tokenmill-tales", "current")
    assert version.tags["checkpoint"] == run.last("training").digest
    assert "superseded_by" not in version.tags
