"""What every worker of an engine publishes about itself, and how its peers read that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from rpc_backends_agents.engine import canonical, sealed
from rpc_backends_agents.engine.canonical import MAX_GROUP, MAX_ID, MAX_NAME, MalformedError
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.host import Host
from rpc_backends_agents.engine.secret import Secret

_MAX_HOST = 256
_MAX_BYTES = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One worker of one group. An engine's record adds how the worker is reached.

    :cvar FORM: the form of the records; it goes up when the fields change.
    :ivar group: the group's token, unique among all groups, past ones included.
    :ivar session: 32 hexadecimal digits, unique to the session.
    :ivar max_message_bytes: the size in bytes of the longest message that the worker accepts.
    """

    FORM: ClassVar[sealed.Form]

    group: str
    worker_id: int
    name: str
    rank: int
    host: Host
    session: str
    max_message_bytes: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the fields that the engine has added, checked strictly.

        :param fields: the parsed JSON; it has exactly the fields of the record.
        :raises MalformedError: a value is invalid.
        """
        return {}

    @classmethod
    def load(cls, text: str) -> Self:
        """Parse the JSON of a record.

        :raises MalformedError: ``text`` is not in the form that :func:`canonical.dump` gives.
        """
        fields = canonical.fields(canonical.parse(text), "it", cls)
        host = canonical.fields(fields["host"], "its 'host'", Host)
        record = cls(
            group=canonical.text(fields, "group", MAX_GROUP),
            worker_id=canonical.number(fields, "worker_id", MAX_ID),
            name=canonical.text(fields, "name", MAX_NAME),
            rank=canonical.number(fields, "rank", MAX_ID),
            host=Host(
                canonical.text(host, "kernel", _MAX_HOST),
                canonical.text(host, "network", _MAX_HOST),
            ),
            session=canonical.session(fields),
            max_message_bytes=canonical.number(fields, "max_message_bytes", _MAX_BYTES),
            **cls.parse(fields),
        )
        canonical.check_form(record, text)
        return record

    def seal(self, secret: Secret | None, signer: sealed.Signer | None = None) -> str:
        """Return the text to write to the store. Without a secret and a signer it has no proof."""
        return sealed.seal(self.FORM, canonical.dump(self), secret, signer)

    @classmethod
    def open(
        cls,
        text: str,
        secret: Secret | None,
        *,
        reader: str,
        group: str,
        worker_id: int,
        name: str,
        rank: int | None,
        signer: sealed.Signer | None = None,
    ) -> Self:
        """Check and return a record that a worker has written to the store.

        :param secret: this worker's secret.
        :param reader: this worker's name, for messages.
        :param group: the token of the group that both workers should be in.
        :param worker_id: the expected worker's id.
        :param name: the expected worker's name.
        :param rank: the expected worker's rank; None if unknown.
        :param signer: this worker's certificate; None if it has none.
        :raises PublicationError: the record cannot be trusted; the text says why and what to do.
        """
        payload = sealed.unseal(
            cls.FORM, text, secret, name=name, rank=rank, reader=reader, signer=signer
        )
        try:
            record = cls.load(payload)
        except MalformedError as error:
            who = sealed.described(name, rank)
            raise PublicationError(
                f"the address of {who} in the store is invalid: {error}."
            ) from error
        sealed.check_worker(record, group=group, worker_id=worker_id, name=name, rank=rank)
        return record

    def proof(self, purpose: str, what: str, to: Publication, secret: Secret | None) -> bytes:
        """Return a proof (32 bytes) that this worker shows another; see :func:`sealed.proof_between`."""
        return sealed.proof_between(self.FORM, purpose, what, self, to, secret)
