"""GUARDED_TCP: an engine on the engine kit. It uses plain TCP, and its peers prove themselves."""

from dataclasses import dataclass

from rpc_backends_agents.engine import (
    Form,
    GuardedOptions,
    GuardedTransport,
    Option,
    Publication,
    canonical,
    construct_handler,
    engine_backend,
    init_handler,
    lacks_secret,
    text,
)


class Options(GuardedOptions):
    """The options of GUARDED_TCP; init_rpc finds the backend by this class."""

    BACKEND = "GUARDED_TCP"

    address: Option[str] = Option(
        text("an IP address"),
        default="127.0.0.1",
        meaning="the address of this machine to listen on",
        native="host",
    )


@dataclass(frozen=True, kw_only=True)
class Record(Publication):
    """What a worker publishes: where it listens."""

    FORM = Form("GUARDED_TCP", "guarded-tcp", 1, "rpc-backend-guarded-tcp")

    address: str
    port: int

    @classmethod
    def parse(cls, fields):
        return {
            "address": canonical.text(fields, "address", 64),
            "port": canonical.number(fields, "port", 65535),
        }


class TcpTransport(GuardedTransport):
    PUBLICATION = Record

    def prepare(self):
        from _guarded_tcp import Transport

        self._secret = self._options.shared_secret()
        return Transport(
            on_unknown_key=self._admission_control.whose,
            on_refused=self._admission_control.refused,
            **self._options.native(),
        )

    @property
    def secret(self):
        return self._secret

    def start(self, worker_id, name):
        port = self._native.start()
        about = self.about(self.token(), worker_id, name)
        return Record(**about, address=self._options.address, port=port)

    def admit(self, peer, mine, theirs):
        ours = mine.proof("greeting", "greeting", theirs, self._secret)
        key = theirs.proof("greeting", "greeting", mine, self._secret)
        self._native.learn(peer, theirs.address, theirs.port, ours)
        return (key,)


construct_rpc_backend_options = construct_handler(Options)
init_backend = init_handler(Options, TcpTransport)
BACKEND = engine_backend(
    construct_rpc_backend_options,
    init_backend,
    Options,
    TcpTransport,
    lacks_authentication=lacks_secret,
    description="plain TCP in C++; workers prove that they belong to the group",
)
