"""The protocols of the backends, for simulated workers: form a group, join, leave.

Each function makes the same requests as the function that its docstring names in the sources. A test
compares the simulation with real groups. If it fails, a protocol has changed and its function here must
be changed too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulated import NOTHING, Client, Steps, Value, call, call_all

#: Sizes in bytes of what workers write to the store, as counted in real groups.
_ARRIVAL = 260  # rpc_backends_core._group.formation: name, rank, nonce, host, process
_MEMBER = 60  # one member in the answer: nonce, name, rank, ids
_DEVICES = 82  # rpc_backends_core._device_maps: no maps
_ADDRESS = 24  # where a TensorPipe agent listens
_PUBLICATION = 560  # rpc_backend_zeromq.publication, with its proof (500 without a Unix socket)
# rpc_backends_core._group.group: the result of an exchange, without what workers wrote
_PAYLOADS = 16
_NOTHING, _ACTIVE = 6, 3  # "null" or a number of active calls, with its separator
_LONGEST_VALUE = 4 << 20  # rpc_backends_core._group.answers: longer answers are in pieces
_IN_PIECES = 95  # the value that names the pieces
_TRAFFIC = 16  # rpc_backends_agents.agent: four counters
_PEER = 145  # rpc_backend_tensorpipe.membership: one member on the list
_USED = 4  # an id on the list that was ever assigned
_NAME = 9  # a worker's name
_RECORD = 60  # rpc_backends_agents.roster: a worker has joined or left
_GLOO, _GLOO_EACH = 200, 8  # Gloo's addresses: a fixed part, and a part for each other worker
_AROUND = 136  # an empty list of members, with the key of the group
#: How many barriers torch's `TensorPipeAgent::join` has if no call is active.
_BARRIERS = 3
#: How often `rpc_backends_agents.agent.StaticGroupAgent.join` exchanges counts if no call is active.
_ROUNDS = 2

Members = tuple[int, ...]


# --- rpc_backends_core._group ----------------------------------------------------------------------


def form_static(client: Client) -> Steps:
    """`_Arrival.join_static`."""
    world, me = client.world, client.worker
    yield from client.connect()
    generation = yield from client.add("generation", 0)
    at = f"{generation}/"
    yield from client.compare_set(f"{at}kind", NOTHING, Value("static", 10))
    yield from client.compare_set(f"{at}slot/{me}", NOTHING, Value(me, _ARRIVAL))
    if (yield from client.add(f"{at}arrived", 1)) == world.size:
        slots = [f"{at}slot/{rank}" for rank in range(world.size)]
        yield from client.check(*slots)
        yield from client.multi_get(*slots)
        yield from settle(client, f"{at}group", _MEMBER * world.size)
        following = generation + 1 if isinstance(generation, int) else 1
        yield from client.compare_set("generation", Value(generation, 1), Value(following, 1))
    yield from whole_answer(client, f"{at}group")


def settle(client: Client, key: str, size: int) -> Steps:
    """`answers.settle`: an answer that is too long for a value is written in pieces."""
    pieces = range(0, size, _LONGEST_VALUE) if size > _LONGEST_VALUE else ()
    for number, begin in enumerate(pieces):
        piece = min(_LONGEST_VALUE, size - begin)
        yield from client.set(f"{key}/{number}", Value(number, piece))
    value = Value(len(pieces), _IN_PIECES if pieces else size)
    yield from client.compare_set(key, NOTHING, value)


def whole_answer(client: Client, key: str) -> Steps:
    """`waiting.wait_for` and `answers.whole_answer`."""
    value = yield from client.await_and_get(key)
    if value.what:
        keys = [f"{key}/{number}" for number in range(value.what)]
        yield from client.check(*keys)
        yield from client.multi_get(*keys)


def form_dynamic(client: Client) -> Steps:
    """`_Arrival.join_dynamic`."""
    yield from client.connect()
    generation = yield from client.add("generation", 0)
    yield from client.compare_set(f"{generation}/kind", NOTHING, Value("dynamic", 7))
    yield from client.add("present", 1)
    yield from client.compare_set(f"autograd/{client.worker}", NOTHING, Value(client.worker, 32))
    # The flight recorder, if it is installed, asks for the id of the group.
    yield from client.compare_set("group_id", NOTHING, Value("group", 16))


def exchange(client: Client, stage: str, size: int) -> Steps:
    """`Group.exchange`."""
    world = client.world
    yield from client.set(f"{stage}/{client.worker}", Value(client.worker, size))
    if (yield from client.add(f"{stage}/arrived", 1)) == world.size:
        yield from client.multi_get(*(f"{stage}/{rank}" for rank in range(world.size)))
        yield from settle(client, f"{stage}/all", _PAYLOADS + size * world.size)
    yield from whole_answer(client, f"{stage}/all")


def meet(client: Client) -> Steps:
    """`Group.meet`, with which a shutdown begins: an exchange of nothing."""
    yield from exchange(client, "meeting", _NOTHING)


def end(client: Client) -> Steps:
    """`Group.end`, of a static group."""
    if (yield from client.add("left", 1)) == client.world.size:
        yield from client.set("ended", Value("1", 1))


def end_dynamic(client: Client) -> Steps:
    """`Group.end` and `Group.is_over`, of a dynamic group."""
    yield from client.add("present", -1)
    yield from client.add("present", 0)


# --- torch.distributed.rpc.api ---------------------------------------------------------------------


def gather(client: Client, number: int) -> Steps:
    """`_all_gather`: all call the first worker, then it calls all. Each message has all names."""
    world, me = client.world, client.worker
    size = 2 * _NAME * world.size
    if me:
        yield from call(world, me, 0, size)
        world.arrive(f"gather/{number}", world.size - 1)
        yield world.event(f"told/{number}")
    elif world.size > 1:
        yield world.event(f"gather/{number}")
        yield from call_all(world, 0, list(range(1, world.size)), size)
        world.arrive(f"told/{number}", 1)


# --- rpc_backend_tensorpipe ------------------------------------------------------------------------


def tensorpipe_start(client: Client) -> Steps:
    """`static_group.start`: device maps, then addresses."""
    yield from form_static(client)
    yield from exchange(client, "devices", _DEVICES)
    yield from exchange(client, "addresses", _ADDRESS)


def tensorpipe_shutdown(client: Client) -> Steps:
    """Torch's `shutdown` on `StaticGroupAgent`, and `Barriers`."""
    yield from meet(client)
    for number in range(_BARRIERS):
        yield from exchange(client, f"barrier/{number}", _ACTIVE)
    yield from end(client)


