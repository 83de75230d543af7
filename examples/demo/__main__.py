"""``python -m demo``, the same as ``rpc-backends demo``."""

from demo.command import demo

if __name__ == "__main__":
    demo(prog_name="python -m demo")
