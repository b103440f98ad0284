#!/bin/sh
# Runs a Docker engine, as root: docker_engine.sh DIRECTORY [COMMAND...]
#
# It is in namespaces of its own, so that all its processes and mounts end with it, however it ends, and
# doesn't touch the host's network. It listens on DIRECTORY/docker.sock, and its control groups are
# below one that is called like DIRECTORY. With COMMAND, that is started instead, with the engine's
# command line after its own arguments.
set -eu
directory=$1
shift
# docker-init reaps orphans of containers, which dockerd as the first process does not. The network options
# keep it from changing the host's network. Programs in containers may ignore TERM.
exec unshare --mount --pid --fork --kill-child --mount-proc docker-init -- "$@" \
    dockerd \
    --host "unix://$directory/docker.sock" \
    --data-root "$directory/data" \
    --exec-root "$directory/exec" \
    --pidfile "$directory/pid" \
    --cgroup-parent "/$(basename "$directory")" \
    --exec-opt native.cgroupdriver=cgroupfs \
    --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false --bridge=none \
    --shutdown-timeout 1
