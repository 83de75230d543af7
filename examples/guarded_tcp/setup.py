from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup

import rpc_backends_agents

# torch ships the headers of pybind11; nothing else of torch is used.
torch = Path(find_spec("torch").origin).parent

setup(
    py_modules=["guarded_tcp"],
    ext_modules=[
        Extension(
            "_guarded_tcp",
            ["csrc/engine.cpp"],
            include_dirs=[rpc_backends_agents.include_dir(), str(torch / "include")],
            extra_compile_args=["-std=c++20", "-g0", "-fvisibility=hidden"],
        )
    ],
)
