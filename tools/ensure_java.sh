#!/bin/sh
# Checks for Java 17 or newer, for Spark. If it is missing, installs it where that needs no prompt (Debian or Ubuntu, as root, without a
# terminal); otherwise prints one line that says what to install, and exits with 1.
set -u

wanted=17

major() { # the major version of the java in $1, or 0
  "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 | grep . || echo 0
}

there() {
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java; do
    [ -n "$java" ] && command -v "$java" >/dev/null 2>&1 && [ "$(major "$java")" -ge "$wanted" ] && return 0
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

there && exit 0
if [ "$(id -u)" = 0 ] && [ ! -t 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Java $wanted is missing: installing it with apt-get"
  install && there && exit 0
  echo "apt-get could not install Java $wanted; install it by hand for the Spark part (all else works without it)"
else
  echo "Java $wanted or newer is missing: install it for the Spark part, e.g. apt-get install openjdk-17-jre-headless (all else works without it)"
fi
exit 1
