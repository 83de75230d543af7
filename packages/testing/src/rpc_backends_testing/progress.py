"""A pytest plugin that tells the process which started this run how it goes, line by line.

``rpc-backends conformance`` loads it (``-p``) and reads. A line is a JSON object with an ``event``:

- ``collected``: ``chapters``, the number of tests in each;
- ``test``: ``chapter`` and ``test``, which begins;
- ``result``: ``chapter``, ``outcome`` and ``title`` of a requirement;
- ``done``: ``chapter`` of a test that has ended;
- ``broken``: ``text``, where a file of tests could not be collected.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import pytest

_REQUIREMENT = "rpc_requirement"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that has the file descriptor to write to."""
    parser.addoption("--rpc-progress", type=int, metavar="FD", help="where to tell of progress")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to tell, in the process that starts the others if there are several."""
    descriptor = config.getoption("rpc_progress")
    if descriptor is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Teller(descriptor))


def chapter_of(nodeid: str) -> str:
    """Return the chapter that a test belongs to, by the file that it is in."""
    path = PurePath(nodeid.partition("::")[0])
    return "torch" if path.parent.name == "torch_tier" else path.stem.removeprefix("test_")


class _Teller:
    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # workers are not to keep it open
        self._descriptor = descriptor

    def _tell(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, **facts}) + "\n"
        try:
            os.write(self._descriptor, line.encode())
        except BrokenPipeError:
            pytest.exit("whoever started this run has gone", returncode=2)

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
        # Each process collects all there is.
        self._collected(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("test", chapter=chapter_of(nodeid), test=nodeid.rpartition("::")[2])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: list[tuple[str, Any]] = report.user_properties
        for result in (value for key, value in properties if key == _REQUIREMENT):
            facts = {key: result[key] for key in ("id", "outcome", "title")}
            self._tell("result", chapter=chapter_of(report.nodeid), **facts)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell("done", chapter=chapter_of(nodeid))

    def pytest_unconfigure(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
