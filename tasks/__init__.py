"""One module per stage: the cached Prefect task, its inputs and outputs, its counts.

`tasks/X.py`, `tasks/steps/X.py` (the pure per-document functions) and `tests/tasks/test_X.py` belong
together. What all stages share is in `stage.py`.
"""

from pipeline_config.environment import prepare

prepare()
