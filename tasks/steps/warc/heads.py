"""What the heads of archived records say: WARC fields, an ARC line, and the HTTP head inside the block.

Source: WARC/1.1 (ISO 28500:2017), and the ARC 1.0 description of the Internet Archive (1996). Both are read
as written by real crawlers: any case, LF or CRLF, folded lines, bytes that are not UTF-8.
"""

import re

MAX_HEAD_BYTES = 1 << 20  # a head that goes on for longer is none
MAX_LENGTH_DIGITS = 18
PAGE_KINDS = frozenset({"response", "resource", "revisit"})
ARC_FILE_HEAD = "arc_header"  # the first record of an ARC file describes the file

ODD_LINE = re.compile(rb"\n(?!\r?\n|\Z)[^!-~]")  # blanks or controls before a name, or a folded line
BLANK_LINE = re.compile(rb"\n\r?\n")
WARC_LINE = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n")
USUAL_LINES = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
WARC_START = re.compile(WARC_LINE.pattern + rb"[A-Za-z-]+[ \t]*:")
ARC_START = re.compile(
    rb"(?:https?|ftp|dns|filedesc|warcinfo|whois|gopher|news|mailto):[^\n]{1,4000}?"
    rb" (?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]{2,39}) \d{12,20} [^\n]{1,400}\n"
)
ARC_DATE = re.compile(rb" (\S+) (\d{12,20}) ")
KEYS: dict[str, tuple[bytes, bytes]] = {}  # what `_keys` has found: names are few, and asked for often
HTTP_STATUS = re.compile(rb"HTTP/[\d.]+[ \t]+(\d{3})(?!\d)", re.IGNORECASE)


class Fields:
    """Lines `name: value`, as they were read; single values are found without taking all of them apart."""

    __slots__ = ("_lower", "_pairs", "raw", "size")

    def __init__(self, raw: bytes):
        self.raw = raw
        self.size = len(raw)
        self._pairs: list[tuple[str, str]] | None = None
        self._lower: bytes | None = None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def pairs(self) -> list[tuple[str, str]]:
        """(lower-case name, value) of each line but the first, in order."""
        if self._pairs is None:
            self._pairs = parse_fields(self.raw.partition(b"\n")[2])
        return self._pairs

    def all(self, name: str) -> list[str]:
        """The values of all fields of that lower-case name, in order."""
        return [value for found, value in self.pairs() if found == name] if self.mentions(name) else []

    def get(self, name: str) -> str:
        """The value of the first field of that lower-case name; "" where there is none."""
        raw, key = self.raw, (KEYS.get(name) or _keys(name))[0]
        start = raw.find(key)
        if start < 0:  # perhaps of another case
            return next(iter(self.all(name)), "") if self.mentions(name) else ""
        end = raw.find(b"\n", start + 1)
        if end < 0:
            end = len(raw)
        elif raw.startswith((b" ", b"\t"), end + 1):  # goes on in the next line
            return next(iter(self.all(name)), "")
        return _text(raw[start + len(key) : end]).strip()

    def mentions(self, name: str) -> bool:
        """Whether there may be a field of that lower-case name."""
        if self._lower is None:
            self._lower = self.raw.lower()
        at_line_start = (KEYS.get(name) or _keys(name))[1]
        if at_line_start in self._lower:
            return True
        return at_line_start[1:] in self._lower and ODD_LINE.search(self.raw) is not None


class Head(Fields):
    """The head of a record: `size` in bytes with its blank line, and what it says.

    `kind` is `WARC-Type` in lower case; `length` that of the block as declared, None where nothing usable is.
    """

    __slots__ = ("kind", "length")

    def __init__(self, raw: bytes):
        super().__init__(raw)
        self.kind = self.get("warc-type").lower()
        self.length = _length(self.get("content-length"))


class ArcHead(Head):
    """The head of an ARC record: one line `URL IP date type ... length`; URLs may hold spaces."""

    __slots__ = ()

    def __init__(self, raw: bytes):
        super().__init__(raw)
        self.kind = ARC_FILE_HEAD if raw.startswith((b"filedesc:", b"warcinfo:")) else "response"
        self.length = _length(_text(raw.split()[-1]))

    def pairs(self) -> list[tuple[str, str]]:
        """The parts of the line by the names of WARC's fields."""
        if self._pairs is None:
            self._pairs = self._parse()
        return self._pairs

    def _parse(self) -> list[tuple[str, str]]:
        *_, found = ARC_DATE.finditer(self.raw)
        date = found.group(2).decode()[:14].ljust(14, "0")
        return [
            ("warc-target-uri", _text(self.raw[: found.start()])),
            ("warc-ip-address", _text(found.group(1))),
            ("warc-date", f"{date[:4]}-{date[4:6]}-{date[6:8]}T{date[8:10]}:{date[10:12]}:{date[12:14]}Z"),
            ("content-type", _text(self.raw[found.end() :].split(b" ")[0].strip())),
        ]

    def mentions(self, name: str) -> bool:
        """All that there is to know is in the line."""
        return True


class HttpHead(Fields):
    """The head of an HTTP response; `status` is None where the first line has none."""

    __slots__ = ("status",)

    def __init__(self, raw: bytes):
        super().__init__(raw)
        found = HTTP_STATUS.match(raw)
        self.status = int(found.group(1)) if found else None


def starts_record(data: bytes, position: int = 0) -> bool:
    """Whether a WARC or ARC record may begin at a position."""
    return bool(WARC_LINE.match(data, position) or ARC_START.match(data, position))


def parse_head(data: bytes) -> Head | None:
    """The head that `data` begins with; None where it begins with none, or with a part of one."""
    if data.startswith(USUAL_LINES) or WARC_LINE.match(data):
        end = head_end(data)
        return Head(bytes(data[:end])) if end else None
    found = ARC_START.match(data)
    return ArcHead(bytes(found.group())) if found else None


def parse_http_head(data: bytes, start: int) -> HttpHead | None:
    """The HTTP head that begins at a place; None where none does.

    Of a block that ends before its head does, all is head.
    """
    if not data.startswith(b"HTTP/", start) and data[start : start + 5].upper() != b"HTTP/":
        return None
    return HttpHead(bytes(data[start : head_end(data, start) or len(data)]))


def head_end(data: bytes, start: int = 0) -> int:
    """Where the first blank line ends; 0 where there is none."""
    found = BLANK_LINE.search(data, start, start + MAX_HEAD_BYTES)
    return found.end() if found else 0


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


def _keys(name: str) -> tuple[bytes, bytes]:
    """How most write a field's name at the beginning of a line, and how it begins one in lower case."""
    upper = ("warc", "id", "uri", "ip")
    parts = [part.upper() if part in upper else part.title() for part in name.split("-")]
    return KEYS.setdefault(name, (b"\n" + "-".join(parts).encode() + b":", b"\n" + name.encode()))


def _length(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() and len(value) <= MAX_LENGTH_DIGITS else None


def _text(data: bytes) -> str:
    """UTF-8, or Latin-1 where it is not, which any bytes are."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
