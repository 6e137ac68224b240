#!/bin/sh
# Runs one interop test: run.sh FOLDER TEST.py ARGUMENT …
# FOLDER/python holds the message classes that protoc makes of proto/. The
# interpreter is the system's if it has gRPC (Debian: python3-grpcio and
# python3-protobuf), otherwise one of an environment made from PyPI in FOLDER/venv.
# QMLA_INTEROP_VENV=FOLDER asks for an environment there whatever the system has.
set -u
folder=$1
test=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)

system_python() {
	for candidate in python3 /usr/bin/python3; do
		if "$candidate" -c 'import grpc, google.protobuf' 2>/dev/null; then
			echo "$candidate"
			return
		fi
	done
}

python=
[ -n "${QMLA_INTEROP_VENV:-}" ] || python=$(system_python)
if [ -z "$python" ]; then
	venv=${QMLA_INTEROP_VENV:-$folder/venv}
	"$here/venv.sh" "$venv" || exit $?
	python=$venv/bin/python
fi
"$python" -c 'import grpc, google.protobuf, sys
print("%s: grpcio %s, protobuf %s" % (sys.executable, grpc.__version__, google.protobuf.__version__))' || exit 1
PYTHONPATH=$folder/python:$here PYTHONDONTWRITEBYTECODE=1 exec "$python" "$here/$test" "$@"
