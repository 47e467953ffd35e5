//go:build linux

package task

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/pki"
)

// TestEventually tries until something is so, and says what was not when the time is over: not that the last try was
// cut short.
func TestEventually(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries, ready := 0, errors.New("not ready")
		err := Eventually(t.Context(), time.Minute, func(context.Context) error {
			if tries++; tries < 10 {
				return ready
			}
			return nil
		})
		if err != nil || tries != 10 {
			t.Errorf("got %v after %d tries", err, tries)
		}
		tries = 0
		begin := time.Now()
		err = Eventually(t.Context(), time.Minute, func(ctx context.Context) error {
			if tries++; tries < 10 {
				return ready
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || err.Error() != "not ready (waited 1m0s)" || time.Since(begin) != time.Minute {
			t.Errorf("got %v after %s", err, time.Since(begin))
		}
	})
}

func TestReasonsAreBounded(t *testing.T) {
	t.Parallel()
	ctx, why := WithReasons(t.Context())
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { Because(ctx, "one") })
	}
	all.Wait()
	for _, text := range []string{"two", "three", "four", "five"} {
		Because(ctx, "%s", text)
	}
	if got, want := why.String(), "one; two; three; and 2 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInterfaceWith(t *testing.T) {
	t.Parallel()
	const text = `1: lo    inet 127.0.0.1/8 scope host lo\       valid_lft forever preferred_lft forever
2: eth0    inet 192.168.9.3/24 brd 192.168.9.255 scope global eth0\       valid_lft forever preferred_lft forever
3: bond0.7@bond0    inet 10.0.0.3/24 brd 10.0.0.255 scope global bond0.7\       valid_lft forever preferred_lft forever
4: other    inet 10.0.0.100/32 scope global other
3: bond0.7    inet6 fd00:1::3/64 scope global \       valid_lft forever preferred_lft forever
garbage
`
	for address, want := range map[string]string{
		"10.0.0.100": "bond0.7@bond0", "192.168.9.77": "eth0",
		"fd00:1::100": "bond0.7", "10.0.1.1": "",
	} {
		if got := InterfaceWith(text, netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
}

func TestDistributionsOfPackages(t *testing.T) {
	t.Parallel()
	r := &Site{}
	for _, ref := range []string{
		"packages/debian/12/socat_1.deb", "packages/rocky/9/socat.rpm",
		"packages/debian/12/ipset_1.deb", "https://x/y",
	} {
		r.Items = append(r.Items, bundle.Item{Ref: ref})
	}
	if got := r.Distributions(); !slices.Equal(got, []string{"debian/12", "rocky/9"}) {
		t.Errorf("got %q", got)
	}
}

func TestOwnerEnded(t *testing.T) {
	t.Parallel()
	me := Owner{Machine: "here", PID: os.Getpid()}
	child := exec.CommandContext(t.Context(), "true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	gone := child.Process.Pid
	for name, c := range map[string]struct {
		by   Owner
		want bool
	}{
		"this run":              {me, false},
		"one that is gone":      {Owner{Machine: "here", PID: gone}, true},
		"one that lives":        {Owner{Machine: "here", PID: os.Getppid()}, false},
		"one of another place":  {Owner{Machine: "there", PID: gone}, false},
		"nobody knows who":      {Owner{}, false},
		"an impossible process": {Owner{Machine: "here", PID: -1}, false},
	} {
		if got := c.by.Ended(me); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	t.Parallel()
	const mounts = `/dev/sda1 / ext4 rw 0 0
/dev/loop0 /var/lib/kubelet ext4 rw 0 0
tmpfs /var/lib/kubelet/pods/a/volumes/x tmpfs rw 0 0
tmpfs /var/lib/kubelet/pods/a\040b tmpfs rw 0 0
/dev/sdb /data ext4 rw 0 0
`
	got := mountsBelow(mounts, []string{"/var/lib/kubelet/"})
	want := []string{"/var/lib/kubelet/pods/a b", "/var/lib/kubelet/pods/a/volumes/x"}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestMasker(t *testing.T) {
	t.Parallel()
	m := NewMasker()
	m.Hide("correct-horse")
	for text, want := range map[string]string{
		"--password correct-horse x":                                           "--password *** x",
		"Basic Y29ycmVjdC1ob3JzZQ==":                                           "Basic ***",
		"kubeadm join --token abcdef.0123456789abcdef":                         "kubeadm join --token ***",
		"certificate key:\n" + strings.Repeat("0a", 32):                        "certificate key:\n***",
		"    client-key-data: LS0tLS1CRUdJTg==\n    b: c":                      "    client-key-data: ***\n    b: c",
		"-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----\nx": "-----BEGIN EC PRIVATE KEY-----***-----END EC PRIVATE KEY-----\nx",
		"-----BEGIN PRIVATE KEY-----\nabc, and the rest was cut off":           "-----BEGIN PRIVATE KEY-----***",
		"nothing secret at 10.0.0.3:6443":                                      "nothing secret at 10.0.0.3:6443",
	} {
		if got := m.Mask(text); got != want {
			t.Errorf("mask(%q) = %q, want %q", text, got, want)
		}
	}
}

// The certificate's pin was computed with
// openssl x509 -pubkey -noout | openssl pkey -pubin -outform DER | sha256sum.
func TestPin(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.ParseCertificate(data)
	if err != nil {
		t.Fatal(err)
	}
	if got := Pin(cert); got != "sha256:ab9b3d4e1051ea35deb142af16b3020d13cf4f3b7e95e8d040932985a54486f1" {
		t.Errorf("got %s", got)
	}
}

func TestEventsAreJSON(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(Event{Version: 1, Phase: "init", Task: "swap", Host: "cp1", State: Changed, Duration: 5})
	want := `{"version":1,"time":"0001-01-01T00:00:00Z","phase":"init","task":"swap","host":"cp1","state":"changed","duration":"5ns"}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v", data, err)
	}
}
