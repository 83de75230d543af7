"""`TransportContract` is tested itself: a transport that breaks a promise fails the test for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from rpc_broken_backends.transports import BROKEN

from support.environments import clean_environ

pytestmark = pytest.mark.timeout(3600)

#: Multiplies the time limits when only the test for a promise runs: the limits allow for slow transports,
#: and none of these is slow. A whole run has the time limits that an author has.
_TIMEOUT_FACTOR = 0.3
#: The factor for a test that has run into a time limit of another call: the machine was busy.
_LONGER = 3.0
#: Seconds in which a whole run on a broken transport must have reported a failure.
_SOON = 60.0
#: A conftest.py that writes the failures to a file, in the process that collects all reports.
_PLUGIN = """
import json
from pathlib import Path

started = {}


def pytest_runtest_logreport(report):
    if not hasattr(report, "node"):
        return
    _, class_, name = report.nodeid.split("::", 2)
    first = started.setdefault(class_, report.start)
    if report.failed:
        line = json.dumps([class_, name, str(report.longrepr), report.stop - first])
        with Path("failures.jsonl").open("a") as file:
            file.write(line + "\\n")
"""

Failures = dict[str, list[tuple[str, str, float]]]


def _run(folder: Path, names: Collection[str], factor: float, *, whole: bool = False) -> Failures:
    """Run tests on broken transports: all tests, or only the one for the promise that each breaks."""
    classes = "\n".join(
        f"class Test{name}(TransportContract):\n"
        f"    timeout_factor = {factor}\n"
        f"    def make_transport(self, worker_id):\n"
        f"        return transports.{name}()\n"
        for name in names
    )
    imports = (
        "from rpc_broken_backends import transports",
        "from rpc_backends_testing import TransportContract",
    )
    source = "\n".join([*imports, classes])
    (folder / "test_broken.py").write_text(source)
    (folder / "conftest.py").write_text(_PLUGIN)
    (folder / "failures.jsonl").touch()
    chosen = [f"test_broken.py::Test{name}::{BROKEN[name].test}" for name in names]
    # The tests mostly wait for time limits. Those of one transport run one after the other.
    processes = ["-n", "2" if whole else "4", "--dist", "loadscope"]
    arguments = [*processes, "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *(["test_broken.py"] if whole else chosen)],
        cwd=folder,
        env=clean_environ({"PYTHONPATH": str(Path(__file__).parent)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    failures: Failures = {name: [] for name in names}
    for line in (folder / "failures.jsonl").read_text().splitlines():
        class_, name, text, seconds = json.loads(line)
        failures[class_.removeprefix("Test")].append((name, text, seconds))
    return failures


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    """For each broken transport, run the test for the promise that this transport breaks."""
    failures = _run(tmp_path_factory.mktemp("broken"), BROKEN, _TIMEOUT_FACTOR)
    if late := [name for name in BROKEN if _was_late(name, failures[name])]:
        failures.update(_run(tmp_path_factory.mktemp("again"), late, _LONGER))
    return failures


@pytest.fixture(scope="module")
def all_failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    """Run all tests on each broken transport."""
    return _run(tmp_path_factory.mktemp("broken"), BROKEN, 1.0, whole=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_transport_fails_the_test_for_its_promise(name: str, failures: Failures) -> None:
    _assert_found(name, failures[name])


@pytest.mark.thorough
@pytest.mark.parametrize("name", BROKEN)
def test_a_whole_run_finds_what_is_broken_soon(name: str, all_failures: Failures) -> None:
    _assert_found(name, all_failures[name])
    first = min(seconds for _, _, seconds in all_failures[name])
    assert first < _SOON


def _texts(name: str, failed: list[tuple[str, str, float]]) -> list[str]:
    """Return the failures of the test for the promise."""
    return [text for test, text, _ in failed if test == BROKEN[name].test]


def _was_late(name: str, failed: list[tuple[str, str, float]]) -> bool:
    """Return whether the test for the promise has run into a time limit elsewhere."""
    return any(
        BROKEN[name].names not in text and re.search(r"within [\d.]+ s", text)
        for text in _texts(name, failed)
    )


def _assert_found(name: str, failed: list[tuple[str, str, float]]) -> None:
    """Check that the test for the promise has failed, and names the method at fault."""
    texts = _texts(name, failed)
    assert texts, f"failed: {[test for test, _, _ in failed]}"
    assert BROKEN[name].names in texts[0], texts[0]
    assert "call:" in texts[0]
    assert "got:" in texts[0]
