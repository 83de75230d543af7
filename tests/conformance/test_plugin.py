"""The pytest plugin: its options, what a run reports, and runs that test no backend."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from rpc_backends_testing import conformance
from support.command import run_module
from support.environments import clean_environ
from support.packages import write_package

pytestmark = pytest.mark.slow

# Requirements that need no workers, with known outcomes.
REQUIREMENTS = """
    import pytest
    from rpc_backends_testing import expect, requirement
    from rpc_backends_testing.checks import fact

    @requirement("calls")
    def test_good():
        '''One is one.'''
        expect(fact("one", 1)).gives(1)

    @requirement("data")
    def test_bad():
        '''One is two.

        Look at the number.
        '''
        expect(fact("one", 1)).gives(2)

    @requirement("data", since=2)
    def test_new_and_bad():
        '''One is three.'''
        expect(fact("one", 1)).gives(3)

    @requirement("life", capability="telepathy")
    def test_undeclared_that_works():
        '''One is one without a word.'''
        expect(fact("one", 1)).gives(1)

    @requirement("life", capability="levitation")
    def test_undeclared_that_fails():
        '''One is four in the air.'''
        expect(fact("one", 1)).gives(4)

    @requirement("time", capability="torchscript")
    def test_declared():
        '''One is one in TorchScript.'''
        expect(fact("one", 1)).gives(1)

    @requirement("devices")
    def test_not_here():
        '''One is on the moon.'''
        pytest.skip("there is no moon")
"""
BACKEND = "--rpc-backend=FAULTY_TENSORPIPE"


@dataclass(frozen=True)
class Run:
    """A finished run of pytest."""

    status: int
    output: str
    folder: Path

    def report(self, name: str = "report") -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return report

    def outcomes(self) -> dict[str, str]:
        return {result["id"]: result["outcome"] for result in self.report()["results"]}


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Return a function that runs pytest on the given files in a separate folder."""

    def start(
        *arguments: str, env: Mapping[str, str] | None = None, anew: bool = False, **files: str
    ) -> Run:
        for name, source in files.items():
            (tmp_path / f"{name}.py").write_text(dedent(source))
        options = ("-p", "no:cacheprovider", *arguments)
        if anew:  # in a new interpreter, which has not imported torch
            command = [sys.executable, "-m", "pytest", *options]
            ended = subprocess.run(
                command,
                cwd=tmp_path,
                env=clean_environ(env),
                capture_output=True,
                text=True,
                check=False,
            )
            return Run(ended.returncode, ended.stdout + ended.stderr, tmp_path)
        done = run_module("pytest", *options, env=clean_environ(env), cwd=tmp_path)
        return Run(done.status, done.stdout + done.stderr, tmp_path)

    return start


def lines_with(text: str, output: str) -> list[str]:
    return [line for line in output.splitlines() if text in line]


# --- which backend -------------------------------------------------------------------------------


def test_without_a_backend_the_error_lists_backends(run: Any) -> None:
    done = run(test_mine=REQUIREMENTS)

    assert done.status == pytest.ExitCode.USAGE_ERROR
    (error,) = lines_with("ERROR:", done.output)
    assert "no backend is named. Use --rpc-backend NAME" in error
    there = re.findall(r"\w+", error.partition("installed backends:")[2])
    assert {"TENSORPIPE", "FAULTY_TENSORPIPE"} <= set(there)
    assert "passed" not in done.output


def test_an_unknown_backend_error_has_near_names(run: Any) -> None:
    done = run("--rpc-backend", "TENSORPIPPE", test_mine=REQUIREMENTS)

    assert done.status == pytest.ExitCode.USAGE_ERROR
    (error,) = lines_with("ERROR:", done.output)
    assert "no RPC backend 'TENSORPIPPE'. Did you mean 'TENSORPIPE'?" in error
    assert "Traceback" not in done.output


def test_the_override_does_not_change_the_backend(run: Any) -> None:
    chapter = "rpc_backends_testing.chapters.test_options"
    env = {"RPC_BACKENDS_OVERRIDE": "FAULTY_TENSORPIPE"}

    # The test checks which backend's handler was called.
    done = run("--rpc-backend", "TENSORPIPE", "--pyargs", chapter, "-k", "test_by_name", env=env)

    assert done.status == 0, done.output
    assert "1 passed" in done.output


