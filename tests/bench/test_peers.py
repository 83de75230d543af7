"""Peers: Ray's actors and Monarch's endpoints are measured in the same rounds as backends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rpc_backends_bench import peers
from rpc_backends_bench.accounting import descendants
from support.children import process_name
from support.command import Command

#: A small `ray` module with the actors that the bench uses, made of a process and two pipes.
SMALL_RAY = dedent("""
    import os, pickle, subprocess, sys

    actors = []

    def init(**settings):
        assert settings["address"] == "local"

    def shutdown():
        for actor in actors:
            actor.process.stdin.close()
            actor.process.wait()

    def remote(kind):
        return Kind(kind)

    def get(reference):
        actor, number = reference
        while number not in actor.answers:
            actor.answers.update([pickle.load(actor.process.stdout)])
        return actor.answers.pop(number)

    class Kind:
        def __init__(self, kind):
            self.kind = kind

        def remote(self, *args):
            return Actor(self.kind, args)

    class Actor:
        def __init__(self, kind, args):
            self.answers, self.sent = {}, 0
            code = "import ray; ray.serve()"
            pipe = subprocess.PIPE
            self.process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe)
            with open(os.environ["PIDS"], "a") as pids:
                print(self.process.pid, file=pids)
            actors.append(self)
            self.send((kind, args))

        def __getattr__(self, name):
            return Method(self, name)

        def send(self, what):
            pickle.dump(what, self.process.stdin)
            self.process.stdin.flush()

    class Method:
        def __init__(self, actor, name):
            self.actor, self.name = actor, name

        def remote(self, *args):
            self.actor.sent += 1
            self.actor.send((self.actor.sent, self.name, args))
            return self.actor, self.actor.sent

    def serve():
        from_caller, to_caller = sys.stdin.buffer, sys.stdout.buffer
        kind, args = pickle.load(from_caller)
        one = kind(*args)
        while True:
            try:
                number, name, args = pickle.load(from_caller)
            except EOFError:
                return
            pickle.dump((number, getattr(one, name)(*args)), to_caller)
            to_caller.flush()
""")


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path, templates=3)


def measured(ended: Any, label: str) -> set[str]:
    """Return the rows that have a figure for a label."""
    return {row["id"] for row in ended.json["rows"] if label in row["results"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [
        ("latency.noop",),
        pytest.param(sorted({*peers.ROWS} - {"size.echo"}), marks=pytest.mark.thorough, id="more"),
    ],
)
def test_a_peer_is_measured_and_leaves_no_process(
    command: Command, tmp_path: Path, rows: Sequence[str]
) -> None:
    (command.packages / "ray.py").write_text(SMALL_RAY)
    pids = tmp_path / "pids"
    # And a row that only backends have.
    only = [word for row in (*rows, "latency.builtin") for word in ("--only", row)]

    ended = command(
        *("bench", "TENSORPIPE", "--vs", "TENSORPIPE@torch", "--quick", "--largest", "2", "--json"),
        *("--peer", "ray", *only),
        env={"PIDS": str(pids)},
    )

    assert ended.status == 0, ended.stderr
    assert ended.json["problems"] == []
    assert measured(ended, "Ray") == set(rows)
    assert measured(ended, "TENSORPIPE") > measured(ended, "Ray")
    started = pids.read_text().split()
    assert started
    assert not [pid for pid in started if Path("/proc", pid).exists()]


@pytest.mark.thorough
@pytest.mark.slow
def test_an_installed_peer_is_measured_unless_declined(command: Command, tmp_path: Path) -> None:
    (command.packages / "ray.py").write_text(SMALL_RAY)
    run = ("bench", "TENSORPIPE", "--vs", "TENSORPIPE@torch", "--quick", "--json")

    for more, expected in (((), True), (("--peer", "none"), False)):
        ended = command(*run, "--only", "latency.noop", *more, env={"PIDS": str(tmp_path / "pids")})
        assert ended.status == 0, ended.stderr
        assert bool(measured(ended, "Ray")) == expected


def test_a_missing_peer_is_refused_with_the_install_command(
    command: Command,
) -> None:
    code = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "monarch" else found(name, *more)
sys.argv = ["rpc-backends", "bench", "TENSORPIPE", "--peer", "monarch"]
from rpc_backends_cli import main
main()
"""
    ended = command.python("-c", code)

    assert ended.status == 2
    assert "monarch is not installed. Run pip install torchmonarch" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", peers.KNOWN)
def test_an_installed_real_peer_is_measured(command: Command, name: str) -> None:
    peer = peers.KNOWN[name]
    if find_spec(peer.module) is None:
        pytest.skip(f"{peer.distribution} is not installed; it is no requirement of anything here")

    ended = command(
        *("bench", "TENSORPIPE", "--vs", "TENSORPIPE@torch", "--quick", "--json"),
        *("--peer", name, "--only", "latency.noop", "--only", "size.oneway"),
    )

    assert ended.status == 0, ended.stderr
    assert measured(ended, peer.label) == {"latency.noop", "size.oneway"}


def test_descendants_are_children_and_theirs() -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "sh -c 'sleep 600 & echo $! $$; wait' & wait"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None
    with shell, contextlib.ExitStack() as stack:
        stack.callback(shell.kill)
        grandchild, child = map(int, shell.stdout.readline().split())
        # Callbacks run in reverse order. The child is killed first, because it ends with the grandchild.
        for pid in (grandchild, child):
            stack.callback(os.kill, pid, 9)

        assert set(descendants(shell.pid)) == {child, grandchild}
        assert grandchild in descendants(os.getpid())
        with process_name(b"f\xc3"):
            assert grandchild in descendants(os.getpid())


def test_peers_are_imported_only_when_measured() -> None:
    code = "import sys, rpc_backends_bench.command; print({'ray', 'monarch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
