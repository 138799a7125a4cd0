"""Dockerfile, compose.yaml, Kubernetes manifests and prefect.yaml: all that needs no engine to check."""

import asyncio
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect import Flow
from prefect.cli.deploy._models import PrefectYamlModel
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings

INFRA = Path(__file__).parents[2] / "infra"
KUBERNETES = INFRA / "kubernetes"
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text("utf-8"))
PREFECT = yaml.safe_load((INFRA / "prefect.yaml").read_text("utf-8"))
SERVICES = list(COMPOSE["services"])
OVERLAYS = ["cpu", "gpu"]
SECRET = re.compile(r"PASSWORD|SECRET|AUTH_STRING|ACCESS_KEY|FORM_KEY")
TEMPLATES = sorted((INFRA / "work_pools").glob("*.json")) + sorted(KUBERNETES.glob("base/work_pools/*.json"))


def run(*command: str) -> str:
    """What a program prints; its complaint is the failure."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(name: str) -> str:
    """The path of a program of the environment, or of the machine."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    return found or pytest.skip(f"needs {name}")


def test_the_dockerfile_passes_its_linter():
    run(tool("hadolint"), str(INFRA / "Dockerfile"))


def test_the_images_run_as_a_user_without_rights_and_pin_their_base():
    text = (INFRA / "Dockerfile").read_text("utf-8")
    images = [
        stage for stage in re.split(r"(?m)^FROM ", text) if re.match(r"base AS (servers|worker)", stage)
    ]
    assert len(images) == 2
    assert all("\nUSER 10001:10001\n" in image for image in images)
    assert ":latest" not in text


def test_the_build_sees_only_what_the_images_are_made_of():
    lines = (INFRA.parent / ".dockerignore").read_text("utf-8").split()
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", (INFRA / "Dockerfile").read_text("utf-8"))
    assert {f"!{name}" for names in copied for name in names.split()} == {x for x in lines if x[0] == "!"}
    assert {"*", "**/.env"} <= set(lines)


def test_compose_follows_the_specification():
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(INFRA / "compose.yaml"))


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_hardened_and_pinned(name: str):
    service = COMPOSE["services"][name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] in ("unless-stopped", "on-failure")
    assert re.search(r":[\w.${}:-]+$", service["image"])
    assert not service["image"].endswith(":latest")
    once = service["restart"] == "on-failure"
    assert once or "test" in service["healthcheck"]


def test_compose_publishes_both_servers_to_this_machine_only():
    ports = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert set(ports) == {"prefect", "mlflow"}
    assert all(port.startswith("127.0.0.1:") for published in ports.values() for port in published)


def test_databases_and_object_store_have_no_way_out():
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert {name for name in SERVICES if COMPOSE["services"][name]["networks"] == ["inside"]} == {
        "postgres",
        "storage",
        "buckets",
    }


def test_every_secret_of_compose_is_required_and_in_the_example_which_holds_none():
    example = (INFRA / ".env.example").read_text("utf-8")
    names = set(re.findall(r"(?m)^(\w+)=$", example))
    used: set[str] = set()
    for service in COMPOSE["services"].values():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable):
                found = re.search(r"\$\{(\w+):\?set it in infra/\.env\}$", str(value))
                assert found, variable
                used.add(found[1])
    assert names == used
    assert re.findall(r"(?m)^\w+=.+$", example) == []


