package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/internal/disk"
)

const somebody = 65534

// give gives a file to somebody else, who may be its attacker.
func give(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	if err := os.Lchown(path, somebody, somebody); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

// A place is a directory that is there before it is opened.
type place struct {
	make  func(t *testing.T, path string)
	state string // what OpenState says about it; "" if it opens the directory
	own   string // OpenOwn
	keys  string // OpenPrivate
}

func places() map[string]place {
	return map[string]place{
		"none": {func(*testing.T, string) {}, "", "", ""},
		"ours": {func(t *testing.T, path string) { mkdir(t, path, 0o700) }, "", "", ""},
		"readable by all": {
			func(t *testing.T, path string) { mkdir(t, path, 0o755) }, "not made by", "",
			"others may read",
		},
		"writable by a group": {
			func(t *testing.T, path string) { mkdir(t, path, 0o770) },
			"not made by", "has mode 0770: others may write", "has mode 0770: others may write",
		},
		"writable by all": {
			func(t *testing.T, path string) { mkdir(t, path, 0o777) }, "not made by",
			"others may write", "others may write",
		},
		"sticky, writable by all": {
			func(t *testing.T, path string) { mkdir(t, path, 0o777|os.ModeSticky) },
			"not made by", "others may write", "others may write",
		},
		"somebody's": {func(t *testing.T, path string) {
			mkdir(t, path, 0o700)
			give(t, path)
		}, "not made by", "belongs to user id 65534, and you are user id 0", "belongs to user id 65534"},
		"somebody's link to ours": {func(t *testing.T, path string) {
			mkdir(t, path+".there", 0o700)
			link(t, path+".there", path)
			give(t, path)
		}, "not made by", "is a link of user id 65534", "is a link of user id 65534"},
		"our link to ours": {func(t *testing.T, path string) {
			mkdir(t, path+".there", 0o700)
			link(t, path+".there", path)
		}, "not made by", "", ""},
		"our link to somebody's": {func(t *testing.T, path string) {
			mkdir(t, path+".there", 0o700)
			give(t, path+".there")
			link(t, path+".there", path)
		}, "not made by", "belongs to user id 65534", "belongs to user id 65534"},
	}
}

func TestOnlyOwnDirectoriesAreOpened(t *testing.T) {
	t.Parallel()
	for name, p := range places() {
		for how, open := range map[string]struct {
			open func(path string) (*os.Root, error)
			want string
		}{
			"state": {func(path string) (*os.Root, error) {
				parent, err := os.OpenRoot(filepath.Dir(path))
				if err != nil {
					return nil, err
				}
				dir, err := disk.OpenState(parent, filepath.Base(path))
				return dir, errors.Join(err, parent.Close())
			}, p.state},
			"own":     {disk.OpenOwn, p.own},
			"private": {disk.OpenPrivate, p.keys},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				parent := t.TempDir()
				mkdir(t, parent, 0o777|os.ModeSticky) // as /tmp
				path := filepath.Join(parent, "dir")
				p.make(t, path)
				before, _ := os.ReadDir(parent)
				dir, err := open.open(path)
				if how != "state" && err != nil {
					if other, again := open.open(path + "/"); again == nil {
						t.Errorf("a slash at the end opens it: %v", other.Close())
					}
				}
				var foreign *disk.ForeignError
				switch {
				case open.want == "" && err != nil:
					t.Fatal(err)
				case open.want == "":
					if err := errors.Join(dir.WriteFile("file", nil, 0o600), dir.Close()); err != nil {
						t.Error(err)
					}
				case !errors.As(err, &foreign) || !strings.Contains(err.Error(), open.want):
					t.Errorf("error %v; want %q", err, open.want)
				}
				if after, _ := os.ReadDir(parent); len(after) > max(len(before), 1) {
					t.Errorf("files were left: %v", after)
				}
			})
		}
	}
}

// TestOtherErrorsOfOwnDirectories: what is no directory, or cannot be made, is an error of the system.
func TestOtherErrorsOfOwnDirectories(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if _, err := disk.OpenOwn(path); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}
