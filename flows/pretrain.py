"""From token shards to a model: `python -m flows.pretrain PRESET [section.field=value ...]`."""

from prefect import flow

from flows.command_line import Outcome, run_command, run_name
from flows.prepare_tokens import prepare_tokens
from pipeline_config.settings import Settings
from tasks.model_publication import publish_model
from tasks.run import open_run
from tasks.training import train_model


@flow(name="pretrain", flow_run_name=run_name("pretrain"))
def pretrain(settings: Settings, publish: bool = True) -> Outcome:
    """A GPT trained on the preset's tokens.

    Args:
        publish: Write the model card, too; a flow that goes on does so with a sample of text.
    """
    with open_run(settings) as run:
        made = prepare_tokens(settings)
        checkpoint = run.keep("checkpoint", train_model(run, made["tokens"], made["tokenizer"]))
        if publish:
            run.keep("published_model", publish_model(run, checkpoint, made["published_corpus"]))
    return Outcome.of(run)


if __name__ == "__main__":
    run_command(pretrain)
