"""Where phone, account, card and national numbers are in a text, as libraries validate them.

A pattern of bounded length proposes candidates, so that the time grows with the text's length alone; what
a candidate is, libphonenumber (`phonenumbers`) and `python-stdnum` decide. Both are loaded at first use.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module

from tasks.steps.pii.addresses import Span

NOT_WITHIN = r"(?<![0-9A-Za-z_])(?<![0-9][.,])"
ENDS = re.compile(r"(?![0-9A-Za-z_])(?![.,][0-9])")

# Source: ISO 13616 (at most 34 letters and digits, at least Norway's 15).
IBAN_START = re.compile(r"(?<![0-9A-Za-z])[A-Za-z]{2}[0-9]{2}(?=[ \u00a0-]?[0-9A-Za-z])")
IBAN_CHARACTER = re.compile(r"[ \u00a0-]?[0-9A-Za-z]")
IBAN_LENGTHS = range(15, 35)

CARD_START = re.compile(NOT_WITHIN + r"[1-6][0-9]{3}(?=[ -]?[0-9])")
CARD_CHARACTER = re.compile(r"[ -]?[0-9]")
CARD_LENGTHS = range(12, 20)
# First digits of the issuers and the lengths of their numbers. Source: ISO/IEC 7812 and the issuers' ranges
# (American Express, Diners Club, JCB and its old numbers, UnionPay, Visa, Discover, Maestro, Mastercard,
# Mir).
ISSUERS = re.compile(
    r"3[47]\d{13}|3(?:0[0-5]|095|[689]\d)\d{11,16}|35\d{14,17}|(?:1800|2131)\d{11}|62\d{14,17}"
    r"|4(?:\d{12}|\d{15}|\d{18})|6(?:011|4[4-9]\d|5\d\d)\d{12,15}|(?:50|5[6-8]|63|67)\d{10,17}"
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}|220[0-4]\d{12,15}"
)
CARD_GROUPS = re.compile(r"\d+|\d{4}([ -])(?:\d{4}\1){1,3}\d{1,4}|\d{4}([ -])\d{6}\2\d{4,5}")
ARTICLE_NUMBER_DIGITS = 13  # as many as old Visa numbers have; the other check digit tells them apart

# Digits with at most four signs between, as libphonenumber joins them, and a leading bracket or plus.
PHONE_RUN = re.compile(r"(?<![0-9])(?:[+(（＋\[] ?){0,2}\d(?:[-‐-―−()（）\[\] \u00a0.~/]{0,4}\d){6,}")
PHONE_TAIL_CHARACTERS = 24  # room for an extension: " ext. 1234"
PHONE_TRIES = 8, 6  # at least, and one more for so many characters

PLUS = re.compile("[+＋]")
# Stricter levels also want the digits grouped as the library would: on Presidio's texts that finds 38 of 72
# numbers with 4 others, this level 48 with 10 others (postal codes, mostly).
NATIONAL_LENIENCY = "VALID"
BRACKETS = {"(": ")", "（": "）", "[": "]"}
# Years, dates, decimals and addresses of machines, which with some country's lengths are numbers, too.
NOT_A_PHONE = re.compile(
    r"(?:1[89]|20)\d\d *[-‐-―/~] *(?:1[89]|20)\d\d|(?:1[89]|20)\d\d([-./])\d\d?\1\d\d?(?: \d\d?)?"
    r"|\d\d?([-./])\d\d?\2(?:1[89]|20)\d\d(?: \d\d?)?|\d+\.\d+|(?:\d{1,3}\.){3}\d{1,3}"
)

BEHIND_POINT = re.compile(r"\d[.,]\d")

# How each number is written, so that the library is asked about few others. Source: python-stdnum.
NATIONAL_FORMS = {
    "us.ssn": r"\d{3}([ -])\d{2}\1\d{4}",
    "us.itin": r"9\d{2}([ -])\d{2}\1\d{4}",
    "br.cpf": r"\d{3}\.\d{3}\.\d{3}-\d{2}",
    "ca.sin": r"\d{3}([ -])\d{3}\1\d{3}",
    "de.idnr": r"[1-9]\d(?:\d{9}| \d{3} \d{3} \d{3})",
    "es.dni": r"\d{8}-?[A-Za-z]",
    "es.nie": r"[XYZxyz]-?\d{7}-?[A-Za-z]",
    "fi.hetu": r"\d{6}[-+A-FU-Ya-fu-y]\d{3}[0-9A-Za-z]",
    "fr.nir": r"[1-478]( ?)\d{2}\1\d{2}\1(?:\d{2}|2[ABab])\1\d{3}\1\d{3} ?\d{2}",
    "gb.nhs": r"\d{3}([ -])\d{3}\1\d{4}",
    "in_.aadhaar": r"[2-9]\d{3}([ -])\d{4}\1\d{4}",
    "it.codicefiscale": r"[A-Za-z]{6}[0-9A-Za-z]{2}[A-Za-z][0-9A-Za-z]{2}[A-Za-z][0-9A-Za-z]{3}[A-Za-z]",
    "nl.bsn": r"\d{9}|\d{4}\.\d{2}\.\d{3}",
    "pl.pesel": r"\d{11}",
}


def find_ibans(text: str) -> Iterator[Span]:
    """The account numbers whose country, length and check digits (mod 97) are right."""
    for start, end in _grouped(text, IBAN_START, IBAN_CHARACTER, IBAN_LENGTHS, _is_iban):
        yield Span("iban", start, end)


def find_payment_cards(text: str) -> Iterator[Span]:
    """The card numbers of known issuers with a right check digit (Luhn), whole or in groups."""
    for start, end in _grouped(text, CARD_START, CARD_CHARACTER, CARD_LENGTHS, _is_card):
        yield Span("payment_card", start, end)


def find_national_numbers(text: str, kinds: Sequence[str]) -> Iterator[Span]:
    """The national numbers of the given kinds that python-stdnum takes for valid."""
    for kind in kinds:
        is_valid = _validator(kind)
        for match in _national_pattern(kind).finditer(text):
            if is_valid(match.group().replace(" ", "-" if kind.startswith("us.") else "")):
                yield Span(kind, *match.span())


def find_phones(text: str, regions: Sequence[str]) -> Iterator[Span]:
    """The phone numbers: international ones, and valid ones in the national formats of the regions.

    A number that gives its country by a plus need only be possible: numbering plans grow, and nothing else
    looks like that.
    """
    for run in PHONE_RUN.finditer(text):
        found = set(_phones_in(text, run, None, "POSSIBLE")) if PLUS.search(run.group()) else set()
        for region in regions:
            found.update(_phones_in(text, run, region, NATIONAL_LENIENCY))
        end = run.start()
        for span in sorted(found, key=lambda span: (span.start, -span.end)):
            if span.start >= end:
                end = span.end
                yield span


def _phones_in(text: str, run: re.Match[str], region: str | None, leniency: str) -> Iterator[Span]:
    library = import_module("phonenumbers")
    start = run.start() - (text[run.start() - 1 : run.start()] not in ("", "\n"))  # what precedes it counts
    line_end = text.find("\n", run.end(), run.end() + PHONE_TAIL_CHARACTERS)
    window = text[start : line_end if line_end >= 0 else run.end() + PHONE_TAIL_CHARACTERS]
    tries = PHONE_TRIES[0] + len(window) // PHONE_TRIES[1]
    for match in library.PhoneNumberMatcher(window, region, getattr(library.Leniency, leniency), tries):
        found, place = match.raw_string, start + match.start
        if place >= run.end() or NOT_A_PHONE.fullmatch(found) or _is_fraction(text, place, found):
            continue
        unpaired = found[0] in BRACKETS and BRACKETS[found[0]] not in found
        yield Span("phone", place + unpaired, start + match.end)


def _is_fraction(text: str, start: int, value: str) -> bool:
    """Whether digits are those behind the point of a number such as 3.1415926535."""
    return value.isdigit() and bool(BEHIND_POINT.match(text, start - 2 if start > 1 else start))


def _grouped(
    text: str,
    begins: re.Pattern[str],
    character: re.Pattern[str],
    lengths: range,
    is_valid: Callable[[str], bool],
) -> Iterator[tuple[int, int]]:
    """Where valid values begin and end; of several ends from one beginning the last one."""
    low = 0
    while found := begins.search(text, low):
        ends, place = [], found.start()
        while len(ends) < lengths.stop - 1 and (step := character.match(text, place)):
            place = step.end()
            ends.append(place)
        low = found.start() + 1
        for end in reversed(ends[lengths.start - 1 :]):
            if ENDS.match(text, end) and is_valid(text[found.start() : end]):
                yield found.start(), end
                low = end
                break


def _is_iban(value: str) -> bool:
    """Source: ISO 13616; the checksum goes first, since it is quick and of 97 wrong numbers refuses 96."""
    number = re.sub(r"[ \u00a0-]", "", value)
    if int("".join(str(int(sign, 36)) for sign in number[4:] + number[:4])) % 97 != 1:
        return False
    return import_module("stdnum.iban").is_valid(number, check_country=False)


def _is_card(value: str) -> bool:
    digits = value.replace(" ", "").replace("-", "")
    if not ISSUERS.fullmatch(digits) or not CARD_GROUPS.fullmatch(value):
        return False
    if len(digits) == ARTICLE_NUMBER_DIGITS and import_module("stdnum.ean").is_valid(digits):
        return False
    return import_module("stdnum.luhn").is_valid(digits)


@cache
def _validator(kind: str) -> Callable[[str], bool]:
    return import_module(f"stdnum.{kind}").is_valid


@cache
def _national_pattern(kind: str) -> re.Pattern[str]:
    form = NATIONAL_FORMS[kind]
    return re.compile(rf"{NOT_WITHIN}(?<![0-9]-)(?:{form}){ENDS.pattern}(?!-[0-9])", re.ASCII)
