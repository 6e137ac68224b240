#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The tables of docs/accuracy.md: calibrates each model with each method for each cache,
# measures every one of them with and without protected tokens against the BF16 cache of
# the model as it was, and writes a line of JSON a row and tables in Markdown. What is in
# the work directory already is not done again, so a run that was stopped continues.
#
# usage: tests/bench/accuracy.sh --qmla PROGRAM --data DIR --work DIR [options]
#   --models LIST     checkpoints below --data; "mla-m mla-s"
#   --methods LIST    "rtn smoothquant quarot paper default"
#   --caches LIST     "c4r4 c2r4"
#   --protect LIST    "none,block,sink4+recent128"
#   --sequences N     read of text-val.txt by each row; 24
#   --length L        bytes of a sequence, cut to what the model was trained on; 4096
#   --no-recall       leave out recall.jsonl
#   --no-stress       leave out the re-parametrised checkpoint
#   --calibrate ARGS  further arguments for every `qmla calibrate`
#   --threads N       1
set -eu

here=$(cd "$(dirname "$0")" && pwd)
qmla= data= work= calibrate= recall=1 stress=1
models="mla-m mla-s" methods="rtn smoothquant quarot paper default" caches="c4r4 c2r4"
protect="none,block,sink4+recent128" sequences=24 length=4096 threads=1

fail() {
	echo "accuracy.sh: $*" >&2
	exit 2
}

while [ $# -gt 0 ]; do
	case $1 in
	--no-recall) recall= ;;
	--no-stress) stress= ;;
	--help | -h)
		sed -n '4,22s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	--*)
		[ $# -ge 2 ] || fail "$1 needs a value"
		case $1 in
		--qmla) qmla=$2 ;;
		--data) data=$2 ;;
		--work) work=$2 ;;
		--models) models=$2 ;;
		--methods) methods=$2 ;;
		--caches) caches=$2 ;;
		--protect) protect=$2 ;;
		--sequences) sequences=$2 ;;
		--length) length=$2 ;;
		--calibrate) calibrate=$2 ;;
		--threads) threads=$2 ;;
		*) fail "unknown option $1 (--help lists them)" ;;
		esac
		shift
		;;
	*) fail "unknown argument $1 (--help lists the options)" ;;
	esac
	shift
done
[ -x "${qmla:-}" ] || fail "--qmla: name the program"
[ -r "${data:-}/text-val.txt" ] || fail "--data: no text-val.txt in '$data'"
[ -n "$work" ] || fail "--work: name a directory for checkpoints and results"
mkdir -p "$work/rows"

# Longest sequence the model was trained on, as the data's README says; others take --length.
trained() {
	case $1 in
	mla-s) echo 2048 ;;
	*) echo 4096 ;;
	esac
}

# fused MODEL_DIR NAME METHOD CACHE: the calibrated checkpoint, made if it is not there. What rtn and
# quarot do to the weights does not depend on the cache.
fused() {
	case $3 in
	rtn | quarot) set -- "$1" "$2" "$3" c4r4 ;;
	esac
	out=$work/$2.$3.$4
	if [ ! -f "$out/quantmla.json" ]; then
		echo "calibrating $2 for $4 with $3" >&2
		start=$(date +%s)
		# shellcheck disable=SC2086
		"$qmla" calibrate --model "$1" --text "$data/text-calib.txt" --out "$out" --method "$3" \
			--cache "$4" --threads "$threads" --json $calibrate >"$work/rows/$2.$3.$4.calibrate.json"
		echo $(($(date +%s) - start)) >"$work/rows/$2.$3.$4.seconds"
	fi
	echo "$out"
}

# row NAME LENGTH FILE ARGS…: one measurement, kept in rows/FILE.jsonl.
row() {
	name=$1 bytes=$2 file=$work/rows/$3.jsonl
	shift 3
	[ -s "$file" ] && return
	echo "measuring ${file##*/}" >&2
	set -- eval --text "$data/text-val.txt" --length "$bytes" --sequences "$sequences" \
		--threads "$threads" --seed 1 --json "$@"
	[ -n "$recall" ] && set -- "$@" --recall "$data/recall.jsonl"
	"$qmla" "$@" >"$file.partial"
	sed "s|^{|{\"name\":\"$name\",|" "$file.partial" >"$file.named"
	rm "$file.partial"
	mv "$file.named" "$file"
}

for model in $models; do
	bytes=$(trained "$model")
	[ "$length" -lt "$bytes" ] && bytes=$length
	row "$model" "$bytes" "$model.arithmetic" --model "$data/$model" --cache bf16 \
		--arithmetic bf16 --against f32
	row "$model" "$bytes" "$model.bf16" --model "$data/$model" --cache bf16 --against f32
	for method in $methods; do
		for cache in $caches; do
			out=$(fused "$data/$model" "$model" "$method" "$cache")
			row "$model" "$bytes" "$model.$method.$cache" --model "$out" \
				--reference "$data/$model" --cache "$cache" --protect "$protect"
		done
	done
	[ -n "$stress" ] || continue
	hostile=$work/$model-stress
	[ -f "$hostile/config.json" ] ||
		python3 "$here/stress_checkpoint.py" "$data/$model" "$hostile"
	for cache in $caches; do
		out=$(fused "$hostile" "$model-stress" default "$cache")
		row "$model-stress" "$bytes" "$model-stress.default.$cache" --model "$out" \
			--reference "$hostile" --cache "$cache" --protect "$protect"
	done
done

cat "$work"/rows/*.jsonl >"$work/accuracy.jsonl"
python3 "$here/accuracy_table.py" "$work/accuracy.jsonl" >"$work/accuracy.md"
cat "$work/accuracy.md"
