"""The transport of one worker: chooses where to listen, and admits only workers of its group."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any

from rpc_backend_zeromq import (
    _native,
    addresses,
    descriptors,
    endpoints,
    identity,
    unix_sockets,
)
from rpc_backend_zeromq._native import Transport
from rpc_backend_zeromq.addresses import Place
from rpc_backend_zeromq.endpoints import Surroundings
from rpc_backend_zeromq.options import BACKEND, ZeroMQRpcBackendOptions
from rpc_backend_zeromq.publication import Publication, UnixSocket, printable
from rpc_backend_zeromq.rendezvous import rendezvous
from rpc_backend_zeromq.settings import settings_of
from rpc_backend_zeromq.unix_sockets import Node, SocketFolder
from rpc_backends_agents.engine import variables
from rpc_backends_agents.engine.certificates import Identity
from rpc_backends_agents.engine.errors import AddressError, PublicationError
from rpc_backends_agents.engine.guarded_transport import HANDSHAKE_TIMEOUT, GuardedTransport
from rpc_backends_agents.engine.host import this_process
from rpc_backends_agents.engine.secret import Secret
from rpc_backends_core.spi import at_exit

logger = variables.logger_of(BACKEND)

#: A round trip in seconds from which several ``bulk_connections`` are used. 600 KB are on their way then
#: at 1 Gbit/s, for which one connection of TCP needs several round trips to start.
LONG_LINK = 0.005


class ZeroMQTransport(GuardedTransport[ZeroMQRpcBackendOptions, Publication]):
    """Carries the messages of one worker over TCP and Unix sockets.

    :raises SettingError: an environment variable has an invalid value.
    :raises SecretError: the secret is invalid, unreadable or ambiguous.
    :raises TransportError: OpenSSL cannot be used, or fips is on and it has no FIPS provider.
    """

    PUBLICATION = Publication

    def prepare(self) -> Any:
        """Read the settings, make the keys of this session, and the transport in C++."""
        self._settings = settings_of(self._options)
        self._meeting = rendezvous(self._options.init_method)
        self._folder: SocketFolder | None = None
        self._not_at_exit: Callable[[], None] = lambda: None
        self._scopes: tuple[str, ...] = ()
        self._public_key: bytes | None = None
        secret_key: bytes | None = None
        policy = self._settings.policy
        if policy.certificates is not None:
            if self._settings.fips:
                identity.session_keys(fips=True)  # the error without a provider is about that alone
            self._identity = Identity(
                policy.certificates.of(self._group.name), _native, fips=self._settings.fips
            )
        elif policy.encryption:
            self._public_key, secret_key = identity.session_keys(fips=self._settings.fips)
        return Transport(
            public_key=self._public_key,
            secret_key=secret_key,
            fips=self._settings.fips,
            handshake_timeout=HANDSHAKE_TIMEOUT,
            wants_proofs=True,
            long_link=LONG_LINK,
            certificates=None if self._identity is None else self._identity.certificates,
            on_unknown_key=self._admission_control.whose,
            on_refused=self._admission_control.refused,
            **self._options.native(),
        )

    @property
    def secret(self) -> Secret | None:
        """The secret that peers must have; None to require none."""
        return self._settings.policy.secret

    def start(self, worker_id: int, name: str) -> Publication:
        """Listen on TCP and on a Unix socket, and return the record with both.

        :raises AddressError: there is no address to listen on.
        :raises ExposureError: other hosts could reach the address, and there is no protection.
        """
        key = self._public_key
        if self._identity is not None:
            key = self._identity.certificates.key
        descriptors.warn_if_few(name, len(self._group.members))
        places = addresses.choose(self._settings.wanted, self._meeting, self._settings.policy)
        token = self.token()
        self._not_at_exit = at_exit(self._remove_folder)
        tcp = tuple(self._bind(place) for place in places)
        unix = self._bind_unix()
        self._native.start(worker_id)
        self._scopes = tuple(place.scope for place in places if place.scope is not None)
        return Publication(
            **self.about(token, worker_id, name),
            tcp=tcp,
            unix=unix,
            public_key=None if key is None else key.decode("ascii"),
            process=this_process(),
            place=printable(places[0].why),
        )

    def admit(self, peer: int, mine: Publication, theirs: Publication) -> tuple[bytes, ...]:
        """Choose the endpoint of the peer, and tell the transport in C++ its key and its proofs."""
        policy = self._settings.policy
        identity.check_encryption(theirs, encryption=policy.encryption, reader=mine.name)
        unix = self._settings.unix_sockets is not False
        me = Surroundings(mine.name, mine.host, self._scopes, unix, policy)
        endpoint = endpoints.choose(theirs, me)
        logger.debug("worker %r reaches worker %r at %s", mine.name, theirs.name, endpoint)
        here = theirs.host.kernel == mine.host.kernel
        process = theirs.process.seen_from(mine.process) if here else (0, 0)
        key = None if theirs.public_key is None else theirs.public_key.encode("ascii")
        if self._identity is not None:
            # Several workers may have one identity, so the proof says which worker connects.
            if key != self._identity.proven[theirs.name].key:
                raise PublicationError(
                    f"the address of worker {theirs.name!r} in the store is invalid: its key is not that "
                    "of its certificate."
                )
            proofs = identity.unix_proofs(mine, theirs, None)
            self._native.learn(peer, endpoint, key, proofs, theirs.max_message_bytes, process)
            return (proofs[1],)
        if key is not None and key == self._public_key:
            raise PublicationError(f"worker {theirs.name!r} has the key of worker {mine.name!r}.")
        owner = None if key is None else self._admission_control.owner(key)
        if owner not in (None, peer):
            # Messages of this peer would be taken for messages of the other worker.
            raise PublicationError(
                f"worker {theirs.name!r} has the key of worker {owner}, but each worker makes its own "
                "key. Another program wrote to the store: use a store that no other program writes to."
            )
        proofs = identity.unix_proofs(mine, theirs, policy.secret)
        self._native.learn(peer, endpoint, key, proofs, theirs.max_message_bytes, process)
        # A peer authenticates with a proof on the Unix socket, and with a key over TCP.
        return tuple(filter(None, (key, proofs[1])))

    def close(self, linger: float) -> None:
        """Close all connections and remove the Unix socket. A second call does nothing."""
        try:
            super().close(linger)
        finally:
            self._remove_folder()
            self._not_at_exit()

    @property
    def address(self) -> str | None:
        """Where this worker listens; None before :meth:`listen`."""
        if self._mine is None:
            return None
        unix = ["a Unix socket"] if self._mine.unix else []
        return " and ".join([*self._mine.tcp, *unix])

    @property
    def encryption(self) -> str:
        """How messages over TCP are encrypted: ``none``, or ``TLS 1.3`` and what is added to it."""
        if not self._settings.policy.encryption:
            return "none"
        how = "TLS 1.3 with FIPS" if self._settings.fips else "TLS 1.3"
        return how if self._identity is None else f"{how} and certificates"

    def metrics(self) -> dict[str, str]:
        """Return the transport's metrics, as text."""
        metrics = {**super().metrics(), "zeromq.encryption": self.encryption}
        if self._mine is not None:
            metrics["zeromq.listens_on"] = " ".join(self._mine.tcp)
            metrics["zeromq.unix_socket"] = self._mine.unix.path if self._mine.unix else ""
        return metrics

    # --- listening -----------------------------------------------------------------------------------

    def _bind(self, place: Place) -> str:
        """Listen on an address; return the endpoint to publish, which has no scope."""
        ports = self._settings.ports
        for port in ports or ("*",):
            with _skipping_unavailable_ports(several=ports is not None):
                (bound,) = self._native.bind([addresses.tcp_endpoint(place.scoped, port)])
                return addresses.tcp_endpoint(place.address, int(bound.rpartition(":")[2]))
        raise AddressError(
            f"no port of {ports} is free on {place.scoped}. Give a range with more ports than there are "
            f"workers on this host (the option ports, or {ZeroMQRpcBackendOptions.ports.variable})."
        )

    def _bind_unix(self) -> UnixSocket | None:
        wanted = self._settings.unix_sockets
        if wanted is False:
            return None
        unix_sockets.sweep()
        try:
            self._folder = SocketFolder()
        except AddressError as error:
            if wanted:
                raise
            logger.debug("no Unix socket, so workers on this host use TCP: %s", error)
            return None
        self._native.bind([f"ipc://{self._folder.socket}"])
        node = Node.of_socket(self._folder.socket)
        assert node is not None
        return UnixSocket(self._folder.socket, node)

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()


@contextlib.contextmanager
def _skipping_unavailable_ports(*, several: bool) -> Iterator[None]:
    """If there are several ports to try, ignore one that is in use or not allowed for this user."""
    try:
        yield
    except OSError as error:
        if not several or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
