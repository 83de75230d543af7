from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup

import rpc_backends_agents

# torch ships the headers of pybind11; nothing else of torch is used.
torch = Path(find_spec("torch").origin).parent

setup(
    ext_modules=[
        Extension(
            "rpc_allowlist._native",
            ["csrc/allowlist.cpp"],
            include_dirs=[rpc_backends_agents.include_dir(), str(torch / "include")],
            extra_compile_args=["-std=c++17", "-g0"],
        )
    ]
)
