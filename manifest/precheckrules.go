package manifest

import (
	"fmt"

	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
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
	Until scalar.Date `yaml:"until,omitempty" doc:"Last day of the rule, such as 2027-01-31 (UTC). Default unlimited."`
}

// Names returns the names of Hosts, ranges expanded; nil stands for all.
func (r PrecheckRule) Names() []string {
	var list []string
	for _, entry := range r.Hosts {
		names, err := scalar.ExpandRange(entry)
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
			list, err := scalar.ExpandRange(entry)
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
const maxRuleHosts = 10 * scalar.MaxHosts
