"""The transport of one worker: chooses where to listen, and admits only workers of its group."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rpc_backend_zeromq import (
    addresses,
    descriptors,
    endpoints,
    environment,
    identity,
    unix_sockets,
)
from rpc_backend_zeromq._native import Transport
from rpc_backend_zeromq.addresses import Place
from rpc_backend_zeromq.endpoints import Surroundings
from rpc_backend_zeromq.publication import Publication, UnixSocket, printable
from rpc_backend_zeromq.rendezvous import rendezvous
from rpc_backend_zeromq.settings import settings_of
from rpc_backend_zeromq.unix_sockets import Node, SocketFolder
from rpc_backends_agents.common import sealed
from rpc_backends_agents.common.admission_control import AdmissionControl, LookForNew
from rpc_backends_agents.common.errors import AddressError, PublicationError, SecretError
from rpc_backends_agents.common.group_token import group_token
from rpc_backends_agents.common.host import this_host
from rpc_backends_core.spi import SettingError, at_exit

if TYPE_CHECKING:
    from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
    from rpc_backends_core.spi import Group

#: Seconds that a connecting process has to authenticate itself.
HANDSHAKE_TIMEOUT = 10.0
#: The key in a dynamic group's store under which the first member writes the group's nonce.
_NONCE = "zeromq/nonce"

logger = logging.getLogger("rpc_backends.zeromq")


class ZeroMQTransport:
    """Carries the messages of one worker in one group. It cannot be reused after :meth:`close`.

    :param options: the worker's options; those that are None are read from the environment now.
    :param group: the worker's group.
    :raises SettingError: an environment variable has an invalid value.
    :raises SecretError: the secret is invalid, unreadable or ambiguous.
    """

    def __init__(self, options: ZeroMQRpcBackendOptions, group: Group) -> None:
        environment.warn_of_unknown()
        try:
            self._settings = settings_of(options)
        except (SettingError, SecretError) as error:
            # All workers get this text, so it names the worker with the wrong setting.
            raise type(error)(f"worker {group.name!r} cannot start: {error}") from error.__cause__
        self._meeting = rendezvous(options.init_method)
        self._group = group
        self._ranks = {member.worker_id: member.rank for member in group.members}
        self._folder: SocketFolder | None = None
        self._not_at_exit: Callable[[], None] = lambda: None
        self._mine: Publication | None = None
        self._scopes: tuple[str, ...] = ()
        self._admission_control = AdmissionControl(
            environment.BACKEND, max(len(group.members) - 1, 0), HANDSHAKE_TIMEOUT
        )
        public, private = (
            identity.session_keys() if self._settings.policy.encryption else (None, None)
        )
        self._public_key = public
        self._max_message_bytes = options.max_message_bytes
        self._native = Transport(
            public_key=public,
            secret_key=private,
            max_message=options.max_message_bytes,
            heartbeat=options.heartbeat,
            heartbeat_timeout=options.heartbeat_timeout,
            handshake_timeout=HANDSHAKE_TIMEOUT,
            wants_proofs=True,
            on_unknown_key=self._admission_control.whose,
            on_refused=self._admission_control.refused,
        )

    @property
    def on_unknown_key(self) -> LookForNew | None:
        """The function to call when a process connects with an unknown key (Z85).

        A dynamic group sets it. The function looks for workers that have joined and calls :meth:`learn`
        for each. If none of them has the key, the connection is refused. The function runs on a thread
        of the transport.
        """
        return self._admission_control.look

    @on_unknown_key.setter
    def on_unknown_key(self, look: LookForNew | None) -> None:
        self._admission_control.look = look

    def listen(self, self_id: int, name: str) -> str:
        """Start to listen, and return the address text that peers pass to :meth:`learn`.

        :raises AddressError: there is no address to listen on.
        :raises ExposureError: other hosts could reach the address, and there is no protection.
        :raises StoreError: the store is lost, or does not answer (dynamic groups).
        """
        assert self._mine is None, "listen() was called already"
        self._admission_control.refused.owner = name
        try:
            return self._listen(self_id, name)
        except AddressError as error:
            raise type(error)(f"worker {name!r} cannot start: {error}") from error.__cause__

    def _listen(self, self_id: int, name: str) -> str:
        descriptors.warn_if_few(name, len(self._group.members))
        places = addresses.choose(self._settings.wanted, self._meeting, self._settings.policy)
        token = group_token(self._group, _NONCE)
        self._not_at_exit = at_exit(self._remove_folder)
        try:
            tcp = tuple(self._bind(place) for place in places)
            unix = self._bind_unix()
            self._native.start(self_id)
        except BaseException:
            self.close(0)
            raise
        self._scopes = tuple(place.scope for place in places if place.scope is not None)
        self._mine = Publication(
            group=token,
            worker_id=self_id,
            name=name,
            rank=self._group.rank,
            host=this_host(),
            tcp=tcp,
            unix=unix,
            public_key=None if self._public_key is None else self._public_key.decode("ascii"),
            session=sealed.new_session(),
            max_message_bytes=self._max_message_bytes,
            place=printable(places[0].why),
        )
        return identity.seal(self._mine, self._settings.policy.secret)

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
            # This error ends the start of a static group, so unknown keys need not wait any longer.
            self._admission_control.stop_waiting()
            raise

    def _learn(self, peer: int, name: str, address: str, rank: int | None) -> None:
        mine = self._mine
        assert mine is not None, "call listen() before learn()"
        policy = self._settings.policy
        publication = identity.open_publication(
            address,
            policy.secret,
            encryption=policy.encryption,
            reader=mine.name,
            group=mine.group,
            worker_id=peer,
            name=name,
            rank=self._ranks.get(peer) if rank is None else rank,
        )
        unix = self._settings.unix_sockets is not False
        me = Surroundings(mine.name, mine.host, self._scopes, unix, policy)
        endpoint = endpoints.choose(publication, me)
        logger.debug("worker %r reaches worker %r at %s", mine.name, name, endpoint)
        key = None if publication.public_key is None else publication.public_key.encode("ascii")
        if key is not None and key == self._public_key:
            raise PublicationError(f"worker {name!r} has the key of worker {mine.name!r}.")
        other = None if key is None else self._admission_control.owner(key)
        if other not in (None, peer):
            # Messages of this peer would be taken for messages of the other worker.
            raise PublicationError(
                f"worker {name!r} has the key of worker {other}, but each worker makes its own key. "
                "Another "
                "program wrote to the store: use a store that no other program writes to."
            )
        proofs = identity.unix_proofs(mine, publication, policy.secret)
        self._native.learn(peer, endpoint, key, proofs, publication.max_message_bytes)
        # A peer authenticates with a proof on the Unix socket, and with a key over TCP.
        self._admission_control.learn(peer, *filter(None, (key, proofs[1])))

    def forget(self, peer: int) -> None:
        """Remove a peer that has left, and refuse its key from now on."""
        self._admission_control.forget(peer)
        self._native.forget(peer)

    def close(self, linger: float) -> None:
        """Close all connections and remove the Unix socket. A second call does nothing.

        :param linger: seconds to wait until queued messages are sent.
        """
        self._admission_control.look = None  # it may reference this transport
        self._admission_control.stop_waiting()
        try:
            self._native.close(linger)
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
        """How messages over TCP are encrypted: ``CURVE`` or ``none``."""
        return "CURVE" if self._settings.policy.encryption else "none"

    def metrics(self) -> dict[str, str]:
        """Return the transport's metrics, as text."""
        found: dict[str, str] = dict(self._native.metrics())
        found["zeromq.encryption"] = self.encryption
        if self._mine is not None:
            found["zeromq.listens_on"] = " ".join(self._mine.tcp)
            found["zeromq.unix_socket"] = self._mine.unix.path if self._mine.unix else ""
        return found

    def __rpc_transport__(self) -> Any:
        """Return the capsule through which the C++ agent uses the transport."""
        return self._native.__rpc_transport__()

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
            f"workers on this host (the option ports, or {environment.PORTS})."
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
