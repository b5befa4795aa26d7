"""The tables that show a host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from profiler.gpus import topology_of
from profiler.host import HostFacts, describe_gpus
from specs.units import human_bytes


def host_tables(facts: HostFacts) -> Iterator[Table]:
    """One table for the host, and one for its GPUs where it has some."""
    yield _machine_table(facts)
    if facts.gpu_report.gpus:
        yield _gpu_table(facts)


def _machine_table(facts: HostFacts) -> Table:
    table = Table(title=f"Host {facts.name}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("fingerprint", facts.fingerprint)
    table.add_row("processor", facts.cpu)
    cores = f"{len(facts.cores)} of {facts.machine_cores}"
    table.add_row("cores allowed", f"{cores} (devices of `--gpu cpu`)")
    memory = human_bytes(facts.memory_bytes)
    if facts.memory_limit_bytes < facts.memory_bytes:
        memory += f", limited to {human_bytes(facts.memory_limit_bytes)}"
    table.add_row("memory", memory)
    table.add_row("GPUs", describe_gpus(facts.gpu_report))
    if facts.gpu_report.driver:
        table.add_row("driver", facts.gpu_report.driver)
    return table


def _gpu_table(facts: HostFacts) -> Table:
    table = Table(title="GPUs", title_justify="left")
    for column in ("index", "--gpu", "name", "memory", "in use", "SM clock", "links", "remarks"):
        table.add_column(column)
    for gpu in facts.gpu_report.gpus:
        same = facts.gpu_report.of_type(gpu.type) if gpu.type else (gpu,)
        table.add_row(
            str(gpu.index),
            gpu.type or "-",
            gpu.nvml_name,
            human_bytes(gpu.memory_bytes),
            human_bytes(gpu.used_bytes),
            f"{gpu.sm_clock_mhz} / {gpu.max_sm_clock_mhz} MHz",
            topology_of(same).value if len(same) > 1 else "-",
            "; ".join(gpu.troubles) or "-",
        )
    return table
