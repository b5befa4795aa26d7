"""`arachne-plan export`: files, JSON, remarks on stderr, refusals with exit code 1."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from click.testing import CliRunner

from db.store import open_store
from planner.cli import main
from planner.cli.export import FORMATS
from planner.export import FORMATS as EXPORTERS
from specs.plan import Plan
from specs.plan_file import plan_to_document
from tests.planner.export.gpu_plans import gpu_plan


def written(tmp_path: Path, plan: Plan) -> str:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan_to_document(plan)))
    return str(path)


def test_the_formats_of_the_option_are_the_exporters_and_torchrun() -> None:
    assert set(FORMATS) == {"torchrun", *EXPORTERS}


def test_a_script_is_written_and_a_shell_reads_it(tmp_path: Path) -> None:
    plan = written(tmp_path, gpu_plan([("a6000", 1, 10), ("h100", 1, 22)], replicas=2))
    store = ["--store", str(tmp_path / "s.db")]
    for name in FORMATS:
        out = tmp_path / f"{name}.sh"
        done = CliRunner().invoke(main, ["export", plan, "--format", name, "-o", str(out), *store])
        assert done.exit_code == 0, done.output
        assert done.stdout == ""
        assert f"written to {out}" in done.stderr
        subprocess.run(["bash", "-n", str(out)], check=True)


def test_the_script_goes_to_stdout_and_remarks_to_stderr(tmp_path: Path) -> None:
    plan = written(tmp_path, gpu_plan([("a6000", 1, 10), ("h100", 4, 22)]))
    store = ["--store", str(tmp_path / "s.db")]
    done = CliRunner().invoke(main, ["export", plan, "--format", "flagscale", *store])
    assert done.stdout.startswith("#!/usr/bin/env bash\n# llama-3-8b on lab by FlagScale: 2 stages")
    assert "Unequal TP needs sequence parallelism" in " ".join(done.stderr.split())


def test_json_holds_ranks_arguments_and_layout(tmp_path: Path) -> None:
    plan = gpu_plan([("a6000", 1, 10), ("h100", 1, 22)])
    with open_store(tmp_path / "s.db") as store:
        number = store.add_plan(plan)
    words = ["export", str(number), "--format", "megatron", "--json"]
    done = CliRunner().invoke(main, [*words, "--store", str(tmp_path / "s.db")])
    document = json.loads(done.stdout)
    assert document["launcher"] == "megatron"
    assert document["layout"] == "Et*10|t*22L"
    assert document["ranks"][1] == {
        "rank": 1,
        "stage": 1,
        "replica": 0,
        "tp_rank": 0,
        "node": "h100-0",
        "host": "host1.lab.org",
        "gpu": 0,
    }


def test_a_refusal_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    plan = written(tmp_path, gpu_plan([("a6000", 1, 10), ("h100", 4, 22)]))
    out = tmp_path / "train.sh"
    words = ["export", plan, "--format", "megatron", "-o", str(out)]
    done = CliRunner().invoke(main, [*words, "--store", str(tmp_path / "s.db")])
    assert done.exit_code == 1
    assert done.stderr == (
        "Error: Megatron-LM cannot express this plan: its stages have TP [1, 4], and there is one "
        "degree for all stages; arachne-plan export --format torchrun starts any plan\n"
    )
    assert not out.exists()


def test_torchrun_has_a_line_for_each_host_and_wants_a_file(tmp_path: Path) -> None:
    plan = gpu_plan([("a6000", 1, 10), ("h100", 4, 22)])
    store = ["--store", str(tmp_path / "s.db")]
    words = ["export", written(tmp_path, plan), "--format", "torchrun"]
    document = json.loads(CliRunner().invoke(main, [*words, "--json", *store]).stdout)
    assert list(document["lines"]) == ["host0.lab.org", "host1.lab.org"]
    assert "--nproc-per-node=4" in document["lines"]["host1.lab.org"]
    with open_store(tmp_path / "s.db") as opened:
        number = opened.add_plan(plan)
    done = CliRunner().invoke(main, ["export", str(number), "--format", "torchrun", *store])
    assert done.exit_code == 1
    assert f"arachne-plan show {number} -o plan.json" in done.stderr
