#!/bin/sh
# Ensure that Java 17 or newer is installed, for Spark. If it is, exit 0 without output. Otherwise install it on Debian or Ubuntu, as root
# and without a terminal on stdin, since that needs no interaction; else print one line about what to install, and exit 1.
set -u

required=17

major() { # the major version of the java in $1, or 0
  "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 | grep . || echo 0
}

is_installed() {
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java; do
    [ -n "$java" ] && command -v "$java" >/dev/null 2>&1 && [ "$(major "$java")" -ge "$required" ] && return 0
  done
  return 1
}

install() { # Debian 12 has 17, Debian 13 has 21
  apt-get update -qq >/dev/null 2>&1
  for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 && return 0
  done
  return 1
}

is_installed && exit 0
if [ "$(id -u)" = 0 ] && [ ! -t 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Java $required is missing: installing it with apt-get"
  install && is_installed && exit 0
  echo "apt-get cannot install Java $required; install it by hand for Spark (everything else works without it)"
else
  echo "Java $required or newer is missing: install it for Spark, e.g. apt-get install openjdk-17-jre-headless (everything else works without it)"
fi
exit 1
