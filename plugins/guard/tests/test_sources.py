"""A policy has one source, and a variable that is set is never taken for unset."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

import rpc_backends_guard
from rpc_backends_core.spi import RefusedError
from rpc_backends_guard import Policy, Rule, check, hooks


@pytest.fixture(autouse=True)
def _no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (hooks.POLICY, hooks.LEARN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hooks, "in_use", None)


def start() -> object:
    """Call the hook as a start of RPC does."""
    running: Generator[None, object, object] = hooks.rpc_backends_agent(backend="ZEROMQ")
    next(running)
    try:
        running.send("agent")
    except StopIteration as end:
        return end.value
    raise AssertionError("the hook has not ended")


def test_without_a_policy_nothing_is_guarded() -> None:
    assert start() == "agent"


@pytest.mark.parametrize("variable", [hooks.POLICY, hooks.LEARN])
@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_variable_is_refused(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(RefusedError, match=rf"^{variable} is set, but empty\."):
        start()


def test_a_missing_policy_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(hooks.POLICY, str(tmp_path / "none.toml"))
    with pytest.raises(RefusedError, match=r"none\.toml cannot be read"):
        start()


@pytest.mark.parametrize(
    ("first", "second"),
    [(hooks.POLICY, hooks.LEARN), (hooks.POLICY, hooks.USE), (hooks.LEARN, hooks.USE)],
)
def test_two_sources_are_refused_with_both_named(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (first, second):
        if name == hooks.USE:
            rpc_backends_guard.use(Policy((Rule(("a",)),)))
        else:
            monkeypatch.setenv(name, "somewhere")
    with pytest.raises(RefusedError) as caught:
        start()
    assert first in str(caught.value)
    assert second in str(caught.value)


def test_doctor_reports_an_empty_variable_as_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hooks.POLICY, "")
    assert [finding.level for finding in check.check().findings] == ["problem"]
