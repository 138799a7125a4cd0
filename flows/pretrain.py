"""From token shards to a model: `python -m flows.pretrain PRESET [section.field=value ...]`."""

from prefect import flow

from flows.command_line import Outcome, run_command
from flows.prepare_tokens import prepare_tokens
from pipeline_config.settings import Settings
from tasks.run import open_run
from tasks.training import train_model


@flow(name="pretrain", flow_run_name="pretrain {settings.name}")
def pretrain(settings: Settings) -> Outcome:
    """A GPT trained on the preset's tokens."""
    with open_run(settings) as run:
        made = prepare_tokens(settings).outputs
        checkpoint = train_model(run, made["tokens"], made["tokenizer"])
        return Outcome.of(run, **made, checkpoint=checkpoint)


if __name__ == "__main__":
    run_command(pretrain)
