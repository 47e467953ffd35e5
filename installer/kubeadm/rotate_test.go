package kubeadm

import (
	"strings"
	"testing"
)

// keysOf returns keys with these names.
func keysOf(names string) []encryptionKey {
	var keys []encryptionKey
	for name := range strings.FieldsSeq(names) {
		keys = append(keys, encryptionKey{name, "secret of " + name})
	}
	return keys
}

// TestNextRotation holds the order of a rotation, from whatever keys an interrupted one has left on control planes.
func TestNextRotation(t *testing.T) {
	t.Parallel()
	const older, newer = "kkbundle-20260101T000000", "kkbundle-20270101T000000"
	for name, c := range map[string]struct {
		hosts []string
		stage rotationStage
		want  string
	}{
		"begins":                       {[]string{"kkbundle1", "kkbundle1"}, rotationAdd, "kkbundle1 created"},
		"begins again":                 {[]string{older, older}, rotationAdd, older + " created"},
		"begins with keys of the site": {[]string{"b a", "b a"}, rotationAdd, "b a created"},
		"was adding": {[]string{"kkbundle1 " + newer, "kkbundle1"}, rotationAdd, "kkbundle1 " +
			newer},
		"was adding for the second time": {[]string{older + " " + newer, older}, rotationAdd, older + " " + newer},
		"has added": {
			[]string{"kkbundle1 " + newer, "kkbundle1 " + newer},
			rotationPromote,
			newer + " kkbundle1",
		},
		"was promoting": {
			[]string{newer + " kkbundle1", "kkbundle1 " + newer},
			rotationPromote,
			newer + " kkbundle1",
		},
		"has promoted":                   {[]string{newer + " " + older, newer + " " + older}, rotationRemove, newer},
		"was removing":                   {[]string{newer, newer + " kkbundle1"}, rotationRemove, newer},
		"one control plane was removing": {[]string{newer + " b a"}, rotationRemove, newer},
	} {
		var hosts [][]encryptionKey
		for _, names := range c.hosts {
			hosts = append(hosts, keysOf(names))
		}
		got, err := nextRotation(hosts, func() encryptionKey { return keysOf("created")[0] })
		var names []string
		for _, k := range got.keys {
			names = append(names, k.Name)
		}
		if err != nil || got.stage != c.stage || strings.Join(names, " ") != c.want {
			t.Errorf("%s: stage %d, keys %q, %v; want %d, %s", name, got.stage, names, err, c.stage, c.want)
		}
	}
	if _, err := nextRotation([][]encryptionKey{keysOf("a"), keysOf("b")}, nil); err == nil ||
		!strings.Contains(err.Error(), "run kkbundle install") {
		t.Errorf("keys of two clusters: %v", err)
	}
}

// TestParseEncryption holds which configurations a rotation takes, and that no error quotes a key.
func TestParseEncryption(t *testing.T) {
	t.Parallel()
	const keyed = "{keys: [{name: a, secret: c2VjcmV0}]}"
	for text, want := range map[string]string{
		"resources: [{resources: [secrets], providers: [{secretbox: " + keyed +
			"}, {identity: {}}]}]": "",
		"resources: [{resources: [configmaps], providers: []}, {resources: ['*.*'], providers: [{aescbc: " + keyed +
			"}]}]": "",
		"resources: [{resources: [secrets], providers: [{identity: {}}, {secretbox: " + keyed +
			"}]}]": "encrypts Secrets with identity",
		"resources: [{resources: [secrets], providers: [{kms: {name: c2VjcmV0}}]}]": "encrypts Secrets with kms",
		"resources: [{resources: [configmaps], providers: [{secretbox: " + keyed +
			"}]}]": "no provider for Secrets",
		"resources: [{resources: [secrets], providers: [{secretbox: {keys: [c2VjcmV0]}}]}]": "has no keys",
		"- c2VjcmV0": "is not an EncryptionConfiguration",
	} {
		config, err := parseEncryption([]byte(text))
		if want == "" && (err != nil || config.keys[0].Name != "a") {
			t.Errorf("%s: %v, %v", text, config.keys, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "c2VjcmV0")) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
