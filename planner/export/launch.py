"""A launch whose ranks are numbered as a grid: the ranks, and a script that starts them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specs.errors import PlanError
from specs.plan import Plan, Template

LINE = 98  # columns of a comment or of an argument line in a script


@dataclass(frozen=True, slots=True)
class GridRank:
    """One process: its rank there, and the device and the part of the plan that it is."""

    rank: int
    stage: int
    replica: int
    tp_rank: int
    node: str
    host: str
    gpu: int


@dataclass(frozen=True, slots=True)
class Launch:
    """All that another launcher needs for a plan.

    arguments: of its training program. layout: how it writes the layer split, None where it has no
    such notation. script: starts one host's processes, whichever of the hosts it runs on. remarks:
    where the launcher does something else than the plan was priced for.
    """

    launcher: str
    ranks: tuple[GridRank, ...]
    arguments: tuple[str, ...]
    layout: str | None
    script: str
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The launch as plain values."""
        return {
            "launcher": self.launcher,
            "ranks": [
                {name: getattr(rank, name) for name in GridRank.__dataclass_fields__}
                for rank in self.ranks
            ],
            "arguments": list(self.arguments),
            "layout": self.layout,
            "remarks": list(self.remarks),
            "script": self.script,
        }


def grid_ranks(plan: Plan, template: Template) -> tuple[GridRank, ...]:
    """The processes of a template in the order of Megatron-LM, DeepSpeed and torchtitan.

    Tensor-parallel ranks are fastest, then replicas, then stages: stage s of equal TP is ranks
    s * TP * DP up to (s + 1) * TP * DP. (Megatron-LM's order "tp-cp-ep-dp-pp", DeepSpeed's axes
    pipe, data, model, torchtitan's mesh pp, dp_replicate, dp_shard, cp, tp.) A node without a host
    name stands under its own. Raises PlanError for two nodes on one host, whose GPUs would have the
    same numbers.
    """
    found: list[GridRank] = []
    node_of: dict[str, str] = {}
    for s in range(template.depth):
        for r, replica in enumerate(template.replicas):
            place = replica.places[s]
            host = plan.cluster.node(place.node).host or place.node
            if node_of.setdefault(host, place.node) != place.node:
                raise PlanError(
                    f"nodes {node_of[host]} and {place.node} are both on host {host}: a launcher "
                    "counts the GPUs of a host once; write them as one node"
                )
            for j, gpu in enumerate(place.gpus):
                found.append(GridRank(len(found), s, r, j, place.node, host, gpu))
    return tuple(found)


def unnamed_note(plan: Plan, ranks: Sequence[GridRank]) -> list[str]:
    """What to say where nodes stand for hosts that the cluster file does not name."""
    if all(plan.cluster.node(rank.node).host for rank in ranks):
        return []
    if len({rank.host for rank in ranks}) == 1:
        return []
    return [
        "The cluster file names no hosts: node names stand for them. Say the node as first word, "
        "and MASTER_ADDR in the environment."
    ]


def launch_script(
    ranks: Sequence[GridRank],
    *,
    title: str,
    remarks: Sequence[str],
    command: str,
    arguments: Sequence[str],
    files: Sequence[tuple[str, str]] = (),
    environment: Sequence[str] = (),
    by_rank: Sequence[tuple[str, Sequence[str]]] = (),
) -> str:
    """A bash script that starts the processes of the host it runs on, and ends when one fails.

    command: what each process runs, before the arguments. files: (name, text) that it writes into a
    folder of its own, `$work`, first. environment: shell words exported before. by_rank: (array,
    values) that the command may index by `$rank`.
    """
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    lines = ["#!/usr/bin/env bash", f"# {title}"]
    lines += ["# Made by arachne-plan export. Run it on every host:", f"#   {' '.join(hosts)}"]
    lines += ["# bash SCRIPT [HOST [MORE ARGUMENTS]]; HOST: default this host's own name."]
    for remark in remarks:
        lines += _wrapped(remark, "# ")
    lines += ["set -euo pipefail"]
    lines += ['[ "${BASH_VERSINFO[0]}" -ge 5 ] || { echo "bash 5 is needed" >&2; exit 1; }', ""]
    lines += [f'export MASTER_ADDR="${{MASTER_ADDR:-{ranks[0].host}}}"']
    lines += ['export MASTER_PORT="${MASTER_PORT:-29500}"', f"export WORLD_SIZE={len(ranks)}"]
    lines += [f"export {word}" for word in environment]
    lines += ["", "# rank:gpu of every process of a host; those of a stage stand together."]
    lines += ['case "${1:-$(hostname -s)}" in']
    width = max(len(_pattern(host)) for host in hosts)
    for host in hosts:
        own_ranks = [rank for rank in ranks if rank.host == host]
        places = " ".join(f"{rank.rank}:{rank.gpu}" for rank in own_ranks)
        stages = ", ".join(str(s) for s in sorted({rank.stage for rank in own_ranks}))
        lines.append(f'  {_pattern(host):<{width}}) here="{places}" ;;  # stage {stages}')
    lines += ['  *) echo "this host is not in the plan" >&2; exit 1 ;;', "esac", ""]
    if files:
        lines += ['work="$(mktemp -d)"']
        for name, text in files:
            lines += [f"cat > \"$work/{name}\" <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
        lines += [""]
    lines += ["arguments=(", *_argument_lines(arguments), ")", ""]
    lines += [f"{array}=({shlex.join(values)})" for array, values in by_rank]
    remove = ' rm -rf "$work";' if files else ""
    lines += [
        f"trap 'trap - EXIT;{remove} kill $(jobs -p) 2>/dev/null || true' EXIT",
        "for place in $here; do",
        '  rank="${place%%:*}"',
        '  RANK="$rank" LOCAL_RANK="${place##*:}" \\',
        f'    {command} "${{arguments[@]}}" "${{@:2}}" &',
        "done",
        "for place in $here; do wait -n || exit 1; done",
        "",
    ]
    return "\n".join(lines)


def _pattern(host: str) -> str:
    short = host.split(".")[0]
    return shlex.quote(host) if short == host else f"{shlex.quote(short)}|{shlex.quote(host)}"


def _argument_lines(arguments: Sequence[str]) -> list[str]:
    """One option with its values a line."""
    lines: list[str] = []
    for word in arguments:
        if word.startswith("--") or not lines:
            lines.append(f"  {shlex.quote(word)}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def _wrapped(text: str, prefix: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, LINE, initial_indent=prefix, subsequent_indent=prefix)


def describe(plan: Plan, template: Template, launcher: str, ranks: Sequence[GridRank]) -> str:
    """The first line of a script: what is trained, where, by whom."""
    hosts = len({rank.host for rank in ranks})
    tps = "/".join(dict.fromkeys(str(stage.tp) for stage in template.stages))
    return (
        f"{plan.model.name} on {plan.cluster.name} by {launcher}: {template.depth} stages, TP "
        f"{tps}, {len(template.replicas)} replicas, {len(ranks)} processes on {hosts} hosts"
    )
