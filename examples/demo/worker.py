"""The steps of each worker process: join the group over the plan's backend, train, leave."""

from __future__ import annotations

from pathlib import Path

from demo.plan import SERVER, WORKERS, Plan
from rpc_backends_processes import WorkerContext


def join(me: WorkerContext, plan: Plan) -> None:
    """Join the group over the plan's backend, with the faults that are options of the backend."""
    from torch.distributed import rpc

    name = WORKERS[me.index]
    if name == SERVER:
        from demo.parameter_server import open_server

        open_server(plan)
    else:
        import demo.trainer  # noqa: F401  # imported now, so that no epoch's time includes the import
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
        rank=me.index,
        world_size=len(WORKERS),
        rpc_backend_options=options,
    )


def train(me: WorkerContext, plan: Plan) -> None:
    """Run a trainer in this worker."""
    from demo.trainer import Trainer

    Trainer(plan, WORKERS[me.index], me.tell).run()


def leave(_me: WorkerContext, plan: Plan) -> None:
    """Leave the group.

    A graceful shutdown makes calls between all workers and does not retry them. If an option of the
    backend makes calls fail, the shutdown fails, too (fault rules skip these calls). A graceful shutdown
    is not needed here: no worker leaves before both trainers are done.
    """
    from torch.distributed import rpc

    rpc.shutdown(graceful=not plan.faults or bool(plan.faults.by))
