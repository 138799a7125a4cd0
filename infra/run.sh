#!/usr/bin/env bash
# The main path: sets up, then trains a small language model from web pages and says where to look.
#   bash infra/run.sh [PRESET [section.field=value ...]]      default preset: sample
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set_up
[ $# -gt 0 ] || set -- sample
say "running the main path on preset $1 (data folder: ${TOKENMILL_HOME:-$PWD/.tokenmill})"
exec "$venv/bin/python" -m flows.train_language_model "$@"
