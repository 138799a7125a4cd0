"""The error tree: as drawn, and whole after a trip between processes."""

import copy
import errno
import pickle
import re
import socket

import aiohttp
import httpx
import pytest
import requests
from botocore.exceptions import EndpointConnectionError
from fsspec.exceptions import FSTimeoutError

from pipeline_config import errors
from pipeline_config.errors import TokenmillError, may_pass

ERRORS = [
    found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, Exception)
]


def drawn_tree() -> dict[str, str]:
    """Name to name of the parent, as the module's docstring draws it."""
    parents, path = {"TokenmillError": "Exception"}, {0: "TokenmillError"}
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ([│ ]*)[├└]── (\w+)  +\S", line)
        if match:
            depth = len(match.group(1)) // 4 + 1
            parents[match.group(2)] = path[depth - 1]
            path[depth] = match.group(2)
    return parents


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    assert drawn_tree() == {error.__name__: error.__bases__[0].__name__ for error in ERRORS}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_survives_pickle_and_copy(error):
    for twin in (pickle.loads(pickle.dumps(error("file x: broken"))), copy.copy(error("file x: broken"))):
        assert type(twin) is error
        assert str(twin) == "file x: broken"
        assert isinstance(twin, TokenmillError)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_has_one_parent_and_a_docstring_of_its_own(error):
    assert len(error.__bases__) == 1
    assert "__doc__" in vars(error)
    assert error.__doc__


class HttpError(Exception):
    """Any client's error with the status of an answer."""

    def __init__(self, status: int):
        super().__init__(f"status {status}")
        self.status = status


def after(error: Exception, cause: Exception) -> Exception:
    """An error that was raised from another."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        pytest.param(errors.UnreachableError("x"), True, id="ours"),
        pytest.param(ConnectionResetError("x"), True, id="connection reset"),
        pytest.param(TimeoutError("x"), True, id="timeout"),
        pytest.param(OSError(errno.EBUSY, "slow down"), True, id="S3 is busy"),
        pytest.param(OSError(errno.ENETUNREACH, "x"), True, id="network away"),
        pytest.param(socket.gaierror(-3, "x"), True, id="no name server"),
        pytest.param(aiohttp.ServerDisconnectedError(), True, id="aiohttp"),
        pytest.param(EndpointConnectionError(endpoint_url="http://x"), True, id="botocore"),
        pytest.param(FSTimeoutError(), True, id="fsspec"),
        pytest.param(httpx.ConnectError("x"), True, id="httpx"),
        pytest.param(requests.exceptions.ReadTimeout(), True, id="requests"),
        pytest.param(HttpError(503), True, id="status 503"),
        pytest.param(HttpError(429), True, id="status 429"),
        pytest.param(after(ValueError("x"), TimeoutError()), True, id="cause"),
        pytest.param(
            after(ValueError("x"), after(KeyError("y"), HttpError(502))), True, id="cause of the cause"
        ),
        pytest.param(HttpError(404), False, id="status 404"),
        pytest.param(HttpError(403), False, id="status 403"),
        pytest.param(FileNotFoundError(errno.ENOENT, "x"), False, id="no file"),
        pytest.param(OSError(errno.ENOSPC, "x"), False, id="full disk"),
        pytest.param(errors.LedgerError("x"), False, id="books"),
        pytest.param(errors.LimitError("x"), False, id="limit"),
        pytest.param(errors.SettingsError("connection timeout"), False, id="words do not count"),
        pytest.param(None, False, id="no error"),
    ],
)
def test_whether_another_try_may_help(error: Exception | None, passes: bool):
    assert may_pass(error) is passes
