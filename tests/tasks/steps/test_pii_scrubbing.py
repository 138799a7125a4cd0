"""PII scrubbing: what is replaced, by what, how often, and how long it may take."""

import gzip
import json
import time

import pytest
from datatrove.data import Document
from datatrove.pipeline.formatters import PIIFormatter

from pipeline_config.curation import PiiScrubbing
from tasks.steps.pii_scrubbing import RunTooLong, ScrubPii, scrub
from tasks.steps.shards import COUNTS, FATE

SETTINGS = PiiScrubbing()
GOLDEN = "4fbf1c8bd65e418924cb8ac94e57c18655ad77f66444c860921d45ca7bbd7d0e"
MAIL, SECOND_MAIL = "email@example.com", "firstname.lastname@example.org"
IP, SECOND_IP = "22.214.171.124", "126.96.36.199"
TEXTS = [
    "Write to ann@company.com, bob@company.com or carl@company.com; not to 8.8.8.8 but 9.9.9.9.",
    "a@b.co\tc@d.co\nb@c.co\u00a0d@e.co\u3000e@f.co\x1cf@g.co",
    "<ann@company.com>(bob@company.com)[carl@company.com]'dan@company.com'",
    "ann@company.com,bob@company.com;8.8.8.8/24;user@[10.0.0.1]",
    "nothing to see here @ all, not even @handle or 3@4",
    "ünïcödé.name@company.com and name@ünïcode.com and naïve@co.uk.",
]


@pytest.mark.parametrize(
    ("text", "scrubbed", "emails", "ips"),
    [
        pytest.param("to ann@company.com now", f"to {MAIL} now", 1, 0, id="email"),
        pytest.param("ANN.B+c_d-e@mail.company.co.uk", MAIL, 1, 0, id="email_with_signs"),
        pytest.param("ann@company.com.", f"{MAIL}.", 1, 0, id="email_at_the_end_of_a_sentence"),
        pytest.param("mailto:ann@company.com", f"mailto:{MAIL}", 1, 0, id="email_in_a_link"),
        pytest.param("a@b.co, c@d.co, e@f.co", f"{MAIL}, {SECOND_MAIL}, {MAIL}", 3, 0, id="emails_in_turn"),
        pytest.param("at 8.8.8.8, or so", f"at {IP}, or so", 0, 1, id="public_ip"),
        pytest.param("8.8.8.8 and 9.9.9.9", f"{IP} and {SECOND_IP}", 0, 2, id="ips_in_turn"),
        pytest.param("10.0.0.1 192.168.1.9 127.0.0.1 172.16.0.1", None, 0, 0, id="private_ips"),
        pytest.param("169.254.0.1 192.0.2.7 0.0.0.0", None, 0, 0, id="reserved_ips"),
        pytest.param("10.0.0.1 or 8.8.8.8", f"10.0.0.1 or {IP}", 0, 1, id="private_and_public_ip"),
        pytest.param("ann@company.com 8.8.8.8", f"{MAIL} {IP}", 1, 1, id="both"),
        pytest.param("@handle, a @ b, 3@4, no@tld", None, 0, 0, id="no_address"),
        pytest.param("version 1.2.3 of 2024", None, 0, 0, id="version"),
        pytest.param("", None, 0, 0, id="empty"),
    ],
)
def test_addresses_are_replaced_and_counted(text, scrubbed, emails, ips):
    assert scrub(text, SETTINGS) == (text if scrubbed is None else scrubbed, emails, ips)


@pytest.mark.parametrize(
    ("settings", "scrubbed"),
    [
        pytest.param({"emails": False}, f"a@b.co {IP}", id="no_emails"),
        pytest.param({"public_ips": False}, f"{MAIL} 8.8.8.8", id="no_ips"),
        pytest.param({"emails": False, "public_ips": False}, "a@b.co 8.8.8.8", id="neither"),
    ],
)
def test_a_kind_that_is_switched_off_stays(settings, scrubbed):
    assert scrub("a@b.co 8.8.8.8", PiiScrubbing(**settings))[0] == scrubbed


