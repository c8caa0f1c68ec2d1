#!/usr/bin/env bash
# Makes the tests with a browser possible on a Debian machine: Chromium and its driver, both of one
# version, from Debian's packages. What is there already is used; ends with 0 also where they cannot
# be installed (the tests are then skipped with the reason).
set -uo pipefail
log=${TMPDIR:-/tmp}/arise-browser.log

give_up() { echo "browser tests: skipped: $*" >&2; exit 0; }

has() { command -v "$1" >/dev/null; }
if ! has chromium || ! has chromedriver; then
  [[ $(id -u) == 0 ]] || give_up "Chromium is not installed, and this user cannot install it"
  has apt-get || give_up "Chromium is not installed, and there is no apt-get"
  export DEBIAN_FRONTEND=noninteractive
  # tools/ci_docker.sh installs at the same time, and apt-get lets only one do so.
  (
    flock 9
    apt-get update -qq && apt-get install -y -qq --no-install-recommends \
      chromium chromium-driver fonts-dejavu-core
  ) 9>"${TMPDIR:-/tmp}/arise-apt.lock" >"$log" 2>&1 ||
    give_up "chromium could not be installed: $(tail -1 "$log")"
fi
echo "browser tests: $(chromium --version 2>/dev/null)"
