package node

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// IP sets of a prefix go and others stay, without an ipset program.
func TestDestroySets(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	if _, err := os.Stat(ipsetModule); err != nil {
		t.Skipf("this kernel has no IP sets: %v", err)
	}
	type outcome struct {
		destroyed, left []string
		err             error
	}
	result := make(chan outcome)
	go func() { // its thread has a network namespace of its own, and ends with it
		runtime.LockOSThread()
		var o outcome
		if o.err = unix.Unshare(unix.CLONE_NEWNET); o.err == nil {
			for _, name := range []string{"cali40s:one", "theirs", "cali60s:two"} {
				o.err = errors.Join(o.err, createSet(name))
			}
		}
		if o.err == nil {
			o.destroyed, o.err = DestroySets("cali")
		}
		if o.err == nil {
			o.left, o.err = setNames()
		}
		result <- o
	}()
	o := <-result
	slices.Sort(o.destroyed)
	if o.err != nil || !slices.Equal(o.destroyed, []string{"cali40s:one", "cali60s:two"}) ||
		!slices.Equal(o.left, []string{"theirs"}) {
		t.Errorf("destroyed %q, left %q: %v", o.destroyed, o.left, o.err)
	}
	if _, err := DestroySets(""); err == nil {
		t.Error("all sets of the host were to be destroyed, and it was done")
	}
}

// createSet makes a set of networks.
func createSet(name string) error {
	const create, typename, revision, family, data = 2, 3, 4, 5, 7
	return askNetfilter(unix.NFNL_SUBSYS_IPSET<<8|create, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		[]netfilterAttribute{
			{ipsetProtocol, []byte{ipsetVersion}},
			{ipsetName, append([]byte(name), 0)},
			{typename, []byte("hash:net\x00")},
			{revision, []byte{6}},
			{family, []byte{unix.AF_INET}},
			{data | unix.NLA_F_NESTED, nil},
		}, func(byte, []byte) {})
}
