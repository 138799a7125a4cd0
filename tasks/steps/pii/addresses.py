"""Where e-mail and public IP addresses are in a text, in time that grows with its length alone.

Every finder looks for a sign that each address must hold (an @, two dots around a few digits, two colons
around a few hex digits) and only then looks around it. Each stretch of characters that it looks at lies
between two such signs, so no character is looked at more than a few times, whatever the text.
"""

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Span(NamedTuple):
    """Something personal: its kind, and the characters `start` to `end` (exclusive) that it takes."""

    kind: str
    start: int
    end: int


# Letters of scripts that put spaces between words. An address in one of them ends with the word.
LETTERS = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0300-\u036f\u0370-\u037d\u0386\u0388-\u0587\u05d0-\u05ea"
    "\u0620-\u065f\u066e-\u06d3\u0900-\u0963\u0966-\u0dff\u10a0-\u10ff\u1e00-\u1fff"
)
# Letters of scripts that put none, or glue particles to words (Thai to Khmer, kana, CJK, Hangul): in
# "write to ann@example.org" they touch the address on both sides without being part of it.
GLUED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
WORD = f"0-9{LETTERS}"

LABEL = f"[{WORD}{GLUED}](?:[{WORD}{GLUED}-]*[{WORD}{GLUED}])?"
DOMAIN = re.compile(
    rf"(?:{LABEL}\.)+(?:[xX][nN]--[0-9A-Za-z-]{{2,}}|[A-Za-z]{{2,}}|[{LETTERS}]{{2,}}|[{GLUED}]{{2,}})"
    r"|\[(?:IPv6:)?[0-9A-Fa-f:.]{2,45}\]"
)
# Read backwards from the @. Of RFC 5322's signs only those that occur in mailboxes on the web: `=`, `/` and
# the like stand beside addresses far more often than in them.
LOCAL_BACKWARDS = re.compile(rf"[{WORD}_.+'&-]*")
GLUED_LOCAL_BACKWARDS = re.compile(rf"[{GLUED}0-9_.+-]*")
QUOTED_LOCAL_BACKWARDS = re.compile(r'"[^"\n@]{1,64}"')
# Names of files and versions that look like a domain: logo@2x.png, package@1.2.3-rc.1.
NOT_A_DOMAIN = re.compile(
    r"[0-9]+\.[0-9]+\.|.*\.(?:png|jpe?g|gif|svg|webp|avif|bmp|ico|tiff?|pdf|css|scss|less|js|jsx|ts|tsx|mjs|json"
    r"|xml|html?|php|aspx?|txt|csv|ya?ml|mp3|mp4|exe|dll|whl|gz|bz2|xz)$",
    re.IGNORECASE | re.DOTALL,
)
SHARED_LOGINS = frozenset({"git", "hg", "svn"})  # git@host:path names a repository, not a person

QUAD_SIGN = re.compile(r"\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]")
QUAD_RUN = re.compile(r"[0-9.]*")
HEX_SIGN = re.compile(r":[0-9A-Fa-f]{0,4}:")
HEX_RUN = re.compile(r"[0-9A-Fa-f:.]*")
LONGEST_IPV4, LONGEST_IPV6 = 15, 45

WORD_CHARACTER = re.compile(f"[{WORD}_]")
GOES_ON = re.compile(rf"[{WORD}_]|[-+~][A-Za-z]|\.+[{WORD}_]")
NETWORK = re.compile(r"/([0-9]{1,3})(?![0-9.])")
CONTEXT_CHARACTERS = 64
NUMBERED = re.compile(
    r"(?:\b(?:version|ver|v|release|revision|rev|build|firmware|kernel|patch|section|sect|sec|chapter|clause"
    r"|paragraph|para|annex|appendix|figure|fig|oid)s?\b|§)[\s.:#=(\"'-]*"
    r"(?:v?[0-9.]+\s*(?:[,;&/–-]|and\b|or\b|to\b|through\b)+\s*){0,4}$",
    re.IGNORECASE,
)
PRODUCT = re.compile(r"(?:^|[\s(;,\"'])[A-Za-z][A-Za-z0-9_.+-]*[/-]$")
HEADING = re.compile(r"\.? +[A-Z][a-z]")
HEADING_NUMBER = 31  # parts of a heading's number are small; of all public addresses 0.02 % are like that

# Source: RFC 4291 section 2.4 and IANA's registry of unicast addresses; RFC 9637 (documentation); RFC 6052.
UNICAST = ipaddress.IPv6Network("2000::/3")
DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def find_emails(text: str) -> Iterator[Span]:
    """The e-mail addresses: also of other scripts, with quoted names, and at addresses in brackets."""
    end, at = 0, text.find("@")
    while at >= 0:
        domain = DOMAIN.match(text, at + 1)
        if domain:
            start = _local_start(text, end, at)
            if start < at and _is_email(text, start, at, domain):
                end = domain.end()
                yield Span("email", start, end)
        end = max(end, at + 1)
        at = text.find("@", end)


def _local_start(text: str, low: int, at: int) -> int:
    before = text[at - 1 : at]
    if before == '"':
        quoted = QUOTED_LOCAL_BACKWARDS.match(text[max(low, at - 66) : at][::-1])
        return at - quoted.end() if quoted else at
    glued = GLUED_LOCAL_BACKWARDS.fullmatch(before) and not LOCAL_BACKWARDS.fullmatch(before)
    start = start_of_run(text, low, at, GLUED_LOCAL_BACKWARDS if glued else LOCAL_BACKWARDS)
    gap = text.rfind("..", start, at)
    start = gap + 2 if gap >= 0 else start
    while start < at and text[start] in ".+'&-":
        start += 1
    return start


