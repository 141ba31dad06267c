#!/usr/bin/env bash
# A real SLURM on this machine, for tests: three nodes, accounting (slurmdbd on a MariaDB of its own), no systemd, no cgroups.
#
# Does nothing where a SLURM answers already, be it ours or the site's. Needs root; missing packages are installed where
# apt-get is. Takes about 15 seconds, and a minute or two more where packages are missing. stop.sh ends it.
# It begins with no jobs and no records: what an earlier one left (its machine may have ended in the middle of a test) is
# ended and deleted, for jobs that it had queued would run now and hold the node.
#
# What the tests count on: partitions main, short (at most 5 minutes) and urgent (its jobs preempt those of the others,
# which are requeued) of one node with 8 CPUs and 32 GB, whatever the machine has, so that several tasks run at once and
# not too many; partition several of nodes s1 and s2, which tests kill and start again (`slurmd -N s1`); one `seat` (gres), for which a job of urgent preempts the job that has it and no other; arrays of at most 50 tasks;
# a requeued job starts again within seconds (cred_expire); accounts and limits are enforced.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
HOME_OF_IT=/var/lib/pipeline-test-slurm # state, logs, pids and the database
MARK="# made by tests/slurm/start.sh of sonar-pipeline"
PACKAGES="slurm-wlm slurmdbd munge mariadb-server charliecloud" # the last runs containers
fail() { echo "start.sh: $*" >&2; exit 1; }
wait_for() { # what, seconds, command…
  local what=$1 tries=$(($2 * 5)); shift 2
  until "$@" >/dev/null 2>&1; do
    ((tries-- > 0)) || { tail -n 5 "$HOME_OF_IT"/log/* >&2 || true; fail "$what does not answer"; }
    sleep 0.2
  done
}

if timeout 20 sinfo >/dev/null 2>&1; then
  echo "start.sh: a SLURM answers already: $(sinfo -h -o '%R %F' | tr '\n' ';')"
  exit 0
fi

missing=""
for program in sbatch slurmctld slurmd slurmdbd munged mariadbd ch-run; do
  PATH=$PATH:/usr/sbin command -v $program >/dev/null || missing="$missing $program"
done
[ "$(id -u)" = 0 ] || fail "no SLURM answers, and only root can start one${missing:+; also missing:$missing (Debian packages: $PACKAGES)}"
export PATH=$PATH:/usr/sbin
if [ -n "$missing" ]; then
  command -v apt-get >/dev/null || fail "missing:$missing; install SLURM with slurmdbd, munge and MariaDB"
  echo "start.sh: installing $PACKAGES"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq -o Acquire::Retries=5 </dev/null || fail "apt-get update failed"
  # services that the packages would start are none of ours: what they need is not configured yet
  # shellcheck disable=SC2086
  RUNLEVEL=1 apt-get install -y -qq --no-install-recommends -o Acquire::Retries=5 -o Dpkg::Options::=--force-confold $PACKAGES \
    </dev/null >/var/log/pipeline-test-slurm-apt.log 2>&1 ||
    { tail -n 20 /var/log/pipeline-test-slurm-apt.log >&2; fail "apt-get install $PACKAGES failed"; }
fi
if [ -s /etc/slurm/slurm.conf ] && ! grep -qF "$MARK" /etc/slurm/slurm.conf; then
  fail "/etc/slurm/slurm.conf is not ours, and its SLURM does not answer: start that one, or take the file away"
fi

"$HERE"/stop.sh
pkill -KILL -x slurmstepd || true # steps whose slurmd was killed: no SLURM answers, so they are nobody's
rm -rf "$HOME_OF_IT"

node=$(hostname -s)
umask 022
install -d -m 0755 "$HOME_OF_IT" "$HOME_OF_IT"/{run,log,state,spool} /etc/slurm
install -d -o mysql -g mysql -m 0700 "$HOME_OF_IT"/database

# munge: whoever presents a token of this machine's key is who they say
install -d -o munge -g munge -m 0755 /run/munge
install -d -o munge -g munge -m 0700 /etc/munge /var/lib/munge /var/log/munge
if [ ! -s /etc/munge/munge.key ]; then
  (umask 077 && head -c 1024 /dev/urandom >/etc/munge/munge.key && chown munge:munge /etc/munge/munge.key)
fi
if ! munge -n >/dev/null 2>&1; then
  runuser -u munge -- "$(command -v munged)" --force 2>>"$HOME_OF_IT"/log/munged.log
fi
wait_for munged 10 munge -n

# the database: its own folder, socket and port, on loopback, with a password that nobody needs to know
socket=$HOME_OF_IT/run/mariadb.sock
[ -s "$HOME_OF_IT"/password ] || (umask 077 && head -c 24 /dev/urandom | base64 | tr -d '/+=\n' >"$HOME_OF_IT"/password)
password=$(cat "$HOME_OF_IT"/password)
if [ ! -d "$HOME_OF_IT"/database/mysql ]; then
  mariadb-install-db --no-defaults --user=mysql --datadir="$HOME_OF_IT"/database --skip-test-db \
    >"$HOME_OF_IT"/log/database.log 2>&1 || fail "mariadb-install-db failed; see $HOME_OF_IT/log/database.log"
fi
chown mysql "$HOME_OF_IT"/run
if ! mysqladmin --no-defaults --socket="$socket" ping >/dev/null 2>&1; then
  setsid mariadbd --no-defaults --user=mysql --datadir="$HOME_OF_IT"/database --socket="$socket" --port=6820 \
    --bind-address=127.0.0.1 --skip-name-resolve --pid-file="$HOME_OF_IT"/run/mariadbd.pid \
    </dev/null >>"$HOME_OF_IT"/log/database.log 2>&1 &
fi
wait_for MariaDB 60 mysqladmin --no-defaults --socket="$socket" ping
mariadb --no-defaults --socket="$socket" -e "
  create database if not exists slurm_acct_db;
  create or replace user slurm@'127.0.0.1' identified by '$password';
  grant all on slurm_acct_db.* to slurm@'127.0.0.1';"

(
  umask 077
  cat >/etc/slurm/slurmdbd.conf <<CONF
$MARK
AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
SlurmUser=root
LogFile=$HOME_OF_IT/log/slurmdbd.log
PidFile=$HOME_OF_IT/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=6820
StorageUser=slurm
StoragePass=$password
StorageLoc=slurm_acct_db
CONF
)
cat >/etc/slurm/slurm.conf <<CONF
$MARK
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation=$HOME_OF_IT/state
SlurmdSpoolDir=$HOME_OF_IT/spool/%n
SlurmctldPidFile=$HOME_OF_IT/run/slurmctld.pid
SlurmdPidFile=$HOME_OF_IT/run/slurmd.%n.pid
SlurmctldLogFile=$HOME_OF_IT/log/slurmctld.log
SlurmdLogFile=$HOME_OF_IT/log/slurmd.%n.log
SlurmdParameters=config_overrides
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStorageEnforce=associations,limits,qos
EnforcePartLimits=ALL
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=2,batch_sched_delay=0
GresTypes=seat
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=60
KillWait=5
MinJobAge=300
MaxArraySize=50
MaxJobCount=10000
NodeName=$node NodeAddr=127.0.0.1 CPUs=8 RealMemory=32000 Gres=seat:1 Features=cpu State=UNKNOWN
NodeName=s[1-2] NodeHostname=$node NodeAddr=127.0.0.1 Port=[6821-6822] CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=1-00:00:00 DefMemPerCPU=500 PriorityTier=1
PartitionName=short Nodes=$node MaxTime=5 DefMemPerCPU=500 PriorityTier=1
PartitionName=several Nodes=s[1-2] MaxTime=60 DefMemPerCPU=500 PriorityTier=1
PartitionName=urgent Nodes=$node MaxTime=60 DefMemPerCPU=500 PriorityTier=10
CONF

"$(command -v slurmdbd)"
wait_for slurmdbd 60 sacctmgr -n show cluster
{
  sacctmgr -i add cluster test
  sacctmgr -i add account test cluster=test
  for user in root ${SUDO_USER:-}; do sacctmgr -i add user "$user" account=test cluster=test defaultaccount=test; done
} >"$HOME_OF_IT"/log/sacctmgr.log 2>&1 || true # those that are there already are refused
"$(command -v slurmctld)"
for one in "$node" s1 s2; do "$(command -v slurmd)" -N "$one"; done
idle() { [ "$(sinfo -h -p main,several -o %t | sort -u)" = idle ]; }
wait_for "a node of SLURM" 120 idle
sinfo
