"""The rules of URL filtering: what removes a record, with the value that decided."""

import pytest
from datatrove.data import Document

from pipeline_config.curation import UrlFiltering
from pipeline_config.errors import SettingsError
from tasks.steps.shards import FATE, NOTES
from tasks.steps.url_filtering import FilterUrls

GOLDEN = "ada219734f706d2376593553a63ffbef3d7f5a20076c968b8820acfa8f3df994"


def decide(run_step, notes=None, **metadata) -> tuple[str, str, str] | None:
    settings = UrlFiltering(
        use_integrated_lists=False,
        extra_domains=(
            "Bad-Site.com",
            "sub.half-site.com",
            "spam.co.uk",
            "8.8.4.4",
            "2001:db8::1",
            "bäd.example",
        ),
        http_statuses=(200, 203),
    )
    document = Document(text="", id="x", metadata={"record_type": "response", NOTES: notes or {}} | metadata)
    [decided] = run_step(FilterUrls(settings), [document])
    fate = decided.metadata.get(FATE)
    return fate and (fate.kind, fate.reason, fate.value)


@pytest.mark.parametrize(
    ("metadata", "fate"),
    [
        pytest.param({"url": "https://good.example/a"}, None, id="good"),
        pytest.param({"url": "https://good.example/a", "payload_type": "text/html"}, None, id="html"),
        pytest.param({"url": "https://half-site.com/"}, None, id="another_subdomain_is_blocked"),
        pytest.param({"url": "https://notbad-site.com/"}, None, id="domain_that_ends_alike"),
        pytest.param({"url": "https://a.b.bad-site.com/x"}, ("domain", "bad-site.com"), id="domain"),
        pytest.param({"url": "https://WWW.BAD-SITE.com./"}, ("domain", "bad-site.com"), id="capitals"),
        pytest.param({"url": "https://www.spam.co.uk/"}, ("domain", "spam.co.uk"), id="suffix_of_two_parts"),
        pytest.param({"url": "https://spam.co.uk.good.example/"}, None, id="domain_in_front"),
        pytest.param(
            {"url": "https://me@sub.half-site.com:81"}, ("subdomain", "sub.half-site.com"), id="sub"
        ),
        pytest.param({"url": "http://8.8.4.4/x"}, ("domain", "8.8.4.4"), id="address"),
        pytest.param({"url": "http://0x8.8.1028"}, ("domain", "8.8.4.4"), id="address_in_disguise"),
        pytest.param({"url": "http://1.8.8.4.4/"}, None, id="no_subdomain_of_an_address"),
        pytest.param({"url": "http://[2001:DB8:0::1]/"}, ("domain", "[2001:db8::1]"), id="ipv6"),
        pytest.param({"url": "http://BÄD.example/"}, ("domain", "xn--bd-via.example"), id="other_script"),
        pytest.param({"url": "http://\ud800.bad-site.com/"}, ("domain", "bad-site.com"), id="lone_surrogate"),
        pytest.param(
            {"url": "http://" + "a." * 9999 + "bad-site.com"}, ("domain", "bad-site.com"), id="long"
        ),
        pytest.param({"url": "http://[bad-site.com"}, None, id="open_bracket"),
        pytest.param({"url": "https://good.example/", "notes": {"http_status": 203}}, None, id="status"),
        pytest.param(
            {"url": "https://good.example/", "notes": {"http_status": 404}},
            ("http_status", "404"),
            id="404",
        ),
        pytest.param(
            {"url": "https://good.example/", "payload_type": "application/pdf"},
            ("payload_type", "application/pdf"),
            id="pdf",
        ),
        pytest.param({}, ("no_url", ""), id="no_url"),
        pytest.param({"url": ""}, ("no_url", ""), id="empty_url"),
        pytest.param(
            {"url": "https://good.example/", "record_type": "revisit"},
            ("revisit", "the page is unchanged since an earlier record"),
            id="revisit",
        ),
    ],
)
def test_a_record_is_kept_or_removed_with_the_value_that_decided(run_step, metadata, fate):
    assert decide(run_step, **metadata) == (fate and ("removed", *fate))


def test_every_record_is_noted_with_the_one_spelling_of_its_url(run_step):
    urls = ["HTTP://A.example:80/?utm_source=x#y", "", "no url"]
    documents = [Document(text="", id="x", metadata={"url": url}) for url in urls]
    decided = run_step(FilterUrls(UrlFiltering(use_integrated_lists=False)), documents)
    noted = [document.metadata[NOTES]["canonical_url"] for document in decided]
    assert noted == ["http://a.example/", None, "no url"]


def test_a_wrong_extra_domain_is_named(run_step):
    settings = UrlFiltering(use_integrated_lists=False, extra_domains=("good.example", "http://x.example/"))
    with pytest.raises(SettingsError, match=r"extra_domains: 'http://x.example/' is no domain"):
        FilterUrls(settings).prepare()


def test_golden(run_step, behaviour):
    settings = UrlFiltering(use_integrated_lists=False, extra_domains=("bad-site.com",))
    urls = ["https://a.example/0", "https://bad-site.com/", "HTTP://A.example:80/?utm_source=b"]
    read = [Document(text="", id=url, metadata={"url": url}) for url in urls]
    assert behaviour(run_step(FilterUrls(settings), read)) == GOLDEN, (
        "behaviour changed: raise the version in tasks/url_filtering.py"
    )
