"""``rpc-backends bench``: backends measured side by side, in one run.

On any machine but an idle one the figures drift by more than the differences of interest. So all
backends are alive at once and take turns in short blocks, in an order that is drawn, and what is
reported is mostly the ratio of what was measured one right after the other.

``plan`` says what is measured; ``calls`` and ``groups`` measure it with the processes of ``contestants``,
in which ``steps`` run; ``results`` keeps it, ``statistics`` sums it up; ``table``, ``plots``, ``page``
and ``compare`` show it.
"""
