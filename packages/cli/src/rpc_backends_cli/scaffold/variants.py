"""What differs between new packages: by transport, and by kind of group."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a new backend sends its messages."""

    TENSORPIPE = "tensorpipe"
    PYTHON = "python"
    CPP = "c++"

    @property
    def has_transport(self) -> bool:
        """Whether the package contains a transport, on the agent of rpc-backends-agents."""
        return self is not Kind.TENSORPIPE


#: Versions that CI tests: the oldest and the newest that the dependencies allow.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.6.0", "2.15.0")
_TORCH = "torch>=2.6"

_SOURCE = "src/{package}"
_COMMON = {
    "pyproject.toml": "common/pyproject.toml",
    "README.md": "common/README.md",
    "LICENSE": "common/LICENSE",
    f"{_SOURCE}/__init__.py": "common/__init__.py",
    f"{_SOURCE}/py.typed": "",
    "tests/test_smoke.py": "common/test_smoke.py",
    "tests/test_conformance.py": "common/test_conformance.py",
    ".github/install-rpc-backends.sh": "common/install-rpc-backends.sh",
    ".github/workflows/test.yml": "common/test.yml",
    ".github/workflows/newest-torch.yml": "common/newest-torch.yml",
    ".github/workflows/release.yml": "common/release.yml",
    ".gitignore": "common/gitignore",
}
_OF_KIND = {
    Kind.TENSORPIPE: {
        f"{_SOURCE}/handlers.py": "tensorpipe/handlers.py",
        f"{_SOURCE}/options.py": "tensorpipe/options.py",
        "tests/test_options.py": "tensorpipe/test_options.py",
    },
    Kind.PYTHON: {
        f"{_SOURCE}/handlers.py": "agents/handlers.py",
        f"{_SOURCE}/options.py": "agents/options.py",
        f"{_SOURCE}/transport.py": "python/transport.py",
        "tests/test_options.py": "agents/test_options.py",
        "tests/test_transport.py": "agents/test_transport.py",
    },
    Kind.CPP: {
        "CMakeLists.txt": "cpp/CMakeLists.txt",
        "csrc/transport.cpp": "cpp/transport.cpp",
        f"{_SOURCE}/handlers.py": "agents/handlers.py",
        f"{_SOURCE}/options.py": "agents/options.py",
        f"{_SOURCE}/_transport.pyi": "cpp/_transport.pyi",
        f"{_SOURCE}/transport.py": "cpp/transport.py",
        "tests/test_options.py": "agents/test_options.py",
        "tests/test_transport.py": "agents/test_transport.py",
    },
}


