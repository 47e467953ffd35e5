package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// clock finds the time daemons, and the kernel's state of the clock.
func (c timeCollector) clock() Time {
	t := Time{Daemons: c.timeDaemons(), Servers: c.timeServers()}
	var state unix.Timex // no modes: nothing is set
	if _, err := unix.Adjtimex(&state); err != nil {
		c.problem("adjtimex", err)
		return t
	}
	const micro = 1000
	unit := int64(micro)
	if state.Status&unix.STA_NANO != 0 {
		unit = 1
	}
	t.Known, t.Synchronized = true, state.Status&unix.STA_UNSYNC == 0
	t.Offset, t.MaxError = state.Offset*unit, state.Maxerror*micro
	return t
}

// timeDaemons finds them among the processes, regardless of their service manager.
func (c timeCollector) timeDaemons() []string {
	known := map[string]string{ // by the kernel's process name (15 bytes)
		"chronyd": "chronyd", "ntpd": "ntpd", "openntpd": "openntpd", "systemd-timesyn": "systemd-timesyncd",
		"ptp4l": "ptp4l",
	}
	files, err := filepath.Glob(c.path("/proc/[0-9]*/comm"))
	c.problem("/proc", err)
	var list []string
	for _, file := range files {
		name, err := os.ReadFile(file) // processes come and go
		if daemon := known[strings.TrimSpace(string(name))]; err == nil && daemon != "" &&
			!slices.Contains(list, daemon) {
			list = append(list, daemon)
		}
	}
	slices.Sort(list)
	return list
}

// timeServers reads the configuration of chrony, ntpd and systemd-timesyncd.
func (c timeCollector) timeServers() []string {
	const most = 100
	var list []string
	add := func(names ...string) {
		for _, n := range names {
			if !slices.Contains(list, n) && len(list) < most {
				list = append(list, n)
			}
		}
	}
	c.lines(func(line string) {
		f := strings.Fields(line)
		if len(f) > 1 && slices.Contains([]string{"server", "pool", "peer"}, f[0]) {
			add(f[1])
		}
	}, "/etc/chrony.conf", "/etc/chrony/chrony.conf", "/etc/chrony.d/*.conf", "/etc/chrony/conf.d/*.conf",
		"/etc/chrony/sources.d/*.sources", "/etc/ntp.conf", "/etc/ntpsec/ntp.conf")
	c.lines(func(line string) {
		if names, ok := strings.CutPrefix(strings.TrimSpace(line), "NTP="); ok {
			add(strings.Fields(names)...)
		}
	}, "/etc/systemd/timesyncd.conf", "/etc/systemd/timesyncd.conf.d/*.conf", "/run/systemd/timesyncd.conf.d/*.conf")
	return list
}
