package machine

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/hostfile"
)

// TimesyncdPath is ClockTask's file for systemd-timesyncd.
const TimesyncdPath = "/etc/systemd/timesyncd.conf.d/kkbundle.conf"

// ClockTask makes hosts use the time servers of the cluster file. Hosts of the inventory can be time servers, for sites
// without one. Without servers in the cluster file, clocks are unchanged.
func ClockTask() task.Task {
	return task.Task{
		Name:        "clock",
		Independent: true,
		Follows:     true,               // time servers of the inventory serve all its hosts
		Packages:    []string{"chrony"}, // also for clocks that the operator manages
		Leaves:      task.Leaves{Undo: RestoreClock},
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if len(t.Site.Cluster.Time.Servers) == 0 {
				return true, nil
			}
			c, err := clockConfig(ctx, t)
			if err != nil || !bytes.Equal(c.have, c.want) {
				task.Because(ctx, "%s %s", c.path, task.LineDifference(c.have, c.want))
				return false, err
			}
			return t.HasFiles(ctx, marks.Clock.File(nil))
		},
		Do: func(ctx context.Context, t *task.Host) error {
			c, err := clockConfig(ctx, t)
			if err != nil {
				return err
			}
			if err := t.Write(ctx, marks.Clock.File(nil)); err != nil { // the stamp makes reset undo the next change
				return err
			}
			if err := SetTime(ctx, t, c); err != nil {
				return err
			}
			return t.Systemctl(ctx, "enable", c.unit)
		},
	}
}

// clockConfig returns the host's time configuration for the servers of the cluster file.
func clockConfig(ctx context.Context, t *task.Host) (timeConfig, error) {
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
				from.Clients = append(from.Clients, one.Addresses()...)
			}
		}
	}
	return TimeConfig(ctx, t, from)
}

// RestoreClock restores the configuration that ClockTask changed.
func RestoreClock(ctx context.Context, t *task.Host) error {
	if ours, err := marks.Clock.Exists(ctx, t); err != nil || !ours {
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

// TimeSources are a host's time servers, and the clients that it serves.
type TimeSources struct {
	Servers, Pools []string
	Clients        []netip.Addr
}

// A timeConfig is the current and the wanted configuration of a host's time service.
type timeConfig struct {
	path, unit string
	have, want []byte
}

// ErrNoTimeService means that TimeConfig found no supported time service.
var ErrNoTimeService = errors.New("the host has neither chrony nor systemd-timesyncd: install one of them first")

// TimeConfig returns the configuration of the host's time service. Without sources, want is the configuration before
// kkbundle's changes.
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
	case len(from.Clients) > 0:
		return timeConfig{}, errors.New("systemd-timesyncd cannot serve the time to other hosts; install chrony")
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

// SetTime writes the configuration and restarts the time service.
func SetTime(ctx context.Context, t *task.Host, c timeConfig) error {
	if err := t.Edit(ctx, c.path, c.want); err != nil {
		return err
	}
	return t.Systemctl(ctx, "restart", c.unit)
}

// WithSources writes time sources into a marked block of chrony's configuration and disables the other sources. Without
// sources it enables the others again.
// https://chrony-project.org/doc/4.6/chrony.conf.html: allow, local (orphan: several hosts agree on one of them),
// server, pool
func WithSources(config []byte, from TimeSources) []byte {
	var lines []string
	for _, s := range from.Servers {
		lines = append(lines, "server "+s+" iburst")
	}
	for _, p := range from.Pools {
		lines = append(lines, "pool "+p+" iburst")
	}
	if len(from.Clients) > 0 {
		lines = append(lines, "local stratum 10 orphan")
	}
	for _, a := range from.Clients {
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