def tensorpipe_join(client: Client) -> Steps:
    """`dynamic_group.start`: the list of members changes for the id, and again for the address.

    After that the joiner sends messages to all members. These are no calls and are not simulated, neither
    here nor in a leave.
    """
    me = client.worker
    yield from form_dynamic(client)
    yield from _change(client, lambda members: members)
    yield from _change(client, lambda members: (*members, me))


def tensorpipe_leave(client: Client) -> Steps:
    """`TensorPipeDynamicAgent.leave_group`."""
    me = client.worker
    yield from _change(client, lambda old: tuple(one for one in old if one != me))
    yield from end_dynamic(client)


def _change(client: Client, change: Callable[[Members], Members]) -> Steps:
    """`Membership._change`: compare-and-set, retried after a lost race."""
    found = yield from client.compare_set("members", NOTHING, Value((0, -1, (), 0), _AROUND))
    while True:
        version, _, before, used = found.what
        after = change(before)
        used += after == before  # an id is assigned
        size = _PEER * len(after) + _USED * used + _AROUND
        wanted = Value((version + 1, client.worker, after, used), size)
        found = yield from client.compare_set("members", found, wanted)
        if found.what == wanted.what:
            return after


# --- rpc_backend_zeromq, and rpc_backends_agents ----------------------------------------------------


def zeromq_start(client: Client) -> Steps:
    """`start._start_static`: exchange addresses."""
    yield from form_static(client)
    yield from exchange(client, "addresses", _PUBLICATION)


def zeromq_shutdown(client: Client) -> Steps:
    """Torch's `shutdown`, and `StaticGroupAgent.join`: two rounds without active calls."""
    yield from meet(client)
    for number in range(_ROUNDS):
        yield from exchange(client, f"traffic/{number}", _TRAFFIC)
    yield from end(client)


def zeromq_join(client: Client) -> Steps:
    """`start._start_dynamic`."""
    roster = Roster(client)
    yield from form_dynamic(client)
    yield from client.add(f"id/{client.worker}", 1)
    yield from client.compare_set("nonce", NOTHING, Value("nonce", 32))
    yield from roster.append(_PUBLICATION + _RECORD)
    yield from roster.refresh()  # _init_rpc_states looks up all workers
    yield from roster.refresh()
    for key in ("name", "rank"):
        yield from client.compare_set(f"{key}/{client.worker}", NOTHING, Value(client.worker, 4))
    member = Value((client.worker, "in"), 7)
    yield from client.compare_set(f"name/{client.worker}", Value(client.worker, 4), member)
    yield from roster.append(_RECORD)
    yield from roster.refresh()
    yield from roster.refresh()  # init_rpc looks up all workers, too


def zeromq_leave(client: Client) -> Steps:
    """`DynamicGroupAgent.leave_group`."""
    yield from Roster(client).append(_RECORD)
    yield from end_dynamic(client)


