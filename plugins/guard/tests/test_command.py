"""The commands `rpc-backends guard`, on a program that runs in processes of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backends_guard import hooks, read
from rpc_backends_guard.check import check
from rpc_backends_processes import free_port
from support.command import run_python

PROGRAM = """
import collections
import os
import sys

import torch
import torch.multiprocessing as mp
from torch.distributed import autograd, rpc
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer


class Batch:
    def __init__(self, values):
        self.values = values


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, batch):
        return self.linear(batch.values)

    def rrefs(self):
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def apply(function, rref, batch):
    return function(rref.local_value(), batch)


def instance(kinds, batch):
    return isinstance(batch, kinds["batch"]) and kinds["errors"] == (ValueError, KeyError)


def main(rank):
    rpc.init_rpc(f"worker{rank}", backend="ZEROMQ", rank=rank, world_size=2)
    if rank == 1:
        model = rpc.remote("worker0", Model)
        batch = Batch(torch.ones(3, 2))
        print(model.rpc_sync().forward(batch).shape)
        with autograd.context() as context:
            loss = rpc.rpc_sync("worker0", apply, [Model.forward, model, batch]).sum()
            autograd.backward(context, [loss])
            DistributedOptimizer(torch.optim.SGD, model.rpc_sync().rrefs(), lr=0.1).step(context)
        print(RemoteModule("worker0/cpu", torch.nn.Linear, args=(2, 1)).forward(torch.ones(1, 2)))
        print(rpc.rpc_sync("worker0", torch.add, (torch.ones(1), 1)))
        print(rpc.remote("worker0", torch.add, (torch.ones(1), 1)).to_here())
        kinds = {"batch": Batch, "errors": (ValueError, KeyError)}
        assert rpc.rpc_sync("worker0", instance, (kinds, batch))
        assert rpc.rpc_sync("worker0", instance, ({**kinds, "more": ...}, batch))
        if "defaultdict" in sys.argv:
            kinds = collections.defaultdict(list, kinds)
            assert rpc.rpc_sync("worker0", instance, (kinds, batch))
        elif len(sys.argv) > 1:
            rpc.rpc_sync("worker0", os.getpid)
    rpc.shutdown()


if __name__ == "__main__":
    import program

    mp.start_processes(program.main, nprocs=2, start_method="fork")
"""


def run(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder."""
    environ = {name: v for name, v in os.environ.items() if not name.startswith("RPC_BACKENDS_")}
    environ |= {"PYTHONPATH": str(folder), "MASTER_ADDR": "127.0.0.1"}
    environ["MASTER_PORT"] = str(free_port())
    return run_python(*arguments, env={**environ, **env}, cwd=folder)


