package precheck

import "slices"

// A Verdict is the overall result of a report.
type Verdict string

// The verdicts.
const (
	Ready         Verdict = "ready"
	ReadyWithWarn Verdict = "warnings"    // some results are warnings
	NotReached    Verdict = "unreachable" // hosts were unreachable, and nothing else blocks
	NotReady      Verdict = "blocked"     // a finding blocks
)

// Verdict returns the overall result.
func (r Report) Verdict() Verdict {
	unreached := len(r.unreached(Block))
	switch {
	case r.Blocked > unreached:
		return NotReady
	case unreached > 0:
		return NotReached
	case r.Warned > 0:
		return ReadyWithWarn
	default:
		return Ready
	}
}

// unreached returns the unreachable hosts whose result has one of the levels.
func (r Report) unreached(levels ...Level) []string {
	var hosts []string
	for _, one := range r.Results {
		if one.ID == ReachableID && !one.OK && slices.Contains(levels, one.Level) {
			hosts = append(hosts, one.Host)
		}
	}
	return hosts
}

// Unreached returns the unreachable hosts, in the order of the report.
func (r Report) Unreached() []string { return r.unreached(Block, Warn, Off) }
