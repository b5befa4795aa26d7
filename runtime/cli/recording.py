"""A run on its way into the store, beside the plan that it is a run of."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from specs.door import err_console

if TYPE_CHECKING:
    from db.store import Store
    from runtime.comparison import Bracket, Comparison
    from runtime.records import Iteration
    from specs.measurement import Measurement
    from specs.plan import Plan

_FLUSH_S = 5.0  # rows are written this often at most: writing takes a core from the ranks


class Recording:
    """Takes iterations as they end, shows and stores them.

    A run that is cut short keeps what it measured. settled: whether the prediction is the one to
    keep the rows beside; where it is not, they wait for `settle`. Use it in a `with`.
    """

    def __init__(self, store: Store, plan_id: int, plan: Plan, *, settled: bool = True) -> None:
        from datetime import UTC, datetime
        from secrets import token_hex

        self.store = store
        self.plan_id = plan_id
        self.plan = plan
        self.settled = settled
        self.bracket: Bracket | None = None
        self._reference_ms: float | None = None
        self.run = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{token_hex(2)}"
        self.origin = " ".join(["arachne-run", *sys.argv[1:]])
        self.iterations: list[Iteration] = []
        self._unsaved: list[Iteration] = []
        self._saved_at = time.monotonic()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self._save()

    def add(self, iteration: Iteration) -> None:
        """One more iteration has ended."""
        self.iterations.append(iteration)
        self._unsaved.append(iteration)
        if logging.getLogger().level < logging.ERROR:
            note = " (warm-up)" if iteration.warm_up else ""
            click.echo(
                f"iteration {iteration.number}: {iteration.ms:.1f} ms, "
                f"loss {iteration.loss:.4f}{note}",
                err=True,
            )
        if self.settled and time.monotonic() - self._saved_at > _FLUSH_S:
            self._save()

    def settle(self, plan_id: int, plan: Plan, bracket: Bracket, reference_ms: float) -> None:
        """Put the run beside the prediction of two profiles; reference_ms: as in both of them."""
        self.plan_id, self.plan, self.settled = plan_id, plan, True
        self.bracket, self._reference_ms = bracket, reference_ms

    def _save(self) -> None:
        if self._unsaved:
            rows = [self._row(iteration, None) for iteration in self._unsaved]
            self.store.add_measurements(self.plan_id, rows)
        self._unsaved, self._saved_at = [], time.monotonic()

    def _row(self, iteration: Iteration, drift: float | None) -> Measurement:
        from runtime.records import stage_times
        from specs.host import host_fingerprint
        from specs.measurement import Measurement

        return Measurement(
            run=self.run,
            host=host_fingerprint(),
            origin=self.origin,
            iteration=iteration.number,
            iteration_ms=iteration.ms,
            warm_up=iteration.warm_up,
            loss=iteration.loss,
            peak_bytes=iteration.peak_bytes,
            drift=drift,
            stages=stage_times(self.plan, [iteration]),
        )

    def finish(self) -> tuple[Comparison, float | None]:
        """Store the run's drift and trace; the comparison, and the profile's reference work."""
        from runtime.comparison import compare
        from runtime.records import drift_of, run_trace
        from specs.errors import StoreError

        drift = drift_of(self.iterations)
        rows = [self._row(iteration, drift) for iteration in self.iterations]
        self.store.add_measurements(self.plan_id, rows)
        self._unsaved = []
        trace = run_trace(self.plan, self.run, self.iterations)
        if trace is not None:
            self.store.add_trace(self.plan_id, trace)
        if self.bracket is not None:
            result = compare(self.plan, self.iterations, self._reference_ms, self.bracket)
            return result, self._reference_ms
        references = []
        prediction = self.plan.prediction
        for run_id in prediction.profile_runs if prediction else ():
            try:
                found = self.store.profile_run(run_id)
            except StoreError:
                continue  # deleted since
            if found.run.reference_ms is not None and found.layer_rows:
                references.append(found.run.reference_ms)
        reference_ms = min(references, default=None)
        return compare(self.plan, self.iterations, reference_ms), reference_ms

    def report(self, *, as_json: bool, trace: str | None = None) -> None:
        """Everything that a finished run prints and writes."""
        result, reference_ms = self.finish()
        if trace:
            self._write_trace(trace)
        if as_json:
            from specs.door import print_json

            print_json(self._document(result, reference_ms))
        else:
            from runtime.cli.tables import print_comparison

            print_comparison(self.plan, self.plan_id, self.run, result)

    def _write_trace(self, path: str) -> None:
        import json

        from runtime.trace import chrome_trace
        from specs.files import write_atomically

        write_atomically(path, json.dumps(chrome_trace(self.plan, self.iterations)))
        click.echo(f"trace written to {path}", err=True)

    def _document(self, result: Comparison, reference_ms: float | None) -> dict[str, Any]:
        return {
            "plan_id": self.plan_id,
            "run": self.run,
            **result.to_json(),
            "profile_reference_ms": reference_ms,
            "iterations": [
                {
                    "iteration": iteration.number,
                    "iteration_ms": iteration.ms,
                    "warm_up": iteration.warm_up,
                    "loss": iteration.loss,
                    "peak_bytes": list(iteration.peak_bytes),
                    "reference_ms": list(iteration.reference_ms),
                }
                for iteration in self.iterations
            ],
        }


def stored_plan(store: Store, reference: str, plan: Plan) -> tuple[int, Plan]:
    """The plan's id in the store, with the best prediction there is.

    reference: what the user named the plan by. A plan without a prediction is priced by the
    store's profiles; where they lack a key, that is a warning.
    """
    from specs.errors import StoreError
    from specs.plan_file import plan_hash

    if reference.isdecimal() and plan.prediction is not None:
        return int(reference), plan
    known = [stored for stored in store.plans_like(plan_hash(plan)) if stored.plan.prediction]
    for stored in reversed(known):
        if plan.prediction is None or stored.plan.prediction == plan.prediction:
            return stored.id, stored.plan
    if plan.prediction is not None:
        try:
            return store.add_plan(plan), plan
        except StoreError:
            pass  # priced by profile runs of another store: price it by those of this one
    plan = _priced(store, plan)
    return store.add_plan(plan), plan


def _priced(store: Store, plan: Plan) -> Plan:
    from dataclasses import replace

    from planner.evaluate import evaluate_plan
    from specs.errors import ProfileMissing

    try:
        return evaluate_plan(store, plan)
    except ProfileMissing as error:
        warn(f"nothing to compare with, the plan has no prediction: {error}")
        return replace(plan, prediction=None)


def warn(text: str) -> None:
    """A remark on stderr, unless the user wants quiet."""
    if logging.getLogger().level < logging.ERROR:
        err_console().print(
            f"Warning: {text}", style="yellow", markup=False, highlight=False, soft_wrap=True
        )
