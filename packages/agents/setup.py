"""Builds the extension of the agents against the torch of this environment."""

from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension


class Build(BuildExtension):
    """Like torch's, but compiles and links nothing that is newer than all it is made of."""

    command_name = "build_ext"  # setuptools finds the settings of a class under its name otherwise

    def finalize_options(self) -> None:
        """Take back what torch does to have ninja asked each time."""
        super().finalize_options()
        self.force = False


#: What the one translation unit is made of.
PARTS = sorted(str(path) for path in Path("csrc").iterdir())

setup(
    ext_modules=[
        CppExtension(
            "rpc_backends_agents._C",
            ["csrc/all.cc"],
            depends=PARTS,
            include_dirs=[str(Path("src/rpc_backends_agents/include").resolve())],
            extra_compile_args=[
                "-std=c++20",
                "-O2",
                "-g0",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                "-fvisibility=hidden",
            ],
        )
    ],
    cmdclass={"build_ext": Build},
)
