package precheck

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// An Exception is the reason that a failure has another level than its check.
type Exception struct {
	// Was is the level without the exception.
	Was    Level  `json:"was" enum:"block,warn,off"`
	Reason string `json:"reason"`
	// Until is the last day of the exception, as in 2027-01-31; "" is unlimited.
	Until string `json:"until,omitempty"`
}

// String returns the reason and the last day.
func (e *Exception) String() string {
	if e.Until == "" {
		return e.Reason
	}
	return e.Reason + ", until " + e.Until
}

// rulesID is the check that exceptions have not expired.
const rulesID = "exceptions"

func rulesCheck() Check {
	return Check{
		ID: rulesID, Level: Warn, Groups: []string{GroupKKBundle}, Title: "the exceptions still hold",
		Why:    "an exception that has ended holds no more: its check counts again",
		Fix:    "fix the problem, or give the rule a later day",
		Source: "the file of --rules",
	}
}

// Under returns the report with the levels that the rules assign to failures. An expired rule is ignored, and is a
// warning itself. nil means no rules.
func (r Report) Under(rules *manifest.PrecheckRules, now time.Time) Report {
	if rules == nil {
		return r
	}
	held := map[string][]heldRule{} // by check
	var over []string
	hosts := map[string]bool{}
	for _, h := range r.Hosts {
		hosts[h] = true
	}
	r.Notes, r.Results = slices.Clone(r.Notes), slices.Clone(r.Results)
	for i, rule := range rules.Rules {
		if rule.Until.Over(now) {
			over = append(over, fmt.Sprintf("%s (%s): ended on %s", rules.Where(i), rule.Check, rule.Until))
			continue
		}
		names := rule.Names()
		one := heldRule{rule, map[string]bool{}}
		for _, name := range names {
			one.hosts[name] = true
		}
		held[rule.Check] = append(held[rule.Check], one)
		if unknown := slices.DeleteFunc(names, func(name string) bool { return hosts[name] }); len(unknown) > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s is about %s, not among these hosts", rules.Where(i),
				scalar.Ranges(unknown)))
		}
	}
	for i := range r.Results {
		one := &r.Results[i]
		for _, rule := range slices.Backward(held[one.ID]) {
			if !one.OK && (len(rule.Hosts) == 0 || rule.hosts[one.Host]) {
				one.Exception = &Exception{Was: one.Level, Reason: rule.Reason, Until: rule.Until.String()}
				one.Level = Level(rule.Level)
				break
			}
		}
	}
	if len(over) > 0 {
		c := rulesCheck()
		r.Results = append(r.Results, Result{
			ID: c.ID, Groups: c.Groups, Level: c.Level, Title: c.Title, Why: c.Why, Fix: c.Fix, Source: c.Source,
			Found: strings.Join(over, "; "),
		})
	}
	r.count()
	return r
}

// A heldRule is a rule and its hosts.
type heldRule struct {
	manifest.PrecheckRule
	hosts map[string]bool
}

// count recounts the results.
func (r *Report) count() {
	r.Blocked, r.Warned, r.Ignored = 0, 0, 0
	for _, one := range r.Results {
		switch {
		case one.OK:
		case one.Level == Block:
			r.Blocked++
		case one.Level == Off:
			r.Ignored++
		default:
			r.Warned++
		}
	}
}
