"""Watches the rule file for changes while the program runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from rpc_backends_agents.engine.files import state
from rpc_backends_faults import files
from rpc_backends_faults.engine import Engine, logger
from rpc_backends_faults.rules import RuleError, RuleSet

#: Seconds between checks of the file.
INTERVAL = 0.5
#: Failed checks in a row after which the file counts as gone.
_MOST_MISSING = 2


class Watcher:
    """Reloads the rules whenever the rule file changes.

    :param check: raises RuleError if rules name workers that the group does not have.
    :param seen: the state of the file before its rules were read; a change since then is loaded. None
        means the current state.
    """

    def __init__(
        self,
        path: Path,
        engine: Engine,
        check: Callable[[RuleSet], None],
        seen: tuple[int, ...] | None = None,
    ) -> None:
        self._path = path.absolute()  # the program may change its working directory
        self._engine = engine
        self._check = check
        self._seen: tuple[int, ...] | None = seen if seen is not None else state(path)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rpc-faults-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._end.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        missing = 0
        while not self._end.wait(INTERVAL):
            try:
                status = state(self._path)
                missing = 0
            except OSError as error:
                # One failed check is not enough: some editors remove a file before they write it.
                missing += 1
                if missing == _MOST_MISSING:
                    self._gone(error)
                continue
            if status == self._seen:
                continue
            self._seen = status
            try:
                self._take()
            except Exception:  # keep watching: the next version of the file may be valid
                logger.exception(
                    "the changed fault rules were not loaded; the old rules stay active"
                )

    def _gone(self, error: OSError) -> None:
        self._seen = None
        logger.error(
            "the fault rule file %s is gone (%s); its rules stay active",
            self._path,
            error.strerror,
        )
        self._engine.log(
            "refused", file=str(self._path), problems=[f"the file is gone: {error.strerror}"]
        )

    def _take(self) -> None:
        try:
            rules = files.read(self._path)
            self._check(rules)
            self._engine.set_file_rules(rules)
        except RuleError as error:
            logger.error(
                "the changed fault rules were not loaded; the old rules stay active: %s", error
            )
            self._engine.log("refused", file=str(self._path), problems=error.problems)
        else:
            names = ", ".join(repr(rule.name) for rule in rules.rules) or "none"
            logger.info(
                "loaded changed fault rules from %s: %s; the seed is %d",
                self._path,
                names,
                self._engine.seed,
            )
