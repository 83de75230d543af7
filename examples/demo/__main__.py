"""The command line of the demo."""

from __future__ import annotations

import json
import sys

import click

from demo.plan import BACKENDS, EPOCHS, QUICK_EPOCHS


@click.command()
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help=f"Backend to train over; repeat for several.  [default: {', '.join(BACKENDS)}]",
)
@click.option(
    "--epochs", type=click.IntRange(min=1), help=f"Passes over the data.  [default: {EPOCHS}]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of data and weights.")
@click.option("--quick", is_flag=True, help=f"{QUICK_EPOCHS} epochs, unless --epochs is given.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
def demo(
    backends: tuple[str, ...], epochs: int | None, seed: int, quick: bool, as_json: bool
) -> None:
    """Train a digits classifier over RPC backends, with and without faults.

    A parameter server and two trainers, each in its own process, learn scikit-learn's handwritten
    digits with RPC, RRefs and distributed autograd. They train over TENSORPIPE, then over
    FAULTY_TENSORPIPE, where training has to survive failed and delayed messages, then over ZEROMQ with
    the same faults, injected by rpc-backends-faults. Packages that are not installed are named and
    skipped. Fails unless every run reaches a test accuracy above 0.9.
    """
    from rich.console import Console

    from demo.backends import choose
    from demo.dataset import MissingDependencyError
    from demo.training import WorkerFailedError, play
    from demo.view import View
    from rpc_backends_core.spi import RpcBackendsError
    from rpc_backends_processes import exit_on_signals

    epochs = epochs or (QUICK_EPOCHS if quick else EPOCHS)
    try:
        choice = choose(backends)
        with exit_on_signals():
            runs = play(choice, epochs, seed, View(Console(quiet=as_json)))
    except (MissingDependencyError, RpcBackendsError, WorkerFailedError) as error:
        raise click.ClickException(str(error)) from error
    passed = not any(run.shortcoming for run in runs)
    if as_json:
        result = {
            "passed": passed,
            "seed": seed,
            "runs": [run.to_dict() for run in runs],
            "notes": choice.notes,
        }
        click.echo(json.dumps(result, indent=2))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    demo(prog_name="python -m demo")
