"""The words and sentences of a text as DataTrove's filters see them, made once and shared by all rules.

A text is a sequence of word numbers; what the rules ask of a word (its length, whether it has a letter) is
looked up in tables, for all words at once. Where spaCy's rule tokenizer makes the words (English and most
languages in Latin script), each run without white space is split once and remembered; other languages go
through the tokenizer that DataTrove has for them.
"""

import functools
import itertools
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from datatrove.utils.text import split_into_sentences, split_into_words
from datatrove.utils.word_tokenizers import SpaCyTokenizer, WordTokenizer, load_word_tokenizer
from spacy.attrs import IS_PUNCT
from spacy.language import Language

from pipeline_config.errors import SettingsError
from tasks.steps.quality.rule_tokenizer import RuleTokenizer, is_rule_based, runs
from tasks.steps.quality.vocabulary import Table, Vocabulary, Words

MOST_CHUNKS, MOST_CHARACTERS = 150_000, 5_000_000  # remembered at once, about 60 MB
NOTHING, END, WORD = 0, 1, 2  # tokens to the sentencizer: other punctuation, the end of a sentence, the rest
BREAKS_SPACY = "IS_ALPHA"  # DataTrove leaves this word out of texts that spaCy stumbles over because of it


@dataclass
class KeptLines:
    """Lines that are left of a text.

    Attributes:
        lines: the lines, as they are left.
        counts: runs without white space in each line of the text, kept or not.
        places: for each kept line its number in the text if it is as it was, with single blanks; else -1.
    """

    lines: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class OtherWords:
    """Words and sentences by the tokenizer that DataTrove has for a language."""

    def __init__(self, language: str):
        self.language = language
        self.vocabulary = Vocabulary()

    def words(self, text: str) -> Words:
        """The words of a text."""
        if len(self.vocabulary) > MOST_CHUNKS:
            self.vocabulary = Vocabulary()
        return self._numbered(split_into_words(text, self.language))

    def sentences(self, lines: Sequence[str]) -> tuple[int, int | None]:
        """(sentences in the lines, words in them where that is known)."""
        return sum(len(split_into_sentences(line, self.language)) for line in lines), None

    def sentences_within(self, text: str, kept: KeptLines) -> tuple[int, int | None]:
        """(sentences in lines of a text, words in them where that is known)."""
        return self.sentences(kept.lines)

    def _numbered(self, words: Iterable[str]) -> Words:
        return Words(np.fromiter(map(self.vocabulary.__getitem__, words), np.intp), self.vocabulary)


class Kinds(dict[str, int]):
    """What tokens are to the sentencizer."""

    def __init__(self, nlp: Language):
        super().__init__()
        self.ends = set(nlp.get_pipe("sentencizer").punct_chars)
        self.is_punctuation = nlp.vocab.lex_attr_getters[IS_PUNCT]

    def __missing__(self, token: str) -> int:
        if token in self.ends:
            kind = END
        elif token.isalpha():
            return WORD
        else:
            kind = NOTHING if self.is_punctuation(token) else WORD
        self[token] = kind
        return kind


