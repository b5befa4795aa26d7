"""An elastic run on its way into the store: iterations beside their plans, and each change."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from db.store import Store
    from runtime.elastic.journal import Reshaped, TrainedIteration
    from specs.measurement import Measurement
    from specs.plan import Plan

_FLUSH_S = 5.0


class StoreJournal:
    """Shows and stores what an elastic run does. Use it in a `with`.

    run: names the run in the store. warm_up: iterations after each change that are marked as such.
    """

    def __init__(self, store: Store, run: str, warm_up: int) -> None:
        from specs.host import host_fingerprint

        self.store = store
        self.run = run
        self.warm_up = warm_up
        self.host = host_fingerprint()
        self.origin = " ".join(["arachne-run", *sys.argv[1:]])
        self.iterations: list[dict[str, Any]] = []
        self.changes: list[dict[str, Any]] = []
        self.said: list[str] = []
        self._plans: dict[int, tuple[Plan, int]] = {}
        self._rows: dict[int, list[Measurement]] = defaultdict(list)
        self._saved_at = time.monotonic()
        self._warm_until = 0
        self._repeats: Counter[str] = Counter()

    def __enter__(self) -> StoreJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    def _id(self, plan: Plan) -> int:
        from runtime.cli.recording import stored_plan

        # By identity: each change has a plan object of its own, and hashing one takes a while.
        known = self._plans.get(id(plan))
        if known is None:
            known = (plan, stored_plan(self.store, "", plan)[0])
            self._plans[id(plan)] = known
        return known[1]

    def _show(self, text: str) -> None:
        if logging.getLogger().level < logging.ERROR:
            click.echo(text, err=True)

    def say(self, text: str) -> None:
        """A line for people."""
        self.said.append(text)
        self._show(text)

    def trained(self, plan: Plan, iteration: TrainedIteration) -> None:
        """One iteration is done."""
        from specs.measurement import Measurement

        plan_id = self._id(plan)
        warm_up = iteration.number < self._warm_until
        self._show(
            f"iteration {iteration.number}: {iteration.ms:.1f} ms, loss {iteration.loss:.4f}, "
            f"{plan.gpus_used} devices"
        )
        self.iterations.append(
            {
                "iteration": iteration.number,
                "iteration_ms": iteration.ms,
                "loss": iteration.loss,
                "plan_id": plan_id,
                "devices": plan.gpus_used,
                "warm_up": warm_up,
            }
        )
        self._rows[plan_id].append(
            Measurement(
                run=self.run,
                host=self.host,
                origin=self.origin,
                iteration=iteration.number,
                iteration_ms=iteration.ms,
                warm_up=warm_up,
                loss=iteration.loss,
                peak_bytes=iteration.peak_bytes,
                drift=None,
                stages=iteration.stages,
            )
        )
        if time.monotonic() - self._saved_at > _FLUSH_S:
            self._save()

    def _save(self) -> None:
        for plan_id, rows in self._rows.items():
            self.store.add_measurements(plan_id, rows)
        self._rows.clear()
        self._saved_at = time.monotonic()

    def reshaped(self, change: Reshaped) -> None:
        """The plan has changed; the start of the run is no change."""
        from db.records import NewReconfiguration

        self._warm_until = change.iteration + self.warm_up
        new_id = self._id(change.new)
        if change.old is None:
            self._show(f"training begins on {change.new.gpus_used} devices by plan {new_id}")
            return
        before, after = change.old.gpus_used, change.new.gpus_used
        event = f"{change.event}, {before} to {after} devices"
        phases = {name: ms for name, ms in change.phases_ms.items() if ms > 0}
        self.store.add_reconfiguration(
            NewReconfiguration(
                event=event,
                old_plan_id=self._id(change.old),
                new_plan_id=new_id,
                phases_ms=phases,
                bytes_per_rank=change.received_bytes,
                repeat=self._repeats[event],
                run=self.run,
                host=self.host,
                origin=self.origin,
                reason=f"{change.reason}; state from {change.origin}",
            )
        )
        self._repeats[event] += 1
        parts = ", ".join(f"{name} {ms:.0f}" for name, ms in phases.items())
        self._show(f"{event}: training stood for {change.pause_ms:.0f} ms ({parts} ms)")
        self.changes.append(
            {
                "event": event,
                "iteration": change.iteration,
                "old_plan_id": self._id(change.old),
                "new_plan_id": new_id,
                "state_from": change.origin,
                "pause_ms": change.pause_ms,
                "phases_ms": phases,
                "bytes_per_rank": list(change.received_bytes),
                "reason": change.reason,
            }
        )

    def declined(self, event: str, old: Plan, new: Plan, reason: str) -> None:
        """A plan was found and not taken: said already, and kept in the store as a plan."""
        if new.templates != old.templates:
            self._id(new)

    def document(self) -> dict[str, Any]:
        """Everything, for --json."""
        return {
            "run": self.run,
            "iterations": self.iterations,
            "reconfigurations": self.changes,
            "said": self.said,
        }

    def table(self) -> Any:
        """The changes, for people."""
        from rich.table import Table

        from specs.units import human_bytes, human_ms

        table = Table(title="Changes while training", pad_edge=False)
        table.add_column("event")
        for column in ("iteration", "pause", "plan", "start", "release", "rebuild", "transfer"):
            table.add_column(column, justify="right")
        for column in ("build", "moved"):
            table.add_column(column, justify="right")
        table.add_column("state from")
        names = ("plan", "start", "release", "rebuild", "transfer", "build")
        for change in self.changes:
            phases = change["phases_ms"]
            table.add_row(
                change["event"],
                str(change["iteration"]),
                human_ms(change["pause_ms"]),
                *(human_ms(phases[name]) if name in phases else "-" for name in names),
                human_bytes(sum(change["bytes_per_rank"])),
                change["state_from"],
            )
        return table
