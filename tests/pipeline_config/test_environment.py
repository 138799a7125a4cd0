"""The process environment: one data folder, no telemetry, and a user's choice that is left alone."""

import os
from pathlib import Path

import pytest

from pipeline_config import environment
from pipeline_config.environment import artifact_root, check_home, home, prepare, tracking_uri
from pipeline_config.errors import StoreError


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    """A process environment that ends with the test, without anything of ours in it but the folder."""
    monkeypatch.setattr(os, "environ", {"TOKENMILL_HOME": str(tmp_path / "data")})


def test_home_is_the_folder_that_the_user_names(tmp_path):
    assert home() == tmp_path / "data"


@pytest.mark.parametrize("environ", [{}, {"TOKENMILL_HOME": ""}], ids=["unset", "empty"])
def test_home_is_a_folder_here_by_default(monkeypatch, tmp_path, environ):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", environ)
    assert home() == tmp_path / ".tokenmill"


def test_prepare_keeps_the_files_of_all_libraries_below_home():
    prepare()
    assert home().is_dir()
    for name in ("PREFECT_HOME", "HF_HOME"):
        assert Path(os.environ[name]).is_relative_to(home())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("DO_NOT_TRACK", "1", id="everyone"),
        pytest.param("PREFECT_SERVER_ANALYTICS_ENABLED", "false", id="prefect"),
        pytest.param("MLFLOW_DISABLE_TELEMETRY", "true", id="mlflow"),
        pytest.param("HF_HUB_DISABLE_TELEMETRY", "1", id="hugging_face"),
        pytest.param("RAY_USAGE_STATS_ENABLED", "0", id="ray"),
    ],
)
def test_prepare_switches_telemetry_off(name, value):
    prepare()
    assert os.environ[name] == value


def test_prepare_leaves_what_the_user_has_set():
    os.environ |= {"HF_HOME": "/elsewhere", "DO_NOT_TRACK": "0"}
    prepare()
    assert (os.environ["HF_HOME"], os.environ["DO_NOT_TRACK"]) == ("/elsewhere", "0")


def test_a_home_that_can_be_written_passes_and_stays_empty():
    check_home()
    assert list(home().iterdir()) == []


def test_a_home_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    prepare()
    with pytest.raises(StoreError, match="cannot be written") as caught:
        check_home()
    assert str(tmp_path / "data") in str(caught.value)
    assert "TOKENMILL_HOME" in str(caught.value)


def test_a_disk_without_room_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "NEEDED_BYTES", 2**62)
    with pytest.raises(StoreError, match=r"full: \d+ MB free") as caught:
        check_home()
    assert str(tmp_path / "data") in str(caught.value)


def test_records_go_to_sqlite_below_home_unless_the_user_names_a_server():
    assert tracking_uri() == f"sqlite:///{home()}/mlflow/mlflow.db"
    assert artifact_root().is_relative_to(home())
    os.environ["MLFLOW_TRACKING_URI"] = "http://records.example:5000"
    assert tracking_uri() == "http://records.example:5000"
