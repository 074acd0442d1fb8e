"""Numbers and arguments, below everything else.

``rational`` and ``connectivity`` are exact; ``compiled`` decorates kernels, and runs them as Python
on small problems; ``heap`` is the one binary heap of compiled kernels, ``list_schedule`` schedules
tasks that overlap; ``program`` holds linear and integer programs, and alone names their solver;
``checks`` validates arguments; ``ragged`` holds rows of unequal lengths.
"""