def test_refused_options_are_an_error_before_the_run(run: Any) -> None:
    done = run(BACKEND, "--rpc-option", "messages_to_fial=[]", test_mine=REQUIREMENTS)

    assert done.status == pytest.ExitCode.USAGE_ERROR
    (error,) = lines_with("ERROR:", done.output)
    assert "FAULTY_TENSORPIPE refuses the options messages_to_fial=[]" in error
    assert "messages_to_fail" in error


def test_an_unknown_suite_version_is_refused(run: Any) -> None:
    done = run(BACKEND, "--rpc-suite-version", "99", test_mine=REQUIREMENTS)

    assert done.status == pytest.ExitCode.USAGE_ERROR
    (error,) = lines_with("ERROR:", done.output)
    assert "--rpc-suite-version is 99; the installed suite has version" in error
    assert "pip install --upgrade rpc-backends-testing" in error


def test_the_class_refuses_an_unknown_suite_version() -> None:
    with pytest.raises(ValueError, match="suite_version is 99; the installed suite has version"):
        conformance("TENSORPIPE", suite_version=99)


def test_an_option_without_a_value_is_refused(run: Any) -> None:
    done = run(BACKEND, "--rpc-option", "num_worker_threads", test_mine=REQUIREMENTS)

    assert done.status == pytest.ExitCode.USAGE_ERROR
    assert "it must be KEY=VALUE" in done.output


# --- what a run tells ----------------------------------------------------------------------------


def test_every_outcome_is_reported(run: Any) -> None:
    done = run(
        *(BACKEND, "--rpc-report=report", "--rpc-suite-version=1", "-rs"), test_mine=REQUIREMENTS
    )

    assert done.outcomes() == {
        "calls.good": "passed",
        "data.bad": "failed",
        "data.new_and_bad": "fails, newer",
        "time.declared": "passed",
        "life.undeclared_that_works": "works, not declared",
        "life.undeclared_that_fails": "not declared",
        "devices.not_here": "not run",
    }
    assert done.status == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 3 passed, 3 skipped" in done.output
    assert "new in version 2 of the suite, and only version 1 counts" in done.output
    assert lines_with("capability telepathy", done.output)[0].endswith(
        "works, and is not declared: declare it"
    )
    assert "levitation is not declared: at" not in done.output
    assert "levitation is not declared: 1" in done.output
    assert "devices.not_here: there is no moon" in done.output
    assert "FAULTY_TENSORPIPE does not conform" in done.output


def test_a_failure_names_chapter_call_and_difference(run: Any) -> None:
    done = run(BACKEND, "-k", "bad and not new", test_mine=REQUIREMENTS)

    shown = done.output.partition("= FAILURES =")[2]
    for line in (
        "chapter   data (docs/how-to/write-a-backend.md#data)",
        "required  One is two",
        "call      one",
        "expected  2",
        "got       1",
        "look at   Look at the number.",
    ):
        assert line in shown.splitlines(), shown


def test_a_requirement_counts_from_its_version_on(run: Any) -> None:
    done = run(
        *(BACKEND, "--rpc-report=report", "--rpc-suite-version=2", "-k", "new_and_bad"),
        conftest="import rpc_backends_testing.suite; rpc_backends_testing.suite.SUITE_VERSION = 2",
        test_mine=REQUIREMENTS,
    )

    assert done.outcomes() == {"data.new_and_bad": "failed"}
    assert done.status == pytest.ExitCode.TESTS_FAILED


def test_requirements_run_in_chapter_order(run: Any) -> None:
    done = run(BACKEND, "-v", test_mine=REQUIREMENTS)

    names = re.findall(r"^test_mine.py::test_(\w+) \w", done.output, re.MULTILINE)
    assert names[:3] == ["good", "bad", "new_and_bad"]
    assert names[3:] == [
        "declared",
        "undeclared_that_works",
        "undeclared_that_fails",
        "not_here",
    ]


