"""Show the progress of a run on stderr: a bar on a terminal, elsewhere a line for each tenth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_REFRESH = 4  # times a second


class Progress:
    """A context manager that shows what is measured and how much is left.

    :param expected: the expected duration in seconds, the sum of what :meth:`advance` will receive.
    :param quiet: print nothing if stderr is not a terminal.
    """

    def __init__(self, expected: float, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, emoji=False, markup=False)
        self._expected = expected
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._last_tenth = -1
        self._done = 0.0
        self._begin = time.monotonic()

    def __enter__(self) -> Progress:
        """Show the bar, on a terminal."""
        if self._console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
            from rich.progress import TimeRemainingColumn as Remaining

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%", markup=False),
                TimeElapsedColumn(),
                TextColumn("left", markup=False),
                Remaining(),
                console=self._console,
                refresh_per_second=_REFRESH,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._expected)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def describe(self, what: str) -> None:
        """Show what is measured next."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{what:<34.34}")
        elif not self._quiet:
            tenth = int(10 * self._done / self._expected)
            if tenth != self._last_tenth:
                self._last_tenth = tenth
                seconds = time.monotonic() - self._begin
                self._console.print(f"{10 * tenth:3} %, {seconds:.0f} s: {what}", soft_wrap=True)

    def advance(self, seconds: float) -> None:
        """Count work that was expected to take ``seconds`` as done."""
        self._done += seconds
        if self._bar is not None:
            self._bar.advance(self._task, seconds)
