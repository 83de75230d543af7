"""``rpc-backends bench``: backends measured side by side, in one run.

On any machine but an idle one the figures drift by more than the differences of interest. So all
backends are alive at once and run short blocks one after the other, in an order that is drawn, and the
report consists mostly of ratios of values that were measured one right after the other.

``plan`` says what is measured; ``calls`` and ``groups`` measure it with the processes of
``participants``, which run ``worker_tasks``; ``results`` keeps it, ``statistics`` sums it up; ``table``,
``plots``, ``page`` and ``compare`` show it.
"""
