package logins

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseNetrc(t *testing.T) {
	t.Parallel()
	got := parseNetrc(`# comment machine no login no
machine a.example login anna password p#1
machine B.example
  login bert
  account x
  password q
macdef init
machine c.example login inside macro

default login anonymous password me
machine a.example login second password ignored
`)
	want := Netrc{"a.example": {"anna", "p#1"}, "b.example": {"bert", "q"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if l, ok := got.Find("A.EXAMPLE"); !ok || l.User != "anna" {
		t.Errorf("got %v, %v", l, ok)
	}
	if l, ok := got.Find("somebody.else"); ok {
		t.Errorf("somebody else got %v", l)
	}
}

func TestParseNetrcQuotes(t *testing.T) {
	t.Parallel()
	got := parseNetrc(`machine a.example login "anna b" password "p \"q\" \\ \t#"
machine "b.example" password "half
machine c.example
login
carl
password "d"
machine`)
	want := Netrc{"a.example": {"anna b", "p \"q\" \\ \t#"}, "b.example": {"", "half"}, "c.example": {"carl", "d"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzParseNetrc wants every login that a well-formed file has, whatever stands before it.
func FuzzParseNetrc(f *testing.F) {
	f.Add("machine a login b password c\n", "p w\"\\")
	f.Add("macdef x\nmachine y\n\n", "")
	f.Add("default login \"\\", "#x")
	f.Fuzz(func(t *testing.T, before, password string) {
		if strings.ContainsAny(password, "\n\r\t") {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(password) + `"`
		// An empty line ends a macro; two words end whatever waits for a value.
		got := parseNetrc(before + "\n\n\naccount account\n\ndefault machine z.example login me password " + quoted)
		if own, ok := parseNetrc(before)["z.example"]; ok {
			if got["z.example"] != own {
				t.Errorf("the first entry does not count: %v", got["z.example"])
			}
			return
		}
		if len(got) == 0 && len(parseNetrc(before)) > 0 {
			t.Error("entries went away")
		}
	})
}
