"""Character sets: a page's bytes as text, and how its character set was found.

Order: byte order mark, HTTP header, the page's own declaration, detection. A declaration is believed only
where the bytes bear it out: servers transcode pages, templates outlive a change of character set, and
crawlers cut pages inside a character.
"""

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

import cchardet
import regex
from resiliparse.parse.encoding import map_encoding_to_html5

DECLARATION_BYTES = 2048  # a browser looks at 1,024; real pages put scripts first
_LABEL = r"[A-Za-z0-9_:.+-]{2,40}"
HEADER = re.compile(rf"charset\s*=\s*[\"']?\s*({_LABEL})", re.IGNORECASE)
META = re.compile(rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*(%b)" % _LABEL.encode(), re.IGNORECASE)
XML = re.compile(rb"\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"'](%b)" % _LABEL.encode(), re.IGNORECASE)
COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)

MARKS = (  # UTF-32's little-endian mark starts with UTF-16's
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Source: The Unicode Standard, section 23.8."""
WIDER = {
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
}
"""Sets that browsers read as a larger one. Source: WHATWG Encoding standard, chapters 9 to 13."""
OTHER_LABELS = {
    "latin-1": "cp1252",
    "win-1251": "cp1251",
    "uhc": "euc_kr",
    "utf-7": "utf-7",
    "iso-2022-kr": "iso2022_kr",
    "hz-gb-2312": "hz",
    "utf-32": "utf-32",
}
"""Labels of real pages that browsers do not know."""
OLD_LABEL = re.compile(r"(?:x-)?(?:mac-?[a-z]+|ibm-?\d+|cp-?\d+|iso-?8859-?\d+)")
SEVEN_BITS = {"iso2022_jp": b"\x1b$", "iso2022_kr": b"\x1b$", "utf-7": b"+", "hz": b"~{"}
"""Sets that write other scripts in ASCII, and what all such text holds."""
CJK = {"gbk", "gb18030", "big5", "shift_jis", "euc_jp", "euc_kr"}

SAMPLE_BYTES = 30_000  # what readings are compared on
SOUND = 0.02  # share of odd characters among those that are not ASCII, at most, in a reading to believe
STRAY = 0.05  # share of broken characters, at most, in text that is UTF-8 all the same
SURE = 0.95  # detection that outweighs a declaration, between sets that can read each other's bytes
FEW, GARBAGE = 10, 0.1  # characters, and share of them, that may be no text in a page

ODD = regex.compile(
    r"[\ufffd\x80-\x9f\p{Co}\p{Cn}]"  # no character at all
    r"|[\u00c0-\u024f]{4}"  # accented letters in a row: another alphabet
    r"|(?<=\p{Ll})(?=[^\x00-\x7f])\p{Lu}|(?<=(?=[^\x00-\x7f])\p{Ll})\p{Lu}"  # capitals inside words
    r"|(?<=\p{Latin})[\p{Cyrillic}\p{Greek}]|(?<=[\p{Cyrillic}\p{Greek}])\p{Latin}"
    r"|(?<=[a-z])\p{Han}(?=[a-z])"
    r"|(?<=\p{L})(?![\x00-\x7f·’‘´\u00ad])[\p{S}\p{Po}\p{Pi}\p{Pf}](?=\p{Ll})"  # signs inside words
    r"|[\uff61-\uff9f]"  # half-width kana
)
NOT_ASCII = re.compile(r"[^\x00-\x7f]")
FOREIGN_WORD = re.compile(r"[A-Za-z]?[^\x00-\x7f]+[A-Za-z]?")
COMPARED_CHARACTERS = 2_000
CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r\f\x1b"})


class Decoded(NamedTuple):
    """A page as text."""

    text: str
    charset: str
    """Python's name of the character set."""
    found_by: str
    """`bom`, `header`, `meta`, `bytes` (their form leaves no doubt) or `detection`."""


def decode_page(payload: bytes, content_type: str = "") -> Decoded | None:
    """The page as valid Unicode without NULs, or None where the bytes are no text in any character set."""
    found = _by_mark(payload) or _by_form(payload, content_type) or _by_reading(payload, content_type)
    text = found.text.replace("\x00", "")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # lone surrogates: some decoders let them pass
        encoded = text.encode("utf-8", "replace")
        text = encoded.decode()
    zeros, broken = len(found.text) - len(text), text.count("\ufffd")
    garbage = zeros + broken + len(encoded) - len(encoded.translate(None, CONTROLS))
    return found._replace(text=text) if garbage <= FEW + GARBAGE * len(text) else None


def python_name(label: str) -> str | None:
    """The decoder for a label as pages write it, or None where no character set has this name."""
    label = label.strip().lower()
    name = OTHER_LABELS.get(label) or map_encoding_to_html5(label, fallback_utf8=False)
    if not name and OLD_LABEL.fullmatch(label):
        try:
            name = codecs.lookup(label.removeprefix("x-").replace("maccyr", "mac-cyr")).name
        except LookupError:
            return None
    return name or None


def declarations(payload: bytes, content_type: str) -> Iterator[tuple[str, str]]:
    """(decoder, `header` or `meta`) of each character set that server and page declare."""
    for match in HEADER.finditer(content_type):
        if name := python_name(match.group(1)):
            yield name, "header"
    head = COMMENT.sub(b"", payload[:DECLARATION_BYTES])
    for match in (XML.match(head), META.search(head)):
        if match and (name := python_name(match.group(1).decode("ascii"))):
            # UTF-16 was read as ASCII. Source: WHATWG HTML, "prescan a byte stream"
            yield "utf-8" if name.startswith("utf-16") else name, "meta"


def _declared(name: str, payload: bytes, content_type: str) -> str | None:
    return next((origin for found, origin in declarations(payload, content_type) if found == name), None)


def oddity(text: str) -> float:
    """Share of the characters beyond ASCII that no writing system would put where they stand."""
    words = " ".join(FOREIGN_WORD.findall(text))[:COMPARED_CHARACTERS]
    foreign = len(NOT_ASCII.findall(words))
    return len(ODD.findall(words)) / foreign if foreign else 0.0


def _decode(payload: bytes, name: str) -> str:
    """Text in a set as its name says or, where that does not fit, as browsers read it."""
    if name in WIDER:
        try:
            return payload.decode(name)
        except UnicodeDecodeError:
            name = WIDER[name]
    return payload.decode(name, "replace")


def _by_mark(payload: bytes) -> Decoded | None:
    for mark, name in MARKS:
        if payload.startswith(mark):
            return Decoded(payload[len(mark) :].decode(name, "replace"), name, "bom")
    return None


def _by_form(payload: bytes, content_type: str) -> Decoded | None:
    """Bytes that can be little else: sets within ASCII, UTF-16 by its zeros, UTF-8 by its sequences."""
    for name, start in ((name, SEVEN_BITS[name]) for name in SEVEN_BITS if payload.isascii()):
        origin = _declared(name, payload, content_type)
        if start in payload and (origin or start == b"\x1b$"):
            try:
                return Decoded(payload.decode(name), name, origin or "bytes")
            except UnicodeError:
                continue
    for name in ("utf-16-le", "utf-16-be"):
        if _has_zeros_of(payload, name):
            return Decoded(payload.decode(name, "replace"), name, "bytes")
    declared = _declared("utf-8", payload, content_type) or "bytes"
    try:
        return Decoded(payload.decode("utf-8"), "utf-8", declared)
    except UnicodeDecodeError:
        return _nearly_utf8(payload, declared)


def _has_zeros_of(payload: bytes, name: str) -> bool:
    head = payload[: DECLARATION_BYTES * 2]
    if b"\x00" not in head:
        return False
    high, low = (1, 0) if name == "utf-16-le" else (0, 1)
    zeros, others = head[high::2].count(0), head[low::2].count(0)
    return "<".encode(name) in head and zeros > 0.1 * len(head) / 2 and zeros > 10 * others


def _nearly_utf8(payload: bytes, found_by: str) -> Decoded | None:
    """UTF-8 with a few stray bytes, or cut inside its last character."""
    text = payload.decode("utf-8", "replace")
    if text.endswith("\ufffd") and not payload.endswith("\ufffd".encode()):
        text = text[:-1]
    broken = text.count("\ufffd")
    whole = len(text) - len(text.encode("ascii", "ignore")) - broken
    return Decoded(text, "utf-8", found_by) if whole and broken <= STRAY * whole else None


def _by_reading(payload: bytes, content_type: str) -> Decoded:
    """By comparing what the candidates make of the bytes: the first sound one, else the least odd one."""
    first = re.search(rb"[\x80-\xff]", payload)
    start = max(0, first.start() - 1000) if first else 0
    sample = payload[start : start + SAMPLE_BYTES]
    readings = []
    for name, origin in _candidates(sample, payload, content_type):
        doubt = oddity(_decode(sample, name))
        if name in CJK and origin != "detection":
            detected, confidence = _detect(sample)
            doubt += SOUND if detected in CJK and detected != name and confidence >= SURE else 0
        if doubt <= SOUND:
            return Decoded(_decode(payload, name), name, origin)
        readings.append((doubt, name, origin))
    _, name, origin = min(readings, key=lambda reading: reading[0])
    return Decoded(_decode(payload, name), name, origin)


def _candidates(sample: bytes, payload: bytes, content_type: str) -> Iterator[tuple[str, str]]:
    yield from declarations(payload, content_type)
    yield _detect(sample)[0], "detection"
    yield "cp1252", "detection"


def _detect(sample: bytes) -> tuple[str, float]:
    """What the detector makes of bytes, and how sure it is."""
    guess = cchardet.detect(sample)
    name = python_name(guess["encoding"] or "")
    return (name, guess["confidence"] or 0.0) if name else ("cp1252", 0.0)
