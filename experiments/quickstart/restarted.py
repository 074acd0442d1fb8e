"""A training run that loses a link and is restarted with one changed argument.

    python -m experiments.quickstart.restarted --steps 4
    python -m experiments.quickstart.restarted --steps 8 --without 0-1

Eight CPU devices stand for a 2x4 torus of a real machine's links. The gradients of a regression
are summed by the schedule of the stated network. That schedule is synthesized once per network and
saved beside the checkpoint, where the next restart on the same network finds it. The second run
starts from the checkpoint of the first, on the network less the wire between ranks 0 and 1, and its
losses are those of a run that nothing happened to.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.cli.failing import after_failures
from jaxcoll.cli.networks import named_network

ROWS, FEATURES = 64, 256
RATE = 0.1


def schedule_of(topology: jc.Topology, nbytes: int, folder: Path) -> jc.Schedule:
    """The network's all_reduce: from its file beside the checkpoint, else made and saved there."""
    path = folder / f"all_reduce-{topology.links_digest[:16]}.json"
    if path.exists():
        schedule = jc.io.load(path)
        if isinstance(schedule, jc.Schedule) and schedule.topology.has_links_of(topology):
            return schedule
    # Trees, so that the same kind of schedule runs before the failure and after it.
    schedule = jc.synthesize(topology, "all_reduce", "joint_trees", nbytes=nbytes)
    jc.io.save(path, schedule)
    return schedule


def step_with(schedule: jc.Schedule, topology: jc.Topology):
    """A compiled step: (weights, features, targets) to (weights, loss)."""
    mesh = Mesh(np.asarray(jax.devices("cpu")[: topology.num_ranks]), ("rank",))

    def loss_of(weights, features, targets):
        return ((features @ weights - targets) ** 2).mean()

    def local(weights, features, targets):
        # Cast first: JAX would sum gradients of replicated weights by itself.
        own = jax.lax.pcast(weights, "rank", to="varying")
        loss, gradient = jax.value_and_grad(loss_of)(own, features, targets)
        gradient = jc.pmean(gradient, "rank", schedule=schedule)
        return weights - RATE * gradient, jax.lax.pmean(loss, "rank")

    specs = {"in_specs": (P(), P("rank"), P("rank")), "out_specs": (P(), P())}
    step = jax.jit(jax.shard_map(local, mesh=mesh, **specs))

    def stated(*arguments):
        # A schedule that uses a link which is down would be refused here.
        with jc.use_topology(topology):
            return step(*arguments)

    return stated


def train(steps: int, topology: jc.Topology, folder: Path) -> list[float]:
    """Train up to a step, from the checkpoint if there is one; the losses of the steps made."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, weights, first = folder / "checkpoint.npz", np.zeros(FEATURES, np.float32), 0
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            weights, first = saved["weights"], int(saved["step"])
    step = step_with(schedule_of(topology, weights.nbytes, folder), topology)
    losses = []
    for number in range(first, steps):
        random = np.random.default_rng(number)
        features = random.normal(size=(ROWS, FEATURES)).astype(np.float32) / FEATURES**0.5
        weights, loss = step(weights, features, features.sum(axis=1))
        losses.append(float(loss))
        print(f"step {number}: loss {losses[-1]:.6f} on {topology.name}", flush=True)
    np.savez(checkpoint, weights=np.asarray(weights), step=max(first, steps))
    return losses


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="torus:2x4", help="of eight ranks (%(default)s)")
    parser.add_argument("--without", action="append", default=[], help="down, as a wire 0-1")
    parser.add_argument("--steps", type=int, default=4, help="to train up to (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("results/restarted"))
    options = parser.parse_args(argv)
    whole = named_network(options.network)
    jax.config.update("jax_num_cpu_devices", whole.num_ranks)
    train(options.steps, after_failures(whole, options.without, ()), options.folder)


if __name__ == "__main__":
    main()
