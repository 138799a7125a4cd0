"""What runs after what. Read `train_language_model.py` first."""

from pipeline_config.environment import prepare

prepare()