def test_the_report_is_json_and_html(run: Any) -> None:
    done = run(
        *(BACKEND, "--rpc-report", "made/for.1/mine.html", "--rpc-option", "num_worker_threads=3"),
        test_mine=REQUIREMENTS,
    )

    report = done.report("made/for.1/mine")
    page = (done.folder / "made/for.1/mine.html").read_text()
    assert sorted(path.name for path in (done.folder / "made/for.1").iterdir()) == [
        "mine.html",
        "mine.json",
    ]
    assert report["backend"]["name"] == "FAULTY_TENSORPIPE"
    assert report["backend"]["options"] == {"num_worker_threads": 3}
    assert report["verdict"] == "does not conform"
    assert report["suite_version"] >= 1
    assert report["machine"]["torch"]
    assert "FAULTY_TENSORPIPE" in page
    assert "num_worker_threads=3" in page


CENSUS = """
    from rpc_backends_testing import manifest

    manifest.requirements = lambda: {"calls.good": 1, "time.declared": 1}
"""


@pytest.mark.parametrize(
    ("chosen", "verdict"), [("good", "partial"), ("good or declared", "conforms")]
)
def test_a_partial_run_does_not_conform(run: Any, chosen: str, verdict: str) -> None:
    done = run(
        *(BACKEND, "--rpc-report=report", "-k", f"({chosen}) and not undeclared"),
        conftest=CENSUS,
        test_mine=REQUIREMENTS,
    )

    assert done.status == pytest.ExitCode.OK
    assert done.report()["verdict"] == verdict
    assert done.report()["complete"] is (verdict == "conforms")
    partly = "FAULTY_TENSORPIPE: nothing failed; only a part ran"
    assert (partly in done.output) is (verdict == "partial")


def test_with_xdist_the_report_is_the_same(run: Any) -> None:
    arguments = (BACKEND, "--rpc-option", "num_worker_threads=3", "--rpc-report=report")
    alone = run(*arguments, test_mine=REQUIREMENTS)
    first = alone.report()
    shared = run(*arguments, "-n", "2", test_mine=REQUIREMENTS)
    second = shared.report()

    assert "2 workers" in shared.output
    for report in (first, second):
        for result in report["results"]:
            del result["seconds"], result["detail"]
        report["results"].sort(key=lambda result: result["id"])
    assert shared.status == alone.status
    for key in ("results", "capabilities", "chapters", "verdict", "backend", "declared"):
        assert second[key] == first[key]


# --- requirements that a backend excludes --------------------------------------------------------


def install_pigeon(folder: Path, excluded: Mapping[str, str]) -> dict[str, str]:
    """Install a backend PIGEON that excludes requirements; return the variables to find it with."""
    source = f"""
        import dataclasses
        from rpc_backend_faulty_tensorpipe import BACKEND
        PIGEON = dataclasses.replace(BACKEND, options_type=None, excluded_requirements={dict(excluded)!r})
    """
    wheel = write_package(
        folder / "wheel",
        "rpc-backend-pigeon",
        modules={"pigeon.py": source},
        entry_points={"rpc.backends": {"PIGEON": "pigeon:PIGEON"}},
    )
    zipfile.ZipFile(wheel).extractall(folder / "wheel")
    return {"PYTHONPATH": str(folder / "wheel")}


def test_an_exclusion_is_reported_with_its_reason(run: Any, tmp_path: Path) -> None:
    env = install_pigeon(tmp_path, {"data.bad": "pigeons cannot count"})

    done = run(
        *("--rpc-backend=PIGEON", "--rpc-report=report", "-k", "good or bad and not new"),
        env=env,
        test_mine=REQUIREMENTS,
    )

    assert done.status == pytest.ExitCode.OK, done.output
    assert done.outcomes() == {"calls.good": "passed", "data.bad": "excluded"}
    assert done.report()["excluded"] == {"data.bad": "pigeons cannot count"}
    assert "  data.bad: pigeons cannot count" in done.output.splitlines()
    assert "pigeons cannot count" in (tmp_path / "report.html").read_text()


