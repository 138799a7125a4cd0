"""The sample crawl's key: what is installed, whatever was imported so far."""

import subprocess
import sys

CODE = "{}\nfrom tasks.sample_crawl import installed_packages\nprint(installed_packages())"


def test_what_was_imported_before_does_not_count():
    codes = [CODE.format(line) for line in ("", "import setuptools, pkgutil", "import mlflow, torch, ray")]
    found = {subprocess.run([sys.executable, "-c", c], capture_output=True, check=True).stdout for c in codes}
    assert len(found) == 1
    assert b"pyarrow==" in found.pop()
