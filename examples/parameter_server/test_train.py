"""Training against updates that arrive twice."""

import importlib

import pytest
from torch.distributed import rpc

TWICE = {"what": "duplicate", "function": "*.update", "every": 10}


def learn(me, name):
    """Run a program on each worker: worker0 is the parameter server, the others are trainers."""
    program = importlib.import_module(name)
    if me.index == 0:
        return None
    program.train(me.index - 1, ps="worker0")
    return rpc.rpc_sync("worker0", program.result)


@pytest.mark.parametrize("backend", ["TENSORPIPE", "ZEROMQ"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("train", marks=pytest.mark.xfail(raises=AssertionError, strict=True)),
        "train_fixed",
    ],
)
def test_duplicated_updates_change_nothing(rpc_faults, name, backend):
    sound = rpc_faults(learn, name, workers=3, backend=backend)
    faulty = rpc_faults(learn, name, workers=3, rules=[TWICE], backend=backend)

    for worker in sound + faulty:
        if worker.error is not None:
            pytest.fail(worker.error)  # not the failure that `train` is expected to have
    assert [len(worker.faults) for worker in faulty] == [0, 10, 10]
    assert faulty[1].result == sound[1].result
