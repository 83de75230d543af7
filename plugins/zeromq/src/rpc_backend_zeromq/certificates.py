"""Certificates by which workers prove their names: read from files, and again when the files change."""

from __future__ import annotations

import datetime
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rpc_backend_zeromq._native import Certificates, TransportError
from rpc_backend_zeromq.options import BACKEND, ZeroMQRpcBackendOptions
from rpc_backends_agents.engine import identities, variables
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.secret import OTHERS_MAY
from rpc_backends_core.spi import SettingError

logger = variables.logger_of(BACKEND)

#: Seconds between two looks at the files and at the rules. Revocation is in force within a second.
PAUSE = 0.25
#: The most bytes of a file.
_FILE_LIMIT = 1 << 20


@dataclass(frozen=True)
class Files:
    """The paths of the files with the certificate, its key, and the authorities."""

    certificate: str
    key: str
    authority: str

    def of(self, name: str) -> Files:
        """Return the files of a worker: ``{name}`` in a path stands for its name."""
        return Files(
            *(path.replace("{name}", name) for path in (self.certificate, self.key, self.authority))
        )

    def read(self, *, fips: bool) -> Certificates:
        """Read the files.

        :raises SettingError: one is unreadable or invalid, or other users can access the key.
        """
        chain = _content(self.certificate, "certificate")
        key = _content(self.key, "certificate_key", is_private=True)
        authorities = _content(self.authority, "certificate_authority")
        try:
            return Certificates(chain, key, authorities, fips)
        except TransportError as error:
            raise SettingError(
                f"the files {self.certificate}, {self.key} and {self.authority} cannot be used: {error}."
            ) from None

    def state(self) -> tuple[object, ...]:
        """Return a value that changes when a file changes."""
        return tuple(_state(path) for path in (self.certificate, self.key, self.authority))


class Subject(NamedTuple):
    """Whom a certificate names.

    :ivar serial: the number of the certificate, in hexadecimal digits.
    :ivar key: what stands for the identity in records and connections.
    """

    identity: str
    serial: str
    key: bytes


class Identity:
    """This worker's certificate, and the identities that its peers have proved.

    :ivar certificates: those that are in use now.
    :ivar proven: by name of a peer, whom its certificate names.
    :raises SettingError: the files cannot be used, or the certificate has expired.
    """

    def __init__(self, files: Files, *, fips: bool) -> None:
        self._fips = fips
        self.files = files
        self.state = files.state()
        self.certificates = files.read(fips=fips)
        self.proven: dict[str, Subject] = {}
        if self.certificates.expires <= _now():
            raise SettingError(
                f"the certificate of {self.source} has expired on {date(self.certificates.expires)}. "
                "Renew it."
            )

    @property
    def remedy(self) -> str:
        """What to do if only some workers have certificates."""
        variable = ZeroMQRpcBackendOptions.certificate.variable
        return f"Give all workers certificates ({variable}, and its key and authority), or none."

    @property
    def source(self) -> str:
        """Where the certificate comes from, for messages."""
        return f"{self.certificates.identity} from {self.files.certificate}"

    def check_own_name(self, name: str) -> None:
        """Check that this worker may have its name.

        :raises SettingError: it may not.
        """
        mine = self.certificates
        why = identities.current().refusal(mine.identity, mine.serial, name)
        if why:
            raise SettingError(
                f"a worker cannot have the name {name!r} with the certificate in "
                f"{self.files.certificate}: {why}. Use another certificate or name."
            )

    def sign(self, data: bytes) -> tuple[bytes, bytes]:
        """Return this worker's certificates in DER, and its signature."""
        certificates = self.certificates
        return certificates.chain, certificates.sign(data)

    def check(self, name: str, certificates: bytes, signature: bytes, data: bytes) -> None:
        """Check that the worker with this name has signed, and note whom its certificate names.

        :raises PublicationError: it has not, or its certificate is not accepted; the text is the reason.
        """
        try:
            subject = Subject(*self.certificates.check(certificates, signature, data))
        except TransportError as error:
            raise PublicationError(str(error)) from None
        why = identities.current().refusal(subject.identity, subject.serial, name)
        if why:
            raise PublicationError(why)
        self.proven[name] = subject

    def revoked(self) -> list[str]:
        """Return the revoked identities and serial numbers; of a revoked name, the identity behind it."""
        entries = identities.current().revoked
        behind = {
            subject.identity for name, subject in list(self.proven.items()) if name in entries
        }
        return sorted(entries | behind)

    def reread(self) -> Certificates | None:
        """Read the files again if they have changed; return the certificates if they are valid.

        :raises SettingError: they are not.
        """
        state = self.files.state()
        if state == self.state:
            return None
        certificates = self.files.read(fips=self._fips)
        if certificates.identity != self.certificates.identity:
            raise SettingError(
                f"the certificate in {self.files.certificate} is now that of {certificates.identity}, "
                f"and this worker has started as {self.certificates.identity}."
            )
        self.state = state
        self.certificates = certificates
        return certificates


class Watch:
    """A thread that looks at the files and rules while a worker runs.

    :param renew: gets new certificates.
    :param revoke: gets what is revoked now.
    """

    def __init__(
        self,
        identity: Identity,
        name: str,
        renew: Callable[[Certificates], object],
        revoke: Callable[[list[str]], object],
    ) -> None:
        self._identity = identity
        self._name = name
        self._renew = renew
        self._revoke = revoke
        self._revoked: list[str] = []
        self._failure = ""
        self._warned = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rpc-zmq-certificates", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE):
            try:
                self._look()
            except TransportError:  # the transport is closed
                return
            except Exception:
                logger.exception("worker %r cannot look at its certificates", self._name)

    def _look(self) -> None:
        revoked = self._identity.revoked()
        if revoked != self._revoked:
            self._revoke(revoked)
            self._revoked = revoked
        try:
            renewed = self._identity.reread()
        except SettingError as error:
            # Files may be written one after the other, so only what stays wrong is worth a line.
            if str(error) == self._failure != self._warned:
                logger.warning(
                    "worker %r keeps its certificate, because the new one cannot be used: %s",
                    self._name,
                    error,
                )
                self._warned = self._failure
            self._failure = str(error)
            return
        self._failure = ""
        if renewed is not None:
            self._renew(renewed)
            logger.info(
                "worker %r has a new certificate of %s, which expires on %s",
                self._name,
                renewed.identity,
                date(renewed.expires),
            )


def _content(path: str, option: str, *, is_private: bool = False) -> bytes:
    try:
        with Path(path).expanduser().open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(_FILE_LIMIT + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise SettingError(
            f"the file of {option}, {path}, cannot be read: {error.strerror}."
        ) from None
    if not content or len(content) > _FILE_LIMIT:
        raise SettingError(f"the file of {option}, {path}, is empty or no file of certificates.")
    if is_private and status.st_mode & OTHERS_MAY:
        raise SettingError(
            f"other users can access the key in {path} (mode {stat.S_IMODE(status.st_mode):o}). Make it "
            f"private: chmod 600 {path}"
        )
    return content


def _state(path: str) -> tuple[int, ...] | None:
    try:
        status = Path(path).expanduser().stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _now() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


def date(seconds: float) -> str:
    """Return a time since 1970 in words."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")
