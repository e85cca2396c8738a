#!/bin/sh
# tools/make_venv.sh PYTHON DIR: a virtual environment in DIR made by PYTHON (3.11 or newer), or one line that says what is missing.
# Debian has venv in a separate package: the script installs it where that needs no prompt (as root, without a terminal).
set -u

python=$1
venv=$2

fail() { echo "$1" >&2; exit 1; }
has_venv() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# A name that is found need not run: version managers put one there for each Python they know of.
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
  || fail "$python is missing or does not run: install Python 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || fail "$python is Python $version and Ottla needs 3.11 or newer: install one and say make PYTHON=python3.11 install"
if ! has_venv; then
  if [ "$(id -u)" = 0 ] && [ ! -t 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Python's venv is missing: installing python$version-venv with apt-get"
    apt-get update -qq >/dev/null 2>&1
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "python$version-venv" >/dev/null 2>&1
  fi
  has_venv || fail "$python cannot make virtual environments: apt-get install python$version-venv, then run make again"
fi
"$python" -m venv "$venv" || { rm -rf "$venv"; fail "$python could not make the virtual environment $venv"; }
