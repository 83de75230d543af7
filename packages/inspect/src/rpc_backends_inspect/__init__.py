"""Shows what RPC workers wait for: a recorder in each worker, and ``rpc-backends inspect``."""

__version__ = "0.1.0"
