"""`arachne-run agent`: this host's devices for an elastic run whose controller is elsewhere."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import click

from specs.door import Number, verbosity_options


@click.command()
@click.option("--join", metavar="HOST:PORT", required=True, help="Where the run listens.")
@click.option(
    "--token-file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token of the run, a copy of that of `elastic start`.",
)
@click.option("--name", help="The node's name in the cluster.  [default: this host's name]")
@click.option("--gpu", default="cpu", show_default=True, help="Its GPU type.")
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option(
    "--address",
    metavar="HOST",
    default="",
    help="This host's address for workers of other hosts.  [default: the one that reaches the run]",
)
@click.option(
    "--away-s",
    type=Number(0),
    default=30.0,
    show_default=True,
    help="How long to wait for a controller that is not there, or is lost.",
)
@verbosity_options
def agent(
    join: str, token_file: Path, name: str | None, gpu: str, gpus: int, address: str, away_s: float
) -> None:
    """Offer this host to an elastic run, and keep its workers, until the run ends.

    The run uses the node where a plan with it pays. Ctrl-C (or SIGTERM) has the node leave, its
    state first; a second one ends it at once.

    Example: arachne-run agent --join 10.0.0.5:7300 --token-file run.token --name cpu-2 --gpus 2
    """
    from runtime.addresses import host_and_port, interface_of
    from runtime.elastic.agent import Agent
    from runtime.elastic.messages import NodeOffer
    from runtime.elastic.session import token_of
    from specs.errors import HostError
    from specs.files import validate
    from specs.gpu import gpu_type

    host, port = host_and_port(join)
    gpu_type(gpu)
    offer: dict[str, Any] = {"name": name or socket.gethostname(), "gpu": gpu, "gpus": gpus}
    validate(NodeOffer, offer, "arachne-run agent")
    if address and interface_of(address) is None:
        raise HostError(f"--address {address} is no address of this host")
    found = Agent(
        f"http://{host}:{port}",
        token_of(token_file),
        offer,
        address,
        away_s,
        lambda text: click.echo(text, err=True),
    )
    asked: list[int] = []

    def leave(number: int, _: object) -> None:
        asked.append(number)
        if len(asked) > 1 or not found.registered:
            raise KeyboardInterrupt
        click.echo("asking to leave; once more ends it at once", err=True)
        found.leave()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    if found.run():
        raise HostError(f"no controller answered at {join} for {away_s:.0f} s")