class Chunks(dict[str, int]):
    """Numbers of runs, and the words in each; runs that could be parts of one special case are one run here.

    Columns: `start` and `count` of its words; `first` and `last` of its tokens that matter to sentences and
    `inner`, the sentences that begin within it; `left` and `right`, the numbers of its last and first token
    as parts of special cases.
    """

    def __init__(self, rules: RuleTokenizer, nlp: Language):
        super().__init__()
        self.rules = rules
        self.vocabulary = Vocabulary()
        self.table = Table(start="i8", count="i8", first="i1", last="i1", inner="i8", left="i2", right="i2")
        self.numbers = array("q")
        self.characters = 0
        self.kinds = Kinds(nlp)
        pairs = {pair for pattern in rules.patterns for pair in itertools.pairwise(pattern)}
        self.lefts = {token: n for n, token in enumerate(sorted({one for one, _ in pairs}), start=1)}
        self.rights = {token: n for n, token in enumerate(sorted({other for _, other in pairs}), start=1)}
        self.meet = np.zeros((len(self.lefts) + 1, len(self.rights) + 1), bool)
        for one, other in pairs:
            self.meet[self.lefts[one], self.rights[other]] = True

    def __missing__(self, chunk: str) -> int:
        if (parts := self.rules.plain_parts(chunk)) is not None:
            words, sides = parts, (self.lefts.get(parts[-1], 0), self.rights.get(parts[0], 0))
            kinds = (WORD, END if self.kinds[parts[-1]] == END else WORD, 0)
        elif chunk.isspace():
            words, sides, kinds = [], (0, 0), (WORD, WORD, 0)
        elif " " in chunk:
            words, sides = self.rules.tokens(chunk), (0, 0)
            kinds = self.sentence_parts(words)
        else:
            parts = self.rules.split(chunk)
            words = self.rules.put_together(parts)
            sides = (self.lefts.get(parts[-1], 0), self.rights.get(parts[0], 0))
            kinds = self.sentence_parts(words)
        start = len(self.numbers)
        for word in words:
            self.numbers.append(self.vocabulary[word])
        self.characters += len(chunk)
        self[chunk] = number = self.table.add(start, len(words), *kinds, *sides)
        return number

    def sentence_parts(self, tokens: Iterable[str]) -> tuple[int, int, int]:
        """(first and last token that matters to the sentencizer, sentences that begin after the first)."""
        kinds = [kind for kind in map(self.kinds.__getitem__, tokens) if kind != NOTHING]
        if not kinds:
            return NOTHING, NOTHING, 0
        return kinds[0], kinds[-1], sum(pair == (END, WORD) for pair in itertools.pairwise(kinds))

    def look_up(self, parts: Sequence[str]) -> np.ndarray:
        """Numbers of runs; those that are new are split."""
        return np.fromiter(map(self.__getitem__, parts), np.intp, len(parts))

    def words_of(self, chunks: np.ndarray) -> np.ndarray:
        """The words of runs, one after the other."""
        counts = self.table["count"][chunks]
        if not len(counts):
            return np.zeros(0, np.intp)
        before = np.cumsum(counts) - counts
        places = np.repeat(self.table["start"][chunks] - before, counts)
        places += np.arange(len(places))
        return np.frombuffer(self.numbers, np.int64)[places]

    def touching(self, chunks: np.ndarray) -> np.ndarray:
        """Places of runs that could be parts of one special case with the next run."""
        lefts = self.table["left"][chunks]
        found = np.flatnonzero(lefts[:-1])
        return found[self.meet[lefts[found], self.table["right"][chunks[found + 1]]]] if len(found) else found

    def joined(self, parts: Sequence[str], chunks: np.ndarray, alone: np.ndarray) -> np.ndarray:
        """Numbers of runs, with each run that does not begin anew part of the one before, after a blank."""
        starts = np.flatnonzero(alone)
        ends = np.append(starts[1:], len(parts))
        found = chunks[starts]
        for place in np.flatnonzero(ends - starts > 1).tolist():
            found[place] = self[" ".join(parts[starts[place] : ends[place]])]
        return found


