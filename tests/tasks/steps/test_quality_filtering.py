"""Quality: every reason is reachable, its value lies beyond the threshold, and DataTrove decides the same."""

import json
import operator
import random

import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from pydantic import ValidationError

from pipeline_config.curation import QualityFiltering
from tasks.steps.quality.rules import rules_of
from tasks.steps.quality_filtering import FilterQuality, value_fields
from tasks.steps.shards import FATE, NOTES

GOLDEN = "f17461b6db8e6e95d6934722a7264764baa12407c2b589ebf379fe2f087a6026"
OFF = {"gopher_repetition": None, "gopher_quality": None, "c4": None, "fineweb": None}
NO_TOP = {"top_n_grams": ()}
SENTENCE = "The harbour of the old town was quiet that morning and the boats were still asleep."
OTHERS = [f"Line number {name} of them says that it has something else to tell." for name in "abcdefghijkl"]
UNIQUE = " ".join(f"w{n}ord" for n in range(200))


def lines(*texts: str) -> str:
    return "\n".join(texts)


def n_grams(n: int) -> str:
    """A text in which one n-gram, and nothing longer, comes back between words that do not."""
    gram = " ".join(f"repeatedly{part}" for part in "abcdefghij"[:n])
    return " ".join(f"{gram} x{number}" for number in range(40))


# reason, section, settings of the section, text, how the value lies to the threshold, threshold
CASES = [
    ("dup_para_frac", "gopher_repetition", {}, "\n\n".join([SENTENCE, "a", "b", "c", "a", "b"]), ">", 0.3),
    ("dup_para_char_frac", "gopher_repetition", {}, "\n\n".join([*OTHERS[:2], SENTENCE, SENTENCE]), ">", 0.2),
    ("dup_line_frac", "gopher_repetition", {}, lines(SENTENCE, *"abcabc", *OTHERS[:2]), ">", 0.3),
    ("dup_line_char_frac", "gopher_repetition", {}, lines(*OTHERS[:2], SENTENCE, SENTENCE), ">", 0.2),
    ("top_2_gram", "gopher_repetition", {}, n_grams(2), ">", 0.2),
    ("top_3_gram", "gopher_repetition", {"top_n_grams": [(3, 0.18)]}, n_grams(3), ">", 0.18),
    ("top_4_gram", "gopher_repetition", {"top_n_grams": [(4, 0.16)]}, n_grams(4), ">", 0.16),
    *(
        (
            f"duplicated_{n}_n_grams",
            "gopher_repetition",
            {**NO_TOP, "dup_n_grams": [(n, s)]},
            n_grams(n),
            ">",
            s,
        )
        for n, s in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))
    ),
    ("gopher_short_doc", "gopher_quality", {}, SENTENCE, "<", 50),
    ("gopher_long_doc", "gopher_quality", {"max_doc_words": 60}, SENTENCE * 9, ">", 60),
    ("gopher_below_avg_threshold", "gopher_quality", {}, "to be of it " * 20, "<", 3),
    ("gopher_above_avg_threshold", "gopher_quality", {}, "incomprehensibility " * 60, ">", 10),
    ("gopher_too_many_hashes", "gopher_quality", {}, f"{SENTENCE} # # # " * 9, ">", 0.1),
    ("gopher_too_many_ellipsis", "gopher_quality", {}, f"{SENTENCE} ... … ... " * 9, ">", 0.1),
    ("gopher_too_many_bullets", "gopher_quality", {}, lines(*[f"• {text}" for text in OTHERS]), ">", 0.9),
    ("gopher_too_many_end_ellipsis", "gopher_quality", {}, lines(*[f"{t}..." for t in OTHERS]), ">", 0.3),
    (
        "gopher_below_alpha_threshold",
        "gopher_quality",
        {},
        f"{SENTENCE} 10001 2002 30003 44004 " * 9,
        "<",
        0.8,
    ),
    (
        "gopher_enough_stop_words",
        "gopher_quality",
        {},
        "quiet mornings while teachers explain maps " * 9,
        "<",
        2,
    ),
    ("too_few_sentences", "c4", {}, lines(*OTHERS[:4]), "<", 5),
    ("too_few_sentences", "c4", {}, lines(*OTHERS[:4], *["Short line."] * 9), "<", 5),
    ("too_few_sentences", "c4", {}, lines(*OTHERS[:4], *["Please enable JavaScript to go on."] * 9), "<", 5),
    ("curly_bracket", "c4", {}, lines(*OTHERS[:6], "a line with { a bracket"), ">", 0),
    ("lorem_ipsum", "c4", {}, lines(*OTHERS[:6], "a line with Lorem Ipsum in it"), ">", 0),
    ("line_punct_ratio", "fineweb", {}, lines(*[text.rstrip(".") for text in OTHERS]), "<", 0.12),
    ("short_line_ratio", "fineweb", {}, lines(SENTENCE, *[f"Short {n}." for n in range(9)]), ">", 0.67),
    ("char_dup_ratio", "fineweb", {}, lines(*OTHERS[:6], SENTENCE, SENTENCE), ">", 0.01),
    (
        "list_ratio",
        "fineweb",
        {},
        lines(*[f"{n}incomprehensibilitiesaltogether." for n in "abcdefghi"]),
        ">",
        0.3,
    ),
]


