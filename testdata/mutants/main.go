// Command mutants changes conditions, comparisons and arithmetic of packages, one at a time, with gremlins, and runs
// the package's own short tests against each. Changes that no test notices must have a reason in survivors.txt, and
// at most 5 % may live.
//
//	go run ./testdata/mutants GREMLINS PACKAGE...
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	survivorsFile = "testdata/mutants/survivors.txt"
	wanted        = 95 // percent that must be caught
	// caughtReason begins the reason of a change that fails the tests in a way that gremlins does not see: a hang, or
	// a case's condition, which lies in no block of the coverage profile. Somebody made the change by hand.
	caughtReason = "caught: "
)

// A mutant is a kind of change to a line of a file. Lines are known by their text, which moves with them.
type mutant struct{ file, kind, line string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // nothing is left to end
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) < 2 {
		return errors.New("mutants: name the program gremlins and packages")
	}
	reasons, err := readReasons(survivorsFile)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range args[1:] {
		found, err := unleash(ctx, args[0], dir)
		if err == nil {
			err = judge(dir, found, reasons, out)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readReasons reads the survivors that stay. A line of the file is: FILE KIND `SOURCE LINE`: REASON
func readReasons(name string) (map[mutant]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	grammar := regexp.MustCompile("^(\\S+) ([A-Z_]+) `(.*)`: (.+)$")
	all := map[mutant]string{}
	in := bufio.NewScanner(f)
	for in.Scan() {
		text := in.Text()
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		m := grammar.FindStringSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("%s: %q: write FILE KIND `SOURCE LINE`: REASON", name, text)
		}
		all[mutant{m[1], m[2], m[3]}] = m[4]
	}
	return all, in.Err()
}

// A result is the part of gremlins' report that counts.
type result struct {
	Files []struct {
		Name      string `json:"file_name"`
		Mutations []struct {
			Line   int
			Type   string
			Status string
		}
	}
}

// unleash runs gremlins over one package and returns its report.
func unleash(ctx context.Context, gremlins, dir string) (r result, err error) {
	report, err := os.CreateTemp("", "mutants-*.json")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, report.Close(), os.Remove(report.Name())) }()
	cmd := exec.CommandContext(ctx, gremlins, "unleash", "--output", report.Name(), "./"+filepath.Clean(dir)) //nolint:gosec // make names it
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("%s: %w", dir, err)
	}
	return r, json.NewDecoder(report).Decode(&r)
}

// judge prints the share that was caught, and returns an error for survivors without a reason.
func judge(dir string, r result, reasons map[mutant]string, out io.Writer) error {
	total, caught := 0, 0
	var errs []error
	for _, f := range r.Files {
		name := filepath.Join(dir, filepath.Base(f.Name))
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		for _, m := range f.Mutations {
			switch m.Status {
			case "NOT VIABLE", "SKIPPED": // does not compile
				continue
			case "KILLED":
				caught++
			default: // LIVED, NOT COVERED; TIMED OUT is a hang only if somebody looked
				line := strings.TrimSpace(lines[m.Line-1])
				switch reason := reasons[mutant{name, m.Type, line}]; {
				case strings.HasPrefix(reason, caughtReason):
					caught++
				case reason == "":
					errs = append(errs, fmt.Errorf("%s:%d: %s `%s`: %s, and %s has no reason", name, m.Line, m.Type,
						line, m.Status, survivorsFile))
				}
			}
			total++
		}
	}
	if total == 0 {
		return fmt.Errorf("%s: nothing was changed", dir)
	}
	fmt.Fprintf(out, "%s: %d of %d changes caught (%.1f %%)\n", dir, caught, total, 100*float64(caught)/float64(total))
	if caught*100 < wanted*total {
		errs = append(errs, fmt.Errorf("%s: less than %d %% caught", dir, wanted))
	}
	return errors.Join(errs...)
}
