from pathlib import Path

import torch
from setuptools import Extension, setup

import rpc_backends_agents

setup(
    ext_modules=[
        Extension(
            "rpc_allowlist._native",
            ["csrc/allowlist.cpp"],
            # torch brings pybind11 along; nothing else of it is used.
            include_dirs=[
                rpc_backends_agents.include_dir(),
                str(Path(torch.__file__).parent / "include"),
            ],
            extra_compile_args=["-std=c++17", "-g0"],
        )
    ]
)
