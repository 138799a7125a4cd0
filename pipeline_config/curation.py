"""The settings of curation: which pages and which of their texts are kept.

Source of the defaults: FineWeb (Penedo et al. 2024, arXiv:2406.17557) as implemented in DataTrove 0.10, where
a field does not say otherwise.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline_config.section import Count, Section, Share

Signal = Literal["noai", "noimageai", "noindex", "nofollow", "noarchive", "nosnippet", "tdm-reservation"]
Status = Annotated[int, Field(ge=100, le=599)]
NGramSize = Annotated[int, Field(ge=1, le=100)]


class UrlFiltering(Section):
    """Which records are worth decoding, from their headers alone. Source: own."""

    use_integrated_lists: bool = True
    """Use DataTrove's bundled lists: 4.6 million domains and its banned words. Source: FineWeb,
    arXiv:2406.17557."""
    extra_domains: tuple[str, ...] = ()
    """Further blocked domains, each with its subdomains, and addresses (IPv4 or IPv6)."""
    blocklists: tuple[str, ...] = ()
    """What to leave out: files of domains, URLs or expressions with a line for each entry, or folders of such
    files as UT1 lays them out; any fsspec URL. A file's name says what it holds (`domains`, `urls`,
    `expressions`, with `.txt` and `.gz` or without); in others each line is a domain or a URL. The lists'
    content is part of the key."""
    allowlists: tuple[str, ...] = ()
    """What blocked domains, lists and words do not apply to; of the same form. A takedown applies all the
    same."""
    ut1: str = ""
    """Folder of UT1's categories (`<category>/domains` or `<category>.domains.txt.gz`); any fsspec URL."""
    ut1_categories: tuple[str, ...] = ()
    """Categories of that folder to leave out, such as `phishing`."""
    soft_word_threshold: Count = 2
    """Soft-banned words that a URL may not reach. Source: FineWeb, arXiv:2406.17557."""
    payload_types: tuple[str, ...] = ("text/html", "application/xhtml+xml")
    """Payload types (`WARC-Identified-Payload-Type`) that are pages."""
    http_statuses: tuple[Status, ...] = ()
    """HTTP status codes of records to keep, where the status is known; empty: all."""

    @model_validator(mode="after")
    def _categories_have_a_folder(self) -> "UrlFiltering":
        if bool(self.ut1) != bool(self.ut1_categories):
            raise ValueError("ut1 (a folder) and ut1_categories (names in it) go together")
        return self


class LanguagePrefilter(Section):
    """Pages in other languages are removed before the careful engine spends its time on them. Source: own."""

    languages: tuple[str, ...] = ()
    """Languages to go on with, as ISO 639 codes; none switches the prefilter off."""
    min_score: Share = 0.05
    """A page goes on if one of them scores at least this on the fast engine's text."""


class TextExtraction(Section):
    """Main text of a page. Source: own."""

    engine: Literal["blend", "lines", "resiliparse", "trafilatura"] = "blend"
    """`lines`: resiliparse's main content, line by line through a linear model; `blend`: where that is
    doubtful, the same over the whole page, and where that is, too, trafilatura without its fallbacks, which
    double its time; FineWeb: `trafilatura`."""
    doubtful_words: int = Field(default=40, ge=0)
    """A page of which `lines` keeps fewer words is doubtful."""
    doubtful_certainty: Share = 0.85
    """A page without a line that surely (with this probability) is main text is doubtful."""
    favour_precision: bool = False
    """Trafilatura: less text, but surely main text. FineWeb's choice; loses text on all but articles."""
    comments: bool = True
    """Trafilatura: comments below the text, and the posts of forums. FineWeb left them out."""
    fall_back: bool = True
    """A page that breaks trafilatura gets the text of `lines`."""
    language_prefilter: LanguagePrefilter = LanguagePrefilter()
    """Of use with `trafilatura`; `blend` calls it on one page in thirty."""
    page_cpu_seconds: float = Field(default=10.0, gt=0, le=600)
    """CPU time that one page may take. CPU, not wall clock: the result must not depend on the load."""
    page_memory_bytes: int = Field(default=2_000_000_000, ge=50_000_000)
    """Memory that one page may take."""
    max_payload_bytes: int = Field(default=20_000_000, ge=1000)
    """Larger pages, by their decoded bytes, are recorded as failed."""
    max_decoding_ratio: float = Field(default=1000.0, ge=10)
    """Decoded bytes per byte of `Content-Encoding`; pages of over 1 MiB above this are recorded as failed."""
    max_tags: Count = 500_000
    """Pages with more opening tags are recorded as failed before they are parsed."""
    max_tag_attributes: Count = 10_000
    """Pages with more attributes in one tag are recorded as failed before they are parsed."""
    max_depth: Count = 2_000
    """Pages with more elements inside each other are recorded as failed before they are parsed."""
    careful_max_tags: Count = 10_000
    """Pages with more opening tags are not given to trafilatura."""
    max_output_ratio: float = Field(default=2.0, gt=0)
    """Characters of text per character of page from which on an extraction is recorded as failed."""
    obey_signals: tuple[Signal, ...] = ()
    """What a page or its header may say that leaves it out: robots directives, and `tdm-reservation` (the TDM
    Reservation Protocol). Recorded of every page, whatever is obeyed."""
    signal_agents: tuple[str, ...] = ()
    """Crawlers, such as `ccbot`: a directive to one of them counts as one to all."""


STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


class LanguageThreshold(Section):
    """A language with a threshold of its own."""

    language: str = Field(min_length=2, max_length=16)
    """ISO 639 code, as lid.176 has it."""
    min_score: Share = 0.65
    """A document is kept if the language scores above this."""


class LanguageIdentification(Section):
    """Language by fastText's lid.176. Source: the model, Joulin et al. 2016, arXiv:1607.01759; what is kept,
    FineWeb, arXiv:2406.17557."""

    languages: tuple[str, ...] = Field(default=("en",), min_length=1)
    """Languages to keep, as ISO 639 codes."""
    min_score: Share = 0.65
    """A document is kept if one of these languages scores above this."""
    thresholds: tuple[LanguageThreshold, ...] = ()
    """Languages to keep, too, each with a threshold of its own; one that is among `languages` goes by this
    threshold."""
    recorded_score: Share = 0.01
    """Languages that score at least this are recorded for every document, kept or not."""


class GopherRepetition(Section):
    """Repetition limits. Source: Rae et al. 2021, arXiv:2112.11446, table A1."""

    dup_line_frac: Share = 0.3
    """Share of lines that are repeats."""
    dup_para_frac: Share = 0.3
    """Share of paragraphs that are repeats."""
    dup_line_char_frac: Share = 0.2
    """Share of characters in repeated lines."""
    dup_para_char_frac: Share = 0.2
    """Share of characters in repeated paragraphs."""
    top_n_grams: tuple[tuple[NGramSize, float], ...] = ((2, 0.2), (3, 0.18), (4, 0.16))
    """(n, share of characters) of the most frequent n-gram."""
    dup_n_grams: tuple[tuple[NGramSize, float], ...] = (
        (5, 0.15),
        (6, 0.14),
        (7, 0.13),
        (8, 0.12),
        (9, 0.11),
        (10, 0.10),
    )
    """(n, share of characters) of all repeated n-grams."""


class GopherQuality(Section):
    """Document shape. Source: Rae et al. 2021, arXiv:2112.11446, appendix A.1.1."""

    min_doc_words: int = Field(default=50, ge=0)
    """Fewest words that are not mere symbols."""
    max_doc_words: Count = 100_000
    """Most words that are not mere symbols."""
    min_avg_word_length: float = Field(default=3, ge=0)
    """Mean characters per word, at least."""
    max_avg_word_length: float = Field(default=10, gt=0)
    """Mean characters per word, at most."""
    max_symbol_word_ratio: float = Field(default=0.1, ge=0)
    """Hashes or ellipses per word."""
    max_bullet_lines_ratio: Share = 0.9
    """Share of lines that start with a bullet."""
    max_ellipsis_lines_ratio: Share = 0.3
    """Share of lines that end with an ellipsis."""
    max_non_alpha_words_ratio: Share = 0.8
    """Least share of words with a letter (the name is DataTrove's)."""
    min_stop_words: int = Field(default=2, ge=0)
    """Different stop words, at least."""
    stop_words: tuple[str, ...] = STOP_WORDS
    """Stop words, in lower case."""


class C4Quality(Section):
    """Line and page rules. Source: Raffel et al. 2020, arXiv:1910.10683, section 2.2."""

    filter_no_terminal_punct: bool = False
    """Drop lines without terminal punctuation (C4 does, FineWeb does not)."""
    min_num_sentences: int = Field(default=5, ge=-1)
    """Fewest sentences after line filtering; -1 switches the rule off."""
    min_words_per_line: int = Field(default=3, ge=-1)
    """Shorter lines are dropped; -1 switches the rule off."""
    max_word_length: int = Field(default=1000, ge=-1)
    """Lines with a longer word are dropped; -1 switches the rule off."""
    remove_citations: bool = True
    """Remove [1], [edit], [citation needed]."""
    filter_lorem_ipsum: bool = True
    """Remove documents with "lorem ipsum"."""
    filter_javascript: bool = True
    """Drop lines that mention JavaScript."""
    filter_curly_bracket: bool = True
    """Remove documents with a curly bracket."""
    filter_policy: bool = True
    """Drop lines about cookies, privacy policy and terms of use."""


class FineWebQuality(Section):
    """FineWeb's own rules. Source: arXiv:2406.17557, section 3.5."""

    line_punct_thr: Share = 0.12
    """Least share of lines that end with punctuation."""
    short_line_thr: Share = 0.67
    """Largest share of short lines."""
    short_line_length: Count = 30
    """Characters of a short line, at most."""
    char_duplicates_ratio: Share = 0.01
    """Largest share of characters in repeated lines."""
    new_line_ratio: float = Field(default=0.3, ge=0)
    """Line breaks per word, at most."""


