#!/bin/sh
# restart-static.sh STEP WHOLE GRACE PROCESSES ASK...: ends the processes of static pods, which the kubelet starts again. kubeadm's
# own way, to move the manifests out and back, leaves a host without a control plane when it is interrupted.
#
# Each is ended when what it asks works again, which the command ASK finds out: a component that fails at its start because
# that is away is started later and later by the kubelet, up to five minutes. For the same reason what has started anew by itself
# in the meantime is left alone.
#
# Certificates that have expired keep the API server from being ready before it is restarted itself, so that a step goes on
# after STEP questions, a second apart; what counts is that all is well within WHOLE. A process that has not ended after GRACE is killed.
step=$1 whole=$2 grace=$3 processes=$4
shift 4
old=' '
static() { echo "^$1 .*/etc/kubernetes/"; } # users' pods may run an etcd, too
for process in $processes; do old="$old$(pgrep --full -- "$(static "$process")" | tr '\n' ' ')"; done
restarted() {
	pids=$(pgrep --full -- "$(static "$1")") || return 1
	for pid in $pids; do case "$old" in *" $pid "*) return 1 ;; esac; done
}
ready() { said=$("$@" 2>&1); }
well() {
	for process in $processes; do restarted "$process" || { said="$process has not started again"; return 1; }; done
	ready "$@"
}
for process in $processes; do
	restarted "$process" || pkill --full -- "$(static "$process")" || : # it ended by itself, and is not back
	tries=0
	until { restarted "$process" && ready "$@"; } || [ "$tries" -ge "$step" ]; do
		tries=$((tries + 1))
		[ "$tries" != "$grace" ] || restarted "$process" || pkill -KILL --full -- "$(static "$process")" || :
		sleep 1
	done
done
tries=0
until well "$@"; do
	tries=$((tries + 1))
	[ "$tries" -lt "$whole" ] || { echo "$said" >&2; exit 1; }
	sleep 1
done
