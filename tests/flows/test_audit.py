"""The audit command: each question answers, as text and as JSON, and wrong arguments give one line."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import audit
from pipeline_config.errors import AuditError, TokenmillError

LONG = "x" * 100_000


@pytest.fixture
def tiny_home(tiny_run: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The session's tiny run as the data folder."""
    monkeypatch.setenv("TOKENMILL_HOME", str(tiny_run.home))
    return tiny_run


@pytest.fixture
def first_url(tiny_home: SimpleNamespace) -> str:
    """The URL of a record of the tiny run that was kept."""
    from tasks.audit.ledger import Ledger
    from tasks.store import Store

    ledger = Ledger(tiny_home.record, Store(tiny_home.home / "store"))
    corpus = ledger.kept(ledger.node("document_split"), "url")
    return ledger.rows(f"SELECT url FROM ({corpus}) ORDER BY url LIMIT 1")[0]["url"]


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a question prints."""
    audit.main(list(arguments))
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    """What a question prints as JSON."""
    return json.loads(ask(capsys, *arguments, "--json"))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and error of a question that is refused."""
    with pytest.raises(SystemExit) as caught:
        audit.main(list(arguments))
    lines = capsys.readouterr().err.splitlines()
    return caught.value.code, "\n".join(line for line in lines if line.startswith("error: ")) or lines[-1]


def test_trace_answers_as_text_and_as_json(tiny_home, first_url, capsys):
    run = tiny_home.record.id
    found = answer(capsys, "trace", first_url, "--run", run)
    assert (found["run"], found["records"]) == (run, 1)
    assert found["documents"][0]["url"] == first_url
    shown = ask(capsys, "trace", first_url, "--run", run)
    assert f"# Trace of url {first_url}" in shown
    assert "(the source agrees)" in shown


def test_trace_takes_a_kind_and_a_number_of_paths(tiny_home, capsys):
    run = ["--run", tiny_home.record.id]
    found = answer(capsys, "trace", "pydoc.example", "--most", "2", *run)
    assert (len(found["documents"]), found["records"] > 50) == (2, True)
    assert answer(capsys, "trace", "pydoc.example", "--kind", "id", *run)["records"] == 0


def test_why_answers_as_text_and_as_json(tiny_home, capsys):
    question = ("why", "quality_filtering", "gopher_short_doc", "--run", tiny_home.record.id)
    found = answer(capsys, *question, "--sample", "1", "--seed", "3")
    assert len(found["sample"]) == len(found["near_misses"]) == 1
    assert "# Why quality_filtering gave gopher_short_doc" in ask(capsys, *question)


def test_compare_answers_for_a_key_and_a_name(tiny_home, capsys):
    corpus = tiny_home.record.last("document_split")
    found = answer(capsys, "compare", corpus.key, tiny_home.record.id)
    assert found["a"]["key"] == found["b"]["key"] == corpus.key
    assert found["documents"]["only_in_a"] == 0
    assert "# Two corpora" in ask(capsys, "compare", corpus.digest, tiny_home.record.id)


def test_verify_answers_for_a_run_and_for_an_output(tiny_home, capsys):
    whole = answer(capsys, "verify", tiny_home.record.id)
    part = answer(capsys, "verify", tiny_home.record.last("document_split").key)
    assert whole["passed"] is part["passed"] is True
    assert part["outputs"] < whole["outputs"]
    assert "# Verification passed" in ask(capsys, "verify", tiny_home.record.last("sample_crawl").name)


def test_verify_fails_with_the_damaged_file_in_its_error(tiny_run, home: Path, capsys):
    crawl = tiny_run.record.last("sample_crawl")
    shutil.copytree(tiny_run.home / "store" / "sample_crawl", home / "store" / "sample_crawl")
    shutil.copytree(tiny_run.home / "runs", home / "runs")
    damaged = home / "store" / crawl.name / "warc" / "documentation-00001.warc.gz"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
    code, error = refusal(capsys, "verify", crawl.key)
    assert code == 1
    assert error.startswith(f"error: 1 problems, the first one: {damaged}: sha256 is ")


def test_what_if_answers_as_text_and_as_json(tiny_home, capsys):
    question = ("what-if", "document_split.validation_share=0.5", "--run", tiny_home.record.id)
    found = answer(capsys, *question, "--sample", "7", "--seed", "2")
    assert (found["sources"][0]["sampled"], found["seed"]) == (7, 2)
    assert "# What if document_split.validation_share=0.5" in ask(capsys, *question)


def test_flush_has_nothing_to_send_in_an_empty_folder(home: Path, capsys):
    found = json.loads(ask(capsys, "flush"))
    assert (found["sent"], found["waiting"], found["refused"]) == (0, 0, [])


