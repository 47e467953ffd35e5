package hosts

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

//go:embed host.sh
var hostScript []byte

// The lab's network. Admin is the machine that installs: the only address besides the hosts' own.
const (
	Subnet       = "10.250.0.0/24"
	AdminAddress = "10.250.0.1"
	// Subnet6 has an address of each host, too: its number is that of the IPv4 address.
	Subnet6       = "fd00:250::/64"
	AdminAddress6 = "fd00:250::1"
	MaxHosts      = 20
)

// Options say what Up boots.
type Options struct {
	State  string   // directory for keys, disks and logs; a lab is known by it
	RootFS string   // as software.Build made it
	Roots  []string // other root file systems: host N has number (N-1) modulo the length; none means RootFS for all
	Hosts  int
	Groups Groups    // of InventoryFile; nil makes the first host everything but a worker, and the others workers
	Log    io.Writer // nil drops it
}

// A Lab is a network of hosts, running or not.
type Lab struct {
	State  string `json:"-"`
	Name   string `json:"name"` // unique on the machine: prefix of its network namespaces and cgroups
	RootFS string `json:"rootfs"`
	Hosts  []Host `json:"hosts"`

	log io.Writer
}

// A Host is one machine of a lab.
type Host struct {
	Number  int    `json:"number"` // from 1
	Name    string `json:"name"`
	Address string `json:"address"`
	RootFS  string `json:"rootfs,omitempty"` // if it is not the lab's
}

// Up boots the hosts of a new lab and returns when all of them answer over SSH. What a failed or killed Up left is
// removed by Down.
func Up(ctx context.Context, o Options) (*Lab, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	l, err := newLab(o)
	if err != nil {
		return nil, err
	}
	if err := l.makeRoom(); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := l.boot(ctx); err != nil {
		return nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
	}
	l.say("%d hosts answer after %s", len(l.Hosts), time.Since(start).Round(100*time.Millisecond))
	return l, nil
}

// Prepare makes a lab without its hosts: keys, an inventory, a directory with each host's own files (SeedDir) and a
// network with the port Port for each host. The caller boots the hosts there, and ends them before Down. With a
// RootFS, hosts that the caller does not boot are for Start.
func Prepare(ctx context.Context, o Options) (*Lab, error) {
	if o.RootFS != "" {
		if err := Check(); err != nil {
			return nil, err
		}
	}
	l, err := newLab(o)
	if err != nil {
		return nil, err
	}
	if o.RootFS != "" {
		if err := l.makeRoom(); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(l.keys(), l.networkUp(ctx)); err != nil {
		return nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// newLab makes the state directory of a lab that is not there yet, with its inventory.
func newLab(o Options) (*Lab, error) {
	if o.Hosts < 1 || o.Hosts > MaxHosts {
		return nil, fmt.Errorf("%d hosts: the lab boots 1 to %d", o.Hosts, MaxHosts)
	}
	state, err := filepath.Abs(o.State)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(state, "lab.json")); err == nil {
		return nil, fmt.Errorf("a lab is up in %s already: take it down first", state)
	}
	l := &Lab{State: state, Name: nameOf(state), RootFS: o.RootFS, log: o.Log}
	for i := 1; i <= o.Hosts; i++ {
		h := Host{Number: i, Name: fmt.Sprintf("host%d", i), Address: fmt.Sprintf("10.250.0.%d", 10+i)}
		if len(o.Roots) > 0 {
			h.RootFS = o.Roots[(i-1)%len(o.Roots)]
		}
		l.Hosts = append(l.Hosts, h)
	}
	if err := l.save(); err != nil {
		return nil, err
	}
	if o.Groups == nil {
		o.Groups = l.oneControlPlane()
	}
	return l, l.WriteInventory(l.InventoryFile(), o.Groups)
}

// Open finds the lab that Up booted with this state directory. The error is os.ErrNotExist if there is none.
func Open(state string, log io.Writer) (*Lab, error) {
	state, err := filepath.Abs(state)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(state, "lab.json"))
	if err != nil {
		return nil, fmt.Errorf("no lab is up: %w", err)
	}
	l := &Lab{State: state, log: log}
	if err := json.Unmarshal(data, l); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(state, "lab.json"), err)
	}
	return l, nil
}

