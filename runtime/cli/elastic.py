"""`arachne-run elastic`: training that goes on when nodes join, leave or are lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.cli.question import pricing_options
from runtime.cli.options import options_of, training_options
from specs.door import ArachneGroup, Number, json_option, store_option, verbosity_options
from specs.profile import Source

if TYPE_CHECKING:
    from runtime.elastic.controller import Replan
    from runtime.elastic.session import SessionFile

DEFAULT_SESSION = "arachne-elastic.json"

session_option = click.option(
    "--session",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_SESSION,
    show_default=True,
    help="The file that says how the run is reached; it holds its token.",
)


@click.group(cls=ArachneGroup)
def elastic() -> None:
    """Train on, whatever nodes join, leave or are lost.

    A controller keeps an agent for each node, plans anew when something changes, moves to the new
    plan where that pays, and hands weights and optimizer state over in memory.
    """


@elastic.command()
@click.argument("plan")
@training_options
@session_option
@click.option("--planner", help="How plans are searched.  [default: the default planner]")
@click.option(
    "--budget-s",
    type=Number(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Ceiling on each search, in seconds; training goes on meanwhile.",
)
@pricing_options
@click.option(
    "--min-gain",
    type=Number(0, 1),
    default=0.02,
    show_default=True,
    help="Least share of an iteration that a new plan must save.",
)
@click.option(
    "--straggler-factor",
    type=Number(0),
    default=1.5,
    show_default=True,
    help="A device so many times slower than its work explains is named, and dropped where that "
    "pays; 0 = never.",
)
@click.option(
    "--away-s",
    type=Number(0),
    default=30.0,
    show_default=True,
    help="How long agents and their workers wait for a lost controller to be replaced.",
)
@click.option(
    "--listen",
    metavar="HOST[:PORT]",
    help="This host's address for the control endpoint and for workers, by which agents of other "
    "hosts join; without a port any free one.  [default: loopback]",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The token that agents must show; written there where the file does not exist.",
)
@store_option
@json_option
@verbosity_options
def start(
    plan: str,
    store: str,
    as_json: bool,
    session: Path,
    listen: str | None,
    token_file: Path | None,
    **values: Any,
) -> None:
    """Train by PLAN, a plan file or the id of a stored plan, with an agent for each node.

    Agents of nodes on this host are started, those of nodes whose `hosts` name others are awaited
    (arachne-run agent); further ones are added or join while it runs. Iterations and changes of
    plan are written to the store.

    The endpoint speaks plain HTTP, and workers exchange tensors as they are: beyond loopback it is
    for a network that you trust, or a tunnel.

    Example: arachne-run elastic start plan.json --iterations 500
    """
    from db.store import open_store
    from planner.baselines import DEFAULT_PLANNER, planner_named
    from planner.cli.plan_argument import read_plan
    from runtime.addresses import LOOPBACK, host_and_port
    from runtime.cli.recording import stored_plan
    from runtime.elastic.controller import Controller, Settings
    from runtime.elastic.session import read_session, token_of
    from runtime.launcher import check_local, nodes_elsewhere
    from runtime.process import is_running
    from specs.errors import HostError, RunError

    address, port = host_and_port(listen or LOOPBACK, 0)
    own = ("planner", "budget_s", "source", "headroom")
    deciding = ("min_gain", "straggler_factor", "away_s")
    options = options_of({k: v for k, v in values.items() if k not in (*own, *deciding)})
    if session.exists():
        before = read_session(session)
        if is_running(before.pid):
            raise RunError(
                f"{session}: its run goes on (process {before.pid}); give another --session"
            )
    kept: dict[str, Any] = {name: values[name] for name in (*own, *deciding)}
    kept |= {"store": store, "run": _run_name(), "seed": options.seed}
    kept["planner"] = kept["planner"] or DEFAULT_PLANNER
    planner_named(kept["planner"])
    token = token_of(token_file, create=True) if token_file is not None else ""
    with open_store(store) as opened:
        asked = read_plan(opened, plan)
        elsewhere = nodes_elsewhere(asked.cluster)
        away = elsewhere & {place.node for _, _, _, place in asked.places()}
        if away and listen is None:
            raise HostError(
                f"nodes {', '.join(sorted(away))} are other hosts: give --listen with this host's "
                "address and --token-file, and start arachne-run agent on each of them"
            )
        check_local(asked, elsewhere=elsewhere)
        _, priced = stored_plan(opened, plan, asked)
        settings = Settings(
            session=session,
            address=address,
            port=port,
            token=token,
            elsewhere=elsewhere,
            door=kept,
            **{name: kept[name] for name in deciding},
        )
        with _journal(opened, kept, options.warm_up) as journal:
            Controller(priced, options, replan_by(kept), journal, settings).run()
        _report(journal, as_json)


@elastic.command("take-over")
@session_option
@json_option
@verbosity_options
def take_over(session: Path, as_json: bool) -> None:
    """Go on with a run whose controller is gone, with the workers and the state that it had.

    Agents wait for this as long as --away-s of `start` says.

    Example: arachne-run elastic take-over --session arachne-elastic.json
    """
    from db.store import open_store
    from runtime.elastic.controller import Controller, Settings
    from runtime.elastic.session import read_session
    from runtime.process import is_running
    from runtime.training import Options
    from specs.errors import RunError
    from specs.plan_file import plan_from_document

    found: SessionFile = read_session(session)
    if is_running(found.pid):
        raise RunError(f"{session}: its controller still runs (process {found.pid})")
    kept = dict(found.door)
    options = Options(**found.options)
    plan = plan_from_document(found.plans[found.plan], f"{session}: plan")
    names = ("min_gain", "straggler_factor", "away_s")
    settings = Settings(session=session, door=kept, **{name: kept[name] for name in names})
    with open_store(kept["store"]) as opened:
        with _journal(opened, kept, options.warm_up) as journal:
            controller = Controller(plan, options, replan_by(kept), journal, settings)
            controller.take_over(found)
        _report(journal, as_json)


@elastic.command()
@click.argument("name")
@click.option("--gpu", default="cpu", show_default=True, help="Its GPU type.")
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True)
@session_option
def add(name: str, gpu: str, gpus: int, session: Path) -> None:
    """Add a node of this host to a run; it is used where a plan with it pays.

    Example: arachne-run elastic add cpu-2 --gpus 1
    """
    body = {"name": name, "gpu": gpu, "gpus": gpus}
    click.echo(_request(session, "POST", "/nodes", body)["said"])


@elastic.command()
@click.argument("name")
@session_option
def remove(name: str, session: Path) -> None:
    """Have a node leave a run: its state goes to the others first.

    Example: arachne-run elastic remove cpu-2
    """
    from urllib.parse import quote

    click.echo(_request(session, "DELETE", f"/nodes/{quote(name, safe='')}")["said"])


@elastic.command()
@session_option
@json_option
def status(session: Path, as_json: bool) -> None:
    """Say how far a run is, and what its nodes do.

    Example: arachne-run elastic status --json
    """
    from rich.table import Table

    from specs.door import console, print_json
    from specs.units import human_ms

    found = _request(session, "GET", "/status")
    if as_json:
        print_json(found)
        return
    out = console()
    pace = f", {human_ms(found['iteration_ms'])} each" if found["iteration_ms"] else ""
    out.print(f"iteration {found['iteration']} of {found['end']}{pace}", highlight=False)
    table = Table(pad_edge=False)
    for column in ("node", "gpu", "gpus", "state", "ranks"):
        table.add_column(column)
    for node in found["nodes"]:
        ranks = [str(w["rank"]) for w in found["workers"] if w["node"] == node["name"]]
        table.add_row(node["name"], node["gpu"], str(node["gpus"]), node["state"], " ".join(ranks))
    out.print(table)


def replan_by(kept: dict[str, Any]) -> Replan:
    """The planning that the runtime is given: a store, a planner and a budget of its own.

    Searches for the cluster as it is now; the old plan where it still stands and is as fast.
    """

    def replan(cluster: Any, old: Any) -> Any:
        from db.store import open_store
        from planner.answer import prediction_of
        from planner.baselines import planner_named
        from planner.policy.replanning import still_stands
        from planner.problem import Problem
        from planner.profiles import load_profiles
        from planner.result import Budget
        from specs.errors import PlanError

        source = Source(kept["source"]) if kept["source"] else None
        with open_store(kept["store"]) as opened:
            profiles = load_profiles(opened, old.model, old.workload, cluster, source=source)
        problem = Problem(old.model, old.workload, cluster, profiles, kept["headroom"])
        standing, _ = still_stands(problem, old)
        search = planner_named(kept["planner"])
        result = search(problem, Budget(seconds=kept["budget_s"]), kept["seed"])
        if standing is not None and (
            result.plan is None
            or prediction_of(standing).iteration_ms <= prediction_of(result.plan).iteration_ms
        ):
            return standing
        if result.plan is None:
            raise PlanError(f"no plan on {cluster.name}: {result.reason}")
        return result.plan

    return replan


def _run_name() -> str:
    from datetime import UTC, datetime
    from secrets import token_hex

    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{token_hex(2)}"


def _journal(opened: Any, kept: dict[str, Any], warm_up: int) -> Any:
    from runtime.cli.elastic_journal import StoreJournal

    return StoreJournal(opened, kept["run"], warm_up)


def _report(journal: Any, as_json: bool) -> None:
    from specs.door import console, print_json

    if as_json:
        print_json(journal.document())
        return
    out = console()
    last = journal.iterations[-1]
    out.print(
        f"run {journal.run}: {len(journal.iterations)} iterations, loss {last['loss']:.4f}",
        highlight=False,
    )
    if journal.changes:
        out.print(journal.table())


def _request(session: Path, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """A request to a run's control endpoint. Raises RunError with its words, or what to do."""
    import json
    import urllib.error
    import urllib.request

    from runtime.elastic.session import read_session
    from specs.errors import RunError

    found = read_session(session)
    request = urllib.request.Request(
        found.url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {found.token}"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answered: dict[str, Any] = json.load(answer)
            return answered
    except urllib.error.HTTPError as error:
        raise RunError(json.load(error)["error"]) from None
    except OSError as error:
        raise RunError(
            f"no controller answers at {found.url} ({error}); where it is gone: "
            f"arachne-run elastic take-over --session {session}"
        ) from None
