"""How a run goes, on stderr: a bar on a terminal, and elsewhere a line for each tenth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

_REFRESH = 4  # times a second


class Progress:
    """Shows what is measured and how much is left; a context.

    :param expected: all that :meth:`advance` will receive, in seconds, if all goes well.
    :param quiet: say nothing where it is not a terminal.
    """

    def __init__(self, expected: float, *, quiet: bool = False) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, emoji=False, markup=False)
        self._expected = expected
        self._quiet = quiet
        self._bar: RichProgress | None = None
        self._said = -1
        self._done = 0.0
        self._begin = time.monotonic()

    def __enter__(self) -> Progress:
        """Begin to show."""
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
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def describe(self, what: str) -> None:
        """Say what is measured next."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{what:<34.34}")
        elif not self._quiet:
            tenth = int(10 * self._done / self._expected)
            if tenth != self._said:
                self._said = tenth
                seconds = time.monotonic() - self._begin
                self._console.print(f"{10 * tenth:3} %, {seconds:.0f} s: {what}", soft_wrap=True)

    def advance(self, seconds: float) -> None:
        """Take note that something is done."""
        self._done += seconds
        if self._bar is not None:
            self._bar.advance(self._task, seconds)