@pytest.mark.parametrize("text", TEXTS)
def test_the_result_is_that_of_datatroves_formatter(text):
    assert scrub(text, SETTINGS)[0] == PIIFormatter().format(text)


@pytest.mark.parametrize("file", ["pattern_cases", "presidio_synth_v2"])
def test_the_result_is_that_of_datatroves_formatter_on_shared_texts(shared_data, file):
    with gzip.open(shared_data / "pii" / f"{file}.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    texts.append("\n\n".join(texts))
    assert [scrub(text, SETTINGS)[0] for text in texts] == [PIIFormatter().format(text) for text in texts]


def test_a_text_does_not_depend_on_the_documents_before_it(run_step):
    def texts(order: list[str]) -> dict[str, str]:
        documents = [Document(text=text, id=text) for text in order]
        return {done.id: done.text for done in run_step(ScrubPii(SETTINGS, frozenset()), documents)}

    assert texts(TEXTS) == texts(TEXTS[::-1]) == {text: scrub(text, SETTINGS)[0] for text in TEXTS}


def test_scrubbing_a_scrubbed_text_keeps_its_places():
    once, emails, ips = scrub(TEXTS[0], SETTINGS)
    assert scrub(once, SETTINGS) == (once, emails, ips)


def test_counts_go_to_the_books_and_not_to_the_text(run_step):
    [done] = run_step(ScrubPii(SETTINGS, frozenset()), [Document(text=TEXTS[0], id="x")])
    assert done.metadata[COUNTS] == {"emails_replaced": 3, "ips_replaced": 2}


def test_a_source_that_skips_the_stage_passes_unchanged(run_step):
    documents = [Document(text=TEXTS[0], id=name, metadata={"source": name}) for name in ("books", "web")]
    books, web = run_step(ScrubPii(SETTINGS, frozenset({"books"})), documents)
    assert (books.text, COUNTS in books.metadata) == (TEXTS[0], False)
    assert web.text != TEXTS[0]


def seconds_for(text: str, settings: PiiScrubbing = SETTINGS) -> float:
    started = time.process_time()
    scrub(text, settings)
    return time.process_time() - started


def test_a_long_run_with_an_at_sign_fails_at_once(run_step):
    """DataTrove's pattern takes quadratic time on it: half a minute and more for these 100 kB."""
    started = time.process_time()
    with pytest.raises(RunTooLong, match="100001 characters"):
        scrub("a." * 50_000 + "@", SETTINGS)
    assert time.process_time() - started < 0.5
    [done] = run_step(ScrubPii(SETTINGS, frozenset()), [Document(text="a." * 50_000 + "@", id="x")])
    assert (done.metadata[FATE].kind, done.metadata[FATE].reason) == ("failed", "run_too_long")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a." * 50_000, id="run_without_at_sign"),
        pytest.param("a." * 50_000 + " @", id="run_beside_an_at_sign"),
        pytest.param("a.b@c.d " * 12_500, id="many_addresses"),
        pytest.param("1.2.3." * 17_000, id="digits"),
    ],
)
def test_100_kilobytes_are_scrubbed_quickly(text):
    assert seconds_for(text) < 1


def test_the_longest_run_that_is_allowed_is_scrubbed_in_seconds():
    assert seconds_for("a." * (SETTINGS.max_run_characters // 2 - 1) + "@") < 10


def test_a_run_of_just_the_limit_passes():
    settings = PiiScrubbing(max_run_characters=1000)
    text = "a" * 994 + "@b.com"
    assert scrub(text, settings) == (MAIL, 1, 0)
    with pytest.raises(RunTooLong):
        scrub("a" + text, settings)


def test_golden(run_step, behaviour, fixed_documents):
    done = run_step(ScrubPii(SETTINGS, frozenset()), fixed_documents())
    assert behaviour(done) == GOLDEN, "behaviour changed: raise the version in tasks/pii_scrubbing.py"
