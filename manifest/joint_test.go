package manifest_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

func pinOf(ref string, platforms ...string) manifest.Pin {
	return manifest.Pin{
		Kind: manifest.ItemImage, Ref: ref, Name: ref, Digest: digest.FromString(ref), Size: 1,
		Platforms: platforms, Verified: manifest.VerifiedUpstream,
	}
}

// TestJoint: the lock of variants has each pin once, is read as it was written, and gives back the lock of each.
func TestJoint(t *testing.T) {
	of := func(name string, pins ...manifest.Pin) *manifest.Lock {
		return &manifest.Lock{
			APIVersion: manifest.APIVersion, Kind: manifest.KindLock,
			Metadata: manifest.Metadata{Name: "shop-" + name, Version: "1"}, Manifest: digest.FromString(name).String(),
			Items: pins, Values: []manifest.LockedValue{{Name: "flavor", Value: "x"}}, Undecided: []string{name},
			Inputs:  []manifest.Input{{Path: "a.yaml", Digest: digest.FromString("a")}, {Path: "z" + name, Digest: digest.FromString(name)}},
			Kubeadm: map[string]catalogfile.KubeadmImages{},
		}
	}
	locks := map[string]*manifest.Lock{
		"a": of("a", pinOf("all:1"), pinOf("arch:1", "linux/amd64"), pinOf("own:1")),
		"b": of("b", pinOf("all:1"), pinOf("arch:1", "linux/arm64"), pinOf("two:1")),
		"c": of("c", pinOf("all:1"), pinOf("arch:1", "linux/arm64"), pinOf("two:1")),
	}
	j := manifest.NewJoint()
	for _, name := range []string{"a", "b", "c"} {
		j.Add(name, locks[name])
	}
	data, err := j.Lock().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	l, err := manifest.ParseLock("x.lock.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Items) != 5 || len(l.Inputs) != 4 {
		t.Errorf("%d pins and %d inputs are not shared:\n%s", len(l.Items), len(l.Inputs), data)
	}
	for name, want := range locks {
		got, ok := l.Of(name)
		if got.Kubeadm == nil {
			got.Kubeadm = map[string]catalogfile.KubeadmImages{}
		}
		if !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n%+v\nwant\n%+v", name, ok, got, want)
		}
	}
	for _, name := range []string{"", "d"} {
		if _, ok := l.Of(name); ok {
			t.Errorf("the lock has a variant %q", name)
		}
	}
	for _, c := range []struct{ from, to, want string }{
		{"      variants:\n        - a\n", "      variants:\n        - d\n", "the lock has no variant d"},
		{"      variants:\n        - b\n        - c\n", "", "is there twice"},
		{"    - name: b\n", "    - name: a\n", "variant a is there twice"},
	} {
		text := strings.ReplaceAll(string(data), c.from, c.to)
		if _, err := manifest.ParseLock("x.lock.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
