"""spaCy's rule-based tokenizer in linear time: the same tokens, whatever the text.

spaCy strips one prefix and one suffix at a time, and searches the whole rest for the next ones: a page of
20,000 brackets takes it half a minute, and one of a million a day. Here only the ends are looked at.

What spaCy does, in its order: runs of white space and of other characters alternate, and one blank after a
run of characters is nobody's token; each run ("chunk") is split on its own by prefixes, suffixes, special
cases, URLs and infixes; last, special cases that affixes took apart are put together over the whole text.
That last step is the only one that looks across white space.

Source: spaCy 3.8, `spacy/tokenizer.pyx` (Honnibal and Montani), whose tokens the tests compare.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spacy.attrs import ORTH
from spacy.lang.tokenizer_exceptions import URL_PATTERN
from spacy.tokenizer import Tokenizer

# as a condition on whole texts `\S+(?::\S*)?@` and `\S+@` are the same, and only the second is linear
USER_INFO, SAME_USER_INFO = r"(?:\S+(?::\S*)?@)?", r"(?:\S+@)?"
WINDOW = 48  # characters at an end that are looked at first
MARGIN = 16  # a match that comes so near to the inner end of the window is looked for again in a larger one
# English words, alone or before a sign that is a suffix whatever is before it
PLAIN_WORD = re.compile(r"([A-Za-z]+)([,;:!?]|(?<=[a-z])\.)?")
# English words with hyphens, between signs that are each an affix whatever is beside them
AFFIXED_WORD = re.compile(r"""([("“\[]?)([A-Za-z]+(?:-[A-Za-z]+)*)((?:[,;:!?)"”\]]|(?<=[a-z)"”\]])\.)*)""")
HYPHEN = re.compile("(-)")
RUNS = re.compile(r"\s+|\S+")


@dataclass(frozen=True)
class Piece:
    """A token before special cases are put together; `chunk` numbers the run that it is part of."""

    text: str
    chunk: int


class RuleTokenizer:
    """The tokens of spaCy's `Tokenizer`.

    Args:
        window: characters at an end that are looked at first; smaller ones only make it slower.
        plain_letters: whether a chunk of ASCII letters has no affixes, as in English.
    """

    def __init__(self, source: Tokenizer, window: int = WINDOW, plain_letters: bool = False):
        self.window, self.plain_letters = max(window, MARGIN + 1), plain_letters
        self.rules = {text: [str(part[ORTH]) for part in parts] for text, parts in source.rules.items()}
        self.longest_rule = max(map(len, self.rules), default=0)
        self.prefix = source.prefix_search
        self.suffix = source.suffix_search
        self.infixes = source.infix_finditer
        self.token_match = source.token_match
        self.needs_dot, self.url_match = _linear(source.url_match)
        self.patterns = self._patterns(source)
        self.singles = {tokens[0] for tokens in self.patterns if len(tokens) == 1}
        self.pairs = {tokens[:2] for tokens in self.patterns if len(tokens) > 1}
        self.openings = {tokens[0] for tokens in self.patterns}
        self.longest_pattern = max(map(len, self.patterns), default=0)

    def _patterns(self, source: Tokenizer) -> dict[tuple[str, ...], str]:
        """Special cases that affixes take apart, by their tokens."""
        bare = RuleTokenizer.__new__(RuleTokenizer)
        bare.__dict__ |= {**self.__dict__, "rules": {}, "longest_rule": 0, "plain_letters": False}
        found = {}
        for text in self.rules:
            affixed = source.find_prefix(text) or source.find_infix(text) or source.find_suffix(text)
            if (affixed or not source.faster_heuristics) and not any(map(str.isspace, text)):
                found[tuple(bare.split(text))] = text
        return found

    def tokens(self, text: str) -> list[str]:
        """All tokens of a text, those of white space among them."""
        pieces = []
        for number, run in enumerate(runs(text)):
            parts = [run] if run.isspace() else self.split(run)
            pieces += [Piece(part, number) for part in parts]
        return self._put_together(pieces)

    def put_together(self, parts: list[str]) -> list[str]:
        """The tokens of a run whose parts are given, as far as no other run matters."""
        if self.singles.isdisjoint(parts) and self.pairs.isdisjoint(itertools.pairwise(parts)):
            return parts
        return self._put_together([Piece(part, 0) for part in parts])

    def split(self, chunk: str) -> list[str]:
        """The tokens of a run before special cases are put together.

        Raises:
            UnicodeEncodeError: it holds a lone surrogate; spaCy raises the same.
        """
        if (parts := self._affixed_parts(chunk)) is not None:
            return parts
        chunk.encode()
        if chunk in self.rules:
            return list(self.rules[chunk])
        prefixes, (start, end), suffixes = self._strip(chunk)
        middle = self._middle(chunk[start:end]) if start < end else []
        return [*prefixes, *middle, *reversed(suffixes)]

    def plain_parts(self, chunk: str) -> list[str] | None:
        """The tokens of a run that is an English word with or without a sign; None for all others."""
        match = PLAIN_WORD.fullmatch(chunk) if self.plain_letters else None
        if match is None or chunk in self.rules or match[1] in self.rules:
            return None
        return [match[1], match[2]] if match[2] else [chunk]

    def _affixed_parts(self, chunk: str) -> list[str] | None:
        """The tokens of a run that is an English word between signs; None for all others."""
        match = AFFIXED_WORD.fullmatch(chunk) if self.plain_letters else None
        if match is None:
            return None
        first, end = match.span(2)
        for start in {0, first}:
            # all that may be left while affixes are stripped, and is short enough for a rule
            for stop in range(end, min(len(chunk), start + self.longest_rule) + 1):
                if chunk[start:stop] in self.rules:
                    return None
        return [*match[1], *HYPHEN.split(match[2]), *match[3]]

    def _strip(self, chunk: str) -> tuple[list[str], tuple[int, int], list[str]]:
        """(prefixes, what is left between them, suffixes from outside to inside)."""
        prefixes: list[str] = []
        suffixes: list[str] = []
        start, end, before = 0, len(chunk), -1
        while start < end and end - start != before:
            before = end - start
            if self._is_whole(chunk, start, end):
                break
            first = self._prefix_length(chunk, start, end)
            if first and self._is_special(chunk, start + first, end):
                prefixes.append(chunk[start : start + first])
                start += first
                break
            last = self._suffix_length(chunk, start + first, end)
            if last and self._is_special(chunk, start, end - last):
                suffixes.append(chunk[end - last : end])
                end -= last
                break
            if first:
                prefixes.append(chunk[start : start + first])
            if last:
                suffixes.append(chunk[end - last : end])
            start, end = start + first, end - last
        return prefixes, (start, end), suffixes

    def _is_whole(self, chunk: str, start: int, end: int) -> bool:
        if self.token_match is not None and self.token_match(chunk[start:end]):
            return True
        if self._is_special(chunk, start, end):
            return True
        return end - start <= self.window and self._is_plain(chunk[start:end])

    def _is_plain(self, string: str) -> bool:
        return self.plain_letters and string.isascii() and string.isalpha()

    def _is_special(self, chunk: str, start: int, end: int) -> bool:
        return 0 < end - start <= self.longest_rule and chunk[start:end] in self.rules

    def _prefix_length(self, chunk: str, start: int, end: int) -> int:
        if self.prefix is None:
            return 0
        size = self.window
        while True:
            stop = min(end, start + size)
            match = self.prefix(chunk[start:stop])
            if stop == end or match is None or match.end() <= size - MARGIN:
                return match.end() - match.start() if match else 0
            size *= 2

    def _suffix_length(self, chunk: str, start: int, end: int) -> int:
        if self.suffix is None:
            return 0
        size = self.window
        while True:
            begin = max(start, end - size)
            match = self.suffix(chunk[begin:end])
            if begin == start or match is None or match.start() >= MARGIN:
                return match.end() - match.start() if match else 0
            size *= 2

    def _middle(self, string: str) -> list[str]:
        """The tokens of what is left when prefixes and suffixes are stripped."""
        if string in self.rules:
            return list(self.rules[string])
        if self._is_plain(string):
            return [string]
        if (self.token_match and self.token_match(string)) or self._is_url(string):
            return [string]
        parts, start = [], 0
        for match in self.infixes(string) if self.infixes else ():
            if match.start() == 0:
                continue
            parts += [string[start : match.start()], match.group()]
            start = match.end()
        parts.append(string[start:])
        return [part for part in parts if part]

    def _is_url(self, string: str) -> bool:
        if self.url_match is None or (self.needs_dot and "." not in string):
            return False
        return self.url_match(string) is not None

    def _put_together(self, pieces: Sequence[Piece]) -> list[str]:
        """The tokens with the special cases that affixes took apart in one again."""
        special = dict(self._special_spans([piece.text for piece in pieces]))
        tokens, place = [], 0
        while place < len(pieces):
            end = special.get(place, place + 1)
            span = pieces[place:end]
            text = "".join(piece.text for piece in span)
            if place in special and span[0].chunk == span[-1].chunk:
                tokens += self.rules[text]
            else:  # a match across white space is no special case, but hides those that it overlaps
                tokens += [piece.text for piece in span]
            place = end
        return tokens

    def _special_spans(self, tokens: list[str]) -> list[tuple[int, int]]:
        """Where patterns match: the longest first, then the first; what overlaps one of them is none."""
        found = [
            (start, end)
            for start, token in enumerate(tokens)
            if token in self.openings
            for end in range(start + 1, min(len(tokens), start + self.longest_pattern) + 1)
            if tuple(tokens[start:end]) in self.patterns
        ]
        taken: set[int] = set()
        chosen = []
        for start, end in sorted(found, key=lambda span: (span[0] - span[1], span[0])):
            if start not in taken and end - 1 not in taken:
                chosen.append((start, end))
            taken.update(range(start, end))
        return chosen


def is_rule_based(tokenizer: object) -> bool:
    """Whether this module gives a tokenizer's tokens: not so where special cases hold blanks."""
    if type(tokenizer) is not Tokenizer:
        return False
    return not any(any(map(str.isspace, text)) and not text.isspace() for text in tokenizer.rules)


def runs(text: str) -> list[str]:
    """The runs of white space and of other characters that spaCy makes tokens of, in order."""
    found = RUNS.findall(text)
    return found[:1] + [run[1:] if run[0] == " " else run for run in found[1:] if run != " "]


def _linear(url_match: Callable[[str], object] | None) -> tuple[bool, Callable[[str], object] | None]:
    """(whether only texts with a dot can match, a test that gives the same answers in linear time)."""
    pattern = getattr(getattr(url_match, "__self__", None), "pattern", None)
    if pattern is None or USER_INFO not in pattern:
        return False, url_match
    flags = url_match.__self__.flags & ~re.UNICODE if "(?u)" in pattern else url_match.__self__.flags
    return URL_PATTERN in pattern, re.compile(pattern.replace(USER_INFO, SAME_USER_INFO), flags).match
