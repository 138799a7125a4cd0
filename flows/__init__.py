"""What runs after what. Read `train_language_model.py` first."""

import sys

from pipeline_config.environment import prepare

prepare()

if sys.argv[0] == "-m" and "flows.prefect_server" not in sys.orig_argv:
    # `python -m flows.X`: the server gets ready while this process still imports.
    from flows import prefect_server

    prefect_server.start()
