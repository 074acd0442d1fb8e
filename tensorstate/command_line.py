"""``jaxcoll plan``: the placements of a training step's tensors, on the command line.

The command line of jaxcoll loads this module by its name, because jaxcoll may not import
tensorstate.
"""

from __future__ import annotations

import click

from jaxcoll.cli.compiling import arguments_of
from jaxcoll.cli.failing import after_failures, failure_options
from jaxcoll.cli.files import check_target
from jaxcoll.cli.networks import NetworkName, named_network
from jaxcoll.cli.objects import load_function, said_of
from jaxcoll.cli.quantities import SIZE, print_json
from jaxcoll.cli.schedules import as_json
from jaxcoll.progress import working


class MeshShape(click.ParamType):
    """Sizes of mesh axes: "data=2,model=4"."""

    name = "mesh"

    def convert(self, value, param: click.Parameter | None, ctx: click.Context | None):
        # Nine digits are more devices than any mesh has, and ``int`` refuses thousands.
        parts = [part.partition("=") for part in str(value).split(",")]
        is_good = all(name.isidentifier() and size.isdecimal() for name, _, size in parts)
        if not is_good or len({name for name, _, _ in parts}) < len(parts):
            self.fail(f"{str(value)[:60]!r} is not a mesh; type data=2,model=4", param, ctx)
        return {name: int(size[:9]) for name, _, size in parts}


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@click.argument("shapes", nargs=-1)
@click.option("--mesh", type=MeshShape(), required=True, help="Its axes: data=2,model=4.")
@click.option("--network", type=NetworkName(), help="The network of the devices: torus:2x4.")
@failure_options
@click.option("--args", "maker", help="MODULE:FUNCTION that returns the arguments.")
@click.option("--hardware", default="A100", help="A100, H100, 'TPU v5p', CPU, ...")
@click.option("--memory-limit", type=SIZE, help="Memory of a device: 16GB.")
@click.option("--recompute", is_flag=True, help="Activations may be recomputed.")
@click.option("--offload", is_flag=True, help="Activations may wait on the host.")
@click.option("--output", "-o", help="Also write the plan as a page, FILE.html.")
@click.option("--beside", help="On the page, a named strategy too: fsdp.")
@as_json
def plan(function, shapes, mesh, network, maker, as_json, **options) -> int:
    """Choose the placements of every tensor of a training step on a mesh.

    \b
    jaxcoll plan train:step 'f32[64,64]' 'f32[32,64]' --mesh data=2,model=4 --network torus:2x4
    jaxcoll plan train:step --args train:example --mesh data=8 --network torus:2x4 --without 0-1
    """
    output, beside = (options.pop(name) for name in ("output", "beside"))
    check_target(output, suffix=".html")
    if beside and not output:
        raise click.UsageError("two plans can only be compared on a page; add -o plan.html")
    topology = named_network(network) if network else None
    if topology is None:
        raise click.UsageError("a plan needs a network that prices it; add --network torus:2x4")
    topology = after_failures(
        topology, *(options.pop(name) for name in ("without", "slow", "in_network"))
    )
    # Imported here, because they load JAX: the errors above come at once.
    import tensorstate
    from tensorstate.hardware import HARDWARE

    if options["hardware"] not in HARDWARE:
        raise click.UsageError(
            f"no hardware is called {options['hardware'][:40]!r}; known: {', '.join(HARDWARE)}"
        )
    unknown = {name.strip() for name in (beside or "").split("+")} - {"", *tensorstate.BASELINES}
    if unknown:
        known = ", ".join(tensorstate.BASELINES)
        raise click.UsageError(f"no strategy is called {min(unknown)[:40]!r}; known: {known}")
    arguments, step = arguments_of(shapes, maker), load_function(function)
    with working(f"tracing {function}"), said_of(f"tracing {function}"):
        # Only the layers of an unrolled scan can be kept in different ways: some saved, others not.
        loops = "unroll" if options["recompute"] or options["offload"] else "keep"
        graph = tensorstate.trace(step, arguments, loops=loops)
    with working("searching") as report:
        found = tensorstate.search(graph, mesh=mesh, topology=topology, progress=report, **options)
    if output is not None:
        from jaxcoll.io.files import write_bytes

        with working(f"planning {beside}"):
            other = found.compare(beside).plans[beside] if beside else None
        page = found.html(function, other=other, names=("the plan", beside or ""))
        write_bytes(output, page.encode())
    if as_json:
        print_json({"mesh": mesh, "plan": str(found).splitlines(), "output": output})
    else:
        click.echo(str(found) + (f"\nwritten to {output}" if output else ""))
    return 0
