#!/bin/sh
# tools/make_venv.sh PYTHON DIR: create a virtual environment in DIR with PYTHON (3.11 or newer), or print one line about what is missing.
# Debian has venv in a separate package, which this script installs as root without a terminal on stdin, since that needs no interaction.
set -u

python=$1
venv=$2

fail() { echo "$1" >&2; exit 1; }
has_venv() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# A command on the PATH may fail to run: version managers install a shim for each Python, also for missing ones.
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
  || fail "$python is missing or does not run: install Python 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || fail "$python is Python $version and Ottla needs 3.11 or newer: install one and run make PYTHON=python3.11 install"
if ! has_venv; then
  if [ "$(id -u)" = 0 ] && [ ! -t 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Python's venv is missing: installing python$version-venv with apt-get"
    apt-get update -qq >/dev/null 2>&1
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "python$version-venv" >/dev/null 2>&1
  fi
  has_venv || fail "$python cannot create virtual environments: apt-get install python$version-venv, then run make again"
fi
"$python" -m venv "$venv" || { rm -rf "$venv"; fail "$python cannot create the virtual environment $venv"; }