@dataclass(frozen=True)
class Variant:
    """The kind of a new package.

    :ivar kind: how the backend sends its messages.
    :ivar dynamic_groups: whether workers can join and leave at any time.
    :raises ValueError: ``dynamic_groups`` is set, and a new package of this kind has none.
    """

    kind: Kind
    dynamic_groups: bool

    def __post_init__(self) -> None:
        """Check that this kind of package can have dynamic groups, if they are wanted."""
        if self.dynamic_groups and not self.kind.has_transport:
            raise ValueError(
                "a backend on torch's TensorPipe agent has no dynamic groups. Use --transport python or "
                "--transport c++, or leave out --dynamic-groups."
            )

    def templates(self, package: str) -> dict[str, str]:
        """Return the name of the template of each file; an empty file has none."""
        files = {**_COMMON, **_OF_KIND[self.kind]}
        return {path.format(package=package): name for path, name in files.items()}

    def values(self, core: str) -> dict[str, str]:
        """Return the values of the templates' placeholders.

        :param core: the version of rpc-backends-core.
        """
        cpp = self.kind is Kind.CPP
        return {
            "what": _WHAT[self.kind],
            "description": _DESCRIPTION[self.kind],
            "import_lacks_secret": ", lacks_secret" if cpp else "",
            "lacks_authentication": "    lacks_authentication=lacks_secret,\n" if cpp else "",
            "transport_arguments": (
                "rpc_backend_options, group" if cpp else "rpc_backend_options.address"
            ),
            "options_base": "GuardedOptions" if cpp else "EngineOptions",
            "native_address": '        native="host",\n' if cpp else "",
            "import_options": _IMPORT_OPTIONS if cpp else "",
            "test_transport_arguments": (
                "%%{Class}Options(), self.group(worker_id)" if cpp else ""
            ),
            "security": _SECURITY[self.kind],
            "needs_compiler": _NEEDS_COMPILER if cpp else "",
            "option_rows": _OPTION_ROWS[self.kind],
            "files": _FILES[self.kind],
            "test_files": _TEST_FILES if self.kind.has_transport else "",
            "install": "pip install --no-build-isolation" if cpp else "pip install",
            "install_commands": _INSTALL_AGENTS if self.kind.has_transport else _INSTALL,
            "language": '    "Programming Language :: C++",\n' if cpp else "",
            "dependencies": _dependencies(self.kind, core),
            "build_requirements": (
                '"scikit-build-core>=1.1", "pybind11>=2.13"' if cpp else '"hatchling>=1.27"'
            ),
            "build_backend": "scikit_build_core.build" if cpp else "hatchling.build",
            "release_env": _RELEASE_ENV if cpp else "",
            "release_build": _RELEASE_CPP if cpp else _RELEASE,
            "dynamic_groups": "" if self.dynamic_groups else "    dynamic_groups=False,\n",
            "dynamic_test": _DYNAMIC_TEST if self.dynamic_groups else _STATIC_TEST,
            "import_pytest": "" if self.dynamic_groups else "import pytest\n",
            "pythons": _quoted(PYTHONS),
            "torches": _quoted(TORCHES),
            "newest_python": PYTHONS[-1],
            "newest_torch": TORCHES[-1],
            "python_classifiers": "".join(
                f'    "Programming Language :: Python :: {version}",\n' for version in PYTHONS
            ),
        }

    def next_commands(self) -> tuple[str, ...]:
        """Return the commands that install and test the package, in its folder."""
        install = f'{self.values("")["install"]} -e ".[test]"'
        return ("bash .github/install-rpc-backends.sh", install, "pytest")

    def place_to_change(self, package: str) -> str:
        """Return the file that carries the messages."""
        return {
            Kind.TENSORPIPE: f"src/{package}/handlers.py",
            Kind.PYTHON: f"src/{package}/transport.py",
            Kind.CPP: "csrc/transport.cpp",
        }[self.kind]

    def build_table(self, package: str) -> str:
        """Return the tables of pyproject.toml that configure the build."""
        if self.kind is Kind.CPP:
            return f'[tool.scikit-build]\nwheel.packages = ["src/{package}"]\n'
        return f'[tool.hatch.build.targets.wheel]\npackages = ["src/{package}"]\n'


def _quoted(versions: tuple[str, ...]) -> str:
    return ", ".join(f'"{version}"' for version in versions)


def _dependencies(kind: Kind, core: str) -> str:
    base = "rpc-backends-agents" if kind.has_transport else "rpc-backend-tensorpipe"
    return ", ".join(
        f'"{requirement}"'
        for requirement in (f"rpc-backends-core>={core}", f"{base}>={core}", _TORCH)
    )


