"""Certificates by which workers prove their names: read from files, and again when the files change.

OpenSSL is in the extension of each engine, so functions get that module: ``Certificates`` is its class,
and ``TransportError`` its error.
"""

from __future__ import annotations

import datetime
import glob
import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from rpc_backends_agents.engine import files, identities
from rpc_backends_agents.engine.errors import PublicationError
from rpc_backends_agents.engine.secret import OTHERS_MAY, Secret
from rpc_backends_agents.engine.variables import logger_of
from rpc_backends_core.spi import SettingError

#: Seconds between two looks at the files and at the rules. Revocation is in force within a second.
PAUSE = 0.25
#: The most bytes of a file.
_FILE_LIMIT = 1 << 20


class Certificates(Protocol):
    """The certificate of a worker, its key, and the authorities that it trusts: a class of C++.

    :ivar identity: the URI of the certificate, or else its first DNS name.
    :ivar serial: the number of the certificate, in hexadecimal digits.
    :ivar key: what stands for the identity in records and connections.
    :ivar expires: when the certificate expires, in seconds since 1970.
    :ivar chain: the certificate and those behind it, in DER.
    """

    @property
    def identity(self) -> str: ...  # noqa: D102
    @property
    def serial(self) -> str: ...  # noqa: D102
    @property
    def key(self) -> bytes: ...  # noqa: D102
    @property
    def expires(self) -> int: ...  # noqa: D102
    @property
    def chain(self) -> bytes: ...  # noqa: D102

    def sign(self, data: bytes) -> bytes:
        """Return a signature with the private key."""

    def check(self, chain: bytes, signature: bytes, data: bytes) -> tuple[str, str, bytes]:
        """Check a certificate and a signature; return identity, serial number and key of the signer."""