def test_an_excluded_requirement_must_not_pass(run: Any, tmp_path: Path) -> None:
    env = install_pigeon(tmp_path, {"calls.good": "pigeons cannot count"})

    done = run(
        *("--rpc-backend=PIGEON", "--rpc-report=report", "-k", "good"),
        env=env,
        test_mine=REQUIREMENTS,
    )

    assert done.status == pytest.ExitCode.TESTS_FAILED
    (result,) = done.report()["results"]
    assert result["outcome"] == "failed"
    assert result["expected"] == "a failure, for the reason given: pigeons cannot count"
    assert result["got"] == "it passes; remove it from Backend.excluded_requirements"


@pytest.mark.parametrize(
    ("excluded", "hint"),
    [
        ("data.bed", "Did you mean 'data.bad'"),
        ("calls.nested_call", "'calls.nested"),
        ("sonnets", "requirements.json"),
    ],
)
def test_an_unknown_excluded_requirement_is_an_error(
    run: Any, tmp_path: Path, excluded: str, hint: str
) -> None:
    env = install_pigeon(tmp_path, {excluded: "pigeons cannot count"})

    done = run("--rpc-backend=PIGEON", env=env, test_mine=REQUIREMENTS)

    assert done.status == pytest.ExitCode.USAGE_ERROR
    (error,) = lines_with("ERROR:", done.output)
    assert f"PIGEON excludes {excluded!r}, which is no requirement of the suite." in error
    assert hint in error


# --- an author's own tests -----------------------------------------------------------------------

OWN_CLASS = """
    from rpc_backends_testing import conformance

    Test{0} = conformance({0!r}, suite_version=1)
"""


def test_the_suite_runs_as_a_class(run: Any) -> None:
    source = OWN_CLASS.format("FAULTY_TENSORPIPE")
    done = run("--rpc-report=report", "-k", "TestCalls and test_self", test_conformance=source)

    assert done.status == pytest.ExitCode.OK, done.output
    outcomes = done.outcomes()
    assert {name.partition("[")[0] for name in outcomes} == {"calls.self"}
    assert set(outcomes.values()) == {"passed"}
    assert done.report()["backend"]["name"] == "FAULTY_TENSORPIPE"
    assert done.report()["counted_version"] == 1


def test_each_backend_has_its_own_report(run: Any) -> None:
    done = run(
        *("--rpc-report=report", "-k", "TestCalls and test_self and not asynchronous"),
        test_one=OWN_CLASS.format("FAULTY_TENSORPIPE"),
        test_two=OWN_CLASS.format("TENSORPIPE"),
    )

    assert done.status == pytest.ExitCode.OK, done.output
    for name in ("FAULTY_TENSORPIPE", "TENSORPIPE"):
        assert done.report(f"report-{name}")["backend"]["name"] == name
        assert (done.folder / f"report-{name}.html").exists()


# In this repository's environment a package with a pytest plugin is editable, so it is imported when
# Python starts.
WARNINGS_ARE_ERRORS = """
[tool.pytest.ini_options]
filterwarnings = [
    "error",
    "ignore:Module already imported so cannot be rewritten; _editable:pytest.PytestAssertRewriteWarning",
]
"""


