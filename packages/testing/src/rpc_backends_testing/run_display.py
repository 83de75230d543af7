"""What ``rpc-backends conformance`` shows on stderr while the suite runs."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from rpc_backends_testing.results import Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_REFRESH = 4  # times a second


class RunDisplay:
    """Shows results as they come: each failure at once, and everything else in a line.

    On a terminal the line changes while the suite runs. Elsewhere each test has a line of its own.

    :param quiet: show nothing where stderr is not a terminal.
    """

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._name = name
        self._console = Console(stderr=True, highlight=False, emoji=False, markup=False)
        self._quiet = quiet and not self._console.is_terminal
        self._begin = time.monotonic()
        self._total: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._outcomes: dict[str, dict[str, str]] = {}
        #: The tests that are running, each with the time when it began.
        self._running: dict[str, float] = {}
        self._at: tuple[str, str] | None = None
        self._live: Live | None = None

    def __enter__(self) -> RunDisplay:
        """Begin to show."""
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._line,
                console=self._console,
                refresh_per_second=_REFRESH,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the line."""
        if self._live is not None:
            self._live.stop()

    def take(self, event: dict[str, Any]) -> None:
        """Show an event of the run (:mod:`rpc_backends_testing.progress` lists them)."""
        kind = event["event"]
        if kind == "collected":
            self._total = Counter(event["chapters"])
        elif kind == "test":
            self._at = (event["chapter"], event["test"])
            self._running[event["test"]] = time.monotonic()
        elif kind == "result":
            self._take_result(event)
        elif kind == "done":
            self._running.pop(event["test"], None)
            self._done[event["chapter"]] += 1
            if self._done[event["chapter"]] == self._total[event["chapter"]]:
                self._end_chapter(event["chapter"])
        elif kind == "silence":
            self._show_running()

    def _take_result(self, event: dict[str, Any]) -> None:
        results = self._outcomes.setdefault(event["chapter"], {})
        if results.get(event["id"]) == Outcome.FAILED:
            return  # its tear-down fails too
        results[event["id"]] = event["outcome"]
        if event["outcome"] == Outcome.FAILED:
            self._show_failure(event)
        elif self._live is None:
            self._print(f"{self._place()} {event['id']}: {_outcome(event)}")

    def _place(self) -> str:
        """Return the number of the test that has just ended, and that of all tests."""
        total = self._total.total()
        return f"[{self._done.total() + 1:{len(str(total))}}/{total}]" if total else "-"

    def _show_failure(self, event: dict[str, Any]) -> None:
        self._print(f"{self._place()} {event['id']}: FAILED, {event['seconds']:.1f} s", "bold red")
        for key in ("call", "expected", "got"):
            self._print(f"    {key:8}  {event[key]}")
        if event["has_stacks"]:
            for line in event["detail"].splitlines():
                self._print(f"    {line}")

    def _show_running(self) -> None:
        if self._live is None:
            now = time.monotonic()
            for test, begin in self._running.items():
                self._print(f"{test} has been running for {now - begin:.0f} s")

    def _end_chapter(self, chapter: str) -> None:
        if self._live is None:
            counts = Counter(self._outcomes.get(chapter, {}).values())
            said = ", ".join(
                f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]
            )
            self._print(f"{chapter}: {said} ({time.monotonic() - self._begin:.0f} s)")

    def _print(self, text: str, style: str = "") -> None:
        if not self._quiet:
            self._console.print(text, style=style, soft_wrap=True)

    def _line(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        for settings in ({}, {}, {"ratio": 1}, {}, {}, {}):
            table.add_column(no_wrap=True, overflow="ellipsis", **settings)  # type: ignore[arg-type]
        chapter, test = self._at or (self._name, "starting")
        seconds = int(time.monotonic() - self._begin)
        failures = self._failures()
        table.add_row(
            self._spinner(Spinner),
            Text(chapter, "bold"),
            Text(test),
            f"{self._done.total()} of {self._total.total()}" if self._total else "",
            Text(f"{failures} failed", "bold red" if failures else "dim"),
            f"{seconds // 60}:{seconds % 60:02}",
        )
        return table

    def _failures(self) -> int:
        return sum(
            outcome == Outcome.FAILED
            for results in self._outcomes.values()
            for outcome in results.values()
        )

    def _spinner(self, make: Any) -> Any:
        if not hasattr(self, "_spin"):
            self._spin = make("dots")
        return self._spin


def _outcome(event: dict[str, Any]) -> str:
    """Return a result in words, with the time it took or the reason."""
    if event["reason"]:
        return f"{event['outcome']} ({event['reason']})"
    return f"{event['outcome']}, {event['seconds']:.1f} s"
