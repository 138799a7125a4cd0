#!/usr/bin/env bash
# The checks: sets up, then lint, import contracts and tests. Arguments go to pytest.
# Environment: TOKENMILL_TEST_PROCESSES (processes that share the test files, default 2; 0: this one alone).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
set_up
set_up_browser
say "lint"
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
say "import contracts"
"$venv/bin/lint-imports"
say "tests"
# In order: the long ones come first.
exec "$venv/bin/python" -m pytest -n "${TOKENMILL_TEST_PROCESSES:-2}" --dist loadfile --no-loadscope-reorder "$@"
