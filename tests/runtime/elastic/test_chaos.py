"""Kills at random moments, of workers and agents, in training and in the middle of reshapes."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.runtime.elastic.alone import compare
from tests.runtime.elastic.live import Live, cluster_of, orphans
from tests.runtime.elastic.test_faults import replicas

KILLS = 30


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_thirty_kills_at_random_moments(tmp_path: Path) -> None:
    seed = int(os.environ.get("ARACHNE_CHAOS_SEED", "1"))
    dice = random.Random(seed)
    folder = str(tmp_path / "checkpoints")
    killed: list[str] = []
    with Live(
        tmp_path,
        replicas(cluster_of(3)),
        replicas,
        checkpoint=folder,
        checkpoint_every=50,
        timeout_s=20.0,
        settings={"min_gain": 0.0},
    ) as live:
        live.iterations(3)
        number = 3
        while len(killed) < KILLS:
            # Sometimes while all train, sometimes while what was killed last is being replaced.
            if dice.random() < 0.5:
                live.iterations(dice.randint(1, 4))
            else:
                time.sleep(dice.uniform(0.0, 3.0))
            workers, agents = live.workers(), live.agents()
            if len(agents) < 3:
                live.ask("POST", "/nodes", {"name": f"cpu-{number}"})
                number += 1
            victims = [("worker", n, p) for n, p in workers.items() if p]
            if len(agents) == 3 and dice.random() < 0.2:
                victims = [("agent", n, p) for n, p in agents.items()]
            for kind, name, pid in dice.sample(victims, min(len(victims), dice.choice([1, 1, 2]))):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(f"{kind} of {name}")
                if kind == "agent":
                    break
        live.iterations(10)
    said = "\n".join(live.notes.said)
    assert len(killed) >= KILLS
    assert live.error is None or isinstance(live.error, KeyboardInterrupt), said
    assert orphans() == []
    origins = Counter(change.origin for change in live.notes.changes[1:])
    print(f"{len(killed)} kills, {live.notes.done} iterations, {dict(origins)}\n{said}")
    assert "memory" in origins, said
    compare(live.notes.losses, tmp_path)