class Declared(Protocol):
    """Options with the three files of a certificate; see :class:`CertifiedOptions`."""

    DECLARED: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class Files:
    """The paths of the files with the certificate, its key, and the authorities.

    :ivar variable: the environment variable for the certificate, for messages.
    """

    certificate: str
    key: str
    authority: str
    variable: str = ""

    @classmethod
    def find(
        cls, options: Declared, environ: Mapping[str, str], secret: Secret | None
    ) -> Files | None:
        """Return the files that the options or variables name; None if they name none.

        :param secret: the secret of the worker, which excludes certificates.
        :raises SettingError: a file is missing, or there is a secret as well.
        """
        declared = [
            options.DECLARED[name]
            for name in ("certificate", "certificate_key", "certificate_authority")
        ]
        paths = [option.value_in(options, environ) for option in declared]
        given = [option for option, path in zip(declared, paths, strict=True) if path is not None]
        missing = [option for option in declared if option not in given]
        if not given:
            return None
        if missing:
            raise SettingError(
                f"{' and '.join(option.name for option in given)} given without "
                f"{' and '.join(option.name for option in missing)}. A worker with a certificate needs "
                f"the three files: set {' and '.join(str(option.variable) for option in missing)} too."
            )
        if secret is not None:
            raise SettingError(
                f"the worker has both a secret (from {secret.source}) and a certificate ({paths[0]}). "
                "Workers prove who they are in one way: give all of them certificates, or all of them "
                "the secret."
            )
        certificate, key, authority = paths
        return cls(certificate, key, authority, str(declared[0].variable))

    def of(self, name: str) -> Files:
        """Return the files of a worker: ``{name}`` in a path stands for its name."""
        paths = (self.certificate, self.key, self.authority)
        certificate, key, authority = (path.replace("{name}", name) for path in paths)
        return Files(certificate, key, authority, self.variable)

    @property
    def depends_on_name(self) -> bool:
        """Whether workers with different names have different files."""
        return "{name}" in self.certificate + self.key + self.authority

    def names_here(self) -> list[str]:
        """Return the names of the workers whose certificates are on this host, sorted."""
        path = str(Path(self.certificate).expanduser())
        if "{name}" not in path:
            return []
        # In a pattern, the first {name} finds the names; the others must then have the same.
        authority = str(Path(self.authority).expanduser())
        names = set()
        before, _, after = path.partition("{name}")
        for each in glob.glob(f"{glob.escape(before)}*{glob.escape(after).replace('{name}', '*')}"):  # noqa: PTH207
            name = each[len(before) :].partition("/")[0]
            ending = after.partition("/")[0].partition("{name}")[0]
            name = name.removesuffix(ending) if ending else name
            if path.replace("{name}", name) == each != authority:
                names.add(name)
        return sorted(names)

    def read(self, native: Any, *, fips: bool = False) -> Certificates:
        """Read the files.

        :param native: the extension of the engine.
        :param fips: whether to use OpenSSL's FIPS provider only.
        :raises SettingError: one is unreadable or invalid, or other users can access the key.
        """
        chain = _content(self.certificate, "certificate")
        key = _content(self.key, "certificate_key", is_private=True)
        authorities = _content(self.authority, "certificate_authority")
        try:
            certificates: Certificates = native.Certificates(chain, key, authorities, fips)
        except native.TransportError as error:
            raise SettingError(
                f"the files {self.certificate}, {self.key} and {self.authority} cannot be used: {error}."
            ) from None
        return certificates

    def state(self) -> tuple[object, ...]:
        """Return a value that changes when a file changes."""
        return tuple(
            files.state_if_there(Path(path).expanduser())
            for path in (self.certificate, self.key, self.authority)
        )


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

    :param paths: the files of this worker.
    :param native: the extension of the engine.
    :ivar certificates: those that are in use now.
    :ivar proven: by name of a peer, whom its certificate names.
    :raises SettingError: the files cannot be used, or the certificate has expired.
    """

    def __init__(self, paths: Files, native: Any, *, fips: bool = False) -> None:
        self.native = native
        self._fips = fips
        self.files = paths
        self.state = paths.state()
        self.certificates: Any = paths.read(native, fips=fips)
        self.proven: dict[str, Subject] = {}
        if self.certificates.expires <= _now():
            raise SettingError(
                f"the certificate of {self.source} has expired on {date(self.certificates.expires)}. "
                "Renew it."
            )

    @property
    def remedy(self) -> str:
        """What to do if only some workers have certificates."""
        variable = self.files.variable
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
        subject = self.verify(certificates, signature, data)
        why = identities.current().refusal(subject.identity, subject.serial, name)
        if why:
            raise PublicationError(why)
        self.proven[name] = subject

    def verify(self, certificates: bytes, signature: bytes, data: bytes) -> Subject:
        """Return who has signed.

        :raises PublicationError: a certificate or the signature is not accepted; the text is the reason.
        """
        try:
            return Subject(*self.certificates.check(certificates, signature, data))
        except self.native.TransportError as error:
            raise PublicationError(str(error)) from None

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
        certificates = self.files.read(self.native, fips=self._fips)
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

    :param backend: the name of the worker's backend.
    :param transport: the transport in C++. Its ``renew`` gets new certificates, its ``revoke`` what is
        revoked now.
    :param closed: what they raise once the transport is closed.
    """

    def __init__(
        self,
        identity: Identity,
        name: str,
        backend: str,
        transport: Any,
        closed: type[Exception],
    ) -> None:
        self._identity = identity
        self._name = name
        self._transport = transport
        self._closed = closed
        self._logger = logger_of(backend)
        self._revoked: list[str] = []
        self._failure = ""
        self._warned = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rpc-certificates", daemon=True)
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
            except self._closed:
                return
            except Exception:
                self._logger.exception("worker %r cannot look at its certificates", self._name)

    def _look(self) -> None:
        revoked = self._identity.revoked()
        if revoked != self._revoked:
            self._transport.revoke(revoked)
            self._revoked = revoked
        try:
            renewed = self._identity.reread()
        except SettingError as error:
            # Files may be written one after the other, so only what stays wrong is worth a line.
            if str(error) == self._failure != self._warned:
                self._logger.warning(
                    "worker %r keeps its certificate, because the new one cannot be used: %s",
                    self._name,
                    error,
                )
                self._warned = self._failure
            self._failure = str(error)
            return
        self._failure = ""
        if renewed is not None:
            self._transport.renew(renewed)
            self._logger.info(
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


def _now() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


def date(seconds: float) -> str:
    """Return a time since 1970 in words."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")
