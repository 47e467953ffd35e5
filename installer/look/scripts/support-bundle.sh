#!/bin/sh
# support-bundle.sh BYTES FILE [NAMESPACE...]: prints the end of what becomes a file of the support bundle, with logs of pods of these
# namespaces, or of all. It only looks.
answer() {
	case $1 in
	versions.txt)
		uname -a
		cat /etc/os-release
		for p in kubelet kubeadm kubectl; do
			command -v "$p" >/dev/null && echo "$p $("$p" --version 2>/dev/null || "$p" version --client 2>/dev/null)"
		done
		for p in containerd runc dockerd crio k3s etcd; do command -v "$p" >/dev/null && "$p" --version; done 2>&1
		;;
	system.txt)
		each "uptime" "df -h" "df -i" "free -m" "cat /proc/mounts" "cat /proc/swaps" "systemctl list-units --failed --no-pager" \
			"systemctl list-timers --no-pager" "lsmod" "timedatectl" 2>&1
		;;
	network.txt)
		each "ip -d address" "ip route" "ip -6 route" "ip rule" "ss -ltunp" "cat /etc/resolv.conf" "cat /etc/hosts" 2>&1
		;;
	processes.txt) ps -eo pid,ppid,user,rss,etimes,comm --sort=-rss | head -n 200 ;; # no arguments: they may be secret
	images.txt)
		if command -v docker >/dev/null; then docker image list --all --no-trunc; elif command -v ctr >/dev/null; then ctr -n k8s.io images ls -q; fi 2>&1
		;;
	kernel.log) journalctl --dmesg --no-pager --quiet --lines=2000 2>/dev/null ;;
	units.log)
		for u in kubelet containerd docker cri-docker crio k3s k3s-agent etcd haproxy keepalived harbor docker-containerd 'kkbundle-*'; do
			journalctl --no-pager --quiet --output=short-iso --lines=3000 --unit="$u" 2>/dev/null
		done
		;;
	pods.log) logs "$@" ;;
	state.txt)
		ls -laR /var/lib/kkbundle/applied /etc/kubernetes /etc/cni /opt/cni/bin /var/lib/kubelet/pki 2>/dev/null
		cat /var/lib/kkbundle/applied/member 2>/dev/null
		;;
	configuration.txt) configuration 2>/dev/null ;;
	esac
}
# The directory of a pod's logs is named NAMESPACE_POD_UID.
logs() {
	shift
	[ $# -gt 0 ] || set -- '*'
	for namespace; do
		find /var/log/pods -path "/var/log/pods/${namespace}_*" -name '*.log' -exec tail -v -n 200 {} + 2>/dev/null
	done
}
each() {
	for c; do
		echo "# $c"
		$c # its words are a command
		echo
	done
}
# Configuration files that are known to hold settings. All others stay on the host, whatever their name: keys, kubeconfigs, logins.
configuration() {
	for f in /etc/kubernetes/manifests/*.yaml /etc/kubernetes/security/admission.yaml /etc/kubernetes/security/audit-policy.yaml \
		/var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /var/lib/kubelet/instance-config.yaml /etc/default/kubelet /etc/sysconfig/kubelet \
		/etc/containerd/config.toml /etc/containerd/conf.d/*.toml /etc/containerd/certs.d/*/hosts.toml /etc/docker/daemon.json \
		/etc/crio/crio.conf /etc/crio/crio.conf.d/*.conf /etc/rancher/k3s/config.yaml /etc/rancher/k3s/config.yaml.d/*.yaml \
		/etc/cni/net.d/*.conf /etc/cni/net.d/*.conflist /etc/kkbundle/haproxy.cfg \
		/etc/sysctl.d/99-zz-kkbundle.conf /etc/modules-load.d/kkbundle.conf \
		/etc/systemd/system/kubelet.service /etc/systemd/system/containerd.service /etc/systemd/system/docker.service \
		/etc/systemd/system/cri-docker.service /etc/systemd/system/crio.service /etc/systemd/system/k3s.service /etc/systemd/system/k3s-agent.service \
		/etc/systemd/system/etcd.service /etc/systemd/system/harbor.service /etc/systemd/system/docker-containerd.service /etc/systemd/system/kkbundle-* \
		/etc/systemd/system/kubelet.service.d/*.conf /etc/systemd/system/containerd.service.d/*.conf /etc/systemd/system/docker.service.d/*.conf \
		/etc/systemd/system/crio.service.d/*.conf /etc/systemd/system/k3s.service.d/*.conf /etc/systemd/system/etcd.service.d/*.conf \
		/etc/chrony.conf /etc/chrony/chrony.conf /etc/chrony/conf.d/*.conf /etc/chrony/sources.d/*.sources; do
		if [ ! -f "$f" ] || [ -h "$f" ]; then continue; fi
		echo "==> $f <=="
		case $f in
		*/hosts.toml) grep -E '^ *(server|capabilities|skip_verify|override_path|ca) *=|^ *\[host\.[^]]*\]$' "$f" ;; # its headers are logins
		*) head -c 262144 "$f" ;;
		esac
		echo
	done
}
bytes=$1
shift
answer "$@" | tail -c "$bytes"
exit 0