class RuleWords:
    """Words and sentences by spaCy's rule tokenizer and its sentencizer."""

    def __init__(self, nlp: Language, language: str):
        self.nlp = nlp
        self.rules = RuleTokenizer(nlp.tokenizer, plain_letters=language == "en")
        self.chunks = Chunks(self.rules, nlp)
        self.latest: tuple[str, list[str], np.ndarray] = ("", [], np.zeros(0, np.intp))

    def words(self, text: str) -> Words:
        """The words of a text. Numbers of earlier texts may not be used after this."""
        if len(self.chunks) > MOST_CHUNKS or self.chunks.characters > MOST_CHARACTERS:
            self.chunks = Chunks(self.rules, self.nlp)
        parts = text.split()
        chunks = self.chunks.look_up(parts)
        self.latest = (text, parts, chunks)
        touching = self.chunks.touching(chunks).tolist()
        if any(f"{parts[place]} {parts[place + 1]}" in text for place in touching):
            chunks = self._look_up_runs(text)
        if BREAKS_SPACY in text and BREAKS_SPACY in self._words(chunks).strings():
            chunks = self._look_up_runs(text.replace(BREAKS_SPACY, ""))
        return self._words(chunks)

    def sentences(self, lines: Sequence[str]) -> tuple[int, int]:
        """(sentences in the lines, words in them)."""
        parts: list[str] = []
        counts = []
        for line in lines:
            found = self._parts(line)
            counts.append(len(found))
            parts += found
        return self._count(parts, self.chunks.look_up(parts), counts)

    def sentences_within(self, text: str, kept: KeptLines) -> tuple[int, int]:
        """(sentences in lines of a text, words in them); of the latest text nothing is looked up again."""
        known, parts, chunks = self.latest
        if known is not text or sum(kept.counts) != len(parts) or BREAKS_SPACY in text:
            return self.sentences(kept.lines)
        same = [place for place in kept.places if place >= 0]
        counts = [kept.counts[place] for place in same]
        if len(same) < len(kept.counts):
            chosen = np.zeros(len(kept.counts), bool)
            chosen[same] = True
            of_parts = np.repeat(chosen, kept.counts)
            chunks, parts = chunks[of_parts], list(itertools.compress(parts, of_parts.tolist()))
        found = self._count(parts, chunks, counts)
        changed = [line for line, place in zip(kept.lines, kept.places, strict=True) if place < 0]
        more = self.sentences(changed) if changed else (0, 0)
        return found[0] + more[0], found[1] + more[1]

    def _count(self, parts: Sequence[str], chunks: np.ndarray, counts: Sequence[int]) -> tuple[int, int]:
        """(sentences, words) of lines, given by how many runs each of them has."""
        if not counts:
            return 0, 0
        line_of = np.repeat(np.arange(len(counts)), counts)
        touching = self.chunks.touching(chunks)
        if len(touching):
            touching = touching[line_of[touching] == line_of[touching + 1]]
        if len(touching):
            alone = np.ones(len(parts), bool)
            alone[touching + 1] = False
            chunks, line_of = self.chunks.joined(parts, chunks, alone), line_of[alone]
        table = self.chunks.table
        matter = np.flatnonzero(table["first"][chunks])
        if len(matter) < len(chunks):
            line_of = line_of[matter]
        first, last = table["first"][chunks[matter]], table["last"][chunks[matter]]
        ends = np.flatnonzero(last[:-1] == END)  # few: what follows them decides
        begin = (first[ends + 1] == WORD) & (line_of[ends] == line_of[ends + 1])
        inner = int(table["inner"][chunks].sum())
        return len(counts) + inner + int(np.count_nonzero(begin)), int(table["count"][chunks].sum())

    def _parts(self, line: str) -> list[str]:
        """The runs of a line, but those of one blank."""
        if BREAKS_SPACY in line and BREAKS_SPACY in self.rules.tokens(line):
            line = line.replace(BREAKS_SPACY, "")
        found = line.split()
        return found if " ".join(found) == line else runs(line)

    def _look_up_runs(self, text: str) -> np.ndarray:
        parts = runs(text)
        chunks = self.chunks.look_up(parts)
        alone = np.ones(len(parts), bool)
        alone[self.chunks.touching(chunks) + 1] = False
        return chunks if alone.all() else self.chunks.joined(parts, chunks, alone)

    def _words(self, chunks: np.ndarray) -> Words:
        return Words(self.chunks.words_of(chunks), self.chunks.vocabulary)


@functools.lru_cache(maxsize=32)
def words_of_language(language: str) -> RuleWords | OtherWords:
    """What makes words and sentences of texts in a language, the same for the whole process.

    Raises:
        SettingsError: DataTrove knows no tokenizer for the language, or it is not installed.
    """
    tokenizer = _load(language)
    if isinstance(tokenizer, SpaCyTokenizer):
        nlp = tokenizer.tokenizer
        if is_rule_based(nlp.tokenizer) and nlp.pipe_names == ["sentencizer"]:
            return RuleWords(nlp, language)
    return OtherWords(language)


# what DataTrove's tokenizers need beside themselves, where they are not spaCy's alone
PACKAGES = {
    "IndicNLPTokenizer": ("indic-nlp-library",),
    "KhmerTokenizer": ("khmer-nltk",),
    "KiwiTokenizer": ("kiwipiepy",),
    "LaoTokenizer": ("laonlp",),
    "StanzaTokenizer": ("stanza",),
    "ThaiTokenizer": ("pythainlp",),
    "TibetanTokenizer": ("botok",),
    "BurmeseTokenizer": ("pyidaungsu-numpy2",),
}
SPACY_PACKAGES = {"ja": ("sudachipy",), "vi": ("pyvi",), "zh": ("jieba",)}


def packages_of_language(language: str) -> tuple[str, ...]:
    """The packages whose versions decide what the words of a language are, beside DataTrove and spaCy."""
    tokenizer = _load(language)
    if isinstance(tokenizer, SpaCyTokenizer):
        return SPACY_PACKAGES.get(str(tokenizer.language), ())
    return PACKAGES.get(type(tokenizer).__name__, ())


def _load(language: str) -> WordTokenizer:
    try:
        tokenizer = load_word_tokenizer(language)
        tokenizer.word_tokenize(unicodedata.lookup("LATIN SMALL LETTER A"))
    except (ImportError, LookupError, OSError, ValueError) as error:
        raise SettingsError(
            f"quality_filtering: the words of language {language!r} cannot be told: {error}. Install what is "
            "named there, or leave the language out of quality_filtering.languages"
        ) from None
    return tokenizer
