package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/hostfile"
	"github.com/kkbundle/kkbundle/installer/task"
)

const (
	clockStamp    = task.StampDir + "/clock"
	TimesyncdPath = "/etc/systemd/timesyncd.conf.d/kkbundle.conf"
)

// ClockTask has hosts take the time from the servers of the cluster file, of which some may be hosts of the inventory: on a site
// without a time server, that is how hosts agree. Without servers, clocks are left to whoever keeps them.
func ClockTask() task.Task {
	return task.Task{
		Name:        "clock",
		Independent: true,
		Follows:     true,               // hosts that give the time give it to those of the inventory
		Packages:    []string{"chrony"}, // also for whoever keeps the clocks without us
		Leaves:      task.Leaves{Undo: GiveBackClock},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if len(t.Site.Cluster.Time.Servers) == 0 {
				return true, nil
			}
			c, err := timeSettings(ctx, t)
			if err != nil || !bytes.Equal(c.have, c.want) {
				task.Because(ctx, "%s %s", c.path, task.LineDifference(c.have, c.want))
				return false, err
			}
			return t.HasFiles(ctx, task.File{Path: clockStamp, Mode: 0o600, Data: nil})
		},
		Do: func(ctx context.Context, t *task.Host) error {
			c, err := timeSettings(ctx, t)
			if err != nil {
				return err
			}
			if err := t.Write(ctx, task.File{Path: clockStamp, Mode: 0o600, Data: nil}); err != nil { // what is changed next is for Reset to undo
				return err
			}
			if err := SetTime(ctx, t, c); err != nil {
				return err
			}
			return t.Systemctl(ctx, "enable", c.unit)
		},
	}
}

// timeSettings are how the host shall keep the time.
func timeSettings(ctx context.Context, t *task.Host) (timeConfig, error) {
	servers := t.Site.Cluster.Time.Servers
	var from TimeSources
	gives := slices.Contains(servers, t.Name)
	for _, name := range servers {
		if name == t.Name {
			continue
		}
		if other := t.Site.HostNamed(name); other != nil {
			name = other.IP.String()
		}
		from.Servers = append(from.Servers, name)
	}
	if gives {
		for _, one := range t.Site.Hosts {
			if one != t {
				from.Takers = append(from.Takers, one.Addresses()...)
			}
		}
	}
	return TimeConfig(ctx, t, from)
}

// GiveBackClock puts the configuration of before back, where ClockTask has changed it.
func GiveBackClock(ctx context.Context, t *task.Host) error {
	if ours, err := t.Test(ctx, "test", "-e", clockStamp); err != nil || !ours {
		return err
	}
	c, err := TimeConfig(ctx, t, TimeSources{})
	if errors.Is(err, ErrNoTimeService) || err == nil && bytes.Equal(c.have, c.want) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(c.want) == 0 {
		if err := t.Run(ctx, "rm", "-f", c.path); err != nil {
			return err
		}
		_, err = t.Test(ctx, "systemctl", "restart", c.unit)
		return err
	}
	return SetTime(ctx, t, c)
}

// TimeSources are where a host takes the time from, and the addresses that it gives it to.
type TimeSources struct {
	Servers, Pools []string
	Takers         []netip.Addr
}

// A TimeConfig is the configuration of a host's time service as it is and as it shall be.
type timeConfig struct {
	path, unit string
	have, want []byte
}

var ErrNoTimeService = errors.New("the host has neither chrony nor systemd-timesyncd: install one of them first")

// TimeConfig reads the configuration of the host's time service. Without sources, want is what the distribution or the host's
// owner has written.
func TimeConfig(ctx context.Context, t *task.Host, from TimeSources) (timeConfig, error) {
	for _, c := range []timeConfig{
		{path: "/etc/chrony/chrony.conf", unit: "chrony.service"}, // Debian
		{path: "/etc/chrony.conf", unit: "chronyd.service"},
	} {
		have, err := t.Read(ctx, c.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c.have, c.want = have, WithSources(have, from)
		return c, err
	}
	there, err := t.Test(ctx, "test", "-e", "/usr/lib/systemd/systemd-timesyncd")
	switch {
	case err != nil:
		return timeConfig{}, err
	case !there:
		return timeConfig{}, ErrNoTimeService
	case len(from.Takers) > 0:
		return timeConfig{}, fmt.Errorf("%s shall give other hosts the time, and systemd-timesyncd cannot: install chrony", t.Name)
	}
	c := timeConfig{path: TimesyncdPath, unit: "systemd-timesyncd.service"}
	if c.have, err = t.Read(ctx, c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if sources := slices.Concat(from.Servers, from.Pools); len(sources) > 0 {
		c.want = []byte(hostfile.Mark + "\n[Time]\nNTP=" + strings.Join(sources, " ") + "\n")
	}
	return c, nil
}

func SetTime(ctx context.Context, t *task.Host, c timeConfig) error {
	if err := t.Edit(ctx, c.path, c.want); err != nil {
		return err
	}
	return t.Systemctl(ctx, "restart", c.unit)
}

// WithSources puts sources of time into chrony's configuration in a marked block, instead of those that are there. Without any,
// those that were there count again.
// https://chrony-project.org/doc/4.6/chrony.conf.html: allow, local (orphan: several hosts agree on one of them), server, pool
func WithSources(config []byte, from TimeSources) []byte {
	var lines []string
	for _, s := range from.Servers {
		lines = append(lines, "server "+s+" iburst")
	}
	for _, p := range from.Pools {
		lines = append(lines, "pool "+p+" iburst")
	}
	if len(from.Takers) > 0 {
		lines = append(lines, "local stratum 10 orphan")
	}
	for _, a := range from.Takers {
		lines = append(lines, "allow "+a.String())
	}
	var kept bytes.Buffer
	for line := range bytes.Lines(WithBlock(config, nil)) {
		line = bytes.TrimPrefix(line, []byte(task.CommentedOut))
		first, _, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if len(lines) > 0 && slices.Contains([]string{"server", "pool", "peer", "sourcedir"}, first) {
			kept.WriteString(task.CommentedOut)
		}
		kept.Write(line)
	}
	return WithBlock(kept.Bytes(), lines)
}
