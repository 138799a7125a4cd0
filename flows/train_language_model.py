"""The main path, from raw pages to a sample of text. Read this first.

    python -m flows.train_language_model PRESET [section.field=value ...]

    build_corpus     filter URLs -> extract text -> identify language -> filter quality   (each source)
                     -> remove duplicates -> scrub PII -> split documents                 (all sources)
    prepare_tokens   -> train tokenizer -> pack tokens -> publish corpus
    pretrain         -> train model
                     -> generate text -> publish model

Every arrow is a cached Prefect task: a second run computes nothing, and a changed setting recomputes only
what depends on it.
"""

from prefect import flow

from flows.command_line import Outcome, run_command, run_name
from flows.pretrain import pretrain
from pipeline_config.settings import Settings
from tasks.model_publication import publish_model
from tasks.run import open_run
from tasks.text_generation import generate_text


@flow(name="train-language-model", flow_run_name=run_name("train"))
def train_language_model(settings: Settings) -> Outcome:
    """A trained language model and a sample of its text, with every document accounted for."""
    with open_run(settings) as run:
        made = pretrain(settings, publish=False)
        sample = run.keep("sample", generate_text(run, made["checkpoint"]))
        run.keep("published_model", publish_model(run, made["checkpoint"], made["published_corpus"], sample))
    return Outcome.of(run)


if __name__ == "__main__":
    run_command(train_language_model)
