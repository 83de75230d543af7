"""What the agent needs of torch's libraries."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from rpc_backends_agents import _C


def test_no_symbol_of_tensorpipe_is_needed() -> None:
    """So the agent also loads with a torch that was built without TensorPipe."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("there is no `nm` here (binutils)")
    listed = subprocess.run(
        [nm, "--dynamic", "--undefined-only", _C.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    needed = [line.split()[-1] for line in listed.splitlines()]
    assert [name for name in needed if "torch" in name], "nothing of torch is listed"
    assert not [name for name in needed if "tensorpipe" in name.lower()]
