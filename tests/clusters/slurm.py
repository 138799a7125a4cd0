"""A stand-in for Slurm's commands that really runs job arrays here: `slurm.py COMMAND [ARGUMENT ...]`.

Its state is a folder, `SLURM_STAND_IN`: `<job>/name`, `<job>/script`, and for each element of the array
`<job>/<index>.state` and `<job>/<index>.pid`. What it should do wrong is said by files there: `refuse`
(sbatch), `silent` (squeue), `forget` (squeue knows no job), `verdict` (the state of what failed).
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["SLURM_STAND_IN"])
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY", "TIMEOUT")


def option(text: str, name: str) -> str:
    found = re.search(rf"--{name}=(\S+)", text)
    return found.group(1) if found else ""


def sbatch(*arguments: str) -> None:
    script = Path(arguments[-1]).read_text()
    if (ROOT / "refuse").exists():
        sys.exit(f"sbatch: error: {(ROOT / 'refuse').read_text()}")
    number = 1 + len(list(ROOT.glob("[0-9]*")))
    folder = ROOT / str(number)
    folder.mkdir()
    (folder / "script").write_text(script)
    (folder / "arguments").write_text(" ".join(arguments))
    (folder / "name").write_text(option(script, "job-name"))
    last = int(re.search(r"--array=0-(\d+)", script).group(1))
    for index in range(last + 1):
        (folder / f"{index}.state").write_text("PENDING")
    subprocess.Popen(
        [sys.executable, __file__, "manage", str(number)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(f"Submitted batch job {number}")


def manage(number: str) -> None:
    """Runs the elements of an array, as many at once as it says."""
    folder = ROOT / number
    script, arguments = (folder / "script").read_text(), (folder / "arguments").read_text()
    while (before := option(arguments, "dependency").removeprefix("afterany:")) and active(ROOT / before):
        time.sleep(0.1)
    at_once = int(re.search(r"--array=0-\d+%(\d+)", script).group(1))
    output = option(script, "output").replace("%A", number)
    offset = re.search(r"RUN_OFFSET=(\d+)", arguments).group(1)
    running: dict[int, subprocess.Popen[bytes]] = {}
    while waiting := [state for state in states(folder) if state[1] not in ENDED]:
        for index, state in waiting:
            if state == "PENDING" and len(running) < at_once:
                running[index] = start(folder, index, output.replace("%a", str(index)), offset)
        for index in [index for index, process in running.items() if process.poll() is not None]:
            end(folder, index, running.pop(index).returncode)
        time.sleep(0.05)


def start(folder: Path, index: int, output: str, offset: str) -> subprocess.Popen[bytes]:
    numbers = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_JOB_ID": folder.name, "SLURM_NODELIST": "node1"}
    with open(output, "wb") as file:
        process = subprocess.Popen(
            ["bash", str(folder / "script")],
            env={**os.environ, **numbers, "RUN_OFFSET": offset},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    (folder / f"{index}.pid").write_text(str(process.pid))
    (folder / f"{index}.state").write_text("RUNNING")
    return process


def end(folder: Path, index: int, code: int) -> None:
    verdict = ROOT / "verdict"
    failed = verdict.read_text() if verdict.exists() else "FAILED"
    if (folder / f"{index}.state").read_text() not in ENDED:
        (folder / f"{index}.state").write_text(failed if code else "COMPLETED")


def states(folder: Path) -> list[tuple[int, str]]:
    paths = sorted(folder.glob("*.state"), key=lambda path: int(path.stem))
    return [(int(path.stem), path.read_text()) for path in paths]


def active(folder: Path) -> bool:
    return any(state not in ENDED for _, state in states(folder))


def jobs(arguments: tuple[str, ...]) -> list[Path]:
    name = option(" ".join(arguments), "name")
    return [folder for folder in sorted(ROOT.glob("[0-9]*")) if (folder / "name").read_text() == name]


def squeue(*arguments: str) -> None:
    if (ROOT / "silent").exists():
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    for folder in [] if (ROOT / "forget").exists() else jobs(arguments):
        for index, state in states(folder):
            print(f"{folder.name}|{index}|{state}|None")


def scancel(*arguments: str) -> None:
    for folder in jobs(arguments):
        for index, state in states(folder):
            if state not in ENDED:
                (folder / f"{index}.state").write_text("CANCELLED")
                if (folder / f"{index}.pid").exists():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(int((folder / f"{index}.pid").read_text()), signal.SIGTERM)


def sacct(*arguments: str) -> None:
    for number in option(" ".join(arguments), "jobs").split(","):
        for index, state in states(ROOT / number):
            print(f"{number}_{index}|{state}")


def srun(*arguments: str) -> None:
    command = list(arguments[arguments.index("-n") + 2 :])
    os.execvp(command[0], command)


def scontrol(*arguments: str) -> None:
    print(arguments[-1])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
