"""What can be started from the UI: every flow for every preset, with its form."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from flows.automations import CRASHED, install
from flows.deployments import deployments
from pipeline_config.presets import preset_names

PIPELINES = ["train-language-model", "pretrain", "prepare-tokens", "build-corpus"]
FORMS = {
    "audit-trace": ["what", "kind", "run", "most"],
    "audit-why": ["stage", "reason", "sample", "seed", "run"],
    "audit-compare": ["a", "b"],
    "audit-verify": ["run"],
    "audit-what-if": ["overrides", "sample", "seed", "run"],
    "audit-flush": [],
    "takedown": ["takedown_list", "run", "retrain"],
    "train-classifier": ["positive", "negative", "training"],
}


@pytest.fixture(scope="module")
def made(tiny_preset: str) -> dict[str, Any]:
    """All deployments as the server has them, by flow and name."""
    with get_client(sync_client=True) as client:
        found = [
            (d.full_name, client.read_deployment(d.apply()))
            for d in deployments(["mini-snapshots", tiny_preset])
        ]
    return dict(found)


def test_every_flow_is_there_for_every_preset_and_every_question_once(made: dict[str, Any]) -> None:
    pipelines = {f"{flow}/{preset}" for flow in PIPELINES for preset in ("mini-snapshots", "tiny")}
    questions = {f"{flow}/tokenmill" for flow in FORMS}
    assert set(made) == pipelines | questions | {"reprocess/mini-snapshots", "evaluate/tokenmill"}
    assert all(found.entrypoint.startswith("flows.") for found in made.values())  # they run from any folder
    assert all(found.description for found in made.values())


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_that_ships_makes_deployments(preset: str) -> None:
    assert preset in {deployment.name for deployment in deployments([preset])}


@pytest.mark.parametrize(("flow", "fields"), FORMS.items())
def test_a_question_is_a_form_with_a_text_for_each_field(
    made: dict[str, Any], flow: str, fields: list[str]
) -> None:
    properties = made[f"{flow}/tokenmill"].parameter_openapi_schema["properties"]
    assert list(properties) == fields
    assert all(field.get("description") for field in properties.values())


def test_choices_are_selects(made: dict[str, Any]) -> None:
    schema = made["audit-trace/tokenmill"].parameter_openapi_schema["properties"]["kind"]
    assert schema["anyOf"][0]["enum"] == ["url", "url_prefix", "domain", "id"]


def test_settings_are_groups_in_the_order_of_declaration_with_ranges(made: dict[str, Any]) -> None:
    definitions = made["train-language-model/tiny"].parameter_openapi_schema["definitions"]
    sections = list(definitions["Settings"]["properties"])
    assert sections[:3] == ["name", "sources", "sample_crawl"]
    assert sections[-1] == "execution"
    workers = definitions["Execution"]["properties"]["workers"]
    assert workers["description"].endswith("(at least 1, at most 1,024)")
    assert definitions["Execution"]["properties"]["until"]["enum"][-1] == "model_publication"


def test_a_schedule_that_was_changed_in_the_ui_stays(made: dict[str, Any]) -> None:
    found = made["reprocess/mini-snapshots"]
    assert [(s.schedule.cron, s.active) for s in found.schedules] == [("0 3 * * *", False)]
    with get_client(sync_client=True) as client:
        client.update_deployment_schedule(found.id, found.schedules[0].id, active=True)
        again = next(d for d in deployments(["mini-snapshots"]) if d.full_name == "reprocess/mini-snapshots")
        kept = client.read_deployment(again.apply()).schedules
    assert [(s.schedule.cron, s.active) for s in kept] == [("0 3 * * *", True)]


def test_installing_twice_makes_one_automation_and_leaves_it_alone() -> None:
    install()
    before = installed()
    install()
    assert len(before) == 1
    assert installed() == before  # an update would forget which flows it waits for


def installed() -> list[tuple[str, str]]:
    """Id and time of change of the automation, as often as it is there."""
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/automations/filter").json()
    return [(one["id"], one["updated"]) for one in found if one["name"] == CRASHED]


def test_without_a_server_that_stays_there_is_a_clear_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.deployments"]
    environment = {"PATH": "/usr/bin:/bin", "TOKENMILL_HOME": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: PREFECT_API_URL is not set")
