"""Addresses: what is one, where it ends, and what only looks like one."""

import ipaddress

import pytest

from tasks.steps.pii.addresses import find_emails, find_ips, is_public


def values(finder, text: str) -> list[str]:
    return [text[span.start : span.end] for span in finder(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("to ann@company.com now", "ann@company.com", id="plain"),
        pytest.param("ANN.B+c_d-e@Mail.company.CO.UK", "ANN.B+c_d-e@Mail.company.CO.UK", id="signs"),
        pytest.param("ann@company.com.", "ann@company.com", id="end_of_sentence"),
        pytest.param(
            "(ann@company.com), <bob@company.com>;", "ann@company.com bob@company.com", id="brackets"
        ),
        pytest.param(
            "'ann@company.com' o'brien@company.com", "ann@company.com o'brien@company.com", id="quotes"
        ),
        pytest.param("mailto:ann@company.com?subject=x", "ann@company.com", id="link"),
        pytest.param("?to=ann@company.com&cc=bob@company.com", "ann@company.com bob@company.com", id="query"),
        pytest.param("a.org/list/ann@company.com/1", "ann@company.com", id="path"),
        pytest.param("ann@company.com,bob@company.com", "ann@company.com bob@company.com", id="comma"),
        pytest.param('"ann b"@company.com', '"ann b"@company.com', id="quoted_name"),
        pytest.param("see..ann@company.com", "ann@company.com", id="dots_before"),
        pytest.param("-ann@company.com", "ann@company.com", id="dash_before"),
        pytest.param("jürgen@müller.de", "jürgen@müller.de", id="latin_letters"),
        pytest.param("почта@пример.рф", "почта@пример.рф", id="cyrillic"),
        pytest.param("用户@例子.广告", "用户@例子.广告", id="chinese"),
        pytest.param("संपर्क@डाटामेल.भारत", "संपर्क@डाटामेल.भारत", id="devanagari"),
        pytest.param("ann@xn--bcher-kva.xn--p1ai", "ann@xn--bcher-kva.xn--p1ai", id="punycode"),
        pytest.param("联系ann@company.com谢谢", "ann@company.com", id="within_chinese"),
        pytest.param("메일은 ann@company.com로", "ann@company.com", id="korean_particle"),
        pytest.param(
            "ann@[8.8.8.8] bob@[IPv6:2001:4860::8888]", "ann@[8.8.8.8] bob@[IPv6:2001:4860::8888]", id="ip"
        ),
        pytest.param("mail ann@163.com0123 456", "ann@163.com", id="number_glued_on"),
        pytest.param("ann@company.com4.x", "ann@company.com", id="digits_behind"),
    ],
)
def test_an_email_address_is_found_whole(text, found):
    assert " ".join(values(find_emails, text)) == found


@pytest.mark.parametrize(
    "text",
    [
        "@handle", "a @ b", "3@4", "user@localhost", "a@b", "medium.com/@ann.bee", 'printf("%d@%s.%s")',
        "numpy@1.26.4", "numpy@2.0.0rc1", "package@1.2.3-rc.beta", "logo@2x.png", "logo@2x.min.css",
        "git@github.com:org/repo.git", "ssh://git@host.org/repo", "ann at company dot com", "ann@.com",
        "ann@com.",
        "a@b.c", "@@@...@@", "", "@",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_email_address_stays(text):
    assert values(find_emails, text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("at 8.8.8.8, or so", "8.8.8.8", id="plain"),
        pytest.param("at 8.8.8.8. Then", "8.8.8.8", id="end_of_sentence"),
        pytest.param("http://8.8.8.8:8080/a ssh ann@9.9.9.9", "8.8.8.8 9.9.9.9", id="url_port_login"),
        pytest.param("8.8.8.1-9.9.9.9 [8.8.8.8] old=8.8.8.9", "8.8.8.1 9.9.9.9 8.8.8.8 8.8.8.9", id="signs"),
        pytest.param("8.8.8.8/24 8.8.8.9/32", "8.8.8.8 8.8.8.9", id="machine_with_prefix_length"),
        pytest.param("从8.8.8.8登录", "8.8.8.8", id="within_chinese"),
        pytest.param("91.26.77.216 Login", "91.26.77.216", id="start_of_line"),
        pytest.param("2001:4860:4860::8888", "2001:4860:4860::8888", id="v6"),
        pytest.param("2A00:1450:4009:080B:0000:0000:0000:200E", None, id="v6_in_full"),
        pytest.param(
            "[2606:4700::1111]:443 2606:4700::1%eth0.", "2606:4700::1111 2606:4700::1", id="v6_port_zone"
        ),
        pytest.param(
            "IPv6:2606:4700::1111, 2606:4700::1: up", "2606:4700::1111 2606:4700::1", id="v6_colons"
        ),
        pytest.param("::ffff:8.8.8.8 64:ff9b::8.8.8.8", "::ffff:8.8.8.8 64:ff9b::8.8.8.8", id="v6_with_v4"),
        pytest.param("2606:4700::1/64 and 8.8.8.8", "2606:4700::1 8.8.8.8", id="both"),
    ],
)
def test_a_public_ip_address_is_found(text, found):
    assert " ".join(values(find_ips, text)) == (found or text)


@pytest.mark.parametrize(
    "text",
    [
        # of private nets, documentation, everybody and nobody
        "10.0.0.1 192.168.1.9 127.0.0.1 172.16.0.1 169.254.0.1 100.64.0.1",
        "192.0.2.7 198.51.100.7 203.0.113.7",
        "0.0.0.0 255.255.255.0 224.0.0.1", "fe80::1ff:fe23:4567:890a%eth0 ::1 :: fd00::1 ff02::1",
        "2001:db8::1",
        "3fff::1", "::ffff:10.0.0.1",
        # nets
        "8.8.8.0/24", "2001:4860::/32", "the year 2262::",
        # versions, sections, dates, decimals, names
        "10.9.8.7.6", "1.2.3.4.5", "v4.10.2.1", "Version 4.10.2.1 released",
        "versions 4.0.0.1, 4.0.0.2 and 4.0.0.3",
        "openresty/1.9.7.1", "linux-4.10.2.1.tar.gz", "4.10.2.1-beta", "4.10.2.1+git", "section 3.2.1.4",
        "§ 3.2.1.4",
        "5.8.5.4. Announcements of errors", "text\n3.2.1.4 Requirements", "12.05.2021 10.45",
        "3.14159.26", "01.02.03.04",
        "300.12.4.5", "1.2.3", "1.2.3.4567", "8.8.8.8.in-addr.arpa", "a1.2.3.4", "1.2.3.4x", "1..2.3.4",
        # other things with colons
        "12:30:45", "00:1b:44:11:3a:b7", "std::vector<a::b>", "dead::beef", "Abc::Def::new", "2020::x",
        "::", ":::",
    ],
)  # fmt: skip
def test_what_identifies_no_machine_stays(text):
    assert values(find_ips, text) == []


@pytest.mark.parametrize(
    ("address", "public"),
    [("8.8.8.8", True), ("239.1.1.1", False), ("::ffff:8.8.8.8", True),
     ("2001:0:4136:e378:8000:63bf:f7f7:f7f7", True), ("4000::1", False)],
)  # fmt: skip
def test_an_embedded_address_decides_whether_it_is_public(address, public):
    assert is_public(ipaddress.ip_address(address)) is public
