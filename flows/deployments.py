"""What can be started from Prefect's UI: `python -m flows.deployments` offers it, and runs what is asked for.

Every flow of the pipeline for every preset, each with the form of its settings; reprocessing, with a
schedule and an event; evaluation of new checkpoints; audits and takedown. `--deploy-to POOL` puts the
deployments on a work pool instead, for workers elsewhere.
"""

import argparse
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prefect import serve
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.schedules import Cron

from flows import audit, reprocess
from flows.automations import install, on_new_checkpoint, on_new_snapshot
from flows.build_corpus import build_corpus
from flows.command_line import fail
from flows.evaluate import evaluate
from flows.prepare_tokens import prepare_tokens
from flows.pretrain import pretrain
from flows.train_classifier import train_classifier
from flows.train_language_model import train_language_model
from pipeline_config.errors import ServiceError, SettingsError, TokenmillError
from pipeline_config.presets import load_settings, preset_names
from pipeline_config.settings import Settings
from tasks.snapshots import is_pattern
from tasks.watch import watch

PIPELINES = (train_language_model, pretrain, prepare_tokens, build_corpus)
ON_GPU = (train_language_model, pretrain)
QUESTIONS = (audit.trace, audit.why, audit.compare, audit.verify, audit.what_if, audit.flush)
EVERY_NIGHT = "0 3 * * *"
ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
POLL_SECONDS, WATCH_SECONDS = 2.0, 60.0


def deployments(presets: Sequence[str], pool: str = "", gpu_pool: str = "") -> Iterator[RunnerDeployment]:
    """A deployment of each flow for each preset (names or YAML files), and of each question."""
    for preset in presets:
        settings = load_settings(preset)
        for flow in PIPELINES:
            where = gpu_pool if gpu_pool and flow in ON_GPU else pool
            yield _deployment(flow, settings.name, where, parameters=_form(settings), tags=[settings.name])
        if any(is_pattern(source) for source in settings.sources):
            yield _reprocessing(settings, pool)
    for flow in (*QUESTIONS, reprocess.takedown, train_classifier):
        yield _deployment(flow, "tokenmill", pool)
    yield _deployment(evaluate, "tokenmill", pool, triggers=[on_new_checkpoint()])


def _reprocessing(settings: Settings, pool: str) -> RunnerDeployment:
    """Waits for the schedule to be switched on; new snapshots start it in any case."""
    made = _deployment(
        reprocess.reprocess,
        settings.name,
        pool,
        parameters=_form(settings),
        triggers=[on_new_snapshot(settings.name)],
        concurrency_limit=ONE_AT_A_TIME,
        schedules=[Cron(EVERY_NIGHT, active=False)],
    )
    if (kept := _schedules_of(made.full_name)) is not None:
        made.schedules = kept
    return made


def _deployment(flow: Any, name: str, pool: str, **more: Any) -> RunnerDeployment:
    if pool:
        more |= {"work_pool_name": pool, "job_variables": {"env": _environment()}}
    return flow.to_deployment(
        name=name, description=flow.description, entrypoint_type=EntrypointType.MODULE_PATH, **more
    )


def _form(settings: Settings) -> dict[str, Any]:
    """The form's values; local folders are named whole, for workers that run in another folder."""
    values = settings.model_dump(mode="json")
    for source in values["sources"]:
        if source["base"] and Path(source["base"]).is_dir():
            source["base"] = str(Path(source["base"]).resolve())
    return {"settings": values}


def _environment() -> dict[str, str]:
    """Where a worker finds data folder, store and records. No secrets: workers have those themselves.

    So an address with a password in it is left out.
    """
    names = ("TOKENMILL_HOME", "TOKENMILL_STORE", "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL")
    found = {name: os.environ.get(name, "") for name in names}
    return {name: value for name, value in found.items() if value and "@" not in value}


def _schedules_of(name: str) -> list[DeploymentScheduleCreate] | None:
    """The schedules of a deployment that is there already: they may have been changed in the UI, and stay."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(name)
        except ObjectNotFound:
            return None
    fields = {"schedule", "active", "parameters", "slug"}
    return [DeploymentScheduleCreate(**one.model_dump(include=fields)) for one in found.schedules]


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", action="append", default=[], help="a further preset, a .yaml file")
    parser.add_argument("--limit", type=int, default=8, help="flow runs at once (default: 8)")
    parser.add_argument("--watch-seconds", type=float, default=WATCH_SECONDS, help="between two looks")
    parser.add_argument("--deploy-to", metavar="POOL", default="", help="put the deployments on a work pool")
    parser.add_argument("--gpu-pool", metavar="POOL", default="", help="work pool of flows that train")
    chosen = parser.parse_args(arguments)
    try:
        if not os.environ.get("PREFECT_API_URL"):
            raise SettingsError(
                "PREFECT_API_URL is not set: use `python -m flows.serve`, which starts a server, or set it "
                "to a server's address, such as http://127.0.0.1:4200/api"
            )
        presets = [*preset_names(), *chosen.preset]
        made = list(deployments(presets, chosen.deploy_to, chosen.gpu_pool))
        install()
    except TokenmillError as error:
        sys.exit(fail(error, 2))
    if chosen.deploy_to:
        _put_on_pool(made)
    else:
        watcher = threading.Thread(target=watch, args=(presets, chosen.watch_seconds), daemon=True)
        watcher.start()
        serve(*made, pause_on_shutdown=False, limit=chosen.limit, query_seconds=POLL_SECONDS)


def _put_on_pool(made: list[RunnerDeployment]) -> None:
    for deployment in made:
        try:
            deployment.apply()
        except Exception as error:
            raise ServiceError(f"{deployment.full_name} cannot be put on a work pool: {error}") from None
    print(f"{len(made)} deployments are on {', '.join(sorted({d.work_pool_name or '' for d in made}))}")


if __name__ == "__main__":
    main()
