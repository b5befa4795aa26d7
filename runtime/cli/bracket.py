"""A run between two profiles: its layers measured right before and right after, on the same cores.

A profile of another minute says little of this one on a machine that is shared or changes its
clocks. What a plan should take is then asked of the moment of the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from profiler.cli.consoles import progress_console
from runtime.cli.recording import warn

if TYPE_CHECKING:
    from db.store import Store
    from planner.profiles import ProfileSet
    from profiler.host import Devices, HostFacts
    from profiler.measure.entries import Question
    from runtime.comparison import Bracket
    from specs.plan import Plan
    from specs.profile import HostProfile, LayerProfile


class Profiler:
    """Measures what a plan needs, twice, and predicts the plan from both.

    Every layer type of the model at the TP degrees, micro-batches and expert tilings of the plan,
    in as many processes as the plan has, pinned as those of its run. Each window is taken as it
    comes: one that waited for a quiet machine would say nothing of a run that does not wait. Links
    are measured first where the store has none of them.
    """

    def __init__(self, store: Store, url: str, plan: Plan, *, allow_busy: bool = False) -> None:
        from profiler.host import find_devices, read_host
        from specs.errors import HostError

        self.store = store
        self.url = url
        self.plan = replace(plan, prediction=None)
        self._host: HostFacts = read_host()
        # One kind of device: check_local has refused everything else.
        gpu = plan.templates[0].stages[0].gpu
        devices, remarks = find_devices(
            self._host, gpu, instead=f"arachne-prof estimate --gpu {gpu}", allow_busy=allow_busy
        )
        if plan.gpus_used > devices.count:
            raise HostError(
                f"--profile: the plan runs {plan.gpus_used} processes and this host has "
                f"{devices.count} {'cores' if devices.is_cpu else 'devices'}: processes that share "
                "one are not those that a profile measures; run it without --profile"
            )
        self._devices: Devices = devices.first(plan.gpus_used)
        for remark in remarks:
            warn(remark)
        self._runs: list[int] = []
        self._alone_ms: list[float] = []

    def before(self) -> Plan:
        """Measure; the plan as this profile alone prices it, which is said before the run."""
        self._measure("before")
        self._links()
        return self._price_alone()

    def after(self) -> tuple[Plan, Bracket, float]:
        """Measure again; the plan priced by both, the two apart, and their reference work in ms."""
        from runtime.comparison import Bracket

        self._measure("after")
        self._price_alone()
        plan = self._price_both()
        references = [self.store.profile_run(run).run.reference_ms or 0.0 for run in self._runs]
        bracket = Bracket((self._runs[0], self._runs[1]), (self._alone_ms[0], self._alone_ms[1]))
        return plan, bracket, sum(references) / len(references)

    def _measure(self, when: str) -> None:
        from db.store import open_store
        from profiler.cli.run_progress import Progress
        from profiler.measure.interrupts import as_keyboard_interrupt
        from profiler.measure.patience import Patience
        from profiler.measure.run import measure
        from specs.errors import RunError
        from specs.profile import EntryStatus

        console = progress_console()
        console.print(f"Profile {when} the run", highlight=False)
        progress = Progress(console)
        with progress, as_keyboard_interrupt():
            finished = measure(
                self._question(),
                self._devices,
                self._host,
                lambda: open_store(self.url),
                progress,
                patience=Patience.of_tries(1),
            )
        entries = self.store.entries(finished.run_id)
        if EntryStatus.OK not in entries.values():
            refusal = self.store.layer_refusals(run_id=finished.run_id)[0].refusal
            raise RunError(f"the profile {when} the run measured nothing: {refusal.reason}")
        self._runs.append(finished.run_id)

    def _question(self) -> Question:
        from profiler.measure.entries import Question

        plan, work = self.plan, self.plan.workload
        stages = [stage for template in plan.templates for stage in template.stages]
        tiled = any((stage.ep, stage.etp) != (1, 1) for stage in stages)
        return Question(
            gpu=stages[0].gpu,
            topology=self._devices.topology,
            devices=self._devices.count,
            model=plan.model,
            tps=tuple(sorted({stage.tp for stage in stages})),
            micro_batches=tuple(sorted({template.micro_batch for template in plan.templates})),
            seq_len=work.seq_len,
            dtype=work.dtype,
            optimizer=work.optimizer,
            recomputes=(work.recompute,),
            eps=tuple(sorted({stage.ep for stage in stages})) if tiled else (),
            etps=tuple(sorted({stage.etp for stage in stages})) if tiled else (),
        )

    def _links(self) -> None:
        """Measure links where the plan cannot be priced without."""
        from db.store import open_store
        from planner.evaluate import evaluate_plan
        from profiler.cli.links_output import LinkProgress
        from profiler.measure.interrupts import as_keyboard_interrupt
        from profiler.measure.links import largest_bytes, measure_links
        from profiler.measure.patience import Patience
        from specs.errors import ProfileMissing

        if self.plan.gpus_used < 2:
            return
        try:
            evaluate_plan(self.store, self.plan)
        except ProfileMissing:
            ranks = sorted({2, self.plan.gpus_used})
            progress = LinkProgress(progress_console())
            with progress, as_keyboard_interrupt():
                measure_links(
                    self._devices,
                    self._host,
                    ranks,
                    largest_bytes(self._devices),
                    lambda: open_store(self.url),
                    progress,
                    Patience.of_tries(1),
                )

    def _price_alone(self) -> Plan:
        from planner.evaluate import evaluate_plan

        priced = evaluate_plan(self.store, self.plan)
        assert priced.prediction is not None
        self._alone_ms.append(priced.prediction.iteration_ms)
        return priced

    def _price_both(self) -> Plan:
        from planner.cost import price
        from planner.evaluate import plan_problem

        problem = plan_problem(self.store, self.plan)
        first, second = (self._rows_of(run) for run in self._runs)
        profiles = mean_profiles(problem.profiles, first, second)
        prediction = price(replace(problem, profiles=profiles), self.plan)
        runs = tuple(sorted({*prediction.profile_runs, *self._runs}))
        return self.plan.with_prediction(replace(prediction, profile_runs=runs))

    def _rows_of(self, run: int) -> ProfileSet:
        from planner.profiles import ProfileSet

        layers = [stored.profile for stored in self.store.layer_profiles(run_id=run)]
        hosts = [stored.profile for stored in self.store.host_profiles(run_id=run)]
        return ProfileSet.of_rows(layers, (), hosts)


def mean_profiles(base: ProfileSet, first: ProfileSet, second: ProfileSet) -> ProfileSet:
    """A profile set with the mean times of two in it; what only one has is left as it is in base.

    Times are means, memory is the larger of both: a plan must fit whichever it meets.
    """
    layers = dict(base.layers)
    for key in first.layers.keys() & second.layers.keys() & layers.keys():
        layers[key] = mean_layer(first.layers[key], second.layers[key])
    hosts = dict(base.hosts)
    for gpu in first.hosts.keys() & second.hosts.keys() & hosts.keys():
        hosts[gpu] = mean_host(first.hosts[gpu], second.hosts[gpu])
    return replace(base, layers=layers, hosts=hosts)


def mean_layer(one: LayerProfile, other: LayerProfile) -> LayerProfile:
    """The row between two of one key."""
    return replace(
        one,
        forward_ms=(one.forward_ms + other.forward_ms) / 2,
        backward_ms=(one.backward_ms + other.backward_ms) / 2,
        comm_ms=(one.comm_ms + other.comm_ms) / 2,
        update_ms=(one.update_ms + other.update_ms) / 2,
        activation_bytes=max(one.activation_bytes, other.activation_bytes),
        transient_bytes=max(one.transient_bytes, other.transient_bytes),
        samples=one.samples + other.samples,
    )


def mean_host(one: HostProfile, other: HostProfile) -> HostProfile:
    """The host row between two of one GPU type."""
    return replace(
        one,
        host_ms=(one.host_ms + other.host_ms) / 2,
        framework_bytes=max(one.framework_bytes, other.framework_bytes),
        usable_bytes=min(one.usable_bytes, other.usable_bytes),
    )
