"""Running HiGHS, whose solvers share their threads."""

from __future__ import annotations

from collections.abc import Mapping

import highspy


def solver_for(model: highspy.HighsLp, options: Mapping[str, float | str]) -> highspy.Highs:
    """A silent solver with a model and options, to be run by ``run``.

    HiGHS keeps one pool of threads per calling thread and refuses a solver that asks for another
    number of threads. So the pool is reset before every solve; solvers that run in other Python
    threads keep their own pools.
    """
    highspy.Highs.resetGlobalScheduler(True)
    solver = highspy.Highs()
    solver.silent()
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    return solver


def run(solver: highspy.Highs) -> None:
    """Solve.

    Raises:
        RuntimeError: the solver refuses the model or an option.
    """
    if solver.run() == highspy.HighsStatus.kError:
        raise RuntimeError("HiGHS refuses the program or its options")
