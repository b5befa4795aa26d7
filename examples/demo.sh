#!/usr/bin/env bash
# The main job from end to end on this host: profile -> store -> plan -> run -> compare -> page.
# Usage: examples/demo.sh FOLDER   (made anew; `make demo` calls this)
set -euo pipefail

demo=${1:?usage: examples/demo.sh FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$demo"
mkdir -p "$demo"
export ARACHNE_STORE="sqlite:///$demo/arachne.db"

started=$SECONDS
say() { printf '\n\033[1m[%3d s] %s\033[0m\n' $((SECONDS - started)) "$*"; }

say "1/8 A store for profiles, plans and measurements: $demo/arachne.db"
arachne-db init

say "2/8 Measure this host: layers of a tiny LLaMA, then its links"
arachne-prof run --gpu cpu --model tiny-llama-test --tp 1,2 --micro-batch 1,2,4
arachne-prof links --gpu cpu

say "3/8 Plan for two devices of this host"
arachne-plan plan --model tiny-llama-test --cluster "$here/clusters/two-cpu.yaml" -o "$demo/plan.json"

say "4/8 Run that plan for real: processes under torch.distributed, planned against measured"
arachne-run "$demo/plan.json" --iterations 20

say "5/8 Bring in what other people measured: the public Sailor data (GH200 and mixed RTX)"
arachne-prof import sailor "$here/sailor" --quiet
for plan in "$here"/sailor/plans/*.json; do
  run=$(basename "$plan" .json)
  case $run in
    gh200-*) host="CSCS Alps Clariden, GH200 nodes" ;;
    rtx-*) host="MIT cluster, mixed RTX nodes" ;;
  esac
  arachne-run log "$plan" "$here/sailor/times/$run.csv" --quiet \
    --host "$host" --origin "eth-easl/sailor@cf2c8e3cc53c, MIT"
done

say "6/8 Estimate GPUs nobody here owns, from calibrated constants"
arachne-prof estimate --gpu a100-40gb,a6000,h100 --model llama-3-8b --tp 1,2,4

say "7/8 Compare planners on 32 A100-40GB + 32 A6000 + 64 H100"
arachne-plan compare --baselines exhaustive,random --budget-s 20

say "8/8 How true were the predictions? One page"
arachne-report accuracy -o "$demo/report"

say "Done. The store is $demo/arachne.db: try arachne-db info, arachne-prof list, arachne-plan list"
