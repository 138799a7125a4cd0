"""What runs after what. Read `train_language_model.py` first."""

import sys

from pipeline_config.environment import prepare

prepare()

OTHERS = {"flows.prefect_server", "flows.mlflow_server", "flows.serve", "flows.deployments"}

if sys.argv[0] == "-m" and not OTHERS & set(sys.orig_argv):
    # `python -m flows.X`: the server gets ready while this process still imports.
    from flows import prefect_server

    prefect_server.start()
