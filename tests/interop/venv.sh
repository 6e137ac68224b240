#!/bin/sh
# Makes a Python environment with grpcio for the interop tests, once, from PyPI:
#   venv.sh FOLDER
# Exit status 77 with the reason when it cannot be made (no Python, no PyPI).
set -u
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$(dirname "$folder")" || exit 1

skip() {
	echo "skipped: $1"
	exit 77
}

# Tests that run side by side wait for the one that makes it.
exec 9>"$folder.lock"
flock 9
if cmp -s "$here/requirements.txt" "$folder/requirements.txt"; then
	exit 0
fi
command -v python3 >/dev/null || skip "no python3"
rm -rf "$folder"
python3 -m venv "$folder" || skip "python3 -m venv does not work (Debian: apt install python3-venv)"
"$folder/bin/pip" install --quiet --disable-pip-version-check --no-input --retries 1 --timeout 15 \
	-r "$here/requirements.txt" >"$folder.log" 2>&1 9>&- ||
	skip "no grpcio: apt install python3-grpcio python3-protobuf, or let PyPI be reached (see $folder.log)"
cp "$here/requirements.txt" "$folder/requirements.txt"
