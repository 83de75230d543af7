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


#: What the translation units are made of.
PARTS = sorted(str(path) for path in Path("csrc").rglob("*.*"))

setup(
    ext_modules=[
        CppExtension(
            "rpc_backends_agents._C",
            sorted(str(path) for path in Path("csrc").glob("unit_*.cc")),
            depends=PARTS,
            # The narrow headers stand in for some of torch's, so they come first.
            include_dirs=[
                str(Path(folder).resolve())
                for folder in ("csrc/narrow", "src/rpc_backends_agents/include")
            ],
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
