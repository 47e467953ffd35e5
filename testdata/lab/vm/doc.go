// Package vm boots virtual machines for the lab: Debian with its own kernel under QEMU, on the same network without a
// way out as the hosts of package hosts. They have what hosts in namespaces of one kernel cannot have: a boot, cgroup
// v2, kernel modules, swap, a clock and a packet filter of their own, AppArmor and SELinux.
//
// It needs root, qemu-system-x86_64, mmdebstrap, loop devices and /dev/net/tun; Missing lists missing programs.
// Machines run without KVM unless KKBUNDLE_VM_ACCEL=kvm is set: their processors are about 15 times slower than the
// machine's.
package vm
