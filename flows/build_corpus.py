"""From sources to a clean corpus: `python -m flows.build_corpus PRESET [section.field=value ...]`."""

from prefect import flow

from flows.command_line import Outcome, run_command, run_name
from pipeline_config.settings import Settings, Source
from tasks.corpus_publication import publish_corpus
from tasks.deduplication import remove_duplicates
from tasks.document_import import import_documents
from tasks.document_split import split_documents
from tasks.language_identification import identify_language
from tasks.pii_scrubbing import scrub_pii
from tasks.quality_filtering import filter_quality
from tasks.run import Run, open_run
from tasks.sample_crawl import render_sample_crawl
from tasks.store import StageOutput
from tasks.text_extraction import extract_text
from tasks.url_filtering import filter_urls


@flow(name="build-corpus", flow_run_name=run_name("corpus"))
def build_corpus(settings: Settings, publish: bool = True) -> Outcome:
    """Clean, distinct documents of all sources, split into training and validation.

    Args:
        publish: Write the card and the report, too; a flow that goes on does so with its own figures.
    """
    with open_run(settings) as run:
        cleaned = run.for_each(clean_source, run.settings.sources)
        distinct = remove_duplicates(run, cleaned)
        scrubbed = scrub_pii(run, distinct)
        corpus = run.keep("corpus", split_documents(run, scrubbed))
        if publish:
            run.keep("published_corpus", publish_corpus(run, corpus))
    return Outcome.of(run)


def clean_source(run: Run, source: Source) -> StageOutput:
    """The documents of one source after the stages that look at one document at a time."""
    documents = import_documents(run, source) if source.kind == "documents" else read_pages(run, source)
    if "language_identification" in source.stages:
        documents = identify_language(run, source, documents)
    if "quality_filtering" in source.stages:
        documents = filter_quality(run, source, documents)
    return documents


def read_pages(run: Run, source: Source) -> StageOutput:
    """The texts of a crawl's pages."""
    crawl = render_sample_crawl(run, source) if source.kind == "installed_documentation" else None
    pointers = filter_urls(run, source, crawl)
    return extract_text(run, source, pointers, crawl)


if __name__ == "__main__":
    run_command(build_corpus)
