"""Where the worker processes of document stages run: on this machine, or as tasks of a cluster.

There is a section for each kind, and `kind` says which one counts. A union of kinds would be shown as raw
JSON in the first version of Prefect's form; so every field has its box in both versions, a preset can
describe a cluster once, and `execution.executor.kind=slurm` is all that a run on it needs to say.
"""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from pipeline_config.section import Count, Section

Word = Annotated[str, Field(pattern=r"^[^\s]*$", max_length=200)]
SbatchOption = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*(=[^\r\n]+)?$", max_length=500)]

OUR_SBATCH_OPTIONS = frozenset(
    {"array", "cpus-per-task", "dependency", "error", "export", "job-name", "mem-per-cpu", "output", "time"}
)


class SlurmSettings(Section):
    """Tasks of a Slurm job array (kind `slurm`). The flow runs where `sbatch` and `squeue` are."""

    partition: Word = ""
    """Partition that the jobs are sent to. Empty: the cluster's default."""
    qos: Word = ""
    """Quality of service. Empty: the cluster's default."""
    account: Word = ""
    """Account that the time is charged to. Empty: your default."""
    time_limit_minutes: int = Field(default=1440, ge=1, le=525_600)
    """Minutes that a task may take; Slurm then ends it, and the stage fails."""
    cpus_per_task: int = Field(default=1, ge=1, le=1024)
    """Cores of a task. A task uses one; more of them are a way to get more memory."""
    memory_per_cpu_bytes: int = Field(default=4_000_000_000, ge=100_000_000)
    """Memory for each core, in bytes."""
    shards_per_task: Count = 1
    """Shards that a task works through, one after the other. More of them make fewer, longer tasks."""
    max_array_tasks: Count = 1001
    """Tasks that the cluster takes in one array (its `MaxArraySize`); what is more follows in further
    arrays. How many of them run at the same time is `execution.workers`."""
    environment_command: str = Field(default="", max_length=2000)
    """Shell command that comes first in a task, such as `source /shared/venv/bin/activate`.
    Empty: the Python that runs the flow is found under the same path on the nodes."""
    sbatch_options: tuple[SbatchOption, ...] = ()
    """Further options of `sbatch`, without dashes: `constraint=cpu`, `nodelist=n[1-4]`, `exclusive`."""
    poll_seconds: float = Field(default=10.0, ge=0.1, le=600)
    """Seconds between two looks at the queue."""

    @field_validator("sbatch_options")
    @classmethod
    def _leave_ours_alone(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        taken = sorted({option.partition("=")[0] for option in options} & OUR_SBATCH_OPTIONS)
        if taken:
            raise ValueError(f"{', '.join(taken)}: set by the executor itself, from the other settings")
        return options


class RaySettings(Section):
    """Tasks on a Ray cluster (kind `ray`; needs the extra `ray` of Tokenmill)."""

    address: str = Field(
        default="auto", pattern=r"^(auto|local|(ray://)?[^\s/]+:[0-9]{1,5})$", max_length=200
    )
    """`HOST:PORT` of the head node, or `auto`: the cluster that `RAY_ADDRESS` names or this machine belongs
    to. `local`, to try it out: one that is started for each stage and listens to this machine only."""
    cpus_per_task: int = Field(default=1, ge=1, le=1024)
    """Cores that Ray reserves for a task. A task uses one."""
    memory_per_task_bytes: int = Field(default=2_000_000_000, ge=0)
    """Memory that Ray reserves for a task, in bytes; 0 reserves none. It is no limit."""
    shards_per_task: Count = 1
    """Shards that a task works through, one after the other. More of them make fewer, longer tasks."""
    max_retries: int = Field(default=3, ge=0, le=100)
    """Times that a task is started again after its process or its node was lost."""
    wait_for_node_seconds: int = Field(default=60, ge=0, le=86_400)
    """Seconds to wait for a node that is large enough for a task. Where an autoscaler starts nodes, give
    it time."""


class ExecutorSettings(Section):
    """Where the workers of document stages run. The output is the same, byte for byte.

    On a cluster all nodes need the same installation of Tokenmill (each task checks it), and the data folder
    (`TOKENMILL_HOME`), the sources and the folder that the flow was started in under the same path, on a
    shared file system. Credentials for sources must be in the environment of the nodes.
    """

    kind: Literal["local", "slurm", "ray"] = "local"
    """`local`: processes on this machine. `slurm`, `ray`: tasks on a cluster, as the section of that name
    says."""
    slurm: SlurmSettings = SlurmSettings()
    """What `slurm` needs to know."""
    ray: RaySettings = RaySettings()
    """What `ray` needs to know."""
