package node

import "time"

// Expiring returns the certificates of PEM files and directories on this machine that end before a time, other than
// authorities, which nothing renews by itself. What is not there or cannot be read is left out.
func Expiring(before time.Time, paths ...string) []Certificate {
	c := collector{root: "/", probe: Probe{Certificates: paths}, run: runProgram}
	c.certificates()
	var soon []Certificate
	for _, one := range c.facts.Certificates {
		if one.Problem == "" && !one.CA && one.NotAfter.Before(before) {
			soon = append(soon, one)
		}
	}
	return soon
}
