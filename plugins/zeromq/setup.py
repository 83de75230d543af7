"""Builds the C++ transport; the rest of the package's configuration is in pyproject.toml."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
IN_CHECKOUT = HERE / "../../packages/agents/src/rpc_backends_agents/include"


def folder_of(package: str) -> Path | None:
    """Return the folder of an installed package, without importing the package."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def include_folders() -> list[str]:
    """Return the folders of ``rpc_backends_agents/transport.h`` and of pybind11.

    torch ships pybind11's headers. Nothing else of torch is used. ZeroMQ is not needed for the build:
    the extension loads pyzmq's libzmq at run time.
    """
    agents, pybind11, torch = map(folder_of, ("rpc_backends_agents", "pybind11", "torch"))
    wanted = {
        "rpc_backends_agents/transport.h": (agents and agents / "include", IN_CHECKOUT),
        "pybind11/pybind11.h": (pybind11 and pybind11 / "include", torch and torch / "include"),
    }
    found = []
    for header, places in wanted.items():
        place = next((one for one in places if one and (one / header).exists()), None)
        if place is None:
            raise SystemExit(
                f"error: the header {header} was not found. Install torch and rpc-backends-agents first, "
                "then install this package with `pip install --no-build-isolation`."
            )
        found.append(str(place.resolve()))
    return found


def abi() -> str:
    """Return torch's ``_GLIBCXX_USE_CXX11_ABI``, because strings pass between this and the agents."""
    import torch

    return str(int(torch.compiled_with_cxx11_abi()))


setup(
    ext_modules=[
        Extension(
            "rpc_backend_zeromq._native",
            sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.cpp")),
            depends=sorted(str(path.relative_to(HERE)) for path in (HERE / "csrc").glob("*.h")),
            include_dirs=include_folders(),
            define_macros=[("_GLIBCXX_USE_CXX11_ABI", abi())],
            libraries=["dl"],
            language="c++",
            extra_compile_args=[
                "-std=c++20",
                "-O2",
                "-g0",
                "-Wall",
                "-Wextra",
                "-fvisibility=hidden",
            ],
        )
    ]
)