def settings_of(section: str, values: dict) -> QualityFiltering:
    return QualityFiltering.model_validate(OFF | {section: values})


def fate_of(run_step, settings: QualityFiltering, text: str):
    [document] = run_step(FilterQuality(settings), [Document(text=text, id="x", metadata={})])
    return document.metadata.get(FATE)


@pytest.mark.parametrize(
    ("reason", "section", "values", "text", "relation", "threshold"),
    [pytest.param(*case, id=f"{case[0]}-{number}") for number, case in enumerate(CASES)],
)
def test_a_rule_removes_with_the_value_that_decided(
    run_step, reason, section, values, text, relation, threshold
):
    fate = fate_of(run_step, settings_of(section, values), text)
    assert (fate.kind, fate.reason) == ("removed", reason)
    value, side, least = fate.value.split()
    assert (side, float(least)) == (relation, threshold)
    beyond = {"<": operator.lt, ">": operator.gt}[relation]
    assert beyond(float(value), threshold), f"{reason}: {fate.value} is not {relation} {threshold}"


def test_every_rule_has_a_case():
    assert set(rules_of(QualityFiltering())) <= {case[0] for case in CASES}


@pytest.mark.parametrize("section", ["gopher_repetition", "fineweb"])
def test_an_empty_text_is_removed(run_step, section):
    fate = fate_of(run_step, settings_of(section, {}), "")
    assert (fate.kind, fate.reason) == ("removed", "empty")


@pytest.mark.parametrize("section", OFF)
def test_a_section_that_is_null_removes_nothing(run_step, section):
    settings = QualityFiltering.model_validate(OFF)
    assert rules_of(settings) == {}
    for _, of, _, text, *_ in CASES:
        assert of != section or fate_of(run_step, settings, text) is None


def test_a_settings_change_reaches_the_rule(run_step):
    assert fate_of(run_step, settings_of("gopher_quality", {"min_doc_words": 10}), SENTENCE) is None
    assert fate_of(run_step, settings_of("gopher_quality", {"min_doc_words": 20}), SENTENCE) is not None


def test_the_first_rule_in_finewebs_order_is_the_reason(run_step):
    fate = fate_of(run_step, QualityFiltering(), lines(SENTENCE, SENTENCE, "{"))
    assert (fate.reason, fate.value) == ("dup_line_frac", "0.333333 > 0.3")


@pytest.mark.parametrize(("section", "text"), sorted({(case[1], case[3]) for case in CASES}))
def test_every_rules_value_is_recorded_of_every_document(run_step, section, text):
    settings = QualityFiltering()
    [document] = run_step(FilterQuality(settings), [Document(text=text, id="x", metadata={})])
    notes, measured = document.metadata[NOTES], {field.name for field in value_fields(settings)}
    rules = rules_of(settings)
    assert set(notes) == measured or document.metadata[FATE].reason == "empty" or left_nothing(notes)
    broken = {
        name
        for name, (side, threshold) in rules.items()
        if (value := notes.get(name)) is not None
        and (value > threshold if side == ">" else value < threshold)
    }
    fate = document.metadata.get(FATE)
    assert (fate.reason in broken) if fate else not broken


