package node

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
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
	out, err := newNetns(t).helper("sets").CombinedOutput()
	if want := "destroyed cali40s:one cali60s:two, left theirs\n"; err != nil || string(out) != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
	if _, err := DestroySets(""); err == nil {
		t.Error("all sets of the host were to be destroyed, and it was done")
	}
}

// destroySets makes sets in the namespace of its process, and says which of them go. A thread of the tests' own process
// cannot have such a namespace: were it the first thread, /proc/net would be the namespace's for all tests.
func destroySets(w io.Writer) error {
	for _, name := range []string{"cali40s:one", "theirs", "cali60s:two"} {
		if err := createSet(name); err != nil {
			return err
		}
	}
	destroyed, err := DestroySets("cali")
	if err != nil {
		return err
	}
	left, err := setNames()
	slices.Sort(destroyed)
	fmt.Fprintf(w, "destroyed %s, left %s\n", strings.Join(destroyed, " "), strings.Join(left, " "))
	return err
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
