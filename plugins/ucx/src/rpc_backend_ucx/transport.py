"""The transport of one worker: makes UCX listen, and admits only workers of its group."""

from __future__ import annotations

from typing import Any

from rpc_backend_ucx import processes, publication, shared_memory
from rpc_backend_ucx.library import native
from rpc_backend_ucx.options import BACKEND, UCXRpcBackendOptions
from rpc_backend_ucx.publication import Publication
from rpc_backend_ucx.settings import TRUST, check_names, settings_of
from rpc_backends_agents.engine import variables
from rpc_backends_agents.engine.certificates import Identity
from rpc_backends_agents.engine.errors import AddressError, PublicationError
from rpc_backends_agents.engine.guarded_transport import HANDSHAKE_TIMEOUT, GuardedTransport
from rpc_backends_agents.engine.secret import Secret

#: The receiver fetches parts of more bytes, into memory that it keeps for reuse. Over TCP, UCX itself
#: would send any size in segments, and collect them in new memory, which the kernel must clear first.
_RENDEZVOUS = 1 << 20
#: The sessions of closed transports of this process. UCX cannot tell that such a transport is closed: its
#: address may lead to files that a later transport has opened.
_closed_here: set[str] = set()

logger = variables.logger_of(BACKEND)


class UCXTransport(GuardedTransport[UCXRpcBackendOptions, Publication]):
    """Carries the messages of one worker over UCX.

    :raises SettingError: an environment variable or a setting of UCX is invalid.
    :raises SecretError: the secret is invalid, unreadable or ambiguous.
    :raises ExposureError: others could reach the transports, and the network is not trusted.
    :raises AddressError: there is too little shared memory.
    """

    PUBLICATION = Publication

    def prepare(self) -> Any:
        """Read the settings, check the shared memory, and make UCX's worker."""
        self._settings = settings_of(self._options)
        check_names(self._settings, native().setting_names() if self._settings.more else ())
        warning = shared_memory.check_room(self._settings.transports, shared_memory.room())
        if warning:
            logger.warning("worker %r: %s", self._group.name, warning)
        self._peers_here: set[int] = set()  # whose shared memory is that of this worker
        self._has_warned = False
        files = self._settings.certificates
        if files is not None:
            self._identity = Identity(files.of(self._group.name), native())
        return native().Transport(
            config=self._settings.config(watches_processes=processes.can_watch()),
            handshake_timeout=HANDSHAKE_TIMEOUT,
            rendezvous=_RENDEZVOUS,
            certificates=None if self._identity is None else self._identity.certificates,
            on_unknown_proof=self._admission_control.whose,
            on_refused=self._admission_control.refused,
            **self._settings.native,
        )

    @property
    def secret(self) -> Secret | None:
        """The secret that peers must have."""
        return self._settings.secret

    def start(self, worker_id: int, name: str) -> Publication:
        """Start UCX's worker, and return the record with its address."""
        token = self.token()
        self._native.start(worker_id, publication.connection_key(token, self.secret))
        return Publication(
            **self.about(token, worker_id, name),
            process=processes.this_process(),
            address=publication.encoded(self._native.address()),
            device_memory=",".join(sorted(self._settings.device_memory)),
        )

    def admit(self, peer: int, mine: Publication, theirs: Publication) -> tuple[bytes, ...]:
        """Check that the peer can be reached, and tell UCX its address and proof."""
        if theirs.address == mine.address:
            raise PublicationError(
                f"worker {theirs.name!r} has the address of worker {mine.name!r}."
            )
        here = theirs.host.kernel == mine.host.kernel
        if not self._settings.trusted_network and not here:
            raise AddressError(
                f"worker {mine.name!r} cannot reach worker {theirs.name!r} (rank {theirs.rank}), which "
                "runs "
                f"on another host: without a trusted network UCX uses shared memory only. {TRUST}."
            )
        if theirs.device_memory != mine.device_memory:
            raise AddressError(
                f"worker {mine.name!r} has device_memory for {mine.device_memory or 'no device'}, "
                f"and worker {theirs.name!r} (rank {theirs.rank}) for "
                f"{theirs.device_memory or 'no device'}. Pass the same device_memory to all workers."
            )
        if here:
            self._check_shared_memory(peer, mine, theirs)
        process = theirs.process.seen_from(mine.process) if here else (0, 0)
        if theirs.session in _closed_here:
            process = (theirs.process.pid, 0)  # no such process, so calls fail at once
        ours, their_proof = publication.greetings(mine, theirs, self.secret)
        identity = self.identity_of(theirs.name)
        self._native.learn(
            peer,
            theirs.address_bytes,
            ours,
            their_proof,
            process,
            theirs.max_message_bytes,
            identity or "",
            publication.statements(mine, theirs) if identity else (b"", b""),
        )
        return (their_proof,)

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
            shared_memory.check_network(
                mine.process,
                theirs.process,
                f"worker {mine.name!r}",
                f"worker {theirs.name!r} (rank {theirs.rank})",
            )
            self._peers_here.add(peer)
            warning = shared_memory.crowd(len(self._peers_here) + 1, shared_memory.room())
            if warning and not self._has_warned:
                self._has_warned = True
                logger.warning("worker %r: %s", mine.name, warning)

    def forget(self, peer: int) -> None:
        """Remove a peer that has left, and refuse its proof from now on."""
        self._peers_here.discard(peer)
        super().forget(peer)

    def close(self, linger: float) -> None:
        """Close all connections. A second call does nothing."""
        if self._mine is not None:
            _closed_here.add(self._mine.session)
        super().close(linger)

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
        return {**super().metrics(), "ucx.transports": ",".join(self._settings.transports)}