RUN = ("--run", "RUN")
REFUSED = [
    pytest.param(["trace", "example.com", "--run", "nothing"], "no run fits 'nothing'", id="unknown run"),
    pytest.param(["verify", "0123456789"], "no run fits '0123456789'", id="unknown key"),
    pytest.param(["compare", "RUN", "zzz"], "no run fits 'zzz'", id="unknown corpus"),
    pytest.param(["trace", "", *RUN], "an empty id would select everything", id="empty value"),
    pytest.param(["trace", "*", *RUN], "an empty url_prefix", id="empty prefix"),
    pytest.param(["trace", "example.com/*", *RUN], "needs a scheme and a host", id="prefix without a scheme"),
    pytest.param(["trace", "a b", "--kind", "domain", *RUN], "is not a domain", id="no domain"),
    pytest.param(["trace", "\udcff", *RUN], "is not Unicode", id="bytes that are no text"),
    pytest.param(["trace", "a.b", "--most", "0", *RUN], "most: 0 is refused", id="no paths"),
    pytest.param(["why", "packing", "x", *RUN], "no stage 'packing' with a ledger", id="unknown stage"),
    pytest.param(["why", "quality_filtering", "x", *RUN], "gave no reason 'x'; its", id="unknown reason"),
    pytest.param(
        ["why", "quality_filtering", "x", "--sample", "-1", *RUN], "sample: -1 is refused", id="sample"
    ),
    pytest.param(["what-if", "training.steps=3", *RUN], "they change only training", id="no curation"),
    pytest.param(["what-if", "min_doc_words", *RUN], "section.field=value", id="no value"),
    pytest.param(
        ["what-if", "min_doc_words=1", "--sample", "0", *RUN], "sample: 0 is refused", id="no sample"
    ),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_wrong_arguments_give_an_error_of_one_line(tiny_home, arguments, message):
    run = tiny_home.record.id
    chosen = [run if argument == "RUN" else argument for argument in arguments]
    parsed = vars(audit._parser().parse_args(chosen))
    question = parsed.pop("question")
    parsed.pop("json")
    with pytest.raises(TokenmillError) as caught:
        question.fn(**parsed)  # a flow run takes a second each
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param(["trace", "a b", "--kind", "domain"], "'a b' is not a domain", id="in the flow"),
        pytest.param(["trace", "\udcff"], "what: '\\udcff' is not Unicode", id="bytes that are no text"),
        pytest.param(
            ["what-if", "a=1", "\udcff=1"], "overrides: ['a=1', '\\udcff=1'] is not", id="in a list"
        ),
    ],
)
def test_the_command_ends_with_code_1_and_the_error(tiny_home, capsys, arguments, error):
    code, shown = refusal(capsys, *arguments)
    assert code == 1
    assert shown.startswith(f"error: {error}")


def test_the_command_says_what_is_wrong_without_a_traceback(tiny_home, python):
    command = [python, "-m", "flows.audit", "why", "quality_filtering", "x", "--run", tiny_home.record.id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: quality_filtering of run ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "QUESTION", id="no question"),
        pytest.param(["ask"], "invalid choice: 'ask'", id="unknown question"),
        pytest.param(["trace"], "required: what", id="nothing to trace"),
        pytest.param(["trace", "a", "--kind", "host"], "invalid choice: 'host'", id="unknown kind"),
        pytest.param(["trace", "a", "--most", "x"], "invalid int value: 'x'", id="no number"),
        pytest.param(["why", "quality_filtering"], "required: reason", id="no reason"),
        pytest.param(["what-if"], "required: section.field=value", id="no override"),
        pytest.param(["compare"], "required: CORPUS_A", id="nothing to compare"),
        pytest.param(["flush", "--json"], "unrecognized arguments: --json", id="option it does not have"),
    ],
)
def test_arguments_that_are_not_understood_are_refused_before_anything_runs(capsys, arguments, message):
    code, error = refusal(capsys, *arguments)
    assert code == 2
    assert message in error


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("{what} {0} %s '; DROP TABLE documents; -- <script>", id="marks"),
        pytest.param(LONG, id="100 kB"),
    ],
)
def test_a_hostile_question_is_a_question(tiny_home, capsys, value):
    found = answer(capsys, "trace", value, "--kind", "id", "--run", tiny_home.record.id)
    assert (found["records"], found["selected"]["value"]) == (0, value)


def test_a_hostile_question_does_not_reach_the_terminal(tiny_home, capsys):
    shown = ask(capsys, "trace", "\x1b[31m\x9b2J\n", "--kind", "id", "--run", tiny_home.record.id)
    assert "# Trace of id \\x1b[31m\\x9b2J ⏎ \n" in shown


def test_a_crawled_text_cannot_reach_the_terminal_as_an_escape(home: Path, capsys, monkeypatch):
    page = f"# Title\n\n{audit.questions.pages.block('&#27;[2J <b>')}"
    monkeypatch.setattr(audit.questions, "trace", lambda *_: ({"records": 0}, page))
    assert ask(capsys, "trace", "x") == "# Title\n\n    &#27;[2J <b>\n"


def test_a_data_folder_without_runs_says_so(home: Path, capsys):
    code, error = refusal(capsys, "verify")
    assert (code, "none" in error) == (1, True)


def test_a_flow_called_from_elsewhere_raises_what_the_command_prints(tiny_home):
    with pytest.raises(AuditError, match="no run fits"):
        audit.trace("x", run="nothing")
