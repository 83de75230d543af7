"""The transport of one worker: makes UCX listen, and admits only workers of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rpc_backend_ucx import environment, processes, publication, shared_memory
from rpc_backend_ucx.library import native
from rpc_backend_ucx.publication import Publication
from rpc_backend_ucx.settings import TRUST, check_names, settings_of
from rpc_backends_agents.common import sealed, variables
from rpc_backends_agents.common.admission_control import AdmissionControl, LookForNew
from rpc_backends_agents.common.errors import AddressError, PublicationError, SecretError
from rpc_backends_agents.common.group_token import group_token
from rpc_backends_agents.common.host import this_host
from rpc_backends_core.spi import SettingError

if TYPE_CHECKING:
    from rpc_backend_ucx.options import UCXRpcBackendOptions
    from rpc_backends_core.spi import Group

#: How many seconds a worker may take to answer a greeting.
HANDSHAKE_TIMEOUT = 10.0
#: The receiver fetches parts of more bytes, into memory that it keeps for reuse. Over TCP, UCX itself
#: would send any size in segments, and collect them in new memory, which the kernel must clear first.
_RENDEZVOUS = 1 << 20
#: The key in a dynamic group's store under which the first member writes the group's nonce.
_NONCE = "ucx/nonce"
#: The sessions of closed transports of this process. UCX cannot tell that such a transport is closed: its
#: address may lead to files that a later transport has opened.
_closed_here: set[str] = set()

logger = variables.logger_of(environment.BACKEND)


class UCXTransport:
    """Carries the messages of one worker in one group. It cannot be reused after :meth:`close`.

    :param options: the worker's options; those that are None are read from the environment now.
    :param group: the worker's group.
    :raises SettingError: an environment variable or a setting of UCX is invalid.
    :raises SecretError: the secret is invalid, unreadable or ambiguous.
    :raises ExposureError: others could reach the transports, and the network is not trusted.
    :raises AddressError: there is too little shared memory.
    """

    def __init__(self, options: UCXRpcBackendOptions, group: Group) -> None:
        variables.warn_of_unknown(environment.BACKEND, environment.VARIABLES)
        try:
            self._settings = settings_of(options)
            check_names(self._settings, native().setting_names() if self._settings.more else ())
            warning = shared_memory.check_room(self._settings.transports, shared_memory.room())
        except (SettingError, SecretError, AddressError) as error:
            # All workers report this error, so it names the worker with the wrong setting.
            raise type(error)(f"worker {group.name!r} cannot start: {error}") from error.__cause__
        if warning:
            logger.warning("worker %r: %s", group.name, warning)
        self._group = group
        self._ranks = {member.worker_id: member.rank for member in group.members}
        self._mine: Publication | None = None
        self._peers_here: set[int] = set()  # whose shared memory is that of this worker
        self._has_warned = False
        self._admission_control = AdmissionControl(
            environment.BACKEND, max(len(group.members) - 1, 0), HANDSHAKE_TIMEOUT
        )
        self._max_message_bytes = options.max_message_bytes
        self._native = native().Transport(
            config=self._settings.config(watches_processes=processes.can_watch()),
            max_message=options.max_message_bytes,
            poll_time=self._settings.poll_time,
            handshake_timeout=HANDSHAKE_TIMEOUT,
            rendezvous=_RENDEZVOUS,
            device_memory=self._settings.device_memory,
            on_unknown_proof=self._admission_control.whose,
            on_refused=self._admission_control.refused,
        )

    @property
    def on_unknown_key(self) -> LookForNew | None:
        """The function to call when a process greets with an unknown proof.

        A dynamic group sets it. The function looks for workers that have joined and calls :meth:`learn`
        for each. If none of them has the proof, the process is refused. The function runs on a thread of
        the transport.
        """
        return self._admission_control.look

    @on_unknown_key.setter
    def on_unknown_key(self, look: LookForNew | None) -> None:
        self._admission_control.look = look

    def listen(self, self_id: int, name: str) -> str:
        """Start to listen, and return the address text that peers pass to :meth:`learn`.

        :raises StoreError: the store is lost, or does not answer (dynamic groups).
        """
        assert self._mine is None, "listen() was called already"
        self._admission_control.refused.owner = name
        try:
            token = group_token(self._group, _NONCE)
            self._native.start(self_id, publication.connection_key(token, self._settings.secret))
            address = self._native.address()
        except BaseException:
            self.close(0)
            raise
        self._mine = Publication(
            group=token,
            worker_id=self_id,
            name=name,
            rank=self._group.rank,
            host=this_host(),
            process=processes.this_process(),
            address=publication.encoded(address),
            session=sealed.new_session(),
            max_message_bytes=self._max_message_bytes,
            device_memory=",".join(sorted(self._settings.device_memory)),
        )
        return publication.seal(self._mine, self._settings.secret)

    def learn(self, peer: int, name: str, address: str, rank: int | None = None) -> None:
        """Add a peer. Call :meth:`listen` first.

        :param address: the text that the peer has written to the store.
        :param rank: the peer's rank; a static group knows it already.
        :raises PublicationError: the text does not come from this peer or is not for this group.
        :raises AddressError: this worker cannot reach the peer.
        """
        try:
            self._learn(peer, name, address, rank)
        except BaseException:
            # This error ends the start of a static group, so unknown proofs need not wait any longer.
            self._admission_control.stop_waiting()
            raise

    def _learn(self, peer: int, name: str, address: str, rank: int | None) -> None:
        mine = self._mine
        assert mine is not None, "call listen() before learn()"
        theirs = publication.open_publication(
            address,
            self._settings.secret,
            reader=mine.name,
            group=mine.group,
            worker_id=peer,
            name=name,
            rank=self._ranks.get(peer) if rank is None else rank,
        )
        if theirs.address == mine.address:
            raise PublicationError(f"worker {name!r} has the address of worker {mine.name!r}.")
        here = theirs.host.kernel == mine.host.kernel
        if not self._settings.trusted_network and not here:
            raise AddressError(
                f"worker {mine.name!r} cannot reach worker {name!r} (rank {theirs.rank}), which runs on "
                f"another host: without a trusted network UCX uses shared memory only. {TRUST}."
            )
        if theirs.device_memory != mine.device_memory:
            raise AddressError(
                f"worker {mine.name!r} has device_memory for {mine.device_memory or 'no device'}, "
                f"and worker {name!r} (rank {theirs.rank}) for "
                f"{theirs.device_memory or 'no device'}. Pass the same device_memory to all workers."
            )
        if here:
            self._check_shared_memory(peer, mine, theirs)
        # A process id is valid only in its own PID namespace.
        is_visible = here and theirs.process.namespace == mine.process.namespace
        process = (theirs.process.pid, theirs.process.start) if is_visible else (0, 0)
        if theirs.session in _closed_here:
            process = (theirs.process.pid, 0)  # no such process, so calls fail at once
        ours, their_proof = publication.greetings(mine, theirs, self._settings.secret)
        self._native.learn(
            peer,
            theirs.address_bytes,
            ours,
            their_proof,
            process,
            theirs.max_message_bytes,
        )
        self._admission_control.learn(peer, their_proof)

    def _check_shared_memory(self, peer: int, mine: Publication, theirs: Publication) -> None:
        """Check that a worker of this host can be reached, and warn if the workers need much memory."""
        transports = self._settings.transports
        if shared_memory.is_needed(transports):
            shared_memory.check_namespaces(
                mine.process,
                theirs.process,
                f"worker {mine.name!r}",
                f"worker {theirs.name!r} (rank {theirs.rank})",
            )
        if shared_memory.is_used(transports):
            self._peers_here.add(peer)
            warning = shared_memory.crowd(len(self._peers_here) + 1, shared_memory.room())
            if warning and not self._has_warned:
                self._has_warned = True
                logger.warning("worker %r: %s", mine.name, warning)

    def forget(self, peer: int) -> None:
        """Remove a peer that has left, and refuse its proof from now on."""
        self._peers_here.discard(peer)
        self._admission_control.forget(peer)
        self._native.forget(peer)

    def close(self, linger: float) -> None:
        """Close all connections. A second call does nothing.

        :param linger: how many seconds to wait for queued messages to be sent.
        """
        if self._mine is not None:
            _closed_here.add(self._mine.session)
        self._admission_control.look = None  # it may reference this transport
        self._admission_control.stop_waiting()
        self._native.close(linger)

    @property
    def address(self) -> str:
        """The ways in which peers reach this worker. UCX chooses its ports."""
        transports = self._settings.transports
        names = "all of UCX's transports" if transports is None else ",".join(transports)
        devices = self._settings.net_devices
        return names if devices is None else f"{names} on {','.join(devices)}"

    @property
    def encryption(self) -> str:
        """UCX encrypts nothing."""
        return "none"

    def metrics(self) -> dict[str, str]:
        """Return the transport's metrics, as text."""
        found: dict[str, str] = dict(self._native.metrics())
        found["ucx.transports"] = ",".join(self._settings.transports)
        return found

    def __rpc_transport__(self) -> Any:
        """Return the capsule through which the C++ agent uses the transport."""
        return self._native.__rpc_transport__()
