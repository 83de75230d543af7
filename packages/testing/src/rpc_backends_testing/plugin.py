"""The pytest plugin of the conformance suite (entry point ``pytest11``).

pytest loads it in every run where this package is installed. It imports nothing else before a run tests a
backend.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rpc_backends_testing.groups import Groups
    from rpc_backends_testing.subject import Subject

#: The name of the mark, as in `marks`, which is not imported here.
_REQUIREMENT = "rpc_requirement"
_SUITE = Path(__file__).parent
_TIERS = ("contract", "torch")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("rpc-backends", "conformance of RPC backends (rpc-backends-core)")
    group.addoption("--rpc-backend", metavar="NAME", help="the RPC backend to test")
    group.addoption(
        "--rpc-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an option of the backend in every test; VALUE is JSON, or else text",
    )
    group.addoption(
        "--rpc-report",
        metavar="FILE",
        type=Path,
        help="write FILE.json and FILE.html",
    )
    group.addoption(
        "--rpc-suite-version",
        metavar="N",
        type=int,
        help="only requirements up to version N of the suite count; newer ones run and fail nothing",
    )
    group.addoption(
        "--rpc-timeout-factor",
        metavar="FACTOR",
        type=float,
        default=1.0,
        help="multiply the tests' time limits, for a slow machine (default: %(default)g)",
    )
    _add_tier(group, "--rpc-tier")
    parser.addini("rpc_backend", "the RPC backend that the conformance suite tests")
    parser.addini("rpc_suite_version", "as --rpc-suite-version")


def _add_tier(group: Any, name: str) -> None:
    group.addoption(
        name,
        choices=_TIERS,
        default="contract",
        dest="rpc_tier",
        help="`torch` runs torch's own backend-neutral RPC suites too (default: %(default)s)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Add ``--tier`` to runs with ``--rpc-backend`` only: other projects use that name too."""
    if {"--rpc-backend", "--tier"} <= {arg.partition("=")[0] for arg in args}:
        _add_tier(parser.getgroup("rpc-backends"), "--tier")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks and check the options."""
    config.addinivalue_line(
        "markers", f"{_REQUIREMENT}: a requirement of the contract for RPC backends"
    )
    config.addinivalue_line("markers", "rpc_backend(subject, suite_version): the backend to test")
    config.option.rpc_option = dict(map(_key_and_value, config.option.rpc_option))
    config.pluginmanager.register(_Interrupts())
    if hasattr(config, "workerinput"):
        return  # the controlling process has checked the rest, and keeps the results
    config.pluginmanager.register(_Recorder(config))
    _check_suite_version(config)
    if config.option.rpc_timeout_factor <= 0:
        raise pytest.UsageError(
            f"--rpc-timeout-factor is {config.option.rpc_timeout_factor:g}; it must be positive."
        )


def _check_suite_version(config: pytest.Config) -> None:
    given = {
        "--rpc-suite-version": config.option.rpc_suite_version,
        "rpc_suite_version": config.getini("rpc_suite_version"),
    }
    for name, version in given.items():
        if version not in (None, ""):
            from rpc_backends_testing.suite import check_version

            try:
                check_version(int(version), name)
            except ValueError as error:
                raise pytest.UsageError(str(error)) from error


def _key_and_value(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise pytest.UsageError(f"--rpc-option is {text!r}; it must be KEY=VALUE.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore torch's own suites unless the option asks for them."""
    asked_for = config.getoption("rpc_tier") == "torch"
    return True if collection_path == _SUITE / "torch_tier" and not asked_for else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the chapters, and check that each requirement has a backend."""
    mine = [item for item in items if item.get_closest_marker(_REQUIREMENT)]
    if not mine:
        return
    from rpc_backends_testing.collecting import arrange, check

    check(mine)
    arrange(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adapt a requirement's report to its capability, version and exclusion."""
    report = yield
    if item.get_closest_marker(_REQUIREMENT):
        from rpc_backends_testing.outcomes import judge

        judge(item, call, report)
    return report


