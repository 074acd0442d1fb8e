"""Choice: the schedule that a call runs, from the user, a synthesizer, or the defaults.

This package turns a call's ``schedule=`` into a schedule. Its modules in reading order:
``defaults`` (what stands where nobody named one; ``binomial`` with a root), ``stated`` (network
and machine), ``in_force`` (the configuration under which a program is traced), ``configured`` (a
call run by a configuration), ``transports`` (how permutes are carried out), ``cliques``
(transports that deadlock), ``options`` (of XLA's compilers for them), ``measured_costs`` (the
charges of this machine), ``cheapest`` (the cheapest of ``jax.lax`` and the schedules) and
``explained`` (the reason).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable

import jax
import numpy as np

from jaxcoll import jax_internals
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.choice import stated
from jaxcoll.execute.choice.cheapest import candidates_at, taken
from jaxcoll.execute.choice.defaults import default_schedule, default_topology, synthesized
from jaxcoll.execute.layout import Axes
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import listed
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Synthesizer, synthesizer_named
from jaxcoll.synth.auto import Portfolio
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.building.derive import derive
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow
from jaxcoll.verifier import verify

Choice = Schedule | TreeFlow | str | Synthesizer | Callable[[Topology, Collective], Schedule] | None


def choose(
    choice: Choice,
    kind: str,
    axes: Axes,
    groups=None,
    root: int | None = None,
    nbytes: int = 0,
) -> Schedule:
    """The verified schedule of a collective over the ranks of ``axes``.

    Args:
        choice: a schedule of this collective, or one to derive it from; trees, whose shards are not
            split; a synthesizer, its name, or a function of (topology, collective), to be run on
            the default topology of that many ranks; or None for the default.
        groups: groups of ranks, as in ``Collective``.
        nbytes: bytes of the larger of a rank's input and output, by which the default is chosen.

    Raises:
        CollectiveError: the groups do not cover each rank of the axes once, or differ in size.
        ScheduleError: the schedule has another number of ranks, other groups, another root, or a
            collective from which this one cannot be derived, or it does not verify.
    """
    collective = Collective(kind, axes.num_ranks, 1, checked_groups(groups, axes), root)  # type: ignore[arg-type]
    check_choice(choice)
    if choice is None:
        shard = nbytes // len(collective.groups[0])
        return default_schedule(collective, shard, jax.default_backend())
    if isinstance(choice, (str, Synthesizer)):
        return synthesized(synthesizer_named(choice), collective)
    if isinstance(choice, TreeFlow):
        schedule = _unsplit(choice)
    elif isinstance(choice, Schedule):
        schedule = choice
    else:
        schedule = choice(default_topology(axes.num_ranks), collective)
        if not isinstance(schedule, Schedule):
            raise ScheduleError(
                f"schedule= was a function that returned {type(schedule).__name__}, not a Schedule"
            )
    _check_fits(schedule, collective, axes)
    _check_runs_on_stated(schedule)
    return derived(schedule, kind)


def check_choice(choice: object) -> None:
    """Refuse a ``schedule=`` of a wrong type or name, even if the call runs without a schedule.

    Raises:
        CollectiveError: no synthesizer has the name.
        ScheduleError: the type is not one of ``Choice``.
    """
    if isinstance(choice, type):
        raise ScheduleError(
            f"schedule= was the class {choice.__name__}; give one of its instances, as in "
            f"schedule={choice.__name__}(...)"
        )
    if isinstance(choice, str):
        synthesizer_named(choice)
    elif choice is None or isinstance(choice, (Schedule, TreeFlow, Synthesizer)):
        return
    elif callable(choice):
        _check_takes_two(choice)
    else:
        raise ScheduleError(
            "schedule= takes a Schedule, a TreeFlow, a synthesizer or its name, a function of "
            f"(topology, collective), or None; got {type(choice).__name__}"
        )


def on_network(choice: str | Synthesizer | None, place: stated.Place, nbytes: int) -> Choice:
    """The choice as a schedule on the known network; unchanged if the network is not known.

    "auto" also weighs the machine's charges, and ``None`` gives the fastest candidate.
    """
    # Without a network a named synthesizer runs on the default topology (``choose``), which suits
    # few rounds; "auto" needs no network, since the machine's charges alone rank the candidates.
    if isinstance(choice, (str, Synthesizer)):
        choice = synthesizer_named(choice)
        if place.topology is not None or isinstance(choice, Portfolio):
            return _synthesized_on(place, choice, max(nbytes, 1))
    elif place.topology is not None:
        found = candidates_at(place, nbytes)
        return taken(found, by_lax=False).runs  # type: ignore[return-value]
    return choice


@functools.lru_cache(maxsize=256)
def _synthesized_on(place: stated.Place, maker: Synthesizer, nbytes: int) -> Schedule:
    topology = place.topology or default_topology(place.collective.num_ranks)
    if isinstance(maker, Portfolio):
        maker = dataclasses.replace(maker, nbytes=nbytes, execution=place.costs)
        return maker.made(Problem(topology, place.collective, any_chunks=True))
    return synthesized(maker, place.collective, topology)


@functools.lru_cache(maxsize=64)
def _unsplit(trees: TreeFlow) -> Schedule:
    return trees.to_schedule(1, order="steps")


def _check_takes_two(choice: Callable) -> None:
    try:
        inspect.signature(choice).bind(None, None)
    except TypeError as error:
        raise ScheduleError(
            f"schedule= was a function that cannot be called with (topology, collective): {error}"
        ) from None
    except ValueError:
        return  # a function written in C, without a signature


# ---------------------------------------------------------------------- fit


def checked_groups(groups, axes: Axes) -> tuple[tuple[int, ...], ...] | None:
    """The groups of ``axis_index_groups``, checked to cover the ranks in equal numbers."""
    if groups is None:
        return None
    try:
        groups = tuple(tuple(operator.index(rank) for rank in group) for group in groups)
    except TypeError:
        raise CollectiveError(
            f"axis_index_groups must be lists of indices of {axes}, got {checks.shown(groups)}"
        ) from None
    ranks = sorted(rank for group in groups for rank in group)
    if ranks != list(range(axes.num_ranks)):
        raise CollectiveError(
            f"axis_index_groups must name every index of {axes} exactly once, got "
            f"{checks.shown(groups)}"
        )
    if len({len(group) for group in groups}) > 1:
        raise CollectiveError(
            f"axis_index_groups must be of equal size, got {checks.shown(groups)}"
        )
    return groups


def _check_fits(schedule: Schedule, wanted: Collective, axes: Axes) -> None:
    given = schedule.collective
    if given.shares is not None:
        raise ScheduleError(
            f"{schedule} is for unequal shards. Only jc.ragged_all_to_all runs such "
            "schedules, and only those of an all_to_all; synthesize one for equal shards"
        )
    if given.num_ranks != axes.num_ranks:
        too_few = jax_internals.platform() == "cpu" and axes.num_ranks < given.num_ranks
        more = f'jax.config.update("jax_num_cpu_devices", {given.num_ranks})'
        raise ScheduleError(
            f"{schedule} is for {given.num_ranks} ranks, but {axes} has {axes.num_ranks}; "
            f"synthesize one for {axes.num_ranks}, or one for all ranks of the mesh whose groups "
            "are those along the axis"
            + (f"; {more} before JAX is used makes as many CPU devices" if too_few else "")
        )
    if given.groups != wanted.groups:
        raise ScheduleError(
            f"{schedule} is for groups {_named(given.groups)}, but the call asks for "
            f"{_named(wanted.groups)}; axis_index_groups= and the groups of the schedule must "
            "be the same, in the same order"
        )
    if given.root != wanted.root and wanted.root is not None and given.root is not None:
        raise ScheduleError(
            f"{schedule} has root {given.root}, but the call asks for {wanted.root}; "
            f"synthesize one with root={wanted.root}"
        )


def _check_runs_on_stated(schedule: Schedule) -> None:
    """Refuse a schedule of the whole network if the stated network has lost links that it uses."""
    network = stated.current().topology
    if network is None or not network.losses or not schedule.topology.has_links_of(network.whole):
        return
    whole = schedule.topology
    # A schedule may list edges that no send uses; only the links of used edges count.
    edges, is_used = schedule.edges, np.zeros(len(schedule.edges), bool)
    is_used[schedule.edge] = True
    used = edges.path_link[np.repeat(is_used, edges.hops)]
    down = set(network.losses.links)
    ends = zip(whole.src[used].tolist(), whole.dst[used].tolist(), strict=True)
    broken = [f"{u}->{v}" for u, v in dict.fromkeys(ends) if (u, v) in down]
    if broken:
        raise ScheduleError(
            f"{schedule} was made for the whole network and sends over {listed(broken)}, which "
            f"the stated {network.name or 'network'} has lost; synthesize one for that network"
        )


def _named(groups) -> str:
    return "one group of all ranks in order" if len(groups) == 1 else str(groups)


@functools.lru_cache(maxsize=256)
def derived(schedule: Schedule, kind: str) -> Schedule:
    """The schedule of another kind that follows from a schedule (``derive``), verified once.

    Reversed sends use the links in the other direction, so the network must equal its transpose.

    Raises:
        ScheduleError: no such schedule follows, or it does not verify.
    """
    verify(schedule)
    if schedule.collective.kind == kind:
        return schedule
    # A derived schedule is verified too: ranks that only forward a chunk in a gather have nothing
    # to give when it runs backwards (``Schedule.reverse``).
    if not schedule.topology.has_links_of(schedule.topology.transpose()):
        raise ScheduleError(
            f"{kind} cannot be derived from {schedule}: the links of its network do not all have "
            f"one the other way; synthesize {kind} itself"
        )
    found = derive(schedule, kind)
    verify(found)
    return found
