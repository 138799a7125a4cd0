"""Processes that do not outlive the one that started them.

    python -m pipeline_config.processes MODULE [ARGUMENT ...]

runs a module as `python -m` does, in a process that dies with its parent.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # Source: linux/prctl.h


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies (Linux; elsewhere does nothing)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died while we asked
        os.kill(os.getpid(), signal.SIGKILL)


def bound_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a process that dies with its parent."""
    return [sys.executable, "-m", "pipeline_config.processes", module, *arguments]


if __name__ == "__main__":
    die_with_parent()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
