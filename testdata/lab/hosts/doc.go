// Package hosts boots Debian machines for the lab: systemd-nspawn containers with an address, an sshd, cgroups and a
// disk of their own on a network that leads nowhere. To what is installed on them they are servers without internet.
//
// A lab belongs to a state directory; several may run at a time. It needs root, cgroup v1 and a kernel with overlayfs,
// bridges, vxlan and nftables; Check says what is missing.
package hosts
