#!/usr/bin/env bash
# Makes the tests with Docker possible on a Debian machine: Docker, a running daemon, and a base
# image made from Debian's packages, since no image registry is needed that way.
# Usage: tools/ci_docker.sh [IMAGE]. What is there already is used; ends with 0 also where no daemon
# can run (the tests are then skipped with the reason). A daemon that it starts goes on running; its
# process id is in arise-dockerd.log.pid in the folder for temporary files.
set -uo pipefail
export PATH=$PATH:/usr/sbin:/sbin
image=${1:-${ARISE_TEST_IMAGE:-arise-base:bookworm}}
log=${TMPDIR:-/tmp}/arise-dockerd.log

give_up() { echo "docker tests: skipped: $*" >&2; exit 0; }

has() { command -v "$1" >/dev/null; }
if ! has dockerd || ! has debootstrap || ! has sshd || ! has tmux; then
  [[ $(id -u) == 0 ]] || give_up "Docker is not installed, and this user cannot install it"
  command -v apt-get >/dev/null || give_up "Docker is not installed, and there is no apt-get"
  export DEBIAN_FRONTEND=noninteractive
  # tools/ci_browser.sh installs at the same time, and apt-get lets only one do so.
  (flock 9 && apt-get update -qq && apt-get install -y -qq --no-install-recommends \
    docker.io debootstrap iptables tini ca-certificates openssh-server openssh-client tmux) \
    9>"${TMPDIR:-/tmp}/arise-apt.lock" >"$log" 2>&1 ||
    give_up "docker.io could not be installed: $(tail -1 "$log")"
fi

answers() { docker version >/dev/null 2>&1; }
if ! answers; then
  [[ $(id -u) == 0 ]] || give_up "no Docker daemon answers, and this user cannot start one"
  # Without a network of its own where the kernel lacks what Docker needs for one.
  for options in "" "--iptables=false --bridge=none"; do
    # shellcheck disable=SC2086
    setsid nohup dockerd $options >"$log" 2>&1 </dev/null &
    daemon=$!
    echo "$daemon" >"$log.pid"
    for _ in {1..60}; do answers && break 2; kill -0 "$daemon" 2>/dev/null || break; sleep 0.5; done
    kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null
  done
  answers || give_up "dockerd does not run here: $(tail -1 "$log")"
fi

# An image of an earlier version may lack what the tests need by now.
is_complete() { docker run --rm --network none "$image" tmux -V >/dev/null 2>&1; }
if ! is_complete; then
  [[ $(id -u) == 0 ]] || give_up "the image $image is absent, and this user cannot make it"
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  # The mirror that this machine's own packages come from.
  mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' | awk '$2 == "bookworm" {print $1; exit}')
  debootstrap --variant=minbase --include=python3,procps,tmux bookworm "$root/image" ${mirror:+"$mirror"} \
    >"$log.image" 2>&1 || give_up "the image could not be made: $(tail -1 "$log.image")"
  rm -rf "$root"/image/var/cache/apt/archives/*.deb "$root"/image/var/lib/apt/lists/*
  tar -C "$root/image" -c . | docker import - "$image" >/dev/null ||
    give_up "the image could not be imported"
fi
echo "docker tests: $(docker version --format '{{.Server.Version}}'), image $image"
