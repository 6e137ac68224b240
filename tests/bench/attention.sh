#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds, checks and times the CUDA kernels on a machine with a GPU, and writes JSON lines:
# first the card, driver, commit and command, then one line a case (bench_attention.c).
#
#   tests/bench/attention.sh [--no-build DIR] [--sanitize] [OUTPUT]
#
# --no-build DIR  take gpu_test_attend, gpu_test_baseline, gpu_test_pages and bench_attention
#                 from DIR
# --sanitize      also run compute-sanitizer (memcheck, racecheck) on the small cases
# OUTPUT          defaults to attention.jsonl
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
binaries=
sanitize=no
output=attention.jsonl
command="tests/bench/attention.sh $*"
while [ $# -gt 0 ]; do
	case $1 in
	--no-build)
		[ $# -ge 2 ] || { echo "attention.sh: --no-build wants a directory" >&2; exit 2; }
		binaries=$(cd "$2" && pwd)
		shift
		;;
	--sanitize) sanitize=yes ;;
	-*)
		echo "attention.sh: unknown option $1; see the head of $0" >&2
		exit 2
		;;
	*) output=$1 ;;
	esac
	shift
done

if ! command -v nvidia-smi > /dev/null || ! nvidia-smi -L > /dev/null 2>&1; then
	echo "attention.sh: no NVIDIA GPU here (nvidia-smi finds none); run it on a GPU machine" >&2
	exit 1
fi
if [ -z "$binaries" ]; then
	build=$root/build/bench-gpu
	cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DQMLA_CUDA=ON
	ninja -C "$build" gpu_test_attend gpu_test_baseline gpu_test_pages bench_attention
	binaries=$(mktemp -d)
	trap 'rm -rf "$binaries"' EXIT
	for name in gpu_test_attend gpu_test_baseline gpu_test_pages bench_attention; do
		find "$build" -type f -name "$name" -exec cp {} "$binaries" \;
	done
fi

run() {
	echo "== $*" >&2
	"$@" >&2
}
run "$binaries/gpu_test_attend"
run "$binaries/gpu_test_baseline"
run "$binaries/gpu_test_pages"
if [ "$sanitize" = yes ]; then
	for tool in memcheck racecheck; do
		run compute-sanitizer --tool "$tool" --error-exitcode 1 \
			"$binaries/gpu_test_attend" --small
	done
	run compute-sanitizer --tool memcheck --error-exitcode 1 "$binaries/gpu_test_pages"
fi

card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
commit=${QMLA_COMMIT:-$(git -C "$root" rev-parse --short HEAD 2> /dev/null || echo unknown)}
printf '{"bench":"run","card":"%s","driver":"%s","commit":"%s","date":"%s","command":"%s"}\n' \
	"$card" "$driver" "$commit" "$(date -u +%Y-%m-%d)" "$command" > "$output"
"$binaries/bench_attention" >> "$output"
cat "$output"
