"""A transport in C++ whose peers prove themselves: the Python around it, which no message passes."""

from __future__ import annotations

import hashlib
import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from rpc_backends_agents.engine import sealed
from rpc_backends_agents.engine.admission_control import AdmissionControl, LookForNew
from rpc_backends_agents.engine.certificates import Identity, Watch
from rpc_backends_agents.engine.errors import AddressError, SecretError
from rpc_backends_agents.engine.host import this_host
from rpc_backends_agents.engine.options import GuardedOptions
from rpc_backends_agents.engine.publication import Publication
from rpc_backends_agents.engine.secret import Secret
from rpc_backends_core.spi import JOIN_TIMEOUT, SettingError

if TYPE_CHECKING:
    from rpc_backends_core.spi import Group

#: Seconds that a process which connects has to prove which worker it is.
HANDSHAKE_TIMEOUT = 10.0

Options = TypeVar("Options", bound=GuardedOptions)
Record = TypeVar("Record", bound=Publication)


class GuardedTransport(ABC, Generic[Options, Record]):
    """Carries the messages of one worker in one group. It cannot be reused after :meth:`close`.

    Each worker publishes a record with a proof, and admits only processes that have the key of a worker
    whose record it has read. An engine fills in :meth:`prepare`, :meth:`start`, :meth:`admit` and, if it
    needs to, the other methods without a leading underscore.

    :cvar PUBLICATION: the type of the record.
    :ivar _options: the worker's options; those that are None are read from the environment now.
    :ivar _group: the worker's group.
    :ivar _mine: what this worker has published; None before :meth:`listen`.
    :ivar _identity: the worker's certificate; None if workers have none. :meth:`prepare` sets it.
    :ivar _native: the transport in C++; its class has ``forget``, ``close``, ``metrics`` and
        ``__rpc_transport__``.
    :raises SettingError: an environment variable has an invalid value.
    :raises SecretError: the secret is invalid, unreadable or ambiguous.
    """

    PUBLICATION: ClassVar[type[Publication]]

    def __init__(self, options: Options, group: Group) -> None:
        self._options = options
        self._group = group
        self._mine: Record | None = None
        self._ranks = {member.worker_id: member.rank for member in group.members}
        self._identity: Identity | None = None
        self._watch: Watch | None = None
        self._admission_control = AdmissionControl(
            options.BACKEND, max(len(group.members) - 1, 0), HANDSHAKE_TIMEOUT
        )
        try:
            self._native: Any = self.prepare()
        except (SettingError, SecretError, AddressError) as error:
            # All workers get this text, so it names the worker with the wrong setting.
            raise type(error)(f"worker {group.name!r} cannot start: {error}") from error.__cause__

    # --- what an engine fills in ---------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> Any:
        """Read the settings, and return the transport in C++. Nothing listens yet.

        It passes ``self._admission_control.whose`` and ``.refused`` to the transport as callbacks.
        """

    @property
    @abstractmethod
    def secret(self) -> Secret | None:
        """The secret that peers must have; None to require none."""

    @abstractmethod
    def start(self, worker_id: int, name: str) -> Record:
        """Start to listen, and return the record to publish, with :meth:`about`."""

    @abstractmethod
    def admit(self, peer: int, mine: Record, theirs: Record) -> tuple[bytes, ...]:
        """Make the peer known to the transport in C++; return the keys with which the peer may connect.

        :raises AddressError: this worker cannot reach the peer.
        :raises PublicationError: the record cannot be right.
        """

    # --- what the agent calls ------------------------------------------------------------------------

    @property
    def on_unknown_key(self) -> LookForNew | None:
        """The function to call when a process connects with an unknown key.

        A dynamic group sets it. The function looks for workers that have joined and calls :meth:`learn`
        for each. If none of them has the key, the connection is refused. The function runs on a thread
        of the transport.
        """
        return self._admission_control.look

    @on_unknown_key.setter
    def on_unknown_key(self, look: LookForNew | None) -> None:
        self._admission_control.look = look

    def listen(self, self_id: int, name: str) -> str:
        """Start to listen, and return the text that peers pass to :meth:`learn`.

        :raises AddressError: there is no address to listen on.
        :raises ExposureError: other hosts could reach the address, and there is no protection.
        :raises StoreError: the store is lost, or does not answer (dynamic groups).
        """
        assert self._mine is None, "listen() was called already"
        self._admission_control.refused.owner = name
        try:
            if self._identity is not None:
                self._identity.check_own_name(name)
            self._mine = self.start(self_id, name)
            if self._identity is not None:
                closed = self._identity.native.TransportError
                self._watch = Watch(
                    self._identity, name, self._options.BACKEND, self._native, closed
                )
        except BaseException as error:
            self.close(0)
            if isinstance(error, AddressError):
                raise type(error)(f"worker {name!r} cannot start: {error}") from error.__cause__
            raise
        return self._mine.seal(self.secret, self._identity)

    def learn(self, peer: int, name: str, address: str, rank: int | None = None) -> None:
        """Add a peer. Call :meth:`listen` first.

        :param address: the text that the peer has written to the store.
        :param rank: the peer's rank; a static group knows it already.
        :raises PublicationError: the text does not come from this peer or is not for this group.
        :raises AddressError: this worker cannot reach the peer.
        """
        mine = self._mine
        assert mine is not None, "call listen() before learn()"
        try:
            theirs: Any = self.PUBLICATION.open(
                address,
                self.secret,
                reader=mine.name,
                group=mine.group,
                worker_id=peer,
                name=name,
                rank=self._ranks.get(peer) if rank is None else rank,
                signer=self._identity,
            )
            keys = self.admit(peer, mine, theirs)
        except BaseException:
            # This error ends the start of a static group, so unknown keys need not wait any longer.
            self._admission_control.stop_waiting()
            raise
        self._admission_control.learn(peer, *keys)

    def forget(self, peer: int) -> None:
        """Remove a peer that has left, and refuse its keys from now on."""
        self._admission_control.forget(peer)
        self._native.forget(peer)

    def close(self, linger: float) -> None:
        """Close all connections. A second call does nothing.

        :param linger: how many seconds to wait for queued messages to be sent.
        """
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        self._admission_control.look = None  # it may reference this transport
        self._admission_control.stop_waiting()
        self._native.close(linger)

    def metrics(self) -> dict[str, str]:
        """Return the transport's metrics, as text."""
        metrics = dict(self._native.metrics())
        if self._identity is not None:
            backend, mine = self._options.BACKEND.lower(), self._identity.certificates
            metrics[f"{backend}.identity"] = mine.identity
            metrics[f"{backend}.certificate_expires"] = str(mine.expires)
        return metrics

    @property
    def signer(self) -> Identity | None:
        """The certificate with which this worker proves who it is; None if workers have none."""
        return self._identity

    def identity_of(self, name: str) -> str | None:
        """Return the identity that the worker with this name has proved; None if it has proved none."""
        subject = None if self._identity is None else self._identity.proven.get(name)
        return None if subject is None else subject.identity

    def __rpc_transport__(self) -> Any:
        """Return the capsule through which the C++ agent uses the transport."""
        return self._native.__rpc_transport__()

    # --- what an engine calls ------------------------------------------------------------------------

    def token(self) -> str:
        """Return the token of the group: a text that all its workers know, and that no other group has.

        :raises StoreError: the store is lost, or does not answer (dynamic groups).
        """
        if self._group.token is not None:
            return self._group.token
        # Members join one after the other, so all use the nonce that the first one wrote.
        key, fresh = f"{self._options.BACKEND.lower()}/nonce", secrets.token_hex(16)
        nonce = self._group.access.ask(
            lambda store: bytes(store.compare_set(key, "", fresh)),
            min(self._group.timeout, JOIN_TIMEOUT),
        )
        return hashlib.sha256(nonce).hexdigest()

    def about(self, token: str, worker_id: int, name: str) -> dict[str, Any]:
        """Return the fields of the record that all engines have.

        :param token: from :meth:`token`.
        """
        return {
            "group": token,
            "worker_id": worker_id,
            "name": name,
            "rank": self._group.rank,
            "host": this_host(),
            "session": sealed.new_session(),
            "max_message_bytes": self._options.max_message_bytes,
        }
