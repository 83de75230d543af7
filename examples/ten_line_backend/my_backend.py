"""MINE: torch's TensorPipe agent with four worker threads by default."""

from rpc_backend_tensorpipe.handlers import construct_rpc_backend_options, init_backend
from rpc_backends_core import Backend


def construct(rpc_timeout, init_method, num_worker_threads=4, **options):
    return construct_rpc_backend_options(rpc_timeout, init_method, num_worker_threads, **options)


BACKEND = Backend(
    construct_rpc_backend_options_handler=construct,
    init_backend_handler=init_backend,
    description="TensorPipe with four threads",
)
