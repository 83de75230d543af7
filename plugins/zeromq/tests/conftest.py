"""Fixtures of the tests of ZEROMQ: secrets, and hosts that are network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rpc_backend_zeromq._native import TransportError, make_keys
from rpc_backends_agents.engine import secret
from rpc_backends_agents.engine.secret import Secret
from support.children import started
from support.command import run_code

_FOREIGN = ("RPC_BACKENDS_", "MASTER_", "TORCHELASTIC_", "XDG_RUNTIME_DIR")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        monkeypatch.delenv(name)


@pytest.fixture
def text() -> str:
    """Return the text of a new secret."""
    return secret.generate()


@pytest.fixture
def a_secret(text: str) -> Secret:
    """Return a secret."""
    return secret.parse(text, "the test")


@pytest.fixture
def secret_file(tmp_path: Path, text: str) -> Path:
    """Return a file with the secret, as `rpc-backends secret --out` writes it."""
    path = tmp_path / "rpc.secret"
    path.touch(mode=0o600)
    path.write_text(f"{text}\n")
    return path


@pytest.fixture
def provider() -> None:
    """Skip the test if OpenSSL's FIPS provider is not installed."""
    try:
        make_keys(fips=True)
    except TransportError:
        pytest.skip("OpenSSL's FIPS provider is not installed here")


# --- hosts ---------------------------------------------------------------------------------------


#: Moves a process that has one thread into a network namespace; 0x40000000 is CLONE_NEWNET.
_ENTER = """
import ctypes
with open("{place}") as namespace:
    assert ctypes.CDLL(None).setns(namespace.fileno(), 0x40000000) == 0
"""


@dataclass(frozen=True)
class NetworkHost:
    """A network namespace that stands for a host.

    :ivar four: its IPv4 address.
    :ivar six: its IPv6 address.
    :ivar interface: the network interface that has both.
    :ivar processes: ends the processes of the host.
    """

    name: str
    four: str
    six: str
    interface: str
    processes: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def run(self, code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
        """Run Python on the host, and parse the JSON in its last line of output."""
        entered = _ENTER.format(place=f"/run/netns/{self.name}") + dedent(code)
        ended = run_code(entered, *arguments, env={**os.environ, **(env or {})}, cwd=Path.cwd())
        assert ended.status == 0, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    def start(self, code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Running:
        """Start Python on the host, without waiting for it."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-c", dedent(code), *arguments]
        process = started(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return Running(self.processes.enter_context(process))


@dataclass(frozen=True)
class Running:
    """A Python process on a host."""

    process: subprocess.Popen[str]

    def line(self) -> Any:
        """Parse the JSON in the next line of its output."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=60)[1]
        return json.loads(line)

    def tell(self, value: Any) -> None:
        """Write a line of JSON to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        """Wait until it ends, and parse the JSON in its last line."""
        output, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return json.loads(output.splitlines()[-1])


@pytest.fixture
def two_hosts() -> Iterator[tuple[NetworkHost, NetworkHost]]:
    """Yield two hosts that are connected only to each other."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here (iproute2)")
    number = os.getpid()
    hosts = [
        NetworkHost(f"rpcz{number}-{n}", f"10.77.0.{n}", f"fd77::{n}", f"rz{n}") for n in (1, 2)
    ]
    with contextlib.ExitStack() as stack:
        for host in hosts:
            _ip_or_skip("netns", "add", host.name)
            stack.callback(_ip, "netns", "delete", host.name)
            stack.enter_context(host.processes)
        host0, host1 = hosts
        _ip_or_skip(
            *("link", "add", host0.interface, "netns", host0.name, "type", "veth"),
            *("peer", "name", host1.interface, "netns", host1.name),
        )
        for host in hosts:
            inside = ("-n", host.name)
            _ip_or_skip(*inside, "link", "set", "lo", "up")
            # Without duplicate detection, which delays addresses: no other host can have these.
            path = f"/proc/sys/net/ipv6/conf/{host.interface}/accept_dad"
            _ip("netns", "exec", host.name, "sh", "-c", f"echo 0 > {path}")
            _ip_or_skip(*inside, "link", "set", host.interface, "up")
            _ip_or_skip(*inside, "addr", "add", f"{host.four}/24", "dev", host.interface)
            _ip_or_skip(*inside, "addr", "add", f"{host.six}/64", "dev", host.interface, "nodad")
        yield host0, host1


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


def _ip_or_skip(*arguments: str) -> None:
    done = _ip(*arguments)
    if done.returncode:
        pytest.skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr.strip()}")
