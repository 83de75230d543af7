"""The demo as a whole: the data, one run after another, what the console shows of them."""

from __future__ import annotations

import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from demo.data import prepare
from demo.messages import EpochDone, Joined, Sized, StepDone
from demo.origin import Choice
from demo.plan import WORKERS, Plan
from demo.results import Run
from demo.supervisor import Workers
from demo.view import RunView, View


def play(choice: Choice, epochs: int, seed: int, view: View) -> list[Run]:
    """Train once on each backend chosen, one after another; return what came out.

    :raises MissingDependencyError: the data set is not there.
    :raises WorkerFailedError: a worker failed; all processes are ended.
    """
    runs = []
    with tempfile.TemporaryDirectory(prefix="rpc-backends-demo-") as folder:
        learn, test = prepare(Path(folder), seed)
        view.opening(version("torch"), choice, learn, test)
        for number, (origin, faults) in enumerate(choice.parts, start=1):
            place = Path(folder, f"{number}-{origin.backend}")
            place.mkdir()
            plan = Plan(origin.backend, str(place), folder, epochs=epochs, seed=seed, faults=faults)
            run = Run(origin, faults)
            with view.run(run, f"{number}/{len(choice.parts)}") as drawing:
                train(plan, run, drawing)
            runs.append(run)
    view.closing(runs)
    return runs


def train(plan: Plan, run: Run, drawing: RunView) -> None:
    """Train as planned, filling ``run`` and drawing it."""
    begin = lap = time.perf_counter()
    joined, steps = 0, 0
    with Workers(plan) as workers:
        for message in workers.messages():
            match message:
                case Joined():
                    joined += 1
                    if joined == len(WORKERS):
                        lap = time.perf_counter()
                case Sized():
                    steps += message.steps * plan.epochs
                    drawing.sized(steps)
                case StepDone():
                    drawing.advanced(message.epoch, plan.epochs)
                case EpochDone():
                    now = time.perf_counter()
                    epoch = run.add(message, now - lap)
                    if epoch:
                        drawing.epoch(epoch)
                        lap = now
    run.seconds = time.perf_counter() - begin