def left_nothing(notes) -> bool:
    """Whether C4's rules dropped all lines, so that FineWeb's have nothing to measure."""
    return notes["too_few_sentences"] == 0 and "list_ratio" not in notes


def test_a_column_says_where_values_are_removed():
    german = {"language": "de", "gopher_quality": {"min_doc_words": 40, "stop_words": ["und"]}}
    settings = QualityFiltering.model_validate({"languages": [german]})
    fields = {field.name: field.metadata for field in value_fields(settings)}
    assert json.loads(fields["gopher_short_doc"][b"removes"]) == {"": "< 50", "de": "< 40"}
    assert fields["c4_dropped_lines"] is None


def test_c4_drops_lines_of_a_document_that_it_keeps(run_step):
    text = lines(*OTHERS, "Two words", "We use cookies on this page.", "Turn on JavaScript now please.")
    [document] = run_step(FilterQuality(settings_of("c4", {})), [Document(text=text, id="x", metadata={})])
    assert FATE not in document.metadata
    assert document.text == lines(*OTHERS)


def odd_texts(prose, number: int) -> list[str]:
    """Prose with things done to it that the rules look at."""
    choose = random.Random(7)
    changes = [
        lambda text: text,
        lambda text: lines(text, text),
        lambda text: text.replace(".", ""),
        lambda text: text.replace(" ", "\n", 40),
        lambda text: lines(*[f"- {line}" for line in text.split("\n")]),
        lambda text: text.replace(".", "..."),
        lambda text: text + "\nlorem ipsum dolor sit amet",
        lambda text: text + "\nfunction () { return false }",
        lambda text: " ".join("12345" if choose.random() < 0.3 else word for word in text.split(" ")),
        lambda text: text[: choose.randrange(len(text))],
        lambda text: text.replace("the", "#"),
        lambda text: lines(*[line for line in text.split("\n") for _ in range(choose.randrange(3))]),
    ]
    return [choose.choice(changes)(prose(choose.randrange(2, 30), seed=n)) for n in range(number)]


@pytest.fixture(scope="module")
def theirs():
    """DataTrove's filters built from their own defaults, with FineWeb's one change."""
    return [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
    ]


def compare(run_step, theirs, texts: list[str], settings=None) -> set[str | None]:
    """Checks that reasons and texts are the same; the reasons."""
    step = FilterQuality(settings or QualityFiltering())
    ours = run_step(step, [Document(text=text, id="x", metadata={}) for text in texts])
    reasons = set()
    for text, document in zip(texts, ours, strict=True):
        twin, fate = Document(text=text, id="x"), document.metadata.get(FATE)
        verdicts = (block.filter(twin) for block in theirs)
        verdict = next((verdict for verdict in verdicts if verdict is not True), (True, None))
        assert (fate and fate.reason, document.text) == (verdict[1], twin.text), repr(text[:200])
        reasons.add(verdict[1])
    return reasons


def test_decisions_and_texts_are_those_of_datatroves_filters(run_step, prose, theirs):
    reasons = compare(run_step, theirs, odd_texts(prose, 150))
    assert len(reasons) >= 8, reasons


