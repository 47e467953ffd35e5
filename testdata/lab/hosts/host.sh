#!/bin/bash
# host.sh run|clean|net: one host of the lab, as a systemd-nspawn container with its own network namespace, cgroups and disk.
#
# Environment: LAB (the lab's unique name), N (the host's number), DIR (the host's directory), ROOTFS, ADDRESS, GATEWAY.
# run stays until the host is switched off or killed, and then removes what a machine loses with its power: cgroups and the
# network namespace. The disk stays, mounted, until clean.
set -u
name=host$N
netns=$LAB-h$N
switch=$LAB-admin
disk=$DIR/disk
root=$DIR/root

say() { echo "$(date +%T) $name: $*"; }

# started PID: the time at which a process started, so that a reused PID is not mistaken for it.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

net_down() {
  ip netns del "$netns" 2>/dev/null
  ip -n "$switch" link del "h$N" 2>/dev/null
  true
}

# The hardware address stays the same, as a machine's does: others remember it.
net_up() {
  for _ in 1 2 3 4 5 6 7 8 9 10; do # the kernel takes a moment to let go of a host's former interfaces
    ip netns add "$netns" && ip -n "$netns" link set lo up &&
      ip -n "$netns" link add eth0 address "$(printf '02:00:0a:fa:00:%02x' "${ADDRESS##*.}")" type veth peer name "h$N" netns "$switch" &&
      ip -n "$switch" link set "h$N" master labbr0 up &&
      ip netns exec "$netns" sysctl -q -w net.ipv4.ip_forward=0 &&
      ip -n "$netns" addr add "$ADDRESS/24" dev eth0 &&
      ip -n "$netns" addr add "fd00:250::${ADDRESS##*.}/64" dev eth0 nodad && ip -n "$netns" link set eth0 up && return 0
    net_down
    sleep 0.2
  done
  say "no network: $netns could not be made"
  return 1
}

# cgroup_enter moves this process into a directory of its own in every hierarchy, below the one that it is in: that becomes
# the root of the container's cgroup namespace. Without it nspawn would put all hosts into one.
cgroup_enter() {
  local line ctl path d p f own
  mapfile -t own </proc/self/cgroup # all of it first: the loop changes it
  : >"$DIR/cgroups"
  for line in "${own[@]}"; do
    IFS=: read -r _ ctl path <<<"$line"
    [ -n "$ctl" ] || ctl=unified # on a hybrid machine nspawn derives the payload's path from the v2 hierarchy
    p=/sys/fs/cgroup/${ctl#name=}$path
    p=${p%/}
    d=$p/$LAB/$name
    mkdir -p "$d" || return 1
    echo "$d" >>"$DIR/cgroups"
    if [ "$ctl" = cpuset ]; then
      for p in "${d%/*}" "$d"; do
        for f in cpuset.cpus cpuset.mems; do [ -n "$(cat "$p/$f")" ] || cat "${p%/*}/$f" >"$p/$f"; done
      done
    fi
    # The kernel weighs groups against each other, whatever their processes' nice value: a lab of 1024 shares gets as much as one
    # program beside it, and its API servers starve on a machine that compiles. These are the shares of ten programs at nice -5.
    case ,$ctl, in *,cpu,*) echo 30000 >"${d%/*}/cpu.shares" || return 1 ;; esac
    echo $$ >"$d/cgroup.procs" || return 1
  done
}

# cgroup_leave moves this process back to where it came from.
cgroup_leave() {
  local d
  while read -r d; do echo $$ >"${d%/*/*}/cgroup.procs"; done <"$DIR/cgroups"
}

# cgroup_clean removes the groups that a stopped host left below its own, deepest first. Leftover groups would cost kubelet
# 50 seconds at its next start.
cgroup_clean() {
  local d
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    local left=0
    while read -r d; do
      [ -d "$d" ] || continue
      find "$d" -mindepth 1 -depth -type d -exec rmdir {} \; 2>/dev/null
      [ -z "$(find "$d" -mindepth 1 -type d)" ] || left=1
    done <"$DIR/cgroups"
    [ $left = 1 ] || return 0
    sleep 0.2
  done
  say "cgroups are left"
}

cgroup_remove() {
  local d
  [ -f "$DIR/cgroups" ] || return 0
  cgroup_clean
  while read -r d; do
    rmdir "$d" 2>/dev/null
    rmdir "${d%/*}" 2>/dev/null # the last host removes the lab's
  done <"$DIR/cgroups"
  rm -f "$DIR/cgroups"
}

mounts_up() {
  mkdir -p "$disk" "$root" || return 1
  if [ ! -f "$DIR/disk.img" ]; then
    truncate -s 20G "$DIR/disk.tmp" && mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1 "$DIR/disk.tmp" && mv "$DIR/disk.tmp" "$DIR/disk.img" || return 1
  fi
  mountpoint -q "$disk" || mount -o loop "$DIR/disk.img" "$disk" || return 1
  mkdir -p "$disk"/{up,work,containerd,containers,docker,kubelet,etcd,registry} || return 1
  mountpoint -q "$root" || mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=$disk/up,workdir=$disk/work" "$root" || return 1
  if [ ! -e "$disk/seeded" ]; then # the first boot: names and keys
    cp -r --preserve=mode "$DIR/seed/." "$root/" && chown -R root:root "$root/root/.ssh" "$root"/etc/ssh &&
      chown -R --reference="$root/home/ops" "$root/home/ops" && touch "$disk/seeded"
  fi
}

mounts_down() {
  local m
  for m in "$root" "$disk"; do
    for _ in $(seq 50); do
      mountpoint -q "$m" || break
      umount "$m" 2>/dev/null && break
      sleep 0.1
    done
    mountpoint -q "$m" && { say "$m is still in use"; return 1; }
  done
  return 0
}

boot() {
  SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=0 SYSTEMD_NSPAWN_API_VFS_WRITABLE=network SYSTEMD_SECCOMP=0 \
    systemd-nspawn -q --register=no --keep-unit -D "$root" --machine="$LAB-$name" --hostname="$name" \
    --network-namespace-path="/run/netns/$netns" --capability=all --resolv-conf=off --timezone=off --link-journal=no \
    --bind="$disk/containerd:/var/lib/containerd" --bind="$disk/docker:/var/lib/docker" --bind="$disk/containers:/var/lib/containers" \
    --bind="$disk/kubelet:/var/lib/kubelet" --bind="$disk/etcd:/var/lib/etcd" \
    --console=pipe /sbin/lab-init --log-target=console </dev/null >>"$DIR/console.log" 2>&1 &
  echo "$! $(started $!)" >"$DIR/nspawn"
  wait $!
}

run() {
  if ! { mounts_up && net_up && cgroup_enter; }; then say "did not start"; stopped; return 1; fi
  while boot; rc=$?; [ $rc = 133 ]; do # 133: the host asked for a reboot
    say "reboot"
    cgroup_clean
    net_down
    net_up || break
  done
  say "off ($rc)"
  stopped
}

stopped() {
  [ -f "$DIR/cgroups" ] && cgroup_leave
  cgroup_remove
  net_down
  rm -f "$DIR/nspawn" "$DIR/supervisor"
}

clean() {
  cgroup_remove
  net_down
  mounts_down
}

"$1"
