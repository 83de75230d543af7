"""Builds the C++ extension of the agents against the torch of this environment.

The dependencies are here and not in pyproject.toml, because a wheel has other ones than the
sources: it needs the minor version of torch that it was compiled for.
"""

import sys
from pathlib import Path

from setuptools import Extension, setup

try:
    from torch import __version__ as torch_version
    from torch import compiled_with_cxx11_abi
    from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths
except ModuleNotFoundError as error:
    raise SystemExit(
        f"error: {error.name} is not installed here, and this package is compiled against torch. Install "
        "torch and setuptools, and then this package with `pip install --no-build-isolation`."
    ) from None


class Build(BuildExtension):
    """torch's build command, but it skips files that are newer than all of their sources."""

    command_name = "build_ext"  # otherwise setuptools looks up the settings under the class's name

    def finalize_options(self) -> None:
        """Undo torch's setting that runs ninja every time."""
        super().finalize_options()
        self.force = False


FLAGS = [
    "-std=c++20",
    "-O2",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-fvisibility=hidden",
    # Warnings of torch's headers are not ours. GCC then ignores the -I for the same folders.
    *(flag for folder in include_paths() for flag in ("-isystem", folder)),
]
#: For example ``2.13``.
TORCH = ".".join(torch_version.split(".")[:2])
IS_SDIST = {"sdist", "egg_info"} & set(sys.argv)
#: A module of its own, which links to nothing of torch.
NATIVE = "csrc/module/native_transport.cpp"
#: The files that the translation units include.
PARTS = sorted(str(path) for path in Path("csrc").rglob("*.*") if str(path) != NATIVE)

setup(
    install_requires=[
        "rpc-backends-core>=0.1.0",
        "torch>=2.6,<2.16" if IS_SDIST else f"torch=={TORCH}.*",
    ],
    ext_modules=[
        CppExtension(
            "rpc_backends_agents._C",
            sorted(str(path) for path in Path("csrc").glob("unit_*.cc")),
            depends=PARTS,
            # The headers in csrc/narrow replace some of torch's headers, so their folder comes first.
            include_dirs=[
                str(Path(folder).resolve())
                for folder in ("csrc/narrow", "csrc", "src/rpc_backends_agents/include")
            ],
            extra_compile_args=FLAGS,
        ),
        Extension(
            "rpc_backends_agents._native_transport",
            [NATIVE],
            depends=["csrc/python/capsule.h"],
            # torch brings pybind11's headers along.
            include_dirs=[
                *(
                    str(Path(folder).resolve())
                    for folder in ("csrc", "src/rpc_backends_agents/include")
                ),
                *include_paths(),
            ],
            # CppExtension sets it for the other module; strings pass between the two.
            define_macros=[
                ("_GLIBCXX_USE_CXX11_ABI", str(int(compiled_with_cxx11_abi()))),
                ("RPC_BACKENDS_TORCH", f'"{TORCH}"'),
            ],
            language="c++",
            extra_compile_args=FLAGS,
        ),
    ],
    cmdclass={"build_ext": Build},
)
