"""The agents' section of ``rpc-backends doctor``: which build of the C++ is in use."""

from __future__ import annotations

from rpc_backends_agents import torch_builds
from rpc_backends_agents.installed_torch import Torch
from rpc_backends_cli import Finding, Section


def check() -> Section:
    """Return which build is used with the installed torch, and whether it can be loaded."""
    return Section("agents", "C++ of the agents", [_build()])


def _build() -> Finding:
    torch = Torch.installed()
    try:
        build = torch_builds.choose(torch)
        from rpc_backends_agents import _C  # noqa: F401
    except ImportError as error:
        return Finding("problem", "build", str(error))
    where = "your cache" if build.origin == "cache" else "the package"
    text = f"for torch {build}, in {where}: {build.path}"
    if torch_builds.fitting(torch) is not None:
        return Finding("ok", "build", text, build.data())
    text += f". It was not compiled for {torch}; {torch_builds.VARIABLE} allows it"
    return Finding("warning", "build", text, build.data())
