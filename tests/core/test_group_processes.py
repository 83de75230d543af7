"""Whether the process of a worker has ended is known for processes of this host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backends_core._group.processes import has_ended, is_local, this_process
from support.children import process_name


def test_a_process_has_ended_when_it_was_killed_or_its_id_has_another_process() -> None:
    mine = this_process()
    assert is_local(mine)
    assert mine[1] == os.getpid()
    assert not has_ended(mine)
    assert has_ended([*mine[:2], "an earlier start"])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        host = mine[0]
        stat = Path(f"/proc/{child.pid}/stat").read_text()
        started = stat.rpartition(")")[2].split()[19]
        process = [host, child.pid, started]
        assert not has_ended(process)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(process)  # it is a zombie
        child.wait()
        assert has_ended(process)


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
@pytest.mark.parametrize("options", [[], ["--mount-proc"]], ids=["outer", "own"])
def test_a_process_is_identified_only_if_proc_is_that_of_its_namespace(options: list[str]) -> None:
    """Another process has its id in the outer one."""
    show = "from rpc_backends_core._group.processes import this_process; print(len(this_process()))"
    command = ["unshare", "--fork", "--pid", "--kill-child", *options, sys.executable, "-c", show]

    length = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert length == ("3\n" if options else "0\n")


def test_the_name_of_a_process_may_have_any_bytes() -> None:
    """The system cuts a name after 15 bytes, which may be in a character."""
    with process_name(b"f\xc3"):
        assert not has_ended(this_process())


def test_a_process_of_another_host_is_not_local() -> None:
    for process in ([], ["other", 1, "2"], [1, 2, 3], None, "text"):
        assert not is_local(process)