def _is_email(text: str, start: int, at: int, domain: re.Match[str]) -> bool:
    if NOT_A_DOMAIN.match(domain.group()):
        return False
    return text[start:at].lower() not in SHARED_LOGINS or text[domain.end() : domain.end() + 1] not in (
        ":",
        "/",
    )


def find_ips(text: str) -> Iterator[Span]:
    """The public IP addresses: not those of private nets or documentation, nor what only looks like one."""
    taken = 0
    sixes = find_ipv6(text)
    six = next(sixes, None)
    for four in find_ipv4(text):
        while six and six.end <= four.start:
            yield six
            taken, six = six.end, next(sixes, None)
        if four.start >= taken and not (six and six.start < four.end):
            yield four
    if six:
        yield six
        yield from sixes


def find_ipv4(text: str) -> Iterator[Span]:
    """The public IPv4 addresses, without version and section numbers, networks and parts of names."""
    for run_start, run_end in dotted_runs(text):
        value = text[run_start : min(run_end, run_start + LONGEST_IPV4 + 4)].rstrip(".")
        if len(value) > LONGEST_IPV4 or run_start + len(value) < run_end - 3:
            continue
        start, end = run_start, run_start + len(value)
        address = _parsed(value)
        if (
            isinstance(address, ipaddress.IPv4Address)
            and is_public(address)
            and not _in_a_name(text, start, end)
            and not _is_numbering(text, start, end, address)
            and not _is_network(text, end, address)
        ):
            yield Span("ipv4", start, end)


def find_ipv6(text: str) -> Iterator[Span]:
    """The public IPv6 addresses, also those that embed a public IPv4 address; zone and brackets stay."""
    low = 0
    while sign := HEX_SIGN.search(text, low):
        start = start_of_run(text, low, sign.start(), HEX_RUN)
        run_end = HEX_RUN.match(text, sign.start()).end()
        end, low = run_end, run_end
        if start and WORD_CHARACTER.match(text, start - 1):  # the run starts within a word, as in "IPv6:"
            start = text.find(":", start, end) + 1
        if text.startswith(":", start) and not text.startswith("::", start):
            start += 1
        end = start + len(text[start:end].rstrip(".")) if end - start <= LONGEST_IPV6 + 4 else start
        if text.endswith(":", start, end) and not text.endswith("::", start, end):
            end -= 1
        address = _parsed(text[start:end]) if end - start <= LONGEST_IPV6 else None
        if (
            isinstance(address, ipaddress.IPv6Address)
            and not text.endswith("::", start, end)  # a net's, or a year before a block of code
            and is_public(address)
            and not WORD_CHARACTER.match(text, run_end)
            and not _is_network(text, end, address)
        ):
            yield Span("ipv6", start, end)


@lru_cache(maxsize=10_000)
def is_public(address: IpAddress) -> bool:
    """Whether an address is one of a machine on the internet; an embedded IPv4 address decides."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast
    embedded = address.ipv4_mapped or (address.teredo and address.teredo[1])
    if address in NAT64:
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if embedded:
        return is_public(embedded)
    return address in UNICAST and address.is_global and address not in DOCUMENTATION


def dotted_runs(text: str) -> Iterator[tuple[int, int]]:
    """The longest stretches of digits and dots that may hold four numbers with dots between."""
    end = 0
    while sign := QUAD_SIGN.search(text, end):
        start = start_of_run(text, end, sign.start(), QUAD_RUN)
        end = QUAD_RUN.match(text, sign.start()).end()
        yield start, end


def start_of_run(text: str, low: int, end: int, backwards: re.Pattern[str]) -> int:
    """Where the characters that `backwards` matches begin which end at `end`, but not before `low`."""
    size = 32
    while True:
        start = max(low, end - size)
        length = backwards.match(text[start:end][::-1]).end()
        if length < end - start or start == low:
            return end - length
        size *= 4


def _parsed(value: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(value)
    except ValueError:
        return None


def _in_a_name(text: str, start: int, end: int) -> bool:
    """Whether letters touch the number: v1.2.3.4, linux-1.2.3.4.tar.gz, Chrome/1.2.3.4."""
    if (start and WORD_CHARACTER.match(text, start - 1)) or GOES_ON.match(text, end):
        return True
    return bool(PRODUCT.search(text[max(0, start - CONTEXT_CHARACTERS) : start]))


def _is_numbering(text: str, start: int, end: int, address: ipaddress.IPv4Address) -> bool:
    """Whether the number counts versions or sections: "version 1.2.3.4", or a heading's."""
    if NUMBERED.search(text[max(0, start - CONTEXT_CHARACTERS) : start]):
        return True
    at_line_start = not text[text.rfind("\n", max(0, start - 9), start) + 1 : start].strip() and (
        start < 9 or "\n" in text[start - 9 : start]
    )
    return at_line_start and max(address.packed) <= HEADING_NUMBER and bool(HEADING.match(text, end))


def _is_network(text: str, end: int, address: IpAddress) -> bool:
    """Whether a prefix length follows and the address is that of a whole network, as in 8.8.8.0/24."""
    length = NETWORK.match(text, end)
    if not length or int(length.group(1)) >= address.max_prefixlen:
        return False
    return int(address) & ((1 << (address.max_prefixlen - int(length.group(1)))) - 1) == 0
