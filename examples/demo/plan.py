"""What one run does: sizes, seed, and the faults asked for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

SERVER = "parameter-server"
TRAINERS = ("trainer-0", "trainer-1")
WORKERS = (SERVER, *TRAINERS)  # a worker's rank is its place here

PACKAGES = {
    "TENSORPIPE": "rpc-backend-tensorpipe",
    "FAULTY_TENSORPIPE": "rpc-backend-faulty-tensorpipe",
    "ZEROMQ": "rpc-backend-zeromq",
}
BACKENDS = tuple(PACKAGES)
EPOCHS = 8
QUICK_EPOCHS = 3
GOAL = 0.9  # test accuracy that every run has to exceed

CALL = "PYTHON_CALL"
FETCH = "PYTHON_RREF_FETCH_CALL"
REMOTE = "PYTHON_REMOTE_CALL"
CLEANUP = "CLEANUP_AUTOGRAD_CONTEXT_REQ"


@dataclass(frozen=True)
class Faults:
    """The faults to ask for, in the words of FAULTY_TENSORPIPE's options.

    :param messages_to_fail: types whose messages each fail ``num_fail_sends`` times, then pass.
    :param messages_to_delay: seconds that each message of a type is held up.
    :param by: the package that makes them by rules of its own, before any backend; without one, they are
        options of the backend.
    """

    messages_to_fail: tuple[str, ...] = ()
    messages_to_delay: dict[str, float] = field(default_factory=dict)
    num_fail_sends: int = 0
    by: str = ""

    def __bool__(self) -> bool:
        return bool(self.messages_to_fail or self.messages_to_delay)


# Calls made within a distributed autograd context travel in a message type that FAULTY_TENSORPIPE cannot
# make fail, so what fails here are the calls between the steps: the trainers' meetings and the fetching
# of the weights. PYTHON_REMOTE_CALL is not among them because each ``rpc.remote`` carries a new
# RRef id, so that a repetition would be a new message and fail as well.
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

    :param folder: where the run's rendezvous file and logs are.
    :param data: the folder of the data set.
    :param rpc_timeout: seconds after which a call that got no answer is an error.
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
