"""The rules of a running agent: where they come from, how they change, the report at the end."""

from __future__ import annotations

import json
import logging
import resource
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rpc_backends_faults import _native, marks, replay, stores
from rpc_backends_faults.replay import Recording
from rpc_backends_faults.rules import HOUSEKEEPING, Rule, RuleError, RuleSet
from rpc_backends_faults.settings import Wanted

logger = logging.getLogger("rpc_backends.faults")

#: The most rules that a warning names.
_MOST_NAMED = 10


class Engine:
    """Holds the fault rules of one agent.

    :param pipeline: the C++ interceptor that applies the rules.
    :param worker: the worker's name.
    :param wanted: the rules and the given seeds. A change of the rule file replaces only its own rules.
    :param recording: a recorded run to replay; then only the recorded rules apply.
    """

    def __init__(
        self,
        pipeline: _native.FaultPipeline,
        worker: str,
        wanted: Wanted,
        recording: Recording | None = None,
    ) -> None:
        self.worker = worker
        self._seeds = wanted.seeds
        self.replaying = recording is not None
        self._recording = recording
        self._version = -1
        self._pipeline: _native.FaultPipeline | None = pipeline
        self._changing = threading.RLock()
        self._of_file = wanted.of_file
        self._given = wanted.given
        self._live: dict[str, Rule] = {}
        self._unfired: dict[str, Rule] = {}
        self._closing: list[Any] = []
        self._check_names(self._of_file.rules, self._given)
        if recording is None:
            self._apply()
        else:
            if any(rule["what"] == "store" for rule in recording.rules):
                stores.make_slow()
            pipeline.set_rules(recording.rules, recording.seed, list(HOUSEKEEPING))
            pipeline.set_replay(recording.entries, replay.STALL_TIMEOUT)
        marks.attach(self)

    @property
    def seed(self) -> int:
        """The seed for all random decisions."""
        if self._recording is not None:
            return self._recording.seed
        return self._seeds.chosen(self._of_file.seed) or 0

    @property
    def rules(self) -> list[Rule]:
        """The active rules, in the order in which they are applied."""
        return [*self._of_file.rules, *self._given, *self._live.values()]

    def native_rules(self) -> list[dict[str, Any]]:
        """Return the active rules in the form that the log uses."""
        return [rule.native() for rule in self.rules]

    def set_file_rules(self, rules: RuleSet) -> None:
        """Replace the rules of the rule file. A new seed resets the counts of all rules.

        :raises RuleError: two rules have the same name.
        """
        with self._changing:
            self._check_names(rules.rules, (*self._given, *self._live.values()))
            self._log_looked_at()
            before, self._of_file = self._of_file, rules
            try:
                self._apply()
            except Exception:
                self._of_file = before
                raise
            self.log_rules()

    def add(self, rule: Rule) -> None:
        """Add a rule.

        :raises RuleError: another rule has its name.
        """
        with self._changing:
            self._check_names(self.rules, (rule,))
            if self._recording is not None and not self._recording.has(rule):
                logger.warning(
                    "the rule %r was added on RPC worker %r during a replay and has no effect: a replay "
                    "applies recorded rules only, and this rule was not recorded",
                    rule.name,
                    self.worker,
                )
            self._live[rule.name] = rule
            self._apply()
            self.log_rules()

    def remove(self, name: str) -> None:
        """Remove a rule that :meth:`add` added; an unknown name is ignored."""
        with self._changing:
            rule = self._live.pop(name, None)
            if rule is None:
                return
            if not self._fired().get(name, (0, 0))[1]:
                self._unfired[name] = rule
            self._log_looked_at()
            self._apply()
            self.log_rules()

    def counts(self) -> dict[str, int]:
        """Return how often each active rule has fired in this process."""
        return {name: fired for name, (_, fired) in self._fired().items()}

    def set_mark(self, name: str, on: bool) -> None:
        """Tell the rules that the program has entered a mark (``on``) or left it."""
        if self._pipeline is not None:
            self._pipeline.set_mark(name, on)
            self.log("mark", name=name, on=on)

    def log(self, event: str, **members: Any) -> None:
        """Write a line to the event log, if there is one."""
        if self._pipeline is not None:
            self._pipeline.log_line(
                json.dumps({"event": event, **members}, separators=(",", ":"))[1:-1]
            )

    def log_rules(self) -> None:
        """Write the active rules to the event log."""
        self.log("rules", seed=self.seed, version=self._version, rules=self.native_rules())

    def _log_looked_at(self) -> None:
        """Log how many messages each rule has matched. Removing a rule also removes its count."""
        self.log(
            "counts", looked_at={name: matched for name, (matched, _) in self._fired().items()}
        )

    def at_close(self, do: Any) -> None:
        """Register ``do`` to be called when the agent has stopped."""
        self._closing.append(do)

    def close(self) -> None:
        """Report on the rules, close the log and stop; a second call does nothing."""
        # Without the lock: the watcher's thread, which ends here, may be about to change the rules.
        closing, self._closing = self._closing, []
        for do in closing:
            do()
        with self._changing:
            if self._pipeline is None:
                return
            marks.detach(self)
            self._report()
            self._pipeline.close_log()
            lost, why = self._pipeline.log_failure()
            if lost:
                logger.error(
                    "the event log of RPC worker %r is incomplete: %s could not be written (%s)",
                    self.worker,
                    "1 line" if lost == 1 else f"{lost} lines",
                    why,
                )
            self._pipeline = None

    # --- internals ------------------------------------------------------------------------------------

    def _apply(self) -> None:
        if self._pipeline is not None and not self.replaying:
            self._version += 1
            if any(rule.what == "store" for rule in self.rules):
                stores.make_slow()
            self._pipeline.set_rules(self._keyed_rules(), self.seed, list(HOUSEKEEPING))

    def _keyed_rules(self) -> list[dict[str, Any]]:
        """Return the active rules, each with its random key and the log's current rules version.

        The key of an unnamed rule is its content, not its position: inserting a rule changes the random
        decisions of no other rule.
        """
        alike: Counter[str] = Counter()
        keyed = []
        for rule in self.rules:
            key = rule.name
            if not rule.named:
                content = rule.content()
                alike[content] += 1
                key = f"{content} {alike[content]}"
            keyed.append({**rule.native(), "key": key, "version": self._version})
        return keyed

    def _fired(self) -> dict[str, tuple[int, int]]:
        if self._pipeline is None:
            return {}
        return {name: (matched, fired) for name, matched, fired in self._pipeline.fault_counts()}

    def _check_names(self, rules: Iterable[Rule], others: Iterable[Rule]) -> None:
        taken = {rule.name: rule for rule in rules}
        twice = [rule for rule in others if rule.name in taken]
        if twice:
            names = ", ".join(repr(rule.name) for rule in twice)
            raise RuleError(
                [f"a fault rule with this name already exists: {names}. Choose another name."]
            )

    def _report(self) -> None:
        assert self._pipeline is not None
        fired = self._fired()
        self.log(
            "end of log",
            counts={name: count for name, (_, count) in fired.items()},
            looked_at={name: matched for name, (matched, _) in fired.items()},
            memory=_memory(),
        )
        if self.replaying:
            self._report_divergence()
            return
        silent = {rule.name: rule for rule in self.rules if not fired.get(rule.name, (0, 0))[1]}
        silent |= {name: rule for name, rule in self._unfired.items() if name not in fired}
        named = [
            f"{name!r} ({_why(fired.get(name, (0, 0))[0])})"
            for name, rule in silent.items()
            if rule.concerns(self.worker)
        ]
        if named:
            more = f", and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
            logger.warning(
                "fault rules that never fired on RPC worker %r: %s%s",
                self.worker,
                ", ".join(named[:_MOST_NAMED]),
                more,
            )

    def _report_divergence(self) -> None:
        assert self._pipeline is not None
        strangers, first, missing, first_missing = self._pipeline.divergence()
        self.log(
            "divergence",
            new=strangers,
            first_new=first,
            missing=missing,
            first_missing=first_missing,
        )
        if not strangers and not missing:
            return
        new = f"{strangers} messages were not in the log (first: {first})" if strangers else ""
        gone = (
            f"{missing} recorded messages were never sent (for example: {first_missing})"
            if missing
            else ""
        )
        logger.warning(
            "the replay on RPC worker %r diverged: %s.",
            self.worker,
            "; ".join(text for text in (new, gone) if text),
        )


def _memory() -> int:
    """Return the bytes of memory that this process has in use (RSS)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _why(matched: int) -> str:
    if not matched:
        return "no matching message was sent while it was active"
    return f"{matched} matching messages were sent; none was selected"
