"""Records of runs: what a reference names, what an output was made from, and which code ran."""

import subprocess
from pathlib import Path

import pytest

from pipeline_config.errors import AuditError
from tasks import lineage
from tasks.lineage import Node, RunRecord, all_runs, code_version, find_run, new_run_id, node_of
from tasks.store import StageOutput, digest_of


def node(stage: str, *inputs: Node, number: int = 0) -> Node:
    """A node with a key and a digest of its own."""
    key, digest = digest_of([stage, number, "key"]), digest_of([stage, number, "digest"])
    return Node(
        stage=stage, label="all", key=key, digest=digest, inputs=tuple(found.name for found in inputs)
    )


CORPUS, OTHER_CORPUS = node("document_split"), node("document_split", number=1)
TOKENS = node("packing", CORPUS)
NODES = {"first": [CORPUS], "second": [CORPUS, TOKENS], "third": [OTHER_CORPUS]}


def saved(number: int, name: str, nodes: list[Node], status: str = "finished") -> RunRecord:
    """A record on disk."""
    run = RunRecord(id=f"2026010{number}T000000-{number}a2b3c4d", name=name, started="", nodes=nodes)
    run.status = status
    run.save()
    return run


@pytest.fixture
def runs(home: Path) -> list[RunRecord]:
    """Three finished runs and, after them, one that failed, one that runs, and one without a corpus."""
    finished = [saved(number, name, nodes) for number, (name, nodes) in enumerate(NODES.items(), 1)]
    saved(4, "late", [CORPUS], "failed")
    saved(5, "late", [OTHER_CORPUS], "running")
    saved(6, "late", [node("sample_crawl")])
    saved(7, "empty", [])
    return finished


def test_records_come_back_as_they_were_saved_oldest_first(runs: list[RunRecord]):
    found = all_runs()
    assert found[:3] == runs
    assert [run.id for run in found] == sorted(run.id for run in found)


@pytest.mark.parametrize(
    ("reference", "number"),
    [
        pytest.param("latest", 3, id="latest finished run with a corpus"),
        pytest.param(" latest ", 3, id="spaces"),
        pytest.param("20260102T000000-2a2b3c4d", 2, id="id"),
        pytest.param("20260102T0", 2, id="shortened id"),
        pytest.param("second", 2, id="name"),
        pytest.param("late", 6, id="of equal names the newest"),
        pytest.param(TOKENS.key, 2, id="key"),
        pytest.param(TOKENS.key[:6], 2, id="shortened key"),
        pytest.param(TOKENS.digest, 2, id="digest"),
        pytest.param(TOKENS.digest[:6], 2, id="shortened digest"),
        pytest.param(f"packing/{TOKENS.key}", 2, id="stage and key"),
        pytest.param(f"/data/store/packing/{TOKENS.key}/", 2, id="folder"),
        pytest.param(f"/data/store/packing/{TOKENS.key[:9]}", 2, id="shortened folder"),
        pytest.param(CORPUS.key, 2, id="of the runs with an output the newest that finished"),
        pytest.param(OTHER_CORPUS.digest, 3, id="of the runs with a digest the newest that finished"),
    ],
)
def test_a_reference_names_one_run(runs: list[RunRecord], reference: str, number: int):
    assert find_run(reference).id.startswith(f"2026010{number}T")


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param("nothing", id="unknown name"),
        pytest.param("", id="empty"),
        pytest.param("/", id="a slash"),
        pytest.param(TOKENS.key[:5], id="shorter than six characters"),
        pytest.param("second ; DROP TABLE", id="SQL"),
        pytest.param("empty", id="a run without outputs"),
        pytest.param("secon", id="part of a name"),
    ],
)
def test_a_reference_that_fits_nothing_is_refused_with_the_runs_there_are(
    runs: list[RunRecord], reference: str
):
    with pytest.raises(AuditError, match="20260102T000000-2a2b3c4d \\(second, finished\\)") as caught:
        find_run(reference)
    assert repr(reference.rstrip("/")) in str(caught.value)


def test_without_runs_the_message_says_so(home: Path):
    with pytest.raises(AuditError, match=f"last runs in {home}/runs: none"):
        find_run()


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"id": "x"', id="cut"),
        pytest.param(b"null", id="no object"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b'{"id": "x"}', id="fields missing"),
    ],
)
def test_a_damaged_record_is_named(runs: list[RunRecord], home: Path, damage: bytes):
    path = home / "runs" / "20260102T000000-2a2b3c4d.json"
    path.write_bytes(damage)
    with pytest.raises(AuditError, match="is damaged") as caught:
        find_run("first")
    assert str(path) in str(caught.value)


def test_a_half_written_record_is_not_a_record(runs: list[RunRecord], home: Path):
    (home / "runs" / ".20260109T000000-99999999.json.123").write_text("{")
    assert len(all_runs()) == 7


def test_upstream_holds_all_that_a_node_was_made_from_and_nothing_else():
    web, books = node("text_extraction", number=1), node("text_extraction", number=2)
    merged = node("deduplication", web, books)
    side, corpus = node("bpe_training", merged), node("document_split", merged)
    run = RunRecord(id="r", name="r", started="", nodes=[web, books, merged, side, corpus])
    assert run.upstream(corpus) == [web, books, merged, corpus]
    assert run.upstream(books) == [books]
    assert run.upstream(side) == [web, books, merged, side]


def test_last_and_at_know_the_nodes_of_a_stage():
    first, second = node("packing", number=1), node("packing", number=2)
    run = RunRecord(id="r", name="r", started="", nodes=[first, CORPUS, second])
    assert run.at("packing") == [first, second]
    assert run.last("packing") == second
    assert run.last("training") is None


def test_a_node_names_the_outputs_it_was_made_from():
    made = StageOutput(stage="packing", key="a" * 64, digest="b" * 64, label="all")
    found = node_of(made, [CORPUS.output])
    assert found.inputs == (CORPUS.name,)
    assert found.output == made


def test_run_ids_differ_within_a_second():
    assert len({new_run_id() for _ in range(1000)}) == 1000


def git(folder: Path, *arguments: str) -> str:
    """Runs git in a folder, as nobody in particular."""
    nobody = ("-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *nobody, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout with one commit and a tag, taken for the code."""
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    git(tmp_path, "tag", "-a", "v9", "-m", "nine")
    monkeypatch.setattr(lineage, "CODE", tmp_path)
    return tmp_path


def test_the_code_version_is_the_commit_and_says_whether_files_differ(checkout: Path):
    commit = git(checkout, "rev-parse", "HEAD")
    assert code_version() == commit
    (checkout / "code.py").write_text("2")
    assert code_version() == f"{commit}-dirty"


def test_an_image_says_which_commit_it_was_built_from(monkeypatch):
    monkeypatch.setenv("TOKENMILL_CODE", "0123abc")
    assert code_version() == "0123abc"


def test_outside_a_checkout_the_code_version_is_the_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(lineage, "CODE", tmp_path)
    assert code_version() == "tokenmill 0.1.0"
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert code_version() == "tokenmill 0.1.0"