// Host returns the host of this number, from 1.
func (l *Lab) Host(number int) (Host, error) {
	if number < 1 || number > len(l.Hosts) {
		return Host{}, fmt.Errorf("no host %d: the lab has 1 to %d", number, len(l.Hosts))
	}
	return l.Hosts[number-1], nil
}

// Command returns a command that runs in the lab's network, beside the hosts, as the machine that installs would.
func (l *Lab) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", l.netns(), name}, args...)...)
}

// SSH returns a command that runs a shell line on a host as root.
func (l *Lab) SSH(ctx context.Context, h Host, line string) *exec.Cmd {
	return l.Command(ctx, "ssh", "-i", l.KeyFile(), "-o", "UserKnownHostsFile="+l.KnownHostsFile(), "-o",
		"IdentitiesOnly=yes",
		"-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "LogLevel=ERROR", "root@"+h.Address, line)
}

// KeyFile is the private key that opens root's and the sudo user's account on every host.
func (l *Lab) KeyFile() string { return filepath.Join(l.State, "id_ed25519") }

// KnownHostsFile has the host keys of all hosts.
func (l *Lab) KnownHostsFile() string { return filepath.Join(l.State, "known_hosts") }

// HostDir is where a host's disk and logs are.
func (l *Lab) HostDir(h Host) string { return l.hostDir(h) }

// SeedDir has the files that differ from host to host, below the root of its file system. They are root's, and the
// sudo user's below home/.
func (l *Lab) SeedDir(h Host) string { return filepath.Join(l.hostDir(h), "seed") }

// Port is the name of a host's port at the lab's bridge: an interface in the network namespace that Command runs in.
func (l *Lab) Port(h Host) string { return fmt.Sprintf("h%d", h.Number) }

// Bridge is the name of the lab's bridge, in the same namespace.
const Bridge = "labbr0"

func (l *Lab) netns() string { return l.Name + "-admin" }

func (l *Lab) hostDir(h Host) string { return filepath.Join(l.State, "hosts", h.Name) }

func (l *Lab) boot(ctx context.Context) error {
	if err := l.keys(); err != nil {
		return err
	}
	if err := l.networkUp(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, h := range l.Hosts {
		group.Go(func() error { return l.Start(ctx, h) })
	}
	return group.Wait()
}

func (l *Lab) save() error {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(l.State, "hosts"), 0o755); err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	if err := os.WriteFile(filepath.Join(l.State, "host.sh"), hostScript, 0o755); err != nil {
		return fmt.Errorf("state of the lab: %w", err)
	}
	return os.WriteFile(filepath.Join(l.State, "lab.json"), append(data, '\n'), 0o644)
}

// nameOf derives a lab's name from its directory: short, as it becomes part of interface names' neighbours.
func nameOf(state string) string {
	sum := sha256.Sum256([]byte(state))
	return "kklab-" + hex.EncodeToString(sum[:3])
}

func (l *Lab) say(format string, args ...any) {
	if l.log != nil {
		fmt.Fprintf(l.log, "lab: "+format+"\n", args...)
	}
}

// script runs host.sh for a host.
func (l *Lab) script(ctx context.Context, h Host, verb string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(l.State, "host.sh"), verb)
	cmd.Env = append(os.Environ(),
		"LAB="+l.Name, fmt.Sprintf("N=%d", h.Number), "DIR="+l.hostDir(h), "ROOTFS="+cmp.Or(h.RootFS, l.RootFS),
		"ADDRESS="+h.Address,
		"PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	return cmd
}

func run(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
