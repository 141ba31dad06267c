#!/usr/bin/env bash
# End the SLURM of start.sh: its jobs, its daemons, its database. Leaves a site's own SLURM, the packages, munge and all
# records (in /var/lib/pipeline-test-slurm, until the next start) alone. Does nothing if it does not run.
set -euo pipefail
HOME_OF_IT=/var/lib/pipeline-test-slurm
[ -s /etc/slurm/slurm.conf ] && grep -qF "tests/slurm/start.sh" /etc/slurm/slurm.conf || exit 0
[ "$(id -u)" = 0 ] || { echo "stop.sh: only root can stop it" >&2; exit 1; }

if jobs=$(timeout 20 squeue -h -o %A 2>/dev/null) && [ -n "$jobs" ]; then
  # shellcheck disable=SC2086
  scancel $jobs || true
  for _ in $(seq 100); do [ -n "$(squeue -h 2>/dev/null)" ] || break; sleep 0.2; done
fi
shopt -s nullglob
for file in "$HOME_OF_IT"/run/slurmd.*.pid "$HOME_OF_IT"/run/{slurmctld,slurmdbd,mariadbd}.pid; do
  daemon=$(basename "$file") && daemon=${daemon%%.*}
  pid=$(cat "$file" 2>/dev/null) || continue
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$daemon" ] || continue # its number has gone to another program
  kill "$pid" 2>/dev/null || continue # ended by itself
  for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || continue 2; sleep 0.2; done
  kill -KILL "$pid" 2>/dev/null || true
done
