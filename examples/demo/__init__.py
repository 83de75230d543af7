"""The demo: a parameter server and two trainers learn digits over one backend after another.

The workers use torch's public RPC functions and nothing of ours; ``origin`` alone asks this package
something, namely where a backend came from. Read ``trainer`` and ``server`` for the training,
``retry`` for how it survives failing messages, ``rules`` for those that fail by rules of another package,
``supervisor`` for the processes.
"""