class QualityRules(Section):
    """Quality heuristics, in FineWeb's order."""

    gopher_repetition: GopherRepetition | None = GopherRepetition()
    """Repetition; null switches it off."""
    gopher_quality: GopherQuality | None = GopherQuality()
    """Document shape; null switches it off."""
    c4: C4Quality | None = C4Quality()
    """C4's rules; null switches them off."""
    fineweb: FineWebQuality | None = FineWebQuality()
    """FineWeb's rules; null switches them off."""


class LanguageRules(QualityRules):
    """Quality heuristics for documents in one language, with the words that DataTrove tells there."""

    language: str = Field(min_length=2, max_length=16)
    """ISO 639 code, as language identification gives it."""

    @model_validator(mode="after")
    def _stop_words_are_of_the_language(self) -> "LanguageRules":
        rules = self.gopher_quality
        if rules and rules.min_stop_words and rules.stop_words == STOP_WORDS and self.language != "en":
            raise ValueError(
                f"rules for {self.language} need gopher_quality.stop_words of that language (the default "
                "ones are English), or gopher_quality.min_stop_words=0"
            )
        return self


class QualityClassifier(Section):
    """A fastText classifier that scores documents: quality, toxicity, topic."""

    name: str = Field(min_length=1, max_length=32, pattern=r"^[a-z0-9_]+$")
    """Short name; the score is recorded as `score_<name>`, and `classifier_<name>` is the reason."""
    path: str = Field(min_length=1)
    """The model, a `.bin` or `.ftz` file; any fsspec URL. Only its content is part of the key."""
    label: str = Field(min_length=1)
    """The label whose probability is the score, without `__label__`."""
    min_score: Share | None = None
    """Documents that score less are removed. Empty: none."""
    max_score: Share | None = None
    """Documents that score more are removed. Empty: none."""


class QualityFiltering(QualityRules):
    """Quality heuristics, in FineWeb's order, and scores of classifiers."""

    languages: tuple[LanguageRules, ...] = ()
    """Rules for other languages. All documents in languages that are not here go by the rules above, with
    English words."""
    classifiers: tuple[QualityClassifier, ...] = ()
    """Classifiers; they score every document, and remove after the rules."""

    @model_validator(mode="after")
    def _names_differ(self) -> "QualityFiltering":
        for kind, names in (
            ("languages", [rules.language for rules in self.languages]),
            ("classifiers", [one.name for one in self.classifiers]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{kind} must differ: {', '.join(names)}")
        return self


class Deduplication(Section):
    """Near-duplicates by MinHash. Source: Broder 1997, "On the resemblance and containment of documents";
    bands and rows: FineWeb, arXiv:2406.17557."""

    n_grams: Count = 5
    """Words per shingle."""
    bands: Count = 14
    """Bands of a signature; two documents that agree in one band are candidates."""
    rows_per_band: Count = 8
    """Hashes per band."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seed of the hash functions."""


NationalNumber = Literal[
    "us.ssn",
    "us.itin",
    "br.cpf",
    "ca.sin",
    "de.idnr",
    "es.dni",
    "es.nie",
    "fi.hetu",
    "fr.nir",
    "gb.nhs",
    "in_.aadhaar",
    "it.codicefiscale",
    "nl.bsn",
    "pl.pesel",
]
Region = Annotated[str, Field(pattern="^[A-Z]{2}$")]


class PiiScrubbing(Section):
    """What identifies a person is replaced by reserved values or by tokens such as <PHONE_NUMBER>."""

    mode: Literal["tokenmill", "fineweb"] = "tokenmill"
    """How e-mail and IP addresses are found and replaced. `tokenmill`: also addresses of other scripts and
    IPv6, but no version and section numbers; placeholders by a hash of document and value. `fineweb`: what
    DataTrove's PIIFormatter does with a document on its own. Source: own; DataTrove 0.10.1."""
    emails: bool = True
    """Replace e-mail addresses. Source: FineWeb (arXiv:2406.17557)."""
    public_ips: bool = True
    """Replace public IP addresses; private ones identify nobody. Source: FineWeb (arXiv:2406.17557)."""
    phones: bool = False
    """Replace phone numbers that libphonenumber takes for valid: international ones, and national ones of
    `phone_regions`. Source: own."""
    phone_regions: tuple[Region, ...] = ()
    """Regions whose national formats count, as ISO 3166 codes such as US. Source: own."""
    ibans: bool = False
    """Replace bank account numbers with right check digits. Source: ISO 13616."""
    payment_cards: bool = False
    """Replace card numbers of known issuers with a right check digit. Source: ISO/IEC 7812."""
    national_numbers: tuple[NationalNumber, ...] = ()
    """Replace national numbers of persons, as python-stdnum names and validates them. Source: own."""
