#!/bin/sh
# Runs one interop test in the Python environment:
#   run.sh FOLDER TEST.py ARGUMENT …
# FOLDER holds the environment and the classes that protoc makes of proto/.
set -u
folder=$1
test=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
venv=${QMLA_INTEROP_VENV:-$folder/venv}

"$here/venv.sh" "$venv" || exit $?
generated=$(mktemp -d) || exit 1
trap 'rm -rf "$generated"' EXIT
"$venv/bin/python" -m grpc_tools.protoc -I "$here/../../proto" --python_out="$generated" \
	--grpc_python_out="$generated" qmla/v1/cache.proto qmla/v1/worker.proto || exit 1
PYTHONPATH=$generated:$here PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/$test" "$@"
