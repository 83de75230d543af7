"""``python -m rpc_backends_core.demo``, the same as ``rpc-backends demo``."""

from rpc_backends_core.demo.command import demo

if __name__ == "__main__":
    demo(prog_name="python -m rpc_backends_core.demo")
