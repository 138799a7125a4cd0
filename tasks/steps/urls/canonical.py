"""One spelling for the URLs of one page: for grouping, and for finding URLs in lists.

Never raises, whatever the URL is, and takes time in proportion to its length.
"""

import contextlib
import ipaddress
import re
import sys
from dataclasses import dataclass

import idna

SPLIT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\\]*)([^?#]*)(?:\?([^#]*))?")
"""Scheme, authority, path and query. Source: RFC 3986, appendix B; a backslash ends the authority, too, as in
the WHATWG's URL standard, which browsers follow."""
ENDS = "".join(map(chr, range(0x21)))  # controls and space. Source: WHATWG, URL standard, basic URL parser
LINE_BREAKS = dict.fromkeys(map(ord, "\t\n\r"))
PORT = re.compile(r":([0-9]*)\Z")
DEFAULT_PORTS = {"http": "80", "https": "443", "ftp": "21"}
ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
ESCAPES = [f"%{byte:02X}" for byte in range(256)]
STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
NOT_IN_URLS = re.compile(r"[^A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
NOT_IN_HOSTS = re.compile(r"[^A-Za-z0-9._~!$&'()*+,;=-]+")
"""Source of these three: RFC 3986, sections 2.2, 2.3 and 3.2.2."""
OTHER_DOTS = re.compile("[\u3002\uff0e\uff61]")
"""What stands for a full stop in a host's name. Source: RFC 3490, section 3.1."""
PLAIN_HOST = re.compile(r"(?:[a-z0-9_-]+\.)*[a-z][a-z0-9-]*")
PLAIN_URL = re.compile(
    rf"https?://{PLAIN_HOST.pattern}(/[A-Za-z0-9_~:@!$&'()*+,=-][A-Za-z0-9._~:@!$&'()*+,=-]*)*/?"
)
BLANKS = "".join(character for character in map(chr, range(sys.maxunicode + 1)) if character.isspace())
SLASHES_BEFORE_HOST = 2
MOST_HOST_CHARACTERS = 1000  # a longer one is no host's name, and IDNA would take long to say so
MOST_ADDRESS_CHARACTERS = 64
IPV4_PARTS = 4
OCTAL, DECIMAL, HEXADECIMAL = 8, 10, 16

SESSION_IN_PATH = re.compile(r";(?:jsessionid|phpsessid|sid)=[^/;]*", re.IGNORECASE)
NAMES = """
    fbclid gclid gclsrc dclid gbraid wbraid msclkid yclid ysclid twclid ttclid li_fat_id igsh igshid
    epik srsltid mc_cid mc_eid mkt_tok _ga _gl _hsenc _hsmi __hstc __hssc __hsfp hsctatracking
    s_kwcid ef_id vero_id vero_conv oly_anon_id oly_enc_id rb_clickid irclickid wickedid zanpid xtor
    cmpid spm trk trkcampaign _openstat ref_src ref_url sessionid session_id session-id sessid
    sess_id phpsessid jsessionid cfid cftoken zenid oscsid
"""
TRACKING_NAMES = frozenset(NAMES.split())
TRACKING_PREFIX = re.compile(
    r"utm_|mtm_|pk_|piwik_|matomo_|hsa_|itm_|aspsessionid"
    r"|at_(?:medium|campaign|custom)|ns_(?:mchannel|source|campaign|linkname|fee)"
)
"""Parameters, in lower case, that say where a visitor came from or who it is, and not which page is meant.
Source: the documentation of Google Analytics and Ads, Meta, Microsoft Advertising, TikTok, LinkedIn, Matomo,
HubSpot, Mailchimp, Marketo, Piano and Yandex; sessions of PHP, Java servlets, ASP and ColdFusion."""
CHANNEL = re.compile(
    r"(?:rss|feed|atom|e?mail|newsletter|share|social|twitter|facebook|linkedin|reddit|pinterest"
    r"|(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,})\Z",
    re.IGNORECASE,
)
"""Values by which `ref`, which elsewhere names a version of the page, says where a visitor came from."""
OPAQUE = re.compile(r"[0-9A-Fa-f]{16,}\Z")
"""Values by which `sid` is a session, and not a section."""


@dataclass(frozen=True)
class UrlParts:
    """The parts of a URL, each in its one spelling; `host` with the brackets of an IPv6 address."""

    scheme: str
    userinfo: str
    host: str
    port: str
    path: str
    query: str


def canonical_url(url: str) -> str:
    """The one spelling of a URL: no fragment, no default port, no tracking, parameters in order.

    A text that is no URL with a host comes back as it is, but for white space around it.
    """
    if PLAIN_URL.fullmatch(url):
        return url if url.count("/") > SLASHES_BEFORE_HOST else f"{url}/"
    parts = split_url(url)
    if parts is None:
        return url.strip(ENDS)
    userinfo = f"{parts.userinfo}@" if parts.userinfo else ""
    port = f":{parts.port}" if parts.port else ""
    query = _kept_parameters(parts.query) if parts.query else ""
    return f"{parts.scheme}://{userinfo}{parts.host}{port}{parts.path}{f'?{query}' if query else ''}"


def split_url(url: str) -> UrlParts | None:
    """The parts of a URL, or None where it has no host."""
    found = SPLIT.match(url.strip(ENDS).translate(LINE_BREAKS))
    if found is None:
        return None
    scheme, (userinfo, _, place) = found[1].lower(), found[2].rpartition("@")
    port = PORT.search(place)
    host = canonical_host(place[: port.start()] if port else place)
    if not host:
        return None
    number = port[1].lstrip("0") if port else ""
    return UrlParts(
        scheme,
        normal_escapes(userinfo).replace("@", "%40"),
        host,
        "" if number == DEFAULT_PORTS.get(scheme) else number,
        _without_dot_segments(SESSION_IN_PATH.sub("", normal_escapes(found[3].replace("\\", "/")))),
        normal_escapes(found[4] or ""),
    )


def canonical_host(host: str) -> str:
    """A host in lower case, other scripts in Punycode, addresses in their usual form, no dot at the end."""
    host = host.lower()
    if PLAIN_HOST.fullmatch(host):
        return host
    if host[:1] == "[" and (address := _ipv6(host)):
        return address
    name = OTHER_DOTS.sub(".", _unescaped(host)).lower().strip().rstrip(BLANKS + ".")
    if not name.isascii() and len(name) <= MOST_HOST_CHARACTERS:
        name = _punycode(name)
    return _ipv4(name) or _escaped(NOT_IN_HOSTS, name)


def normal_escapes(text: str) -> str:
    """Percent escapes in capitals, where they are needed and nowhere else."""
    if NOT_IN_URLS.search(text):
        text = _escaped(NOT_IN_URLS, text)
    if "%" not in text:
        return text
    return ESCAPE.sub(_normal_escape, STRAY_PERCENT.sub("%25", text))


def is_tracking(name: str, value: str) -> bool:
    """Whether a parameter says where a visitor came from, or who it is."""
    name = name.lower()
    if name in TRACKING_NAMES or TRACKING_PREFIX.match(name):
        return True
    return (name == "ref" and bool(CHANNEL.match(value))) or (name == "sid" and bool(OPAQUE.match(value)))


def _kept_parameters(query: str) -> str:
    pairs = [part.partition("=") for part in query.split("&") if part]
    kept = [pair for pair in pairs if not is_tracking(pair[0], pair[2])]
    return "&".join(
        "".join(pair) for pair in sorted(kept, key=lambda pair: pair[0])
    )  # values keep their order


def _without_dot_segments(path: str) -> str:
    """Source: RFC 3986, section 5.2.4."""
    if "/." not in path:
        return path or "/"
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _escaped(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda found: "".join([ESCAPES[byte] for byte in _utf8(found[0])]), text)


def _utf8(text: str) -> bytes:
    """What `_unescaped` turns into the text again: lone surrogates that stand for bytes become these."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        if len(text) == 1:
            return text.encode("utf-8", "surrogatepass")
        return b"".join(map(_utf8, text))


def _normal_escape(found: re.Match[str]) -> str:
    character = chr(int(found[1], 16))
    return character if UNRESERVED.match(character) else found[0].upper()


def _unescaped(text: str) -> str:
    if "%" not in text:
        return text
    data = b"".join(
        _utf8(part) if place % 2 == 0 else bytes([int(part, 16)])
        for place, part in enumerate(ESCAPE.split(text))
    )
    return data.decode("utf-8", "surrogateescape")


def _punycode(name: str) -> str:
    """A host's name in ASCII. Source: UTS 46; RFC 3490 for names that are no longer allowed."""
    for encode in (lambda: idna.encode(name, uts46=True), lambda: name.encode("idna")):
        with contextlib.suppress(UnicodeError, IndexError):
            return encode().decode("ascii").lower().rstrip(".")
    return name


def _ipv4(name: str) -> str:
    """An IPv4 address in the usual form, or "" for none. Source: WHATWG, URL standard, IPv4 parser."""
    parts = name.split(".", IPV4_PARTS)
    numbers = [_number(part) for part in parts]
    if len(parts) > IPV4_PARTS or None in numbers:
        return ""
    *first, last = (number or 0 for number in numbers)
    if any(number > 255 for number in first) or last >= 256 ** (IPV4_PARTS - len(first)):
        return ""
    return str(ipaddress.IPv4Address(int.from_bytes(bytes(first).ljust(IPV4_PARTS, b"\0"), "big") + last))


def _number(part: str) -> int | None:
    if not part or not part[0].isdigit() or len(part) > MOST_ADDRESS_CHARACTERS or not part.isascii():
        return None
    if part.startswith("0x"):
        base, part = HEXADECIMAL, part[2:] or "0"
    else:
        base = OCTAL if part[0] == "0" else DECIMAL
    with contextlib.suppress(ValueError):
        return int(part, base) if part.isalnum() else None
    return None


def _ipv6(host: str) -> str:
    if len(host) > MOST_ADDRESS_CHARACTERS or host[-1] != "]":
        return ""
    try:
        address = ipaddress.IPv6Address(host[1:-1].partition("%")[0])
    except ValueError:
        return ""
    mapped = address.ipv4_mapped  # which Python 3.13 spells in another way
    return f"[::ffff:{mapped}]" if mapped else f"[{address.compressed}]"
