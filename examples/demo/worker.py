"""The process of one worker: joins the group over the plan's backend, does its part, leaves.

Started by ``supervisor`` as ``python -m demo.worker NAME PLAN``. Messages for the
console go out on what was standard output; "stop" comes in on standard input, and its end means
that the console is gone, which ends this process too.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from demo.messages import Failed, Finished, Joined, Message, encode
from demo.plan import SERVER, WORKERS, Plan

STOP = b"stop\n"


def watch_console() -> threading.Event:
    """Return an event that is set when the console says stop; end the process if it goes away."""
    stop = threading.Event()

    def watch() -> None:
        # os.read, because a thread blocked in sys.stdin would trouble the interpreter's end.
        while data := os.read(0, 64):
            if data.endswith(STOP):
                stop.set()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return stop


def open_channel() -> Callable[[Message], None]:
    """Return the function that reports to the console; anything else printed goes to the log."""
    channel = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def report(message: Message) -> None:
        data = encode(message)
        with lock:
            while data:
                data = data[os.write(channel, data) :]

    return report


def join(plan: Plan, name: str) -> None:
    """Join the group over the plan's backend, with the faults that are options of it."""
    from torch.distributed import rpc

    faults = {}
    if plan.faults and not plan.faults.by:
        faults = {
            "messages_to_fail": list(plan.faults.messages_to_fail),
            "messages_to_delay": plan.faults.messages_to_delay,
            "num_fail_sends": plan.faults.num_fail_sends,
        }
    backend = rpc.BackendType[plan.backend]
    options = rpc.backend_registry.construct_rpc_backend_options(
        backend,
        init_method=f"file://{Path(plan.folder, 'rendezvous')}",
        rpc_timeout=plan.rpc_timeout,
        num_worker_threads=8,
        **faults,
    )
    rpc.init_rpc(
        name,
        backend=backend,
        rank=WORKERS.index(name),
        world_size=len(WORKERS),
        rpc_backend_options=options,
    )


def leave(plan: Plan) -> None:
    """Leave the group.

    A graceful shutdown gathers all workers by calls of its own, which it does not repeat: where
    calls fail by an option, it fails too (rules leave such calls alone). It is not needed either: nobody
    leaves before both trainers are done.
    """
    from torch.distributed import rpc

    rpc.shutdown(graceful=not plan.faults or bool(plan.faults.by))


def work(plan: Plan, name: str, report: Callable[[Message], None], stop: threading.Event) -> None:
    """Do the part of the worker called ``name``, from joining to leaving."""
    if name == SERVER:
        from demo.server import open_server

        open_server(plan)
        join(plan, name)
        report(Joined(name))
        stop.wait()
    else:
        from demo.trainer import Trainer

        join(plan, name)
        report(Joined(name))
        Trainer(plan, name, report).run()
        report(Finished(name))
    leave(plan)
    if name == SERVER:
        report(Finished(name))


def main(name: str, plan: str) -> int:
    """Run the worker called ``name``; return the process's exit status."""
    stop = watch_console()
    report = open_channel()
    try:
        work(Plan.from_json(plan), name, report, stop)
    except Exception:
        report(Failed(name, traceback.format_exc()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