class _Interrupts:
    """Lets SIGINT and SIGTERM interrupt a run of the suite, so that its results are kept.

    Python ignores an exception in a destructor and in the callback of a weak reference, and imports have
    such callbacks. So the next test raises it again.
    """

    def __init__(self) -> None:
        self._came = False

    def _raise(self, number: int, frame: object) -> None:
        self._came = True
        raise KeyboardInterrupt

    def _raise_again(self) -> None:
        if self._came:
            raise KeyboardInterrupt

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Handle the signals, unless the program has set other handlers."""
        before: dict[int, Any] = {}
        if any(item.get_closest_marker(_REQUIREMENT) for item in session.items):
            usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
            before = {
                number: each for number, each in usual.items() if signal.getsignal(number) is each
            }
        for number in before:
            signal.signal(number, self._raise)
        try:
            result = yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        self._raise_again()
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """Start no test after an interrupt."""
        self._raise_again()


class _Recorder:
    """Keeps the results of requirements, and reports them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._results: list[dict[str, Any]] = []
        self._started = time.time()
        self._running: dict[str, None] = {}
        self._stopped = ""
        self._reported = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember which test is running."""
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Forget a test that has ended."""
        self._running.pop(nodeid, None)

    # First, because pytest's own hook fails on a traceback that has a frame without a line.
    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Remember that the run was interrupted, and where."""
        if excinfo.type is not KeyboardInterrupt:
            return  # a subclass, with which pytest-xdist stops after enough failures
        tests = ", ".join(nodeid.rpartition("::")[2] for nodeid in self._running)
        self._stopped = f"interrupted during {tests}" if tests else "interrupted"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Remember that pytest stopped because of failures."""
        limit = self._config.getoption("maxfail")
        if not self._stopped and limit and session.testsfailed >= limit:
            self._stopped = f"stopped after {limit} failure{'s' if limit > 1 else ''}"

    # First, so that an interrupted run has every result that was shown.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the result in a report, which another process may have sent."""
        properties: list[tuple[str, Any]] = report.user_properties
        self._results += [value for key, value in properties if key == _REQUIREMENT]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary, and write the report if the option asks for it."""
        if not self._results:
            return
        self._reported = True
        from rpc_backends_testing.recording import file_of, reports, summary, write

        file = self._config.getoption("rpc_report")
        made = list(reports(self._config, self._results, self._started, self._stopped))
        for report in made:
            terminalreporter.section(f"conformance of {report.backend['name']}")
            for line in summary(report):
                terminalreporter.write_line(line)
            if file is not None:
                for path in write(report, file_of(report, file, len(made))):
                    terminalreporter.write_line(f"report: {path}")

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Report the results of a run in which pytest or a plugin failed."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and not self._reported:
            self._stopped = self._stopped or "ended by an error of pytest or of a plugin"
            self.pytest_terminal_summary(reporter)


@pytest.fixture
def rpc_subject(request: pytest.FixtureRequest) -> Subject:
    """Return the backend under test."""
    from rpc_backends_testing.outcomes import subject_of

    chosen = subject_of(request.node)
    if chosen is None:
        raise pytest.UsageError("no backend is named; use --rpc-backend NAME")
    return chosen[0]


@pytest.fixture
def rpc_timeout_factor(request: pytest.FixtureRequest) -> float:
    """Return the factor of all time limits."""
    return float(request.config.getoption("rpc_timeout_factor"))


@pytest.fixture
def rpc_groups(
    request: pytest.FixtureRequest, rpc_subject: Subject, tmp_path_factory: pytest.TempPathFactory
) -> Groups:
    """Return the object that starts groups of workers with the backend under test."""
    from rpc_backends_testing.groups import Groups
    from rpc_backends_testing.outcomes import limits_of
    from rpc_backends_testing.suite import modules

    mark = request.node.get_closest_marker(_REQUIREMENT)
    chapter = mark.kwargs["chapter"] if mark else ""
    limits = limits_of(request.config, rpc_subject.name)
    # tmp_path makes pytest fail where a setup is interrupted (seen in pytest 9.2).
    folder = tmp_path_factory.mktemp("groups")
    return Groups(rpc_subject, folder, chapter=chapter, limits=limits, modules=modules())
