"""During one ``init_rpc``, each module of the core is entered once, as the architecture page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from rpc_backends_processes import free_port
from structure.imports import ROOT

BACKENDS = ("TENSORPIPE", "FAULTY_TENSORPIPE", "ZEROMQ")
#: Modules that any other may call at any time: names of torch, time limits, properties of records, and
#: checks of what handlers return.
LEAVES = {"_bridge/torch_internals", "_handlers", "_record", "_time_limit"}


@cache
def path_of(backend: str) -> list[tuple[str, str, str]]:
    """Return each call between modules of the core, as (calling module, called module, function)."""
    port = free_port()
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("path_worker.py")), backend, str(port)],
        env={name: v for name, v in os.environ.items() if not name.startswith("RPC_BACKENDS_")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(call) for call in json.loads(done.stdout)]


def stage(module: str) -> str:
    """Return the name a module counts under: the package that forms groups counts as one module."""
    return "_group" if module.startswith("_group/") else module


@pytest.mark.parametrize("backend", BACKENDS)
def test_init_rpc_enters_each_module_once(backend: str) -> None:
    entered = Counter(
        stage(called)
        for calling, called, _ in path_of(backend)
        if calling and stage(calling) != stage(called) and called not in LEAVES
    )
    assert entered
    assert set(entered.values()) == {1}, entered


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_name_is_looked_up_once(backend: str) -> None:
    looked_up = [function for _, called, function in path_of(backend) if called == "_registry"]
    assert looked_up == ["Registry.load"]


def test_the_architecture_page_shows_the_path() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    table = page.partition("## The path of `init_rpc`")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `([\w/]+)` \| `([\w.]+)` \|", table, flags=re.MULTILINE)
    real = [
        (called, function)
        for calling, called, function in path_of("TENSORPIPE")
        if calling and stage(calling) != stage(called) and called not in LEAVES
    ]
    assert shown == [("_patches", "init_rpc"), *real]
