"""A rule file that changes, becomes invalid or disappears while the program runs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_agents.engine.files import state
from rpc_backends_faults import _native, files, settings, watching
from rpc_backends_faults.engine import Engine
from rpc_backends_faults.rules import RuleSet
from rpc_backends_faults.settings import Wanted
from rpc_backends_faults.watching import Watcher

OLD = '[[rule]]\nname = "old"\nwhat = "drop"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(OLD)
    return path


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = Engine(_native.FaultPipeline("w"), "w", Wanted(of_file=files.read(path)))
    yield engine
    engine.close()


@pytest.fixture
def watch(
    path: Path,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Callable[[Callable[[RuleSet], None]], None]:
    """Return a function that starts to watch the file."""
    monkeypatch.setattr(watching, "INTERVAL", 0.01)
    caplog.set_level(logging.INFO, "rpc_backends.faults")

    def begin(check: Callable[[RuleSet], None] = lambda rules: None) -> None:
        watcher = Watcher(path, engine, check)
        engine.at_close(watcher.close)

    return begin


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "the condition did not hold within 20 s"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "broken",
    [
        '[[rule]]\nwhat = ["drop", "delay"]\n',
        f'[[rule]]\nwhat = "drop"\nprobability = {"9" * 401}\n',
        f"rule = {'[' * 5000}",
        '[[rule]]\nwhat = "drop"\nsender = []\n',
        "fifo",
    ],
)
def test_an_invalid_change_is_logged_and_its_correction_loaded(
    path: Path,
    engine: Engine,
    watch: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    watch()
    if broken == "fifo":
        path.unlink()
        os.mkfifo(path)
    else:
        replace(path, broken)
    wait_for(lambda: "the old rules stay active" in caplog.text)
    assert [rule.name for rule in engine.rules] == ["old"]

    path.unlink()
    replace(path, OLD.replace("old", "new"))
    wait_for(lambda: [rule.name for rule in engine.rules] == ["new"])


def test_a_failure_of_the_watcher_does_not_stop_it(
    path: Path,
    engine: Engine,
    watch: Callable[[Callable[[RuleSet], None]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def check(rules: RuleSet) -> None:
        if rules.rules[0].name == "bad":
            raise MemoryError("none left")

    watch(check)
    replace(path, OLD.replace("old", "bad"))
    wait_for(lambda: "none left" in caplog.text)
    assert [rule.name for rule in engine.rules] == ["old"]

    replace(path, OLD.replace("old", "new"))
    wait_for(lambda: [rule.name for rule in engine.rules] == ["new"])


def test_a_removed_file_is_logged_once_and_its_rules_stay(
    path: Path,
    engine: Engine,
    watch: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Path] = []
    monkeypatch.setattr(watching, "state", lambda p: looks.append(p) or state(p))
    watch()
    path.unlink()
    wait_for(lambda: "is gone" in caplog.text)
    looks.clear()
    wait_for(lambda: len(looks) > 3)

    assert caplog.text.count("is gone") == 1
    assert [rule.name for rule in engine.rules] == ["old"]

    replace(path, OLD.replace("old", "new"))
    wait_for(lambda: [rule.name for rule in engine.rules] == ["new"])
    path.unlink()
    wait_for(lambda: caplog.text.count("is gone") == 2)


def test_a_file_that_becomes_readable_is_read_again(
    path: Path, engine: Engine, watch: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    watch()
    before = path.stat().st_ctime_ns
    path.chmod(0o600 if path.stat().st_mode & 0o777 != 0o600 else 0o644)

    assert path.stat().st_ctime_ns != before
    wait_for(lambda: "loaded changed fault rules" in caplog.text)


def test_a_change_before_the_watch_starts_is_read(
    path: Path, engine: Engine, monkeypatch: Any
) -> None:
    monkeypatch.setattr(watching, "INTERVAL", 0.01)
    seen = state(path)  # `settings.now` does the same before it reads the rules
    replace(path, OLD.replace("old", "new"))
    watcher = Watcher(path, engine, lambda rules: None, seen)
    engine.at_close(watcher.close)

    wait_for(lambda: [rule.name for rule in engine.rules] == ["new"])


def test_the_state_of_the_file_is_taken_before_reading(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state(path)
    read = files.read

    def read_and_change(path: Path) -> RuleSet:
        rules = read(path)
        replace(path, OLD.replace("old", "new"))
        return rules

    monkeypatch.setattr(files, "read", read_and_change)
    monkeypatch.setenv("RPC_BACKENDS_FAULTS", str(path))
    current = settings.now()

    assert current is not None
    assert current.seen == before != state(path)


def test_a_changed_seed_applies(path: Path, engine: Engine, watch: Callable[[], None]) -> None:
    watch()
    replace(path, f"seed = 5\n{OLD}")

    wait_for(lambda: engine.seed == 5)


def test_a_changed_seed_does_not_override_the_variable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_FAULTS", str(path))
    current = settings.now()
    assert current is not None
    assert (current.seeds.chosen(0), current.seeds.chosen(5)) == (None, 5)

    monkeypatch.setenv("RPC_BACKENDS_FAULTS_SEED", "9")
    current = settings.now()
    assert current is not None
    assert (current.seeds.chosen(0), current.seeds.chosen(5)) == (9, 9)


def test_a_program_may_change_its_working_directory(
    path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "INTERVAL", 0.01)
    monkeypatch.chdir(path.parent)
    watcher = Watcher(Path(path.name), engine, lambda rules: None)
    engine.at_close(watcher.close)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))

    replace(path, OLD.replace("old", "new"))
    wait_for(lambda: [rule.name for rule in engine.rules] == ["new"])


def test_a_change_while_the_agent_stops_does_not_block_it(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "INTERVAL", 0.01)
    takes, closes = threading.Event(), threading.Event()

    def check(_rules: RuleSet) -> None:
        takes.set()
        assert closes.wait(60)

    watcher = Watcher(path, engine, check)
    engine.at_close(closes.set)
    engine.at_close(watcher.close)
    path.write_text(OLD.replace("old", "new"))
    assert takes.wait(60)
    closing = threading.Thread(target=engine.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
