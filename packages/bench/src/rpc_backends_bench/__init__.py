"""``rpc-backends bench`` measures backends side by side in one run.

On a machine that is not idle, figures drift by more than the differences of interest. Therefore the
processes of all backends are alive at once and run short blocks one after the other, in random order.
The report shows mostly ratios of two values that were measured one right after the other.

``plan`` lists what is measured. ``calls`` and ``groups`` measure it with the processes of
``participants``, which run ``worker_tasks``. ``results`` holds the values and ``statistics`` summarizes
them. ``table``, ``plots``, ``page`` and ``compare`` show them.
"""
