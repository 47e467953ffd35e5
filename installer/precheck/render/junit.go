package render

import (
	"bufio"
	"encoding/xml"
	"io"
	"time"

	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/plain"
)

// A junitSuite is the common subset of JUnit's readers (Ant's schema, Jenkins' xUnit plugin and Surefire): every
// attribute that one of them requires, and none that another does not know.
type junitSuite struct {
	XMLName    xml.Name    `xml:"testsuite"`
	ID         int         `xml:"id,attr"`
	Name       string      `xml:"name,attr"`
	Package    string      `xml:"package,attr"`
	Hostname   string      `xml:"hostname,attr"`
	Timestamp  string      `xml:"timestamp,attr"` // without a zone; ours is UTC
	Tests      int         `xml:"tests,attr"`
	Failures   int         `xml:"failures,attr"`
	Errors     int         `xml:"errors,attr"`
	Skipped    int         `xml:"skipped,attr"`
	Time       int         `xml:"time,attr"` // seconds; checks are instant
	Properties struct{}    `xml:"properties"`
	Cases      []junitCase `xml:"testcase"`
	Out        string      `xml:"system-out"`
	Err        string      `xml:"system-err"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	Time    int           `xml:"time,attr"`
	Error   *junitVerdict `xml:"error"`
	Failure *junitVerdict `xml:"failure"`
	Skipped *junitVerdict `xml:"skipped"`
}

type junitVerdict struct {
	Type    string `xml:"type,attr,omitempty"`
	Message string `xml:"message,attr"`
	Text    string `xml:",cdata"`
}

// writeJUnit writes the report as JUnit XML: a suite for each host and one for the cluster, a case for each check.
// Blocking results are failures, unreachable hosts errors. JUnit knows no warnings: they are skipped cases, like
// excepted failures, and the message tells them apart.
func (r report) writeJUnit(w io.Writer) error {
	out := bufio.NewWriter(w)
	_, _ = out.WriteString(xml.Header + "<testsuites>\n") // Flush returns the error
	by := map[string][]precheck.Result{}
	for _, one := range r.Results {
		by[one.Host] = append(by[one.Host], one)
	}
	names := r.Hosts
	if len(by[""]) > 0 {
		names = append([]string{""}, names...)
	}
	e := xml.NewEncoder(out)
	e.Indent("  ", "  ")
	for i, name := range names {
		if err := e.Encode(newJUnitSuite(i, name, r.Time, by[name])); err != nil {
			return err
		}
	}
	_, _ = out.WriteString("\n</testsuites>\n")
	return out.Flush()
}

func newJUnitSuite(id int, host string, at time.Time, results []precheck.Result) junitSuite {
	const unknownHost = "localhost" // the schema's value without a host
	s := junitSuite{
		ID: id, Name: plain.Line(host), Package: "precheck", Hostname: plain.Line(host),
		Timestamp: at.UTC().Format("2006-01-02T15:04:05"),
	}
	if host == "" {
		s.Name, s.Hostname = "the cluster", unknownHost
	}
	for _, one := range results {
		c := junitCase{Name: one.ID + ": " + plain.Line(one.Title), Class: "precheck"}
		if len(one.Groups) > 0 {
			c.Class += "." + one.Groups[0]
		}
		verdict := &junitVerdict{Message: clean(one.Found), Text: "\nwhy: " + plain.Line(one.Why) + "\nfix: " +
			plain.Line(one.Fix) + "\n"}
		switch {
		case one.OK:
		case one.Level != precheck.Block:
			verdict.Message = word(one.Level) + ": " + verdict.Message
			if one.Exception != nil {
				verdict.Message += " (" + plain.Line(one.Exception.String()) + ")"
			}
			c.Skipped = verdict
			s.Skipped++
		case one.ID == precheck.ReachableID:
			verdict.Type = one.ID
			c.Error = verdict
			s.Errors++
		default:
			verdict.Type = one.ID
			c.Failure = verdict
			s.Failures++
		}
		s.Cases = append(s.Cases, c)
	}
	s.Tests = len(s.Cases)
	return s
}
