package precheck

import (
	"fmt"
	"strings"
	"time"
)

// clockChecks check the time.
func clockChecks() []Check {
	return []Check{
		{
			ID: "clock", Groups: []string{GroupHost}, Level: Block, Title: "its clock agrees with the others",
			Rule:    hasClock,
			LevelOf: clockLevel, Varies: "warns up to a minute, and where install sets the clock (time.servers in the cluster file)",
			Why:    "certificates are not valid yet on a host whose clock is behind, tokens of joining nodes have ended where it is ahead, and etcd warns",
			Fix:    "set the clock, and let the hosts take the time from one of them (chrony); precheck.clockSkew in the cluster file sets another limit",
			Source: "kkbundle: at most 2 s; tokens of kkbundle's joins live for 5 minutes, by which kubeadm 1.34 backdates its authorities",
		},
		{
			ID: "time-sync", Groups: []string{GroupHost}, Level: Warn, Title: "the clock is synchronised",
			Rule:   isTimeSynced,
			Why:    "clocks that are right today drift apart",
			Fix:    "let chrony or systemd-timesyncd take the time from a server of the site, or from one of the hosts: time.servers in the cluster file",
			Source: "timedatectl; adjtimex(2)",
		},
	}
}

// joinSkew is the difference of clocks with which a node may fail to join.
const joinSkew = time.Minute

func clockLevel(s *Subject) Level {
	low, high, known := s.Host.offset()
	if far := low-s.fleet.clock > joinSkew || s.fleet.clock-high > joinSkew; known && far &&
		len(s.Cluster.Time.Servers) == 0 {
		return Block
	}
	return Warn
}

// hasClock compares the host's clock with the median of all hosts' and this machine's. A host fails only if it is off
// at every possible moment of its reading.
func hasClock(s *Subject) Finding {
	low, high, known := s.Host.offset()
	if !known {
		return unknown("it was not compared")
	}
	median, most := s.fleet.clock, time.Duration(s.Cluster.Precheck.ClockSkew)
	switch {
	case low-median > most:
		return failf("%s ahead", (low - median).Round(time.Second/10))
	case median-high > most:
		return failf("%s behind", (median - high).Round(time.Second/10))
	default:
		return pass("within " + most.String())
	}
}

// isTimeSynced asks systemd, and the kernel if systemd does not know.
func isTimeSynced(s *Subject) Finding {
	t := s.Facts.Time
	by := ""
	if len(t.Daemons) > 0 {
		by = " by " + strings.Join(t.Daemons, ", ")
	}
	switch {
	case s.Facts.TimeSync == "yes", s.Facts.TimeSync == "" && t.Known && t.Synchronized:
		return pass("it is" + by)
	case s.Facts.TimeSync == "no" && len(t.Daemons) > 0:
		return failf("it is not, though %s runs (servers: %s)", strings.Join(t.Daemons, ", "), orNone(t.Servers))
	case s.Facts.TimeSync == "no", t.Known:
		return fail("it is not" + by)
	default:
		return unknown("neither systemd nor the kernel knows")
	}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return fmt.Sprint(some(list))
}
