"""The plan of a run: workers, sizes, seed and faults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

SERVER = "parameter-server"
TRAINERS = ("trainer-0", "trainer-1")
WORKERS = (SERVER, *TRAINERS)  # a worker's rank is its index here

PACKAGES = {
    "TENSORPIPE": "rpc-backend-tensorpipe",
    "FAULTY_TENSORPIPE": "rpc-backend-faulty-tensorpipe",
    "ZEROMQ": "rpc-backend-zeromq",
}
BACKENDS = tuple(PACKAGES)
EPOCHS = 8
QUICK_EPOCHS = 3
GOAL = 0.9  # every run has to exceed this test accuracy

CALL = "PYTHON_CALL"
FETCH = "PYTHON_RREF_FETCH_CALL"
REMOTE = "PYTHON_REMOTE_CALL"
CLEANUP = "CLEANUP_AUTOGRAD_CONTEXT_REQ"


@dataclass(frozen=True)
class Faults:
    """The faults to inject, with the names of FAULTY_TENSORPIPE's options.

    :param messages_to_fail: message types; each message of them fails ``num_fail_sends`` times, then
        succeeds.
    :param messages_to_delay: delay in seconds, by message type.
    :param by: the package that injects the faults, in front of any backend; if empty, the faults are
        options of the backend.
    """

    messages_to_fail: tuple[str, ...] = ()
    messages_to_delay: dict[str, float] = field(default_factory=dict)
    num_fail_sends: int = 0
    by: str = ""

    def __bool__(self) -> bool:
        return bool(self.messages_to_fail or self.messages_to_delay)


# Calls inside a distributed autograd context use a message type that FAULTY_TENSORPIPE cannot make fail.
# So the faults affect calls outside a context: the trainers' barriers and the fetching of the weights.
# PYTHON_REMOTE_CALL does not fail here, because each ``rpc.remote`` sends a new RRef id: a retry would be
# a new message, which would fail again.
_FAULTS = Faults(
    messages_to_fail=(CALL, FETCH),
    messages_to_delay={CLEANUP: 0.010, REMOTE: 0.020},
    num_fail_sends=2,
)
FAULTS = {
    "FAULTY_TENSORPIPE": _FAULTS,
    "ZEROMQ": replace(_FAULTS, by="rpc-backends-faults"),
}


@dataclass(frozen=True)
class Plan:
    """One run of the demo on one backend.

    :param folder: the folder of the run's rendezvous file and logs.
    :param data: the folder of the data set.
    :param rpc_timeout: timeout of calls in seconds.
    """

    backend: str
    folder: str
    data: str
    epochs: int = EPOCHS
    seed: int = 0
    faults: Faults = field(default_factory=Faults)
    hidden: int = 64
    batch: int = 16
    learning_rate: float = 0.05
    momentum: float = 0.9
    rpc_timeout: float = 120.0
