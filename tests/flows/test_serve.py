"""Audits and takedown as deployments with forms."""

import subprocess
import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client

from flows.serve import FLOWS, deployments

FORMS = {
    "audit-trace": ["what", "kind", "run", "most"],
    "audit-why": ["stage", "reason", "sample", "seed", "run"],
    "audit-compare": ["a", "b"],
    "audit-verify": ["run"],
    "audit-what-if": ["overrides", "sample", "seed", "run"],
    "audit-flush": [],
    "takedown": ["takedown_list", "run", "retrain"],
}


def test_every_audit_and_the_takedown_is_a_deployment() -> None:
    assert [flow.name for flow in FLOWS] == list(FORMS)


def test_the_server_gets_a_form_with_a_text_for_each_field() -> None:
    with get_client(sync_client=True) as client:
        for deployment in deployments():
            found = client.read_deployment(deployment.apply())
            fields = found.parameter_openapi_schema["properties"]
            assert list(fields) == FORMS[deployment.flow_name]
            assert all(field.get("description") for field in fields.values())
            assert found.description
            assert found.entrypoint.startswith("flows.")  # a module: it runs from any folder


@pytest.mark.parametrize(
    ("field", "expected"), [("kind", ["url", "url_prefix", "domain", "id"])], ids=["a select for the kind"]
)
def test_choices_are_selects(field: str, expected: list[str]) -> None:
    schema = deployments()[0]._parameter_openapi_schema.model_dump()["properties"][field]
    choices = schema["anyOf"][0]["enum"]
    assert choices == expected


def test_without_a_server_that_stays_there_is_a_clear_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.serve"]
    environment = {"PATH": "/usr/bin:/bin", "TOKENMILL_HOME": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: PREFECT_API_URL is not set")
