package installer

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
)

const (
	clockStamp    = stampDir + "/clock"
	timesyncdPath = "/etc/systemd/timesyncd.conf.d/kkbundle.conf"
)

// clockTask has hosts take the time from the servers of the cluster file, of which some may be hosts of the inventory: on a site
// without a time server, that is how hosts agree. Without servers, clocks are left to whoever keeps them.
func clockTask() Task {
	return Task{
		Name:     "clock",
		Apart:    true,
		Follows:  true,               // hosts that give the time give it to those of the inventory
		Packages: []string{"chrony"}, // also for whoever keeps the clocks without us
		Leaves:   Leaves{Undo: giveBackClock},
		Done: func(ctx context.Context, t *Target) (bool, error) {
			if len(t.run.cluster.Time.Servers) == 0 {
				return true, nil
			}
			c, err := t.timeSettings(ctx)
			if err != nil || !bytes.Equal(c.have, c.want) {
				because(ctx, "%s %s", c.path, lineDifference(c.have, c.want))
				return false, err
			}
			return t.has(ctx, textFile{clockStamp, 0o600, nil})
		},
		Do: func(ctx context.Context, t *Target) error {
			c, err := t.timeSettings(ctx)
			if err != nil {
				return err
			}
			if err := t.write(ctx, textFile{clockStamp, 0o600, nil}); err != nil { // what is changed next is for Reset to undo
				return err
			}
			if err := t.setTime(ctx, c); err != nil {
				return err
			}
			return t.systemctl(ctx, "enable", c.unit)
		},
	}
}

// timeSettings are how the host shall keep the time.
func (t *Target) timeSettings(ctx context.Context) (timeConfig, error) {
	servers := t.run.cluster.Time.Servers
	var from timeSources
	gives := slices.Contains(servers, t.Name)
	for _, name := range servers {
		if name == t.Name {
			continue
		}
		if other := t.run.target(name); other != nil {
			name = other.IP.String()
		}
		from.servers = append(from.servers, name)
	}
	if gives {
		for _, one := range t.run.targets {
			if one != t {
				from.takers = append(from.takers, one.addresses()...)
			}
		}
	}
	return t.timeConfig(ctx, from)
}

// giveBackClock puts the configuration of before back, where clockTask has changed it.
func giveBackClock(ctx context.Context, t *Target) error {
	if ours, err := t.test(ctx, "test", "-e", clockStamp); err != nil || !ours {
		return err
	}
	c, err := t.timeConfig(ctx, timeSources{})
	if errors.Is(err, errNoTimeService) || err == nil && bytes.Equal(c.have, c.want) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(c.want) == 0 {
		if err := t.command(ctx, "rm", "-f", c.path); err != nil {
			return err
		}
		_, err = t.test(ctx, "systemctl", "restart", c.unit)
		return err
	}
	return t.setTime(ctx, c)
}

// timeSources are where a host takes the time from, and the addresses that it gives it to.
type timeSources struct {
	servers, pools []string
	takers         []netip.Addr
}

// A timeConfig is the configuration of a host's time service as it is and as it shall be.
type timeConfig struct {
	path, unit string
	have, want []byte
}

var errNoTimeService = errors.New("the host has neither chrony nor systemd-timesyncd: install one of them first")

// timeConfig reads the configuration of the host's time service. Without sources, want is what the distribution or the host's
// owner has written.
func (t *Target) timeConfig(ctx context.Context, from timeSources) (timeConfig, error) {
	for _, c := range []timeConfig{
		{path: "/etc/chrony/chrony.conf", unit: "chrony.service"}, // Debian
		{path: "/etc/chrony.conf", unit: "chronyd.service"},
	} {
		have, err := t.read(ctx, c.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c.have, c.want = have, withSources(have, from)
		return c, err
	}
	there, err := t.test(ctx, "test", "-e", "/usr/lib/systemd/systemd-timesyncd")
	switch {
	case err != nil:
		return timeConfig{}, err
	case !there:
		return timeConfig{}, errNoTimeService
	case len(from.takers) > 0:
		return timeConfig{}, fmt.Errorf("%s shall give other hosts the time, and systemd-timesyncd cannot: install chrony", t.Name)
	}
	c := timeConfig{path: timesyncdPath, unit: "systemd-timesyncd.service"}
	if c.have, err = t.read(ctx, c.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	if sources := slices.Concat(from.servers, from.pools); len(sources) > 0 {
		c.want = []byte(hostfile.Mark + "\n[Time]\nNTP=" + strings.Join(sources, " ") + "\n")
	}
	return c, nil
}

func (t *Target) setTime(ctx context.Context, c timeConfig) error {
	if err := t.edit(ctx, c.path, c.want); err != nil {
		return err
	}
	return t.systemctl(ctx, "restart", c.unit)
}

// withSources puts sources of time into chrony's configuration in a marked block, instead of those that are there. Without any,
// those that were there count again.
// https://chrony-project.org/doc/4.6/chrony.conf.html: allow, local (orphan: several hosts agree on one of them), server, pool
func withSources(config []byte, from timeSources) []byte {
	var lines []string
	for _, s := range from.servers {
		lines = append(lines, "server "+s+" iburst")
	}
	for _, p := range from.pools {
		lines = append(lines, "pool "+p+" iburst")
	}
	if len(from.takers) > 0 {
		lines = append(lines, "local stratum 10 orphan")
	}
	for _, a := range from.takers {
		lines = append(lines, "allow "+a.String())
	}
	var kept bytes.Buffer
	for line := range bytes.Lines(withBlock(config, nil)) {
		line = bytes.TrimPrefix(line, []byte(takenOut))
		first, _, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		if len(lines) > 0 && slices.Contains([]string{"server", "pool", "peer", "sourcedir"}, first) {
			kept.WriteString(takenOut)
		}
		kept.Write(line)
	}
	return withBlock(kept.Bytes(), lines)
}
