"""Deployments with forms: `python -m flows.serve` offers the audits and the takedown in Prefect's UI.

It serves until it is stopped, against the Prefect server that `PREFECT_API_URL` names.
"""

import os
import sys

from prefect import serve
from prefect.deployments.runner import EntrypointType, RunnerDeployment

from flows import audit, reprocess
from flows.command_line import fail
from pipeline_config.errors import SettingsError

FLOWS = (
    audit.trace,
    audit.why,
    audit.compare,
    audit.verify,
    audit.what_if,
    audit.flush,
    reprocess.takedown,
)


def deployments() -> list[RunnerDeployment]:
    """A deployment of each flow, under the flow's name."""
    return [
        flow.to_deployment(
            name="tokenmill", description=flow.description, entrypoint_type=EntrypointType.MODULE_PATH
        )
        for flow in FLOWS
    ]


def main() -> None:
    """The command."""
    if not os.environ.get("PREFECT_API_URL"):
        sys.exit(
            fail(
                SettingsError(
                    "PREFECT_API_URL is not set: start `python -m prefect server start`, and set it to that "
                    "server's address, such as http://127.0.0.1:4200/api"
                ),
                2,
            )
        )
    serve(*deployments())


if __name__ == "__main__":
    main()
