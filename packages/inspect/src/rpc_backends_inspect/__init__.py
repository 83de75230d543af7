"""What RPC workers wait for: a recorder in each worker, and the command ``rpc-backends inspect``."""

__version__ = "0.1.0"
