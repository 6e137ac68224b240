#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what deploy/packages-debian-12.txt lists and this machine lacks.
# Does nothing, quietly, when everything is there.
set -eu
list=$(dirname "$0")/packages-debian-12.txt

if ! command -v dpkg-query >/dev/null 2>&1; then
	echo "install-packages: no dpkg here; install what $list names by other means" >&2
	exit 0
fi
missing=
for package in $(grep -v '^#' "$list"); do
	case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) in
	"install ok installed") ;;
	*) missing="$missing $package" ;;
	esac
done
[ -n "$missing" ] || exit 0

echo "Installing packages:$missing"
sudo=
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null 2>&1 || {
		echo "install-packages: need root for: apt-get install$missing" >&2
		exit 1
	}
	sudo=sudo
fi
$sudo apt-get update -q
# shellcheck disable=SC2086 # a list of words
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $missing