def rendered(overlay: str) -> list[dict[str, Any]]:
    """The objects of an overlay."""
    folder = str(KUBERNETES / "overlays" / overlay)
    command = [tool("kubectl"), "kustomize"] if shutil.which("kubectl") else [tool("kustomize"), "build"]
    return list(yaml.safe_load_all(run(*command, folder)))


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pods that an overlay starts, by the name of what starts them."""
    return {
        o["metadata"]["name"]: o["spec"]["template"]["spec"]
        for o in objects
        if "template" in o.get("spec", {})
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_follow_the_schemas_of_kubernetes(overlay: str):
    validator = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (extra `test`)")
    for item in rendered(overlay):
        validator.validate(item, validator.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_hardened_pinned_and_limited(overlay: str):
    for name, pod in pods(rendered(overlay)).items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["enableServiceLinks"] is False, name  # MLFLOW_PORT would be an address, not a port
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            check_hardened(container)


def check_hardened(container: dict[str, Any]) -> None:
    """No privileges, a pinned image, a limit of memory."""
    context = container["securityContext"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert re.search(r":[\w.-]+$", container["image"])
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_are_referred_to_and_never_in_a_manifest(overlay: str):
    objects = rendered(overlay)
    assert not [item for item in objects if item["kind"] == "Secret"]
    for pod in pods(objects).values():
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            for variable in container.get("env", []):
                if SECRET.search(variable["name"]) and "_SECRET_" not in variable["name"]:
                    assert "secretKeyRef" in variable["valueFrom"], variable["name"]
    settings = next(item for item in objects if item["metadata"]["name"] == "settings")
    assert not [name for name in settings["data"] if SECRET.search(name)]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nobody_talks_to_anybody_unless_a_policy_says_so(overlay: str):
    policies = {o["metadata"]["name"]: o["spec"] for o in rendered(overlay) if o["kind"] == "NetworkPolicy"}
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert policies["database"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "postgres"}
    outside = policies["names-and-outside"]["egress"][1]["to"][0]["ipBlock"]
    assert outside["except"] == ["169.254.0.0/16"]  # where clouds hand out credentials


@pytest.mark.parametrize(("overlay", "pool"), [("cpu", "kubernetes"), ("gpu", "kubernetes-gpu")])
def test_training_goes_to_the_pool_of_the_overlay(overlay: str, pool: str):
    objects = rendered(overlay)
    settings = next(item for item in objects if item["metadata"]["name"] == "settings")
    assert settings["data"]["TRAINING_POOL"] == pool
    commands = [c.get("args", []) for pod in pods(objects).values() for c in pod["containers"]]
    started = [command for command in commands if "worker" in command]
    assert {args[args.index("--pool") + 1] for args in started} == {"kubernetes", pool}


def test_prefect_yaml_is_one_that_prefect_reads_whole():
    model = PrefectYamlModel.model_validate(PREFECT)
    known = set(PrefectYamlModel.model_fields) - {"prefect_version"} | {"prefect-version", "definitions"}
    assert set(PREFECT) <= known
    assert model.pull == []
    assert all(deployment.work_pool and deployment.entrypoint for deployment in model.deployments)


@pytest.mark.parametrize("pool", ["process", "docker", "kubernetes"])
def test_every_flow_has_a_deployment_on_every_kind_of_pool(pool: str):
    found = {d["entrypoint"]: d["work_pool"]["name"] for d in PREFECT["deployments"] if d["name"] == pool}
    names = [d["entrypoint"] for d in PREFECT["deployments"] if d["name"] == "process"]
    assert list(found) == names
    training = {name for name, where in found.items() if where == f"{pool}-gpu"}
    assert training == {"flows.train_language_model.train_language_model", "flows.pretrain.pretrain"}
    assert set(found.values()) == {pool, f"{pool}-gpu"}


@pytest.mark.parametrize("entrypoint", sorted({d["entrypoint"] for d in PREFECT["deployments"]}))
def test_an_entry_point_is_a_flow_of_a_module(entrypoint: str):
    module, _, name = entrypoint.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), Flow)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_base_job_template_uses_all_its_variables_and_no_others(path: Path):
    template = json.loads(path.read_text("utf-8"))
    used = set(re.findall(r"{{ ([\w.]+) }}", json.dumps(template["job_configuration"])))
    assert used | {"env"} == set(template["variables"]["properties"])


@pytest.mark.parametrize(("pool", "worker"), [("kubernetes", "worker"), ("kubernetes-gpu", "gpu-worker")])
def test_a_job_of_kubernetes_is_valid_and_hardened_and_holds_no_secret(pool, worker, monkeypatch):
    deployment = pods(rendered("gpu"))[worker]["containers"][0]
    for variable in deployment["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    with temporary_settings({PREFECT_API_AUTH_STRING: "tokenmill:hush"}):
        job = kubernetes_job(pool, monkeypatch)
    assert "hush" not in json.dumps(job)
    spec = job["spec"]["template"]["spec"]
    container = spec["containers"][0]
    check_hardened(container)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert container["resources"]["limits"].get("nvidia.com/gpu") == (1 if pool.endswith("gpu") else None)
    refer = [source["secretRef"]["name"] for source in container["envFrom"] if "secretRef" in source]
    assert refer == ["mlflow", "storage"]
    account = next(entry for entry in container["env"] if entry["name"] == "PREFECT_API_AUTH_STRING")
    assert account["valueFrom"]["secretKeyRef"] == {"name": "prefect", "key": "PREFECT_API_AUTH_STRING"}
    validator = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate (extra `test`)")
    for misplaced in ("parallelism", "completions"):  # Prefect insists on them here; Kubernetes ignores them
        spec.pop(misplaced)
    validator.validate(job, validator.latest_version(), strict=True)


def kubernetes_job(pool: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The Job that a worker would make for a flow run."""
    code = pytest.importorskip("prefect_kubernetes.worker", reason="needs prefect-kubernetes (extra `test`)")
    template = json.loads((KUBERNETES / "base" / "work_pools" / f"{pool}.json").read_text("utf-8"))
    made: list[dict[str, Any]] = []

    class Api:
        def __init__(self, client: None): ...

        async def create_namespaced_job(self, namespace: str, manifest: dict[str, Any]) -> None:
            assert namespace == "tokenmill"
            made.append(manifest)

    async def make() -> None:
        values = {"env": {"EXTRA": "1"}}
        job = await code.KubernetesWorkerJobConfiguration.from_template_and_values(template, values)
        job.prepare_for_flow_run(FlowRun(name="a-run", flow_id=uuid4()))
        await code.KubernetesWorker(work_pool_name=pool)._create_job(job, None)

    monkeypatch.setattr(code, "BatchV1Api", Api)
    asyncio.run(make())
    assert {"name": "EXTRA", "value": "1"} in made[0]["spec"]["template"]["spec"]["containers"][0]["env"]
    return made[0]
