"""Processes that do not outlive the one that started them.

    python -m pipeline_config.processes PARENT MODULE [ARGUMENT ...]

runs a module as `python -m` does, in a process that dies with its parent, whose process number is PARENT.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1  # Source: linux/prctl.h


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies (Linux; elsewhere does nothing).

    Args:
        parent: the parent's process number, which it said itself: it may be dead by now, and this process
            somebody else's child.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def bound_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a process that dies with this one."""
    return [sys.executable, "-m", "pipeline_config.processes", str(os.getpid()), module, *arguments]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
