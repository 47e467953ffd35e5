package download

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/bundle"
)

// site serves NAME.kkb, and nothing beside it.
func site(t *testing.T, data []byte) *httptest.Server {
	t.Helper()
	file := newServer(t, data)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/x.kkb" {
			http.NotFound(w, r)
			return
		}
		file.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// pullInto pulls x.kkb into a directory. check sees the path of the file before it gets its name.
func pullInto(t *testing.T, dir string, data []byte, check func(path string) error) error {
	t.Helper()
	_, err := client().Pull(t.Context(), Options{
		URL: site(t, data).URL + "/x.kkb", Output: filepath.Join(dir, "x.kkb"),
		Check: func(_ context.Context, path string) error { return check(path) },
	})
	return err
}

func noCheck(string) error { return nil }

const victimText = "of another program"

// victim returns a directory with a file that no pull may touch.
func victim(t *testing.T) (dir string, check func()) {
	t.Helper()
	dir = t.TempDir()
	file := filepath.Join(dir, "x.kkb")
	if err := os.WriteFile(file, []byte(victimText), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		if data, err := os.ReadFile(file); err != nil || string(data) != victimText {
			t.Errorf("a foreign file now has %d bytes, %v", len(data), err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("a foreign directory now has %v", entries)
		}
	}
}

// TestPullRefusesADirectoryOfOthers: in a directory in which everybody writes, somebody else has made the one for
// unfinished files.
func TestPullRefusesADirectoryOfOthers(t *testing.T) {
	t.Parallel()
	data := random(1, 1000)
	for name, prepare := range map[string]func(t *testing.T, dir, victim string) error{
		"a link": func(_ *testing.T, dir, victim string) error { return os.Symlink(victim, dir) },
		"somebody's": func(t *testing.T, dir, _ string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 65534, 65534))
		},
		"writable by all": func(_ *testing.T, dir, _ string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777))
		},
		"with links to files": func(_ *testing.T, dir, victim string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Symlink(filepath.Join(victim, "x.kkb"),
				filepath.Join(dir, "x.kkb")))
		},
		"with a link to a state": func(_ *testing.T, dir, victim string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Symlink(filepath.Join(victim, "x.kkb"),
				filepath.Join(dir, "x.kkb.state")))
		},
		"with files of others": func(_ *testing.T, dir, _ string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "letters"), []byte("dear"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			foreign, untouched := victim(t)
			into := t.TempDir()
			dir := filepath.Join(into, ".x.kkb.download")
			if err := prepare(t, dir, foreign); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadDir(dir)
			err := pullInto(t, into, data, func(string) error { return bundle.ErrDamaged })
			var hinted interface{ Hint() string }
			if !errors.As(err, &hinted) || !strings.Contains(hinted.Hint(), "-o") {
				t.Errorf("error %v; want one with a remedy", err)
			}
			untouched()
			if after, _ := os.ReadDir(dir); len(after) != len(before) {
				t.Errorf("the refused directory has %v now", after)
			}
			if _, err := os.Stat(filepath.Join(into, "x.kkb")); err == nil {
				t.Error("a bundle was written")
			}
		})
	}
}

// TestPullKeepsToItsDirectory: the owner of the output's directory puts a link in the place of the one for unfinished
// files while they are checked.
func TestPullKeepsToItsDirectory(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{"sound": nil, "damaged": bundle.ErrDamaged} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			foreign, untouched := victim(t)
			into := t.TempDir()
			err := pullInto(t, into, random(1, 1000), func(path string) error {
				dir := filepath.Dir(path)
				return errors.Join(result, os.Rename(dir, dir+".away"), os.Symlink(foreign, dir))
			})
			if err == nil || result == nil && !strings.Contains(err.Error(), "was replaced while") {
				t.Errorf("error %v", err)
			}
			untouched()
			if _, err := os.Stat(filepath.Join(into, "x.kkb")); err == nil {
				t.Error("a bundle was written")
			}
		})
	}
}

func TestPullContinuesAndCleansUp(t *testing.T) {
	t.Parallel()
	into, data := t.TempDir(), random(1, 1000)
	errStop := errors.New("no key")
	if err := pullInto(t, into, data, func(string) error { return errStop }); !errors.Is(err, errStop) {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(into, ".x.kkb.download", "x.kkb")); err != nil || len(got) != len(data) {
		t.Errorf("the file was not kept: %d bytes, %v", len(got), err)
	}
	if err := pullInto(t, into, data, noCheck); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(into); len(entries) != 1 || entries[0].Name() != "x.kkb" {
		t.Errorf("the directory has %v", entries)
	}
}

// TestLoginStaysWithItsServer: a redirect to another port is to another server.
func TestLoginStaysWithItsServer(t *testing.T) {
	t.Parallel()
	login := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter,
		r *http.Request,
	) {
		login <- r.Header.Get("Authorization")
	}))
	t.Cleanup(other.Close)
	for name, c := range map[string]struct {
		to   string // "" for the same server
		want bool
	}{"another port": {other.URL + "/there", false}, "the same server": {"", true}} {
		t.Run(name, func(t *testing.T) {
			var first *httptest.Server
			first = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/there":
					login <- r.Header.Get("Authorization")
				case c.to != "":
					http.Redirect(w, r, c.to, http.StatusFound)
				default:
					http.Redirect(w, r, first.URL+"/there", http.StatusFound)
				}
			}))
			t.Cleanup(first.Close)
			client := NewClient(&http.Transport{}, "user", "secret")
			if _, err := client.Small(t.Context(), first.URL+"/x", 10); err != nil {
				t.Fatal(err)
			}
			if got := <-login; (got != "") != c.want {
				t.Errorf("the login there is %q", got)
			}
		})
	}
}