class Roster:
    """`rpc_backends_agents.roster.Roster`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._read = 0
        self._missing: set[int] = set()

    def append(self, size: int) -> Steps:
        """Add a record."""
        number = yield from self._client.add("records", 1)
        yield from self._client.set(f"record/{number}", Value(number, size))

    def refresh(self) -> Steps:
        """Read the new records."""
        (records,) = yield from self._client.multi_get("records")
        there = int(records.what)
        new = [*sorted(self._missing), *range(self._read + 1, there + 1)]
        self._read, self._missing = there, set()
        keys = [f"record/{number}" for number in new]
        if len(new) == 1 or not (new and (yield from self._client.check(*keys))):
            written = []
            for number, key in zip(new, keys, strict=True):
                if (yield from self._client.check(key)):
                    written.append(key)
                else:
                    self._missing.add(number)
            keys = written
        if keys:
            yield from self._client.multi_get(*keys)


# --- torch's own TENSORPIPE, as its requests to the store show ---------------------------------------


def torch_start(client: Client) -> Steps:
    """Barrier; Gloo's mesh; names and addresses of all workers, one by one; device maps."""
    world, me = client.world, client.worker
    ranks = range(world.size)
    yield from client.connect()
    if (yield from client.add("init", 1)) == world.size:
        world.put("ready", Value("", 0))
    yield from client.wait("ready")
    yield from client.set(f"gloo/{me}", Value("", _GLOO + _GLOO_EACH * world.size))
    yield from client.set(f"rank/{me}", Value("", _NAME))
    for other in ranks:
        if other != me:
            yield from client.await_and_get(f"gloo/{other}")
    yield from client.compare_set(f"names/{me}", NOTHING, Value(me, _NAME))
    yield from client.set(f"addresses/{me}", Value("", _ADDRESS))
    for key in ("names", "addresses"):
        for other in ranks:
            yield from client.get(f"{key}/{other}")
    yield from gather(client, 0)


def torch_shutdown(client: Client) -> Steps:
    """`shutdown`, and the agent's `join`, which has barriers in the store."""
    yield from gather(client, 1)
    for number in range(_BARRIERS):
        yield from client.add(f"barrier/{number}/active", 0)
        if (yield from client.add(f"barrier/{number}/arrived", 1)) == client.world.size:
            yield from client.set(f"barrier/{number}/ready", Value("", 0))
        yield from client.await_and_get(f"barrier/{number}/ready")


def torch_join(client: Client) -> Steps:
    """Join a dynamic group: take the token, for which all wait, and call each member twice, in turn."""
    world, me = client.world, client.worker
    yield from client.connect()
    yield from client.compare_set("kind", NOTHING, Value("dynamic", 1))
    yield from _take_token(client)
    yield from client.compare_set(f"names/{me}", NOTHING, Value(me, _NAME))
    yield from client.set(f"addresses/{me}", Value("", _ADDRESS))
    yield from client.set(f"ids/{me}", Value(me, 2))
    members: Members = (me,)
    if (yield from client.check("members")):
        members = (*(yield from client.get("members")).what, me)
    yield from client.set("members", Value(members, (_NAME + 1) * len(members)))
    yield from client.get(f"names/{me}")
    for other in members:
        yield from client.get(f"addresses/{other}")
        yield from call(world, me, other)
    for other in members[:-1]:
        yield from call(world, me, other)
        yield from world.clients[other].get(f"addresses/{me}")
    yield from _return_token(client)


def torch_leave(client: Client) -> Steps:
    """Leave a dynamic group: take the token, and call each member in turn."""
    world, me = client.world, client.worker
    yield from _take_token(client)
    members = tuple(one for one in (yield from client.get("members")).what if one != me)
    yield from client.set("members", Value(members, (_NAME + 1) * len(members)))
    for other in members:
        yield from call(world, me, other)
    yield from _return_token(client)


def _take_token(client: Client) -> Steps:
    """`_group_membership_management`."""
    mine = f"token of {client.worker}"
    while (
        found := (yield from client.compare_set("token", NOTHING, Value(mine, 22)))
    ).what != mine:
        yield from client.wait(found.what)


def _return_token(client: Client) -> Steps:
    yield from client.set("token", NOTHING)
    yield from client.set(f"token of {client.worker}", Value("Done", 4))


# --- the table of protocols ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """The protocol of a backend.

    :ivar start: start of a static group.
    :ivar shutdown: shutdown of a static group.
    :ivar join: join of a dynamic group.
    :ivar leave: leave of a dynamic group.
    :ivar sockets: connections between two workers, for each direction in which one calls the other.
    """

    start: Callable[[Client], Steps]
    shutdown: Callable[[Client], Steps]
    join: Callable[[Client], Steps]
    leave: Callable[[Client], Steps]
    sockets: int


_TENSORPIPE = (tensorpipe_start, tensorpipe_shutdown, tensorpipe_join, tensorpipe_leave)
_ZEROMQ = (zeromq_start, zeromq_shutdown, zeromq_join, zeromq_leave)
#: The protocols by subject, with the labels of `counting`.
PROTOCOLS = {
    "ZEROMQ": Protocol(*_ZEROMQ, sockets=1),
    "ZEROMQ:unix_sockets=false": Protocol(*_ZEROMQ, sockets=1),
    "TENSORPIPE": Protocol(*_TENSORPIPE, sockets=4),
    'TENSORPIPE:_transports=["uv"]': Protocol(*_TENSORPIPE, sockets=4),
    "TENSORPIPE@torch": Protocol(torch_start, torch_shutdown, torch_join, torch_leave, sockets=4),
}