def test_the_suite_runs_where_warnings_are_errors(run: Any, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(WARNINGS_ARE_ERRORS)
    modules = ("--pyargs", "rpc_backends_testing", "--tier", "torch")  # imports torch's tests

    done = run(BACKEND, *modules, "-k", "not Torch and (test_self or test_by_name)")

    assert done.status == pytest.ExitCode.OK, done.output
    assert "warning" not in done.output.lower()


def test_the_class_runs_where_warnings_are_errors(run: Any, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(WARNINGS_ARE_ERRORS)
    source = OWN_CLASS.format("FAULTY_TENSORPIPE")

    done = run("-k", "test_self", test_conformance=source)

    assert done.status == pytest.ExitCode.OK, done.output
    assert "warning" not in done.output.lower()


# --- interrupted runs ----------------------------------------------------------------------------

# Python prints an exception from `__del__`, and ignores it.
INTERRUPTED = """
    import signal

    import pytest
    from rpc_backends_testing import requirement

    def interrupt():
        signal.raise_signal(signal.{name})
        for _ in range(1000):
            pass

    class Deleted:
        def __del__(self):
            interrupt()

    @pytest.fixture
    def interrupted_after_its_folder(tmp_path):
        interrupt()

    @requirement("calls")
    def test_before():
        '''The first.'''

    @requirement("calls")
    def test_that_ignores():
        '''An exception of its is ignored.'''
        Deleted()

    @requirement("calls")
    def test_in_setup(interrupted_after_its_folder):
        '''It is interrupted.'''

    @requirement("calls")
    def test_after():
        '''It does not run.'''
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("chosen", "stopped", "ran"),
    [
        ("before or ignores or after", "interrupted", ["calls.before", "calls.that_ignores"]),
        ("before or ignores", "interrupted", ["calls.before", "calls.that_ignores"]),
        ("not ignores", "interrupted during test_in_setup", ["calls.before"]),
    ],
)
def test_an_interrupted_run_keeps_its_results(
    run: Any, name: str, chosen: str, stopped: str, ran: list[str]
) -> None:
    """It ends where Python ignored the exception, and where pytest fails because of it."""
    tests = dedent(INTERRUPTED.format(name=name))
    done = run(BACKEND, "--rpc-report", "report", "-k", chosen, test_requirements=tests)

    report = done.report()
    assert report["stopped"] == stopped, done.output
    assert report["verdict"] == "partial"
    assert list(done.outcomes()) == ran
    assert done.status != pytest.ExitCode.OK


def test_an_interrupt_is_reported_although_a_plugin_fails_on_it(run: Any) -> None:
    """As pytest's own does if a frame of the traceback has no line number."""
    tests = dedent(INTERRUPTED.format(name="SIGINT"))
    conftest = """
        class Late:
            def pytest_keyboard_interrupt(self, excinfo):
                raise TypeError("no line")

        def pytest_sessionstart(session):
            session.config.pluginmanager.register(Late())
    """
    arguments = (BACKEND, "--rpc-report", "report", "-k", "not ignores")
    done = run(*arguments, test_requirements=tests, conftest=conftest)

    assert done.report()["stopped"] == "interrupted during test_in_setup", done.output
    assert list(done.outcomes()) == ["calls.before"]


def test_a_failing_plugin_loses_no_results(run: Any) -> None:
    done = run(
        BACKEND,
        "--rpc-report",
        "report",
        test_requirements=REQUIREMENTS,
        conftest="""
            def pytest_runtest_logstart(nodeid):
                if "test_undeclared" in nodeid:
                    raise RuntimeError("no more")
        """,
    )

    assert done.status == pytest.ExitCode.INTERNAL_ERROR
    assert done.report()["stopped"] == "ended by an error of pytest or of a plugin"
    assert "calls.good" in done.outcomes()


# --- other people's runs -------------------------------------------------------------------------


def test_a_project_keeps_its_option_tier(run: Any) -> None:
    done = run(
        "--tier=gold",
        conftest="""
            def pytest_addoption(parser):
                parser.addoption("--tier", choices=["gold", "lead"])
        """,
        test_mine="""
            def test_tier(request):
                assert request.config.getoption("--tier") == "gold"
        """,
    )

    assert done.status == pytest.ExitCode.OK, done.output
    assert "1 passed" in done.output


@pytest.mark.parametrize("option", ["--tier", "--rpc-tier"])
def test_the_tier_is_chosen_by_either_name(run: Any, option: str) -> None:
    done = run(
        BACKEND,
        option,
        "torch",
        test_mine="def test_it(request): assert request.config.option.rpc_tier == 'torch'",
    )

    assert done.status == pytest.ExitCode.OK, done.output


def test_runs_without_backends_import_no_torch(run: Any) -> None:
    done = run(
        anew=True,
        test_mine="""
            import sys

            def test_it():
                assert "rpc_backends_testing.plugin" in sys.modules
                heavy = {"torch", "numpy", "jinja2", "importlib_metadata"}
                assert not heavy & set(sys.modules)
        """,
    )

    assert done.status == pytest.ExitCode.OK, done.output
    assert "conformance" not in done.output


def test_marks_are_registered(run: Any) -> None:
    done = run(BACKEND, "--strict-markers", "-k", "good", test_mine=REQUIREMENTS)

    assert done.status == pytest.ExitCode.OK, done.output
