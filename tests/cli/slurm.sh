# A Slurm of one node with munge, in $folder, of the user who runs it. Source it after program.sh. Its daemons end with the
# script.
slurm_daemons=()

# Kills, because slurmd waits for steps, and the step of a killed rank may stay. Steps are in sessions of their own.
end_slurm() {
  local place
  kill -KILL "${slurm_daemons[@]}" 2>/dev/null
  wait "${slurm_daemons[@]}" 2>/dev/null
  for place in /proc/[0-9]*; do
    [ "$(cat "$place/comm" 2>/dev/null)" = slurmstepd ] || continue
    grep -qs "SLURM_CONF=$SLURM_CONF" "$place/environ" && kill -KILL "${place#/proc/}"
  done
  rm -rf "$folder"
}

# slurm_daemon NAME COMMAND...
slurm_daemon() {
  "${@:2}" >"$folder/$1.out" 2>&1 </dev/null &
  slurm_daemons+=($!)
}

slurm_is_idle() { sinfo --noheader --format=%T 2>/dev/null | grep '^idle' >/dev/null; }

start_slurm() {
  local name
  name=$(hostname -s)
  trap end_slurm EXIT
  chmod 755 "$folder"
  mkdir "$folder/state" "$folder/spool"
  (umask 077 && head -c 64 /dev/urandom >"$folder/munge.key")
  export SLURM_CONF=$folder/slurm.conf
  cat >"$SLURM_CONF" <<TEXT
ClusterName=gdx
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.sock
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
KillWait=5
NodeName=$name NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
TEXT
  slurm_daemon munged munged --force --foreground --key-file="$folder/munge.key" --socket="$folder/munge.sock" \
    --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" --seed-file="$folder/munge.seed"
  until_true test -S "$folder/munge.sock" || fail "no munged: $(cat "$folder/munged.out")"
  slurm_daemon slurmctld slurmctld -D -c
  slurm_daemon slurmd slurmd -D
  until_true slurm_is_idle || fail "no Slurm: $(tail -n 5 "$folder"/slurm*.out)"
}