GOOD = lines(*[f"{text} He said so, and they have not been to the sea with her." for text in OTHERS])
EDGES = {
    "nothing": ["", " ", "\n\n\n", "\x00", "\u2028", "\r\n\r\n", "\x1c\x1d", "\ufeff"],
    "only signs": ["." * 500, "?!" * 99, "- - - " * 40, "😀" * 300, "( " * 200, "\u0301" * 50, "，。" * 40],
    "no blanks": ["x" * 100_000, "中文字" * 500, "a.b" * 999, "a-b" * 500, "http://a.b/" * 99],
    "empty lines": [GOOD.replace("\n", "\n\n\n"), "\n \n" + GOOD + "\n\t\n", lines(GOOD, "", "", GOOD)],
    "other line ends": [GOOD.replace("\n", end) for end in ("\r\n", "\r", "\x85", "\u2028", "\x0b", "\n\r")],
    "other blanks": [GOOD.replace(" ", blank) for blank in ("\xa0", "\t", "  ", " \u2003 ", "\u200b")],
    "long lines": [GOOD.replace("\n", " ") * 60, ("word " * 9 + "end. ") * 4000, GOOD + "\n" + "x" * 1001],
    "faces": [GOOD.replace(".", f". {face}") for face in (") :)", ":) :(", ":-) '", "' '", ": )")],
    "zeros": [GOOD.replace("the", "th\x00e"), GOOD + "\x00", "\x00 " * 100],
    "other scripts": [
        "Это предложение. И ещё одно предложение здесь. " * 20,
        "これは文です。" * 50,
        "هذه جملة۔ " * 60,
    ],
    "citations": [
        GOOD.replace(".", ".[1] [2]"),
        GOOD.replace("has", "[edit] has"),
        "use[1] cookies x\n" + GOOD,
    ],
    "bullets": [GOOD.replace("Line", "- Line"), GOOD.replace("Line", " • Line"), GOOD.replace(".", "…")],
    "signs of C4": [GOOD + end for end in ("\nLOREM IPSUM dolor sit", "\na {", "\nJavaScript is off now")],
    "words of spaCy": [GOOD.replace("something", word) for word in ("IS_ALPHAx", "nsubj", "PROPN", "ORTH")],
}


@pytest.mark.parametrize("kind", EDGES)
def test_decisions_on_edge_cases_are_those_of_datatroves_filters(run_step, theirs, kind):
    compare(run_step, theirs, EDGES[kind])


def test_decisions_on_random_characters_are_those_of_datatroves_filters(run_step, theirs):
    choose = random.Random(11)
    alphabet = [
        *"abc AB .,:;)('-\n\n\r\t0[]{}#…•\x00😀中é\xa0",
        "the ",
        "and ",
        " of ",
        "end. ",
        ":) ",
        "...",
        "\n\n",
    ]
    texts = ["".join(choose.choices(alphabet, k=choose.randrange(800))) for _ in range(150)]
    loose = {
        "min_doc_words": 1,
        "min_stop_words": 0,
        "max_non_alpha_words_ratio": 0.2,
        "min_avg_word_length": 1,
    }
    theirs = [GopherQualityFilter(**loose), *theirs[2:]]
    settings = QualityFiltering.model_validate({"gopher_repetition": None, "gopher_quality": loose})
    reasons = compare(run_step, theirs, texts, settings)
    assert len(reasons) >= 4, reasons


def test_a_language_has_rules_and_words_of_its_own(run_step):
    german = {"language": "de", "gopher_quality": {"stop_words": ["und", "der"], "min_doc_words": 5}}
    settings = QualityFiltering.model_validate(
        {**OFF, "languages": [german | dict.fromkeys(set(OFF) - {"gopher_quality"})]}
    )
    made = [
        Document(text="Der Hund und der Mann. Sie gehen z.B. heim.", id="a", metadata={"language": "de"}),
        Document(text="Nur vier Wörter hier", id="b", metadata={"language": "de"}),
        Document(text="Only four words here", id="c", metadata={"language": "en"}),
    ]
    fates = [document.metadata.get(FATE) for document in run_step(FilterQuality(settings), made)]
    assert [fate and fate.reason for fate in fates] == [None, "gopher_short_doc", None]


def test_english_stop_words_for_another_language_are_refused():
    with pytest.raises(ValidationError, match=r"need gopher_quality\.stop_words of that language"):
        QualityFiltering.model_validate({"languages": [{"language": "de"}]})


def test_golden(run_step, behaviour, fixed_documents):
    done = run_step(FilterQuality(QualityFiltering()), fixed_documents())
    assert behaviour(done) == GOLDEN, "behaviour changed: raise the version in tasks/quality_filtering.py"
