"""Runs pytest in a worker of ``rpc-backends conformance``, and reports events of the run.

Each event is a mapping:

- ``collected``: ``chapters``, the number of tests in each;
- ``test``: ``chapter`` and ``test``, which begins;
- ``result``: ``chapter`` of a requirement, and what its result has under the names in `_FACTS`;
- ``done``: ``chapter`` and ``test``, which has ended;
- ``silence``: nothing has been reported for a while;
- ``broken``: ``text``, where a file of tests could not be collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

import pytest

from rpc_backends_processes import WorkerContext

_REQUIREMENT = "rpc_requirement"
_FACTS = ("id", "outcome", "seconds", "reason", "call", "expected", "got", "detail", "has_stacks")


def run_pytest(me: WorkerContext, arguments: Sequence[str]) -> int:
    """Run pytest, report what it does, and return its exit status."""
    return int(pytest.main([*arguments], plugins=[_Reporter(me.tell)]))


def chapter_of(nodeid: str) -> str:
    """Return the chapter that a test belongs to, by the file that it is in."""
    path = PurePath(nodeid.partition("::")[0])
    return "torch" if path.parent.name == "torch_tier" else path.stem.removeprefix("test_")


class _Reporter:
    """A pytest plugin. With pytest-xdist it is in the controlling process."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report

    def _tell(self, event: str, **facts: Any) -> None:
        self._report({"event": event, **facts})

    def _collected(self, nodeids: Iterable[str]) -> None:
        self._tell("collected", chapters=Counter(map(chapter_of, nodeids)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell("broken", text=str(report.longrepr))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._collected(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        # Each process collects all tests.
        self._collected(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("test", chapter=chapter_of(nodeid), test=nodeid.rpartition("::")[2])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: list[tuple[str, Any]] = report.user_properties
        for result in (value for key, value in properties if key == _REQUIREMENT):
            facts = {key: result[key] for key in _FACTS}
            self._tell("result", chapter=chapter_of(report.nodeid), **facts)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell("done", chapter=chapter_of(nodeid), test=nodeid.rpartition("::")[2])
