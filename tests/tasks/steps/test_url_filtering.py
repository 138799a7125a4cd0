"""Pointers into WARC files, damaged files, and the URL rules."""

import pytest
from datatrove.data import Document

from pipeline_config.curation import UrlFiltering
from tasks.steps.record_pointers import ReadPointers
from tasks.steps.shards import FATE
from tasks.steps.url_filtering import FilterUrls

# DataTrove 0.10 asks tldextract 5 for a property that is to be renamed.
pytestmark = pytest.mark.filterwarnings("ignore:The 'registered_domain' property:DeprecationWarning")

GOLDEN = "14dc147bc37de147fe496a36f1053d3ac10b83eb5a3bca2cb2474db50c30675f"
PAGES = {f"https://a.example/{n}": b"<p>page %d</p>" % n * (n + 1) for n in range(5)}


def decide(run_step, **metadata) -> tuple[str, str, str] | None:
    settings = UrlFiltering(
        use_integrated_lists=False, extra_domains=("bad-site.com", "sub.half-site.com", "spam.co.uk")
    )
    document = Document(text="", id="x", metadata={"record_type": "response"} | metadata)
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
        pytest.param(
            {"url": "https://a.b.bad-site.com/x"}, ("domain", "https://a.b.bad-site.com/x"), id="domain"
        ),
        pytest.param(
            {"url": "https://www.spam.co.uk/"},
            ("domain", "https://www.spam.co.uk/"),
            id="suffix_of_two_parts",
        ),
        pytest.param(
            {"url": "https://sub.half-site.com/"}, ("subdomain", "https://sub.half-site.com/"), id="subdomain"
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


def test_golden(warc_file, run_step, behaviour):
    path = warc_file(PAGES | {"https://bad-site.com/": b"<p>bad</p>"})
    settings = UrlFiltering(use_integrated_lists=False, extra_domains=("bad-site.com",))
    read = run_step(ReadPointers([str(path)], ["a.warc.gz"], "web", "DUMP"))
    assert behaviour(run_step(FilterUrls(settings), read)) == GOLDEN, (
        "behaviour changed: raise the version in tasks/url_filtering.py"
    )
