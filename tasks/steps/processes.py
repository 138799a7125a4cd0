"""Processes that do not outlive the one that started them."""

import ctypes
import os
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
