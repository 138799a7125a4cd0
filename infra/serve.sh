#!/usr/bin/env bash
# Prefect, MLflow and the deployments, for the UI: sets up, then serves until Ctrl-C.
#   bash infra/serve.sh [--prefect-port N] [--mlflow-port N] [--preset FILE ...] [--limit N]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set_up
say "serving (data folder: ${TOKENMILL_HOME:-$PWD/.tokenmill})"
exec "$venv/bin/python" -m flows.serve "$@"
