package deb

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/fetch/packages"
	"github.com/kkbundle/kkbundle/fetch/packages/signature"
)

// maxAhead is how far a Release may be ahead of this machine's clock.
const maxAhead = 24 * time.Hour

// A release is a parsed Release file (https://wiki.debian.org/DebianRepository/Format).
type release struct {
	suite, codename      string
	date, until          time.Time // zero if missing
	architectures        []string
	components           []string
	byHash               bool
	allInArch            bool // each list includes the packages for all architectures
	sums                 map[string]sum
	strong               bool // has SHA256 or SHA512 at all
	allowExpired, signed bool
}

type sum struct {
	sum  packages.Sum
	size int64
}

func parseRelease(text []byte) (*release, error) {
	r := &release{sums: map[string]sum{}}
	n := 0
	err := paragraphs(bytes.NewReader(text), []string{
		"Suite", "Codename", "Date", "Valid-Until", "Architectures", "Components", "Acquire-By-Hash",
		"No-Support-for-Architecture-all", "SHA256", "SHA512",
	}, func(f map[string]string) (err error) {
		if n++; n > 1 {
			return errors.New("more than one paragraph")
		}
		r.suite, r.codename = f["Suite"], f["Codename"]
		if r.date, err = parseTime(f["Date"]); err != nil {
			return err
		}
		if r.until, err = parseTime(f["Valid-Until"]); err != nil {
			return err
		}
		r.architectures, r.components = strings.Fields(f["Architectures"]), strings.Fields(f["Components"])
		r.byHash = f["Acquire-By-Hash"] == "yes"
		r.allInArch = f["No-Support-for-Architecture-all"] == "Packages"
		return errors.Join(r.readSums(f["SHA512"]), r.readSums(f["SHA256"])) // locks have SHA256
	})
	return r, err
}

func parseTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{
		time.RFC1123, time.RFC1123Z, "Mon, _2 Jan 2006 15:04:05 MST",
		"Mon, _2 Jan 2006 15:04:05 -0700", "Mon, _2 Jan 2006 15:04:05 Z",
	} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	t, err := http.ParseTime(text)
	if err != nil {
		return t, fmt.Errorf("invalid time %.60q", text)
	}
	return t, nil
}

func (r *release) readSums(text string) error {
	for line := range strings.SplitSeq(text, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		r.strong = true
		if len(f) != 3 {
			return fmt.Errorf("%.100q is not sum, size and name", line)
		}
		size, err := strconv.ParseInt(f[1], 10, 64)
		s, ok := packages.ParseSum(f[0])
		if err != nil || !ok || size < 0 {
			return fmt.Errorf("%.100q is not sum, size and name", line)
		}
		r.sums[path.Clean(f[2])] = sum{s, size}
	}
	return nil
}

// check refuses a release of another suite, or one that has expired.
func (r *release) check(suite string, now time.Time) error {
	named := strings.TrimSuffix(suite, "/")
	switch {
	case !r.strong:
		return errors.New("there are no SHA256 or SHA512 sums, and weaker ones are not accepted")
	case !r.until.IsZero() && now.After(r.until) && !r.allowExpired:
		return fmt.Errorf("it expired on %s: the mirror is outdated (name another one under sources), this machine's clock is wrong, or it is a snapshot, "+
			"which needs allowExpired: true", r.until.UTC().Format("2006-01-02 15:04"))
	case !r.date.IsZero() && r.date.Sub(now) > maxAhead:
		return fmt.Errorf("its date %s is in the future: set this machine's clock",
			r.date.UTC().Format("2006-01-02 15:04"))
	case !isFlat(suite) && r.signed && r.suite+r.codename != "" && !slices.Contains([]string{r.suite, r.codename},
		named) && !strings.HasPrefix(named, r.codename+"/"):
		return fmt.Errorf("it is the Release of %s (%s) instead of %s: the mirror has the wrong suite in this place; if it is the right one, write suite: %s",
			r.suite, r.codename, named, r.codename)
	}
	return nil
}

// architecture refuses an architecture that the repository lacks. One that has lists for all architectures alone
// serves each.
func (r *release) architecture(arch string) error {
	if len(r.architectures) > 0 && !slices.Contains(r.architectures, arch) &&
		!slices.Equal(r.architectures, []string{"all"}) {
		return fmt.Errorf("not published for %s, only for %s", arch, strings.Join(r.architectures, ", "))
	}
	return nil
}

// hasAll reports whether packages for all architectures have lists of their own.
func (r *release) hasAll() bool { return slices.Contains(r.architectures, "all") && !r.allInArch }

// has reports whether a list is published in some form.
func (r *release) has(name string) bool {
	return slices.ContainsFunc(packages.ListForms(), func(form string) bool {
		_, ok := r.sums[name+form]
		return ok
	})
}

// explained adds the remedy to the error of a signature.
func explained(err error) error {
	switch {
	case errors.Is(err, signature.ErrExpired):
		return fmt.Errorf("%w: install the distribution's newer keyring, or, for a snapshot, set allowExpired: true",
			err)
	case err != nil:
		return fmt.Errorf("%w: name its publisher's keyring under keyring, or use another mirror", err)
	}
	return nil
}