_WHAT = {
    Kind.TENSORPIPE: ". It runs on torch's TensorPipe agent",
    Kind.PYTHON: ". Its transport is written in Python and uses TCP",
    Kind.CPP: ". Its transport is written in C++ and uses TCP",
}
_DESCRIPTION = {
    Kind.TENSORPIPE: "torch's TensorPipe agent, until it is replaced",
    Kind.PYTHON: "plain TCP in Python, without authentication",
    Kind.CPP: "plain TCP in C++; workers prove that they belong to the group",
}
_NO_AUTHENTICATION = (
    "A worker runs the code that it receives from everybody who can connect, as with TensorPipe.\n"
    "Use it on a network that only the workers can reach.\n"
)
_SECURITY = {
    Kind.TENSORPIPE: _NO_AUTHENTICATION,
    Kind.PYTHON: _NO_AUTHENTICATION,
    Kind.CPP: (
        "Workers prove to each other that they belong to the group.\n"
        "Without a secret, everybody who can read the group's store can make this proof.\n"
        "With a secret, only processes that have it can.\n"
        "`rpc-backends secret --out FILE` makes one.\n"
        "Set `RPC_BACKENDS_%%{NAME}_SECRET_FILE` to the path of the file for each worker.\n"
        "Messages are neither encrypted nor signed, so use it on a network that you trust.\n"
    ),
}
_NEEDS_COMPILER = (
    " The second one compiles C++\n"
    "against the installed headers, so it needs a compiler, and `--no-build-isolation`."
)
_TRANSPORT_ROWS = """\
| `address` | 127.0.0.1 | this machine's address, at which other workers reach it |
| `max_message_bytes` | 16 GiB | the longest message that a worker accepts |
| `max_unanswered_bytes` | 1 GiB | bytes of unanswered calls to a worker; then further calls wait |
| `device_maps` | none | by callee, a map from this worker's devices to the callee's |
| `devices` | those in the maps | the accelerators of this worker that RPC may use |
"""
_SECRET_ROWS = """\
| `secret_file` | `RPC_BACKENDS_%%{NAME}_SECRET_FILE` | the file that holds the secret |
| `secret` | `RPC_BACKENDS_%%{NAME}_SECRET` | the secret itself |
"""
_OPTION_ROWS = {
    Kind.TENSORPIPE: "",
    Kind.PYTHON: _TRANSPORT_ROWS,
    Kind.CPP: _TRANSPORT_ROWS + _SECRET_ROWS,
}
_FILES = {
    Kind.TENSORPIPE: "",
    Kind.PYTHON: "| `src/%%{package}/transport.py` | the transport: how messages are sent |\n",
    Kind.CPP: "| `csrc/transport.cpp` | the transport: how messages are sent |\n"
    "| `src/%%{package}/transport.py` | around it in Python: what a worker publishes, whom it admits |\n"
    "| `src/%%{package}/_transport.pyi` | its types for Python |\n",
}
_TEST_FILES = "| `tests/test_transport.py` | tests of the transport alone |\n"

_IMPORT_OPTIONS = "from %%{package} import %%{Class}Options\n"

_INSTALL = """\
pip install "$folder" "$folder/plugins/tensorpipe" "$folder/plugins/faulty_tensorpipe" \\
    "$folder/packages/cli" "$folder/packages/testing"
"""
_INSTALL_AGENTS = f"""\
{_INSTALL}\
# This one is C++, and is compiled against the torch that is installed.
pip install scikit-build-core pybind11 cmake ninja
pip install --no-build-isolation "$folder/packages/agents"
"""

_RELEASE_ENV = """\
env:
  RPC_BACKENDS_SOURCE: ${{ vars.RPC_BACKENDS_SOURCE }} # see .github/install-rpc-backends.sh

"""
_RELEASE = """\
      - run: python -m build
"""
_RELEASE_CPP = """\
      # Only the source: each user compiles it, for their Python.
      - run: pip install torch --index-url https://download.pytorch.org/whl/cpu
      - run: bash .github/install-rpc-backends.sh
      - run: python -m build --sdist --no-isolation
"""

_STATIC_TEST = """


def test_a_dynamic_group_is_refused(tmp_path: Path) -> None:
    options = %%{Class}Options(init_method=f"file://{tmp_path}/store")

    with pytest.raises(ValueError, match="no dynamic groups"):
        rpc.init_rpc("alone", rank=0, rpc_backend_options=options)
"""
_DYNAMIC_TEST = """


def test_a_worker_starts_a_dynamic_group(tmp_path: Path) -> None:
    options = %%{Class}Options(init_method=f"file://{tmp_path}/store")

    rpc.init_rpc("first", rank=0, rpc_backend_options=options)
    try:
        assert rpc.rpc_sync("first", torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]
    finally:
        rpc.shutdown()
"""
