"""Groups on several hosts, started by torchrun and as in the examples for other launchers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.children import started
from support.environments import clean_environ, program
from support.networks import Host, host_names, hosts

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
BIN = Path(sys.executable).parent
SECONDS = 240
PORT = "29500"

#: The first attempt fails before the group is complete, the second one after that.
RESTARTED = program(
    """
    import os, signal, sys
    from pathlib import Path
    import torch
    from torch.distributed import rpc

    def first_time(what):
        try:
            Path(sys.argv[1], what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == size - 1 and first_time("before"):
        raise SystemExit("this worker fails before init_rpc")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    if rank == 0 and first_time("after"):
        os.kill(os.getpid(), signal.SIGKILL)
    results = [
        rpc.rpc_sync(f"worker{peer}", torch.add, args=(torch.ones(1), peer)).item()
        for peer in range(size)
    ]
    Path(sys.argv[1], f"result{rank}").write_text(str(results))
    rpc.shutdown()
    """
)


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[list[Host]]:
    with hosts(3) as made:
        yield made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file with a secret."""
    path = tmp_path / "rpc.secret"
    command = [str(BIN / "rpc-backends"), "secret", "--out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def run_together(
    commands: list[tuple[list[str], Mapping[str, str]]], folder: Path
) -> list[tuple[int, str]]:
    """Run commands at the same time; return their exit statuses and outputs."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                started(
                    command,
                    cwd=folder,
                    env=clean_environ({"PATH": f"{BIN}:{os.environ['PATH']}", **variables}),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for command, variables in commands
        ]
        outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
        return [(p.returncode, output) for p, output in zip(processes, outputs, strict=True)]


# --- torchrun ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backend",
    [
        "ZEROMQ",
        pytest.param("UCX", marks=pytest.mark.thorough),
        pytest.param("TENSORPIPE", marks=pytest.mark.thorough),
    ],
)
def test_a_job_that_torchrun_restarts_forms_its_group(
    three_hosts: list[Host], tmp_path: Path, secret: Path, backend: str
) -> None:
    """The store of the failed attempts stays, with what their workers wrote."""
    (tmp_path / "program.py").write_text(RESTARTED)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    variables = {
        "RPC_BACKENDS_DEFAULT": backend,
        "RPC_BACKENDS_ZEROMQ_SECRET_FILE": str(secret),
        "RPC_BACKENDS_UCX_SECRET_FILE": str(secret),
        "RPC_BACKENDS_UCX_TRUSTED_NETWORK": "1",
        "RPC_BACKENDS_UCX_TRANSPORTS": "tcp",
        "TP_SOCKET_IFNAME": "eth0",
        "TMPDIR": str(temporary),
        # Sometimes torch makes this folder, by default in TMPDIR.
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "XDG_RUNTIME_DIR": "",
    }
    where = ["--nnodes=2", "--nproc-per-node=1", f"--master-port={PORT}", "--max-restarts=4"]
    where.append(f"--master-addr={three_hosts[0].four}")
    words = [str(BIN / "torchrun"), *where]

    done = run_together(
        [
            (
                host.command(*words, f"--node-rank={node}", "program.py", str(tmp_path)),
                variables,
            )
            for node, host in enumerate(three_hosts[:2])
        ],
        tmp_path,
    )

    assert [status for status, _ in done] == [0, 0], done
    results = [(tmp_path / f"result{rank}").read_text() for rank in range(2)]
    assert results == ["[1.0, 2.0]"] * 2
    assert [entry.name for entry in temporary.iterdir() if "torchelastic" not in entry.name] == []


# --- examples/deploy ---------------------------------------------------------------------------------


def compose_workers() -> dict[str, dict[str, str]]:
    """Return the environment of each container of the compose file, by its host name."""
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    assert compose["secrets"] == {"rpc-secret": {"file": "./rpc.secret"}}
    for service in compose["services"].values():
        assert service["secrets"] == ["rpc-secret"]
    return {name: service["environment"] for name, service in compose["services"].items()}


def kubernetes_workers() -> dict[str, dict[str, str]]:
    """Return the environment of each pod of the Job, by its host name."""
    service, job = yaml.safe_load_all((DEPLOY / "kubernetes" / "train.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert volume["secret"]["secretName"] == "rpc-train"
    assert volume["secret"]["defaultMode"] & 0o077 == 0
    # Kubernetes gives pods this label and these names.
    job_name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job_name}
    assert pod["subdomain"] == service["metadata"]["name"]
    environments = {}
    for index in range(job["spec"]["completions"]):
        environment = {
            variable["name"]: variable.get("value", str(index)) for variable in container["env"]
        }
        key = Path(environment["RPC_BACKENDS_ZEROMQ_SECRET_FILE"]).relative_to(mount["mountPath"])
        assert f"--from-file={key}=" in (DEPLOY / "README.md").read_text()
        environments[f"{job_name}-{index}.{pod['subdomain']}"] = environment
    return environments


@pytest.mark.parametrize(
    "workers", [compose_workers, pytest.param(kubernetes_workers, marks=pytest.mark.thorough)]
)
def test_the_workers_of_a_deployment_train(
    three_hosts: list[Host], secret: Path, workers: Any, tmp_path: Path
) -> None:
    """The same command with the environment of the file, on hosts with the names of the containers."""
    environments: dict[str, dict[str, str]] = workers()
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert dockerfile.endswith(
        'COPY examples/deploy/train.py /train.py\nCMD ["python", "/train.py"]\n'
    )
    with host_names(dict(zip(environments, three_hosts, strict=True)), three_hosts):
        done = run_together(
            [
                (
                    host.command("python", str(DEPLOY / "train.py")),
                    {**environment, "RPC_BACKENDS_ZEROMQ_SECRET_FILE": str(secret)},
                )
                for environment, host in zip(environments.values(), three_hosts, strict=True)
            ],
            tmp_path,
        )

    assert [status for status, _ in done] == [0, 0, 0], done
    assert "2 trainers, 50 steps, loss 0.0" in done[0][1]


def test_the_job_of_kubernetes_has_the_variables_of_the_compose_file() -> None:
    pods, containers = kubernetes_workers(), compose_workers()

    assert [set(pod) for pod in pods.values()] == [set(each) for each in containers.values()]
    assert [pod["MASTER_ADDR"] for pod in pods.values()] == [next(iter(pods))] * len(pods)


def test_the_slurm_script_trains_on_two_nodes(three_hosts: list[Host], tmp_path: Path) -> None:
    """Stand-ins for `srun` and `scontrol` do what Slurm documents: a task gets SLURM_PROCID."""
    nodes = three_hosts[:2]
    tasks = [
        f'SLURM_PROCID={rank} {shlex.join(nodes[rank // 2].command())} "$@" & pids="$pids $!"'
        for rank in range(4)
    ]
    make_program(
        tmp_path / "srun",
        '[ "$1" = --kill-on-bad-exit=1 ] || exit 2; shift',
        *tasks,
        "for pid in $pids; do wait $pid || exit 1; done",
    )
    make_program(tmp_path / "scontrol", f"printf '{nodes[0].four}\\n{nodes[1].four}\\n'")
    script = DEPLOY / "slurm" / "train.sbatch"
    variables = {
        "PATH": f"{tmp_path}:{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NTASKS": "4",
    }

    ((status, output),) = run_together([(["bash", str(script)], variables)], DEPLOY)

    assert status == 0, output
    assert "3 trainers, 50 steps, loss 0.0" in output
    assert [path.name for path in tmp_path.glob(".rpc-secret*")] == []


def make_program(path: Path, *lines: str) -> None:
    """Write an executable shell script."""
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
