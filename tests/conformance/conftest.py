"""Installs the broken backends, and runs the suite on them as an author does."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.command import run_module
from support.environments import clean_environ
from support.forks import Ended
from support.packages import write_package

_PACKAGE = Path(__file__).parent / "rpc_broken_backends"
#: The backend that leaves files on the machine, which other suites would find.
_LITTERS = "LEAVES_A_FILE_IN_SHARED_MEMORY"
#: Leaves out a test that takes seconds for each backend, and that finds none of the broken ones.
_NOT_OF_BROKEN = ("-k", "not test_256_mib")
Run = Callable[..., dict[str, Any]]


def pytest_configure() -> None:
    """Make the list of broken backends importable."""
    if str(_PACKAGE.parent) not in sys.path:
        sys.path.append(str(_PACKAGE.parent))


@pytest.fixture(scope="session")
def broken_backends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package of the broken backends into a folder."""
    from rpc_broken_backends import all_backends

    modules = {f"{_PACKAGE.name}/{path.name}": path.read_text() for path in _PACKAGE.glob("*.py")}
    entry_points = {name: f"{_PACKAGE.name}:{name}" for name in all_backends()}
    folder = tmp_path_factory.mktemp("broken")
    wheel = write_package(
        folder, "rpc-broken-backends", modules=modules, entry_points={"rpc.backends": entry_points}
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


@pytest.fixture
def run_suite(broken_backends: Path, tmp_path: Path) -> Run:
    """Return a function that runs the conformance suite in a separate process and returns the report.

    The backend conforms, so the time limits are long, for a busy machine.
    """

    def run(backend: str, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        report = tmp_path / f"{backend}.json"
        suite = ["--pyargs", "rpc_backends_testing", "--rpc-backend", backend]
        suite += ["--rpc-timeout-factor", "4"]
        done = _pytest(
            [*suite, *arguments, "--rpc-report", str(report)], tmp_path, broken_backends, env
        )
        return _report(report, done)

    return run


@pytest.fixture(scope="session")
def reports_of_broken(
    broken_backends: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, dict[str, Any]]:
    """Run two chapters on each broken backend that a test of this session needs."""
    from rpc_broken_backends import all_broken

    chapters = {name: broken.chosen for name, broken in all_broken().items()}
    return _run_broken(request, chapters, tmp_path_factory.mktemp("suite"), broken_backends)


@pytest.fixture(scope="session")
def whole_reports_of_broken(
    broken_backends: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, dict[str, Any]]:
    """Run the whole suite on each broken backend that a test of this session needs."""
    return _run_broken(request, {}, tmp_path_factory.mktemp("suite"), broken_backends)


def _run_broken(
    request: pytest.FixtureRequest,
    chapters: Mapping[str, Sequence[str]],
    folder: Path,
    packages: Path,
) -> dict[str, dict[str, Any]]:
    """Run the suite on the broken backends that the session's tests with this fixture need.

    All backends except :data:`_LITTERS` share one run, so that a hang of one does not delay the others.

    :param chapters: the chapters to run, by backend; empty for all.
    """
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    names = sorted(
        item.callspec.params["broken_name"]
        for item in items
        if request.fixturename in item.fixturenames
    )
    reports = {}
    for part in ([name for name in names if name != _LITTERS], [_LITTERS]):
        if set(part) & set(names):
            reports.update(_reports(part, chapters, folder / part[0], packages))
    return reports


def _reports(
    names: list[str], chapters: Mapping[str, Sequence[str]], folder: Path, packages: Path
) -> dict[str, dict[str, Any]]:
    folder.mkdir()
    lines = [f"Test{name} = conformance({name!r})" for name in names]
    tests = "\n".join(["from rpc_backends_testing import conformance", *lines, ""])
    (folder / "test_broken.py").write_text(tests)
    chosen = [
        f"test_broken.py::Test{name}::Test{chapter.capitalize()}"
        for name in names
        for chapter in chapters.get(name, ())
    ]
    arguments = [*_NOT_OF_BROKEN, "--rpc-report", "report.json", *(chosen or ["test_broken.py"])]
    done = _pytest(arguments, folder, packages)
    files = {name: f"report-{name}.json" if len(names) > 1 else "report.json" for name in names}
    return {name: _report(folder / file, done) for name, file in files.items()}


def _pytest(
    arguments: list[str], folder: Path, packages: Path, env: dict[str, str] | None = None
) -> Ended:
    options = ("-q", "-p", "no:cacheprovider")
    variables = clean_environ({"PYTHONPATH": str(packages), **(env or {})})
    if "-k" in arguments and arguments[0] == "--pyargs":  # for a few tests, processes cost too much
        return run_module("pytest", *options, *arguments, env=variables, cwd=folder)
    # Tests wait most of the time, but each process imports torch; two for the tests of one backend.
    processes = "2" if folder.name == _LITTERS else "4"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-n", processes, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _report(file: Path, done: Ended) -> dict[str, Any]:
    if not file.exists():
        raise AssertionError(f"no report {file.name}\n{done.stdout}\n{done.stderr}")
    report: dict[str, Any] = json.loads(file.read_text())
    report["status"], report["output"] = done.status, done.stdout + done.stderr
    return report
