"""The rules of a running agent: where they come from, changing them, what is said in the end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from typing import Any

from rpc_backends_faults import _native, marks
from rpc_backends_faults.errors import RuleError
from rpc_backends_faults.kinds import HOUSEKEEPING
from rpc_backends_faults.rules import Rule, RuleSet

logger = logging.getLogger("rpc_backends.faults")

#: Rules that a warning names.
_MOST_NAMED = 10


class Engine:
    """What one agent's faults come from.

    :param pipeline: what does as the rules say.
    :param worker: its worker's name.
    :param given: rules of the program, which stay.
    :param replaying: the rules are those of a log, and nothing else counts.
    """

    def __init__(
        self,
        pipeline: _native.FaultPipeline,
        worker: str,
        *,
        seed: int,
        of_file: Iterable[Rule] = (),
        given: Iterable[Rule] = (),
        replaying: bool = False,
    ) -> None:
        self.worker = worker
        self.seed = seed
        self.replaying = replaying
        self._pipeline: _native.FaultPipeline | None = pipeline
        self._changing = threading.RLock()
        self._of_file = tuple(of_file)
        self._given = tuple(given)
        self._live: dict[str, Rule] = {}
        self._unfired: dict[str, Rule] = {}
        self._closing: list[Any] = []
        self._check_names(self._of_file, self._given)
        self._apply()
        marks.attach(self)

    @property
    def rules(self) -> list[Rule]:
        """The rules in force, in the order in which they are tried."""
        return [*self._of_file, *self._given, *self._live.values()]

    def native_rules(self) -> list[dict[str, Any]]:
        """Return them as the log has them."""
        return [rule.native() for rule in self.rules]

    def set_file_rules(self, rules: RuleSet) -> None:
        """Take what a changed rule file has.

        :raises RuleError: a name is another rule's.
        """
        with self._changing:
            self._check_names(rules.rules, (*self._given, *self._live.values()))
            self._log_looked_at()
            before, self._of_file = self._of_file, rules.rules
            try:
                self._apply()
            except Exception:
                self._of_file = before
                raise
            self.log_rules()

    def add(self, rule: Rule) -> None:
        """Add a rule.

        :raises RuleError: its name is another's.
        """
        with self._changing:
            self._check_names(self.rules, (rule,))
            self._live[rule.name] = rule
            self._apply()
            self.log_rules()

    def remove(self, name: str) -> None:
        """Take away a rule that was added; one that is not there does no harm."""
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
        """Return how often each rule in force has fired in this process."""
        return {name: fired for name, (_, fired) in self._fired().items()}

    def set_mark(self, name: str, on: bool) -> None:
        """Tell the rules that the program has come into a mark, or out of one."""
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
        """Write the rules that are now in force to the log."""
        self.log("rules", seed=self.seed, rules=self.native_rules())

    def _log_looked_at(self) -> None:
        """Write how many messages each rule was for so far; what the rules count ends with them."""
        self.log(
            "counts", looked_at={name: matched for name, (matched, _) in self._fired().items()}
        )

    def at_close(self, do: Any) -> None:
        """Have ``do`` called when the agent has stopped."""
        self._closing.append(do)

    def close(self) -> None:
        """Say what there is to say of the rules, and end; a second call does nothing."""
        with self._changing:
            if self._pipeline is None:
                return
            marks.detach(self)
            for do in self._closing:
                do()
            self._report()
            self._pipeline.close_log()
            lost, why = self._pipeline.log_failure()
            if lost:
                logger.error(
                    "the event log of RPC worker %r lacks %s: %s",
                    self.worker,
                    "1 line" if lost == 1 else f"{lost} lines",
                    why,
                )
            self._pipeline = None

    # --- within --------------------------------------------------------------------------------------

    def _apply(self) -> None:
        if self._pipeline is not None and not self.replaying:
            self._pipeline.set_rules(self.native_rules(), self.seed, list(HOUSEKEEPING))

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
                [f"there is a fault rule of this name already: {names}. Name it otherwise."]
            )

    def _report(self) -> None:
        assert self._pipeline is not None
        fired = self._fired()
        self.log(
            "end of log",
            counts={name: count for name, (_, count) in fired.items()},
            looked_at={name: matched for name, (matched, _) in fired.items()},
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
        new = f"{strangers} messages were not in the log, first {first}" if strangers else ""
        gone = f"{missing} of the log never came, {first_missing} say" if missing else ""
        logger.warning(
            "the replay on RPC worker %r diverged: %s.",
            self.worker,
            "; ".join(text for text in (new, gone) if text),
        )


def _why(matched: int) -> str:
    if not matched:
        return "no such message was sent in its time"
    return f"{matched} such messages were sent, and none was chosen"
