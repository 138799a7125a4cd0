"""Runs a pickled DataTrove executor: `python -m tasks.steps.run_executor FILE`.

A process of its own keeps DataTrove's workers small (they import this module, not the flow's) and makes the
whole tree of them killable. What went wrong is left beside the file as FILE.error, for the parent to raise.
"""

import json
import pickle
import sys
import traceback
from pathlib import Path

from pipeline_config import errors
from tasks.steps.processes import die_with_parent


def main(path: Path) -> int:
    """Runs the executor; the exit code is 0, or 1 with the cause in FILE.error."""
    die_with_parent()
    try:
        executor = pickle.loads(path.read_bytes())
        executor.run()
    except errors.TokenmillError as error:
        cause = {"type": type(error).__name__, "message": str(error)}
    except OSError as error:
        cause = {"type": "OSError", "errno": error.errno, "message": str(error)}
    except BaseException as error:
        cause = {"type": type(error).__name__, "message": "".join(traceback.format_exception(error))[-4000:]}
    else:
        return 0
    path.with_suffix(".error").write_text(json.dumps(cause), "utf-8")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
