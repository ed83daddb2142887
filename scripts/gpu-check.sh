#!/usr/bin/env bash
# Runs the TPC-H workload on a GPU machine and prints a short table; reports go to $OUT.
#
#   DKB_DATA      folder for generated data            (/dev/shm/dkb)
#   OUT           folder for reports                   (bench/results/gpu-check)
#   SCALES        scale factors to run                 ("0.01 1 10")
#   GPUS          values for --gpus to run             ("1", then all GPUs of the machine)
#   MODES         values for --mode to run             ("resident stream auto")
#   BUDGETS       values for --device-memory to run    ("")
#   CHUNKS        values for --chunk-bytes to run      ("")
#   DEVICES       values for --devices to run          ("0,0,0,0")
#   KERNELS       value for --kernels: a folder of plans (baseline)
#   REPEAT        timed runs a query where resident    (5)
#   ANSWERS       folder with sfSF/qNN.parquet answers (tests/answers); DataFusion checks where it has none
#   DKB_SANITIZE  1 runs compute-sanitizer's four tools over the 22 queries at SF0.01, streamed
#   FORMATS       the built suite of tests/parquet.rs, to run on the GPU (.carry/parquet-suite.xz unpacked, if any)
#   DKB_RUN       the program                          (.carry/dkb-run.xz unpacked, else target/release/dkb-run)
set -uo pipefail
cd "$(dirname "$0")/.."

data=${DKB_DATA:-/dev/shm/dkb}
out=${OUT:-bench/results/gpu-check}
answers=${ANSWERS:-tests/answers}
scales=${SCALES:-0.01 1 10}
repeat=${REPEAT:-5}
modes=${MODES:-resident stream auto}
mkdir -p "$data" "$out"
failed=0

program=${DKB_RUN:-}
if [ -z "$program" ]; then
  if [ -f .carry/dkb-run.xz ]; then
    program=$data/dkb-run
    if [ ! -x "$program" ] || [ .carry/dkb-run.xz -nt "$program" ]; then
      xz -dc .carry/dkb-run.xz >"$program.new" && chmod +x "$program.new" && mv "$program.new" "$program" || exit 2
    fi
  else
    program=target/release/dkb-run
  fi
fi
if [ ! -x "$program" ]; then
  echo "no program at $program: build it with 'cargo build --release --bin dkb-run', or set DKB_RUN" >&2
  exit 2
fi

count=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
if [ "$count" = 0 ]; then
  echo "no GPU: nvidia-smi lists none" >&2
  exit 2
fi
gpus=${GPUS:-$(if [ "$count" -gt 1 ]; then echo "1 $count"; else echo 1; fi)}
nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | tee "$out/gpus.csv"

summary=$out/summary.txt
: >"$summary"
line() { printf '%-34s %-8s %10s %s\n' "$@" | tee -a "$summary"; }

# run NAME ARGS...: one run of the workload with its report, log and a line of the table.
run() {
  local name=$1 start status
  shift
  start=$(date +%s%N)
  "$program" --device cuda --report "$out/$name.json" "$@" >"$out/$name.log" 2>&1
  status=$?
  local seconds total
  seconds=$(awk "BEGIN { printf \"%.1f s\", ($(date +%s%N) - $start) / 1e9 }")
  total=$(grep -o '"total_exec_ms_median": *[0-9.]*' "$out/$name.json" 2>/dev/null | grep -o '[0-9.]*$')
  if [ "$status" = 0 ]; then
    line "$name" ok "$seconds" "${total:+$(printf 'total exec %.1f ms' "$total")}"
  else
    failed=1
    line "$name" "exit $status" "$seconds" "$(tail -n 1 "$out/$name.log")"
  fi
}

for scale in $scales; do
  run "generate-sf$scale" --tpch "$scale" --data-root "$data" --query q06
  checks=(--check)
  # DataFusion takes long at large scales; stored answers serve there.
  if [ -d "$answers/sf$scale" ]; then
    case $scale in
      0.01 | 1) checks=(--check --answers "$answers/sf$scale") ;;
      *) checks=(--answers "$answers/sf$scale") ;;
    esac
  fi
  workload=(--tpch "$scale" --data-root "$data" --fallback error --kernels "${KERNELS:-baseline}" "${checks[@]}")
  for n in $gpus; do
    for mode in $modes; do
      timing=()
      [ "$mode" = resident ] && timing=(--repeat "$repeat" --warmup 1)
      run "sf$scale-gpus$n-$mode" "${workload[@]}" --gpus "$n" --mode "$mode" "${timing[@]}"
    done
    for budget in ${BUDGETS:-}; do
      run "sf$scale-gpus$n-stream-$budget" "${workload[@]}" --gpus "$n" --mode stream --device-memory "$budget"
    done
    for chunk in ${CHUNKS:-}; do
      run "sf$scale-gpus$n-stream-chunk$chunk" "${workload[@]}" --gpus "$n" --mode stream --chunk-bytes "$chunk"
    done
  done
  # Several logical devices on a GPU: the exchange without a library.
  for devices in ${DEVICES-0,0,0,0}; do
    run "sf$scale-devices$devices" "${workload[@]}" --devices "$devices"
  done
done

# Every encoding, codec and page version, read by the GPU as the parquet crate reads it.
formats=${FORMATS:-}
if [ -z "$formats" ] && [ -f .carry/parquet-suite.xz ]; then
  formats=$data/parquet-suite
  xz -dc .carry/parquet-suite.xz >"$formats" && chmod +x "$formats" || exit 2
fi
if [ -n "$formats" ]; then
  if DKB_TEST_DEVICE=cuda "$formats" --nocapture >"$out/formats.log" 2>&1; then
    line formats ok - "$(grep '^test result' "$out/formats.log")"
  else
    failed=1
    line formats failed - "$(grep '^test result' "$out/formats.log" | tail -n 1)"
  fi
fi

if [ "${DKB_SANITIZE:-0}" = 1 ]; then
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -n 1)
  if [ -z "$sanitizer" ]; then
    failed=1
    line sanitizer missing - "compute-sanitizer is not on PATH nor under /usr/local/cuda*/bin"
  else
    export DKB_SANITIZE=1
    for tool in memcheck racecheck initcheck synccheck; do
      name=sanitize-$tool
      if "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 9 --log-file "$out/$name.txt" \
        "$program" --device cuda --tpch 0.01 --data-root "$data" --fallback error --mode stream \
        --answers "$answers/sf0.01" --report "$out/$name.json" >"$out/$name.log" 2>&1; then
        line "$name" ok - "$(grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/$name.txt" | tail -n 1)"
      else
        failed=1
        line "$name" failed - "$(grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/$name.txt" | tail -n 1)"
      fi
    done
  fi
fi

echo
echo "== summary ($out)"
cat "$summary"
exit "$failed"
