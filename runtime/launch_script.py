"""How a plan is started on its hosts by torchrun: one line for each host."""

from __future__ import annotations

import shlex
from collections import Counter

from specs.errors import PlanError
from specs.layout import ranks_of
from specs.plan import Plan


def torchrun_lines(
    plan: Plan, plan_file: str, *, port: int = 29500, options: str = ""
) -> dict[str, str]:
    """Host -> the command to type there; all hosts within the rendezvous timeout of each other.

    Processes of a host are the devices that the plan uses on its nodes. The host of rank 0 is where
    they meet. Raises PlanError for a plan on several nodes whose cluster names no hosts.
    """
    places = ranks_of(plan)
    counts = Counter(plan.cluster.node(place.node).host for place in places)
    if "" in counts and (len(counts) > 1 or len({place.node for place in places}) > 1):
        unnamed = next(p.node for p in places if not plan.cluster.node(p.node).host)
        raise PlanError(
            f"node {unnamed} has no host name: give `hosts` in the cluster file and plan again"
        )
    meeting = next(iter(counts)) or "localhost"
    lines = {}
    for number, (host, processes) in enumerate(counts.items()):
        words = [
            "torchrun",
            f"--nnodes={len(counts)}",
            f"--node-rank={number}",
            f"--nproc-per-node={processes}",
            f"--master-addr={meeting}",
            f"--master-port={port}",
            "--no-python",
            "arachne-run",
            "worker",
            plan_file,
        ]
        if host:
            words += ["--host", host]
        lines[host or "localhost"] = shlex.join(words) + (f" {options}" if options else "")
    return lines


def torchrun_script(plan: Plan, plan_file: str, *, port: int = 29500, options: str = "") -> str:
    """A shell script that starts this host's part of the plan, whichever of its hosts this is."""
    lines = torchrun_lines(plan, plan_file, port=port, options=options)
    text = [
        "#!/bin/sh",
        f"# {plan.gpus_used} processes on {len(lines)} hosts. Run this on every one of them:",
        f"# {' '.join(lines)}",
    ]
    if len(lines) == 1:
        return "\n".join([*text, f"exec {next(iter(lines.values()))}", ""])
    text.append('case "${1:-$(hostname -s)}" in')
    text += [f"  {host.split('.')[0]}|{host}) exec {line} ;;" for host, line in lines.items()]
    text += ['  *) echo "this host is not in the plan" >&2; exit 1 ;;', "esac", ""]
    return "\n".join(text)