def guard(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `rpc-backends guard`."""
    return run(folder, "-m", "rpc_backends_cli", "guard", *arguments)


@pytest.mark.slow
def test_what_no_policy_can_permit_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = (sys.executable, "program.py", "defaultdict")
    done = guard(tmp_path, "learn", "--out", "policy.toml", "--", *program)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stderr.split())
    assert "worker0-" in text
    assert "a message of worker1 that the guard refuses, whatever the policy lists" in text
    assert "it passes 'builtins:list' to a class or a function while it is unpickled" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_does_not_outlive_the_command_that_learns_from_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Its workers obey no policy."""
    program = (
        sys.executable,
        "-c",
        "import os, time; print(os.getpid(), flush=True); time.sleep(600)",
    )
    command = (
        sys.executable,
        "-m",
        "rpc_backends_cli",
        "guard",
        "learn",
        "--out",
        "policy.toml",
        "--",
    )
    with subprocess.Popen([*command, *program], cwd=tmp_path, stdout=subprocess.PIPE) as learning:
        assert learning.stdout is not None
        descriptor = os.pidfd_open(int(learning.stdout.readline()))
        try:
            learning.send_signal(number)
            assert select.select([descriptor], [], [], 60)[0], "it runs on"
        finally:
            os.close(descriptor)
            learning.kill()


@pytest.mark.slow
def test_a_program_runs_under_the_policy_learned_from_it(tmp_path: Path) -> None:
    """Learned, run, compared with a new version; and each entry of the policy is needed."""
    (tmp_path / "program.py").write_text(PROGRAM)
    policy = tmp_path / "policy.toml"
    program = (sys.executable, "program.py")
    done = guard(tmp_path, "learn", "--out", "policy.toml", "--", *program)
    assert done.returncode == 0, done.stderr
    assert "whatever the policy lists" not in done.stderr
    learned = read(policy)
    assert learned.types == ("program:Batch",)
    [rule] = learned.rules
    assert rule.peers == ("worker1",)
    assert {"program:Model", "program:apply"} < set(rule.functions)
    assert rule.methods == (
        "program:Model.forward",
        "program:Model.rrefs",
        "torch.nn.modules.linear:Linear.forward",
    )
    assert {
        "builtins:KeyError",
        "builtins:ValueError",
        "program:Batch",
        "program:Model.forward",
    } <= set(rule.references)
    assert rule.operators == ("aten::add.Scalar",)
    assert rule.requests == ("autograd", "fetch")

    env = {hooks.POLICY: str(policy)}
    done = run(tmp_path, "program.py", **env)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([3, 1])" in done.stdout

    done = guard(tmp_path, "diff", "policy.toml", "--", *program, "more")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "+ functions of worker1: posix:getpid"

    policy.write_text(policy.read_text().replace('    "program:apply",\n', ""))
    done = run(tmp_path, "program.py", **env)
    assert done.returncode != 0
    assert "'program:apply' in `functions` of a rule for 'worker1'" in done.stderr


def test_check_explains_a_policy_and_warns(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        'version = 1\n[[rule]]\npeers = ["a"]\nfunctions = ["builtins:eval"]\nrequests = ["fetch"]\n'
    )
    done = guard(tmp_path, "check", "policy.toml")
    assert done.returncode == 0, done.stderr
    assert "Workers a may call: builtins:eval." in done.stdout
    assert "Workers a may fetch values of RRefs." in done.stdout
    assert "warning: builtins:eval lets its caller run anything. Remove it." in done.stderr


@pytest.mark.parametrize(("method", "status"), [("__setstate__", 1), ("other", 0)])
def test_check_warns_of_a_class_that_unpickles_itself(
    tmp_path: Path, method: str, status: int
) -> None:
    """The module is not imported; with --strict a warning ends the command with status 1."""
    (tmp_path / "pack").mkdir()
    source = f"raise SystemExit(3)\nclass A:\n    class B:\n        def {method}(self): pass\n"
    (tmp_path / "pack" / "mod.py").write_text(source)
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "policy.toml").write_text('version = 1\ntypes = ["pack.mod:A.B"]\n')
    done = guard(tmp_path, "check", "--strict", "policy.toml")
    assert done.returncode == status, done.stdout + done.stderr
    assert ("warning: pack.mod:A.B has a __setstate__ of its own" in done.stderr) == bool(status)


def test_check_shows_every_problem_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("version = 2\nmoed = 1\n")
    done = guard(tmp_path, "check", "policy.toml", "--json")
    assert done.returncode == 1
    problems = json.loads(done.stdout)["problems"]
    assert [line.split(" ")[0] for line in problems] == ["policy.toml:2:", "policy.toml:1:"]


def test_doctor_shows_the_hash_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("version = 1\n")
    monkeypatch.setenv(hooks.POLICY, str(policy))
    [finding] = check().findings
    assert finding.level == "ok"
    assert read(policy).digest in finding.text


def test_doctor_reports_a_policy_with_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("version = 3\n")
    monkeypatch.setenv(hooks.POLICY, str(policy))
    [finding] = check().findings
    assert finding.level == "problem"
    assert "it must be 1" in finding.text
