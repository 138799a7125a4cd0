"""From a corpus to token shards: `python -m flows.prepare_tokens PRESET [section.field=value ...]`."""

from prefect import flow

from flows.build_corpus import build_corpus
from flows.command_line import Outcome, run_command, run_name
from pipeline_config.settings import Settings
from tasks.bpe_training import train_tokenizer
from tasks.corpus_publication import publish_corpus
from tasks.packing import pack_tokens
from tasks.run import open_run


@flow(name="prepare-tokens", flow_run_name=run_name("tokens"))
def prepare_tokens(settings: Settings) -> Outcome:
    """A tokenizer, and the corpus as token shards."""
    with open_run(settings) as run:
        corpus = build_corpus(settings, publish=False)["corpus"]
        tokenizer = run.keep("tokenizer", train_tokenizer(run, corpus))
        tokens = run.keep("tokens", pack_tokens(run, corpus, tokenizer))
        run.keep("published_corpus", publish_corpus(run, corpus, tokenizer, tokens))
    return Outcome.of(run)


if __name__ == "__main__":
    run_command(prepare_tokens)
