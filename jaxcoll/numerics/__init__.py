"""Numbers and arguments: the lowest layer of the package.

``rational`` and ``connectivity`` are exact. ``compiled`` decorates kernels, and runs them as Python
on small problems. ``heap`` is the binary heap of all compiled kernels, and ``list_schedule``
schedules tasks that overlap. ``program`` has linear and integer programs, and is the only file that
names their solver. ``checks`` validates arguments; ``ragged`` has rows of unequal lengths.
"""
