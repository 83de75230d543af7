"""The options that engines have: those of every engine, of a secret, and of certificates."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch.distributed.rpc.constants import DEFAULT_INIT_METHOD

from rpc_backends_agents.engine.declarations import DeclaredOptions, Option, VariableOption
from rpc_backends_agents.engine.device_options import (
    DeviceMap,
    check_device_maps,
    check_devices,
)
from rpc_backends_agents.engine.kinds import BYTES, PATH, SECRET, Kind, integer
from rpc_backends_agents.engine.option_checks import MOST_BYTES, OptionChecks
from rpc_backends_agents.engine.secret import Secret, find
from rpc_backends_agents.settings import Settings
from rpc_backends_core.spi import SettingError

if TYPE_CHECKING:
    import torch


class EngineOptions(DeclaredOptions, base=True):
    """The options that every engine on the agent has."""

    num_worker_threads: Option[int] = Option(
        integer(1, MOST_BYTES, "threads"),
        default=Settings.num_worker_threads,
        meaning="threads that execute requests",
    )
    rpc_timeout: float = Option(
        Kind(OptionChecks.timeout, "seconds"),
        default=Settings.rpc_timeout,
        meaning="seconds that a call may take; 0 means no limit. More than 2147483 (24 days) counts as "
        "that",
    )  # type: ignore[assignment]  # the attribute is torch's, and so is its type
    init_method: str = Option(
        Kind(
            lambda checks, name, value: checks.text(name, value, "the URL of the rendezvous"),
            "a URL",
        ),
        default=DEFAULT_INIT_METHOD,
        meaning="the URL of the rendezvous",
    )  # type: ignore[assignment]
    max_message_bytes: Option[int] = Option(
        BYTES,
        default=Settings.max_message_bytes,
        meaning="the size of the longest message accepted from another worker, in bytes, tensors "
        "included. A call with a longer one fails at its sender",
        native="max_message",
    )
    max_unanswered_bytes: Option[int] = Option(
        BYTES,
        default=Settings.max_unanswered_bytes,
        meaning="the bytes of calls to one worker that may be unanswered before further calls to it "
        "wait. A worker also refuses requests of a caller if more than this many bytes of them wait to "
        "run, and holds further requests of a caller back while that caller has not read this many "
        "bytes of answers. Each call counts 1 KiB more than its message",
    )
    device_maps: Option[dict[str, DeviceMap], Mapping[str, Mapping[Any, Any]] | None] = Option(
        Kind(lambda checks, _name, value: check_device_maps(checks, value), "maps"),
        default=None,
        meaning="by callee, a map from this worker's devices to the callee's devices, for example "
        '``{"worker1": {"cuda:0": "cuda:1"}}``. Answers use the inverted map',
    )
    devices: Option[list[torch.device], Iterable[Any] | None] = Option(
        Kind(lambda checks, _name, value: check_devices(checks, value), "accelerators"),
        default=None,
        default_text="those in the maps",
        meaning="the accelerators of this worker that RPC may use. The default is those in the device "
        "maps of this worker and of its callers",
    )

    def set_device_map(self, to: str, device_map: Mapping[Any, Any]) -> None:
        """Add to the device map for a callee, before RPC starts.

        :raises ValueError: a device is mapped to another one already, or the argument maps two devices
            to one.
        :raises RuntimeError: torch knows no such device.
        :raises TypeError: the argument is not a map of devices.
        """
        added = check_device_maps(OptionChecks(self.BACKEND), {to: device_map})[to]
        known = self.device_maps.get(to, {})
        for mine, theirs in added.items():
            if known.get(mine, theirs) != theirs:
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {mine} to {theirs} "
                    f"and {known[mine]} for {to!r}."
                )
        # As in torch, two calls may map two devices to one: then `init_rpc` fails.
        self.device_maps[to] = {**known, **added}

    def set_devices(self, devices: Iterable[Any]) -> None:
        """Set the accelerators of this worker that RPC may use, before RPC starts.

        :raises ValueError, TypeError: an entry is not an accelerator.
        """
        self.devices[:] = check_devices(OptionChecks(self.BACKEND), devices)


class GuardedOptions(EngineOptions, base=True):
    """The options of an engine whose workers may share a secret."""

    secret: VariableOption[Secret | None, str] = VariableOption(
        SECRET,
        default=None,
        meaning="the secret that the workers share, from ``rpc-backends secret``. A file is safer, "
        "because "
        "child processes inherit variables",
    )
    secret_file: VariableOption[str | None, str | os.PathLike[str]] = VariableOption(
        PATH,
        default=None,
        meaning="the file that holds the secret; only its owner may have access to it "
        "(``chmod 600``). ``rpc-backends secret --out FILE`` makes one",
    )

    def shared_secret(self) -> Secret | None:
        """Return the secret from the options or the environment; None if neither gives one.

        :raises SecretError: a secret is invalid or unreadable, or two sources give different secrets.
        """
        return find(self.BACKEND, self.secret, self.secret_file)


class CertifiedOptions(GuardedOptions, base=True):
    """The options of an engine whose workers may have certificates in place of a secret."""

    certificate: VariableOption[str | None, str | os.PathLike[str]] = VariableOption(
        PATH,
        default=None,
        meaning="the file with the certificate of this worker in PEM, followed by those between it and "
        "an authority. It proves the worker's name, in place of a secret. ``{name}`` in the path stands "
        "for the worker's name, also in those of the key and the authority. The files are read again "
        "when they change",
    )
    certificate_key: VariableOption[str | None, str | os.PathLike[str]] = VariableOption(
        PATH,
        default=None,
        meaning="the file with the private key of the certificate in PEM, without a password; only its "
        "owner may have access to it",
    )
    certificate_authority: VariableOption[str | None, str | os.PathLike[str]] = VariableOption(
        PATH,
        default=None,
        meaning="the file with the certificates in PEM of the authorities that certify the workers",
    )

    def prepare_probe(self) -> str:
        """Make a certificate of this host fit for the workers of ``rpc-backends doctor``.

        In this process, the names of these workers then belong to any certificate.

        :returns: what is to say about the calls; empty if workers have no certificates.
        :raises SettingError: no certificate is here.
        """
        from rpc_backends_agents.engine import identities
        from rpc_backends_agents.engine.certificates import Files

        paths = Files.find(self, os.environ, None)
        if paths is None:
            return ""
        if paths.depends_on_name:
            names = paths.names_here()
            if not names:
                raise SettingError(f"no file on this host fits {paths.certificate}.")
            paths = paths.of(names[0])
        self.__dict__.update(
            certificate=paths.certificate,
            certificate_key=paths.key,
            certificate_authority=paths.authority,
        )
        identities.use_for_probe()
        return f"both workers with {paths.certificate}, so names were not checked"
