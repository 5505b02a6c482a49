#!/usr/bin/env bash
# All that a GPU can show, in under five minutes, with the machine's own Python and torch:
#
#     benchmarks/gpu.sh            PYTHON=python3.12 benchmarks/gpu.sh
#
# The tests on CUDA, the benchmark beside the CPU with one size that a CPU cannot carry, and the toy, whose best
# policy is known. The table is written to benchmarks/results/gpu.md; the script fails where a step does.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
# One thread: the CPU's part of the tests is too small for more. The benchmark sets its own number.
export PYTHONPATH=src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1

"$PYTHON" -c 'import torch' || { echo "error: $PYTHON has no torch; name one that has: PYTHON=..." >&2; exit 1; }
"$PYTHON" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' ||
  { echo "error: $PYTHON's torch sees no CUDA device; nothing was run and nothing was written" >&2; exit 1; }

results=build/gpu
mkdir -p "$results" benchmarks/results
: >"$results/summary"
: >"$results/table" # that of an earlier run must not stand in for this one's
failed=0

step() { # step SECONDS NAME COMMAND...: what it prints goes to the terminal and to $results/NAME
  local seconds=$1 name=$2 began=$SECONDS outcome
  shift 2
  echo "== $name: $*"
  if timeout "$seconds" "$@" 2>&1 | tee "$results/$name"; then
    outcome=passed
  else
    outcome="FAILED (or took more than $seconds s)"
    failed=1
  fi
  echo "- $name: $outcome, $((SECONDS - began)) s" | tee -a "$results/summary"
}

step 100 tests "$PYTHON" -m pytest -q -p no:cacheprovider tests/test_gpu.py tests/test_gru.py
step 120 benchmark "$PYTHON" benchmarks/ppo.py --device cuda --repetitions 3 --out "$results/table"
step 60 toy "$PYTHON" -m rltokens.ppo --task toy --device cuda --runs "$results/runs"

{
  echo "# The miniature on a GPU"
  echo
  echo "Made by \`benchmarks/gpu.sh\`."
  echo
  cat "$results/summary"
  echo
  if [ -s "$results/table" ]; then cat "$results/table"; else echo "The benchmark did not finish."; fi
  echo
  echo "The toy, whose best policy is known (\`python -m rltokens.ppo --task toy --device cuda\`):"
  echo
  grep '^reward' "$results/toy" | sed 's/^/    /' || echo "    did not finish"
  grep -E 'passed|failed' "$results/tests" | tail -1 | sed 's/^/\nTests: /'
} >benchmarks/results/gpu.md
echo "written to benchmarks/results/gpu.md"
exit "$failed"
