"""OpenTelemetry traces and metrics of RPC calls; ``RPC_BACKENDS_OTEL=1`` turns them on."""

__version__ = "0.1.0"
