"""The error tree: as drawn, and whole after a trip between processes."""

import copy
import pickle
import re

import pytest

from pipeline_config import errors
from pipeline_config.errors import TokenmillError

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
