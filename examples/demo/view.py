"""The console output: where the backends come from, the progress of training, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from demo.backends import Choice
from demo.plan import GOAL, TRAINERS, Faults
from demo.results import Epoch, Run, StepDone

_WIDTHS = {"epoch": 5, "loss": 7, "accuracy": 9, "failed": 7, "delayed": 8, "seconds": 8}


class View:
    """Prints to ``console``: with colours and a progress bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def opening(self, torch_version: str, choice: Choice, learn: int, test: int) -> None:
        """Print what the demo does, and which packages provide the backends."""
        self._say(f"[bold]demo of rpc-backends[/] on torch {torch_version}")
        self._say(
            f"A parameter server and two trainers learn {learn} handwritten digits with RPC, RRefs "
            f"and distributed autograd, and are tested on {test} others."
        )
        self._say()
        width = max(len(origin.backend) for origin, _ in choice.parts)
        for origin, _ in choice.parts:
            source = f"{origin.distribution} {origin.version}"
            self._say(f"  [bold cyan]{origin.backend:{width}}[/]  from {source}")
        for note in choice.notes:
            self._say()
            self._say(f"[yellow]{escape(note)}[/]")

    def run(self, run: Run, place: str) -> RunView:
        """Announce a run; return a context manager that shows its progress."""
        self._say()
        self._say(f"[bold]{place}[/]  [bold cyan]{run.origin.backend}[/]")
        for line in _asked_for(run.faults):
            self._say(f"[dim]{line}[/]")
        return RunView(self.console)

    def closing(self, runs: Sequence[Run]) -> None:
        """Show all runs side by side, their faults, and the verdict."""
        width = max(len("backend"), *(len(run.origin.backend) for run in runs))
        self._say()
        heading = f"{'backend':{width}}  accuracy  failed  delayed     time"
        _print_row(self.console, heading, "bold")
        for run in runs:
            accuracy = (f"{run.accuracy:10.3f}", "red" if run.shortcoming else "green")
            faults = f"{sum(run.failed.values()):8} {sum(run.delayed.values()):8}"
            name = (f"{run.origin.backend:{width}}", "bold cyan")
            _print_row(self.console, Text.assemble(name, accuracy, faults, f"{run.seconds:7.1f} s"))
        self._say()
        for run in runs:
            where = f"on {run.origin.backend}"
            self._met(f"failed sends {where}, each retried until it succeeded", run.failed)
            self._met(f"delayed sends {where}", run.delayed)
        if len(runs) > 1:
            curves = zip(*(run.epochs for run in runs), strict=True)
            apart = max(max(e.loss for e in at) - min(e.loss for e in at) for at in curves)
            self._say(f"largest difference in loss between the runs, in any epoch: {apart:.4f}")
        for run in runs:
            if run.shortcoming:
                self._say(f"[bold red]FAILED[/]  {run.origin.backend}: {run.shortcoming}")
        if not any(run.shortcoming for run in runs):
            *others, last = (run.origin.backend for run in runs)
            names = f"{', '.join(others)} and {last}" if others else last
            self._say(f"[bold green]PASSED[/]  test accuracy above {GOAL:g} on {names}")

    def _met(self, what: str, counts: dict[str, int]) -> None:
        if counts:
            self._say(f"[bold]{sum(counts.values())}[/] {what}")
            for kind, count in sorted(counts.items()):
                self._say(f"  {count:6}  {kind}")
            self._say()

    def _say(self, text: str = "") -> None:
        self.console.print(text, highlight=False)


class RunView:
    """The progress of a run: a line for each epoch and, on a terminal, a progress bar below."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="cyan"),
            TaskProgressColumn("[cyan]{task.percentage:>3.0f}%"),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_interactive,
        )
        self._task = self._progress.add_task("starting three processes", total=None)

    def __enter__(self) -> RunView:
        heading = " ".join(f"{name:>{width}}" for name, width in _WIDTHS.items())
        self._console.print()
        _print_row(self._console, heading, "bold")
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advanced(self, step: StepDone, epochs: int) -> None:
        """Show that one more step is done."""
        total = step.steps * epochs * len(TRAINERS)
        description = f"epoch {step.epoch}/{epochs}"
        self._progress.update(self._task, total=total, advance=1, description=description)

    def epoch(self, epoch: Epoch) -> None:
        """Show a finished epoch."""
        cells = (
            str(epoch.number),
            f"{epoch.loss:.4f}",
            f"{epoch.accuracy:.3f}",
            str(sum(epoch.failed.values())),
            str(sum(epoch.delayed.values())),
            f"{epoch.seconds:.2f}",
        )
        line = " ".join(
            f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS.values(), strict=True)
        )
        _print_row(self._console, line)


def _print_row(console: Console, text: str | Text, style: str = "") -> None:
    """Print a line of a table; a line that is too long for the terminal is cut off."""
    console.print(text, style=style, highlight=False, no_wrap=True, overflow="crop")


def _asked_for(faults: Faults) -> list[str]:
    """Return the planned faults in words, one line for each kind."""
    lines = [f"faults injected by {faults.by}:"] if faults.by else []
    if faults.messages_to_fail:
        kinds = ", ".join(faults.messages_to_fail)
        lines.append(f"each fails {faults.num_fail_sends} times, then succeeds: {kinds}")
        if faults.by:
            lines.append(
                "these rules also match calls in a distributed autograd context, which FAULTY_TENSORPIPE "
                "does not see: so more sends fail"
            )
    if faults.messages_to_delay:
        delays = faults.messages_to_delay.items()
        kinds = ", ".join(f"{kind} {seconds * 1000:g} ms" for kind, seconds in delays)
        lines.append(f"each is delayed: {kinds}")
    return lines or ["no faults"]
