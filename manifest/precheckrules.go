package manifest

import (
	"fmt"
	"time"

	"github.com/kkbundle/kkbundle/manifest/document"
)

// PrecheckRules are exceptions from the levels of prechecks, each with a reason that reports show.
type PrecheckRules struct {
	APIVersion string         `yaml:"apiVersion" kk:"required" doc:"kkbundle.io/v1"`
	Kind       string         `yaml:"kind" kk:"required" doc:"PrecheckRules"`
	Rules      []PrecheckRule `yaml:"rules" kk:"required" doc:"Exceptions. Of two rules for the same result the later one wins."`

	src *document.Tree
}

// PrecheckRule is the level of one check, on every host or on some.
type PrecheckRule struct {
	Check string `yaml:"check" kk:"required" doc:"Name of a check; kkbundle precheck list prints the names."`
	// Hosts are names or ranges of names. Without them the rule applies to every host and to the cluster.
	Hosts []string `yaml:"hosts,omitempty" doc:"Hosts of the rule, such as node1 or node[1:3]. Default all."`
	Level string   `yaml:"level" kk:"required" enum:"block,warn,off" doc:"Level of a failure; off only mentions it."`
	// Reason is shown in every report.
	Reason string `yaml:"reason" kk:"required" doc:"Reason; shown in reports."`
	// Until is the last day of the rule's validity.
	Until Date `yaml:"until,omitempty" doc:"Last day of the rule, such as 2027-01-31 (UTC). Default unlimited."`
}

// Names returns the names of Hosts, ranges expanded; nil stands for all.
func (r PrecheckRule) Names() []string {
	var list []string
	for _, entry := range r.Hosts {
		names, err := expand(entry)
		if err != nil {
			continue // refused by ParsePrecheckRules
		}
		list = append(list, names...)
	}
	return list
}

// ParsePrecheckRules reads PrecheckRules. A rule about an unknown check is refused. The error is Problems.
func ParsePrecheckRules(file string, data []byte, known []string) (*PrecheckRules, error) {
	r := &PrecheckRules{}
	return decode(file, data, KindPrecheckRules, r, func(c *checker) {
		r.src = c.Tree
		checkPrecheckRules(c, r, known)
	})
}

// Where returns the file and line of the i-th rule, for messages.
func (r *PrecheckRules) Where(i int) string {
	if r.src == nil {
		return document.Index("rules", i)
	}
	return fmt.Sprintf("%s:%d", r.src.File, r.src.At(document.Index("rules", i)).Line)
}

func checkPrecheckRules(c *checker, r *PrecheckRules, known []string) {
	names := map[string]bool{}
	for _, name := range known {
		names[name] = true
	}
	total := 0
	for i, rule := range r.Rules {
		path := document.Index("rules", i)
		if rule.Check != "" && !names[rule.Check] {
			c.Add(document.Join(path, "check"), "there is no check %q%s; `kkbundle precheck list` shows all",
				document.Shorten(rule.Check), document.DidYouMean(rule.Check, known))
		}
		for j, entry := range rule.Hosts {
			list, err := expand(entry)
			switch total += len(list); {
			case err != nil:
				c.Add(document.Index(document.Join(path, "hosts"), j), "%v", err)
			case total > maxRuleHosts:
				c.Add(document.Index(document.Join(path, "hosts"), j),
					"more than %d hosts in all rules; leave hosts out where a rule is about all", maxRuleHosts)
				return
			}
		}
	}
}

// maxRuleHosts bounds the expansion of ranges in a small file.
const maxRuleHosts = 10 * MaxHosts

// Date is a day, in YAML as 2027-01-31.
type Date struct{ day time.Time }

// UnmarshalText reads year, month and day.
func (d *Date) UnmarshalText(text []byte) error {
	day, err := time.Parse(time.DateOnly, string(text))
	if err != nil {
		return fmt.Errorf("want a day such as 2027-01-31, have %q", document.Shorten(string(text)))
	}
	d.day = day
	return nil
}

// MarshalText is String.
func (d Date) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String returns year, month and day, or "" if there is no date.
func (d Date) String() string {
	if d.IsZero() {
		return ""
	}
	return d.day.Format(time.DateOnly)
}

// IsZero reports whether there is no date.
func (d Date) IsZero() bool { return d.day.IsZero() }

// Over reports whether the day has ended, by the calendar of UTC. No date is never over.
func (d Date) Over(now time.Time) bool { return !d.IsZero() && !now.Before(d.day.AddDate(0, 0, 1)) }
