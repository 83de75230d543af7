"""The transport of one worker: it listens where it may, and lets in none but the workers of its group."""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import logging
import secrets
from collections.abc import Iterator
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
from rpc_backend_zeromq.admission_control import AdmissionControl, LookForNew
from rpc_backend_zeromq.endpoints import Surroundings
from rpc_backend_zeromq.errors import AddressError, PublicationError, SecretError
from rpc_backend_zeromq.host import this_host
from rpc_backend_zeromq.publication import Publication, UnixSocket, printable
from rpc_backend_zeromq.rendezvous import rendezvous
from rpc_backend_zeromq.settings import settings_of
from rpc_backend_zeromq.unix_sockets import Node, SocketFolder
from rpc_backends_core.spi import JOIN_PATIENCE, SettingError

if TYPE_CHECKING:
    from rpc_backend_zeromq.options import ZeroMQRpcBackendOptions
    from rpc_backends_core.spi import Group

#: Seconds that somebody who connects has to prove who it is.
HANDSHAKE_TIMEOUT = 10.0
#: The key in a dynamic group's store under which the first to come writes what no other group has.
_NONCE = "zeromq/nonce"

logger = logging.getLogger("rpc_backends.zeromq")


class ZeroMQTransport:
    """What carries the messages of one worker, for one group. It is not used again after :meth:`close`.

    :param options: the worker's; what they leave open is taken from the environment now.
    :param group: the group that the worker is in.
    :raises SettingError: an environment variable has a value that means nothing.
    :raises SecretError: the secret cannot be had.
    """

    def __init__(self, options: ZeroMQRpcBackendOptions, group: Group) -> None:
        environment.warn_of_unknown()
        try:
            self._settings = settings_of(options)
        except (SettingError, SecretError) as error:
            # All workers get the text, and are to know whose environment it is.
            raise type(error)(f"worker {group.name!r} cannot start: {error}") from error
        self._meeting = rendezvous(options.init_method)
        self._group = group
        self._ranks = {member.worker_id: member.rank for member in group.members}
        self._folder: SocketFolder | None = None
        self._mine: Publication | None = None
        self._scopes: tuple[str, ...] = ()
        self._admission_control = AdmissionControl(
            max(len(group.members) - 1, 0), HANDSHAKE_TIMEOUT
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
        """Called when somebody connects with a key that is not known, with that key (Z85).

        A dynamic group sets it: it looks for workers that have joined, and has :meth:`learn` called for
        them; whoever is not among them is refused. It is called on a thread of the transport.
        """
        return self._admission_control.look

    @on_unknown_key.setter
    def on_unknown_key(self, look: LookForNew | None) -> None:
        self._admission_control.look = look

    def listen(self, self_id: int, name: str) -> str:
        """Begin to listen, and return the text by which peers :meth:`learn` of this worker.

        :raises AddressError: there is no address to listen on.
        :raises ExposureError: others could reach it, and nothing keeps them out.
        :raises StoreError: the store is lost, or does not answer (dynamic groups).
        """
        assert self._mine is None, "it listens already"
        self._admission_control.refused.owner = name
        descriptors.warn_if_few(name, len(self._group.members))
        places = addresses.choose(self._settings.wanted, self._meeting, self._settings.policy)
        token = self._group.token
        if token is None:
            # Members come one after the other: they agree on what the first of them has written.
            fresh = secrets.token_hex(16)
            nonce = self._group.access.ask(
                lambda store: bytes(store.compare_set(_NONCE, "", fresh)),
                min(self._group.timeout, JOIN_PATIENCE),
            )
            token = hashlib.sha256(nonce).hexdigest()
        atexit.register(self._remove_folder)
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
            session=identity.new_session(),
            max_message_bytes=self._max_message_bytes,
            place=printable(places[0].why),
        )
        return identity.seal(self._mine, self._settings.policy.secret)

    def learn(self, peer: int, name: str, address: str, rank: int | None = None) -> None:
        """Take note of a peer; :meth:`listen` goes before.

        :param address: the text that the peer has put into the store.
        :param rank: the peer's; in a static group it is known without.
        :raises PublicationError: the text is not from this peer, for this group.
        :raises AddressError: the peer cannot be reached from here.
        """
        try:
            self._learn(peer, name, address, rank)
        except BaseException:
            # In a group whose size is known it is the end of the start.
            self._admission_control.stop_waiting()
            raise

    def _learn(self, peer: int, name: str, address: str, rank: int | None) -> None:
        mine = self._mine
        assert mine is not None, "listen() goes before learn()"
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
            # Its messages would pass for the other's.
            raise PublicationError(
                f"worker {name!r} has the key of worker {other}, and each worker makes its own. Somebody "
                "else has written to the store: use a store that nobody else writes to."
            )
        proofs = identity.unix_proofs(mine, publication, policy.secret)
        self._native.learn(peer, endpoint, key, proofs, publication.max_message_bytes)
        # Who connects to the Unix socket shows a proof, and by TCP a key.
        self._admission_control.learn(peer, *filter(None, (key, proofs[1])))

    def forget(self, peer: int) -> None:
        """Drop a peer that has left, and refuse its key from now on."""
        self._admission_control.forget(peer)
        self._native.forget(peer)

    def close(self, linger: float) -> None:
        """Stop, and leave nothing open or on disk. A second call does nothing.

        :param linger: seconds for what was sent to leave.
        """
        self._admission_control.look = None  # it may hold what holds this transport
        self._admission_control.stop_waiting()
        try:
            self._native.close(linger)
        finally:
            self._remove_folder()
            atexit.unregister(self._remove_folder)

    def metrics(self) -> dict[str, str]:
        """Return what is worth knowing, as text."""
        found: dict[str, str] = dict(self._native.metrics())
        found["zeromq.encryption"] = "CURVE" if self._settings.policy.encryption else "none"
        if self._mine is not None:
            found["zeromq.listens_on"] = " ".join(self._mine.tcp)
            found["zeromq.unix_socket"] = self._mine.unix.path if self._mine.unix else ""
        return found

    def __rpc_transport__(self) -> Any:
        """Return the capsule by which the agent takes the transport."""
        return self._native.__rpc_transport__()

    # --- listening -----------------------------------------------------------------------------------

    def _bind(self, place: Place) -> str:
        """Listen on an address; return its endpoint as peers see it, without a scope."""
        ports = self._settings.ports
        for port in ports or ("*",):
            with _passing_over_taken(several=ports is not None):
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
            logger.debug("no Unix socket, so TCP to workers of this host: %s", error)
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
def _passing_over_taken(*, several: bool) -> Iterator[None]:
    """Go on where a port is taken, or is not for this user, if there are others to try."""
    try:
        yield
    except OSError as error:
        if not several or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
