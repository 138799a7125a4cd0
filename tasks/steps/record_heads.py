"""What the heads of archived records say: WARC fields, an ARC line, and the HTTP head inside the block.

Source: WARC/1.1 (ISO 28500:2017), and the ARC 1.0 description of the Internet Archive (1996). Both are read
as written by real crawlers: any case, LF or CRLF, folded lines, bytes that are not UTF-8.
"""

import functools
import re

MAX_HEAD_BYTES = 1 << 20  # a head that goes on for longer is none
PAGE_KINDS = frozenset({"response", "resource", "revisit"})
ARC_FILE_HEAD = "arc_header"  # the first record of an ARC file describes the file

WARC_LINE = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n")
WARC_START = re.compile(WARC_LINE.pattern + rb"[A-Za-z-]+[ \t]*:")
WARC_LENGTH = re.compile(rb"\ncontent-length[ \t]*:[ \t]*(\d{1,18})[ \t]*\r?\n", re.IGNORECASE)
WARC_KIND = re.compile(rb"\nwarc-type[ \t]*:[ \t]*([a-z_-]+)", re.IGNORECASE)
ARC_START = re.compile(
    rb"(?:https?|ftp|dns|filedesc|warcinfo|whois|gopher|news|mailto):[^\n]{1,4000}?"
    rb" (?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]{2,39}) \d{12,20} [^\n]{1,400}\n"
)
ARC_DATE = re.compile(rb" (\S+) (\d{12,20}) ")
HTTP_STATUS = re.compile(rb"HTTP/[\d.]+[ \t]+(\d{3})(?!\d)", re.IGNORECASE)


class Head:
    """The head of a record: `size` in bytes with its blank line, and what it says."""

    def __init__(self, raw: bytes):
        self.raw = raw
        self.size = len(raw)

    @functools.cached_property
    def kind(self) -> str:
        """`WARC-Type` in lower case; "" where it is missing."""
        found = WARC_KIND.search(self.raw)
        return found.group(1).decode().lower() if found else ""

    @functools.cached_property
    def length(self) -> int | None:
        """Bytes of the block, as declared; None where nothing usable is."""
        found = WARC_LENGTH.search(self.raw)
        return int(found.group(1)) if found else None

    @functools.cached_property
    def fields(self) -> dict[str, str]:
        """The fields by lower-case name; the first of several with a name counts."""
        found: dict[str, str] = {}
        for name, value in parse_fields(self.raw.partition(b"\n")[2]):
            found.setdefault(name, value)
        return found

    def get(self, name: str) -> str:
        """A field's value; "" where there is none."""
        return self.fields.get(name, "")


class ArcHead(Head):
    """The head of an ARC record: one line `URL IP date type ... length`; URLs may hold spaces."""

    @functools.cached_property
    def kind(self) -> str:
        return ARC_FILE_HEAD if self.raw.startswith((b"filedesc:", b"warcinfo:")) else "response"

    @functools.cached_property
    def length(self) -> int | None:
        last = self.raw.split()[-1]
        return int(last) if last.isdigit() and len(last) <= 18 else None

    @functools.cached_property
    def fields(self) -> dict[str, str]:
        dates = list(ARC_DATE.finditer(self.raw))
        found = {"warc-type": self.kind}
        if not dates:
            return found
        line, date = _text(self.raw), _text(dates[-1].group(2))[:14].ljust(14, "0")
        return found | {
            "warc-target-uri": _text(self.raw[: dates[-1].start()]),
            "warc-ip-address": _text(dates[-1].group(1)),
            "warc-date": f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:14]}Z",
            "content-type": line[dates[-1].end() :].split(" ")[0].strip(),
        }


class HttpHead:
    """The head of an HTTP response: its bytes, the `size` of them, and what they say."""

    def __init__(self, raw: bytes):
        self.raw = raw
        self.size = len(raw)

    @functools.cached_property
    def status(self) -> int | None:
        """The status; None where the first line has none."""
        found = HTTP_STATUS.match(self.raw)
        return int(found.group(1)) if found else None

    @functools.cached_property
    def fields(self) -> list[tuple[str, str]]:
        """(lower-case name, value) in order."""
        return parse_fields(self.raw.partition(b"\n")[2])

    @functools.cached_property
    def _lower(self) -> bytes:
        return self.raw.lower()

    def all(self, name: str) -> list[str]:
        """The values of all fields of that lower-case name, in order."""
        if name.encode() not in self._lower:  # most names, in most heads
            return []
        return [value for found, value in self.fields if found == name]

    def get(self, name: str) -> str:
        """The value of the first field of that lower-case name; "" where there is none."""
        return next(iter(self.all(name)), "")


def starts_record(data: bytes, position: int = 0) -> bool:
    """Whether a WARC or ARC record may begin at a position."""
    return bool(WARC_LINE.match(data, position) or ARC_START.match(data, position))


def parse_head(data: bytes) -> Head | None:
    """The head that `data` begins with; None where it begins with none, or with a part of one."""
    if WARC_LINE.match(data):
        end = head_end(data)
        return Head(data[:end]) if end else None
    found = ARC_START.match(data)
    return ArcHead(found.group()) if found else None


def parse_http_head(block: bytes) -> HttpHead | None:
    """The HTTP head that a block begins with; None where it begins with none.

    Of a block that ends before its head does, all is head.
    """
    if block[:5].upper() != b"HTTP/":
        return None
    return HttpHead(block[: head_end(block) or len(block)])


def head_end(data: bytes) -> int:
    """Where the first blank line ends; 0 where there is none."""
    crlf = data.find(b"\n\r\n", 0, MAX_HEAD_BYTES)
    lf = data.find(b"\n\n", 0, crlf if crlf >= 0 else MAX_HEAD_BYTES)
    if lf >= 0:
        return lf + 2
    return crlf + 3 if crlf >= 0 else 0


def parse_fields(lines: bytes) -> list[tuple[str, str]]:
    """(lower-case name, value) of each `name: value` line; lines without a colon are left out."""
    if b"\n " in lines or b"\n\t" in lines:
        lines = re.sub(rb"\r?\n[ \t]+", b" ", lines)
    found = []
    for line in _text(lines).split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            found.append((name.strip().lower(), value.strip()))
    return found


def _text(data: bytes) -> str:
    """UTF-8, or Latin-1 where it is not, which any bytes are."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
