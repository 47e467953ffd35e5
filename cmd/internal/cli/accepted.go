package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/builder"
	"github.com/kkbundle/kkbundle/bundle"
	"github.com/kkbundle/kkbundle/internal/disk"
)

// maxAccepted is the number of identities kept under one name.
const maxAccepted = 256

// accepted is the record of the signed bundles of one name that this user has put to use. It is JSON in a file named by
// the name's hash.
type accepted struct {
	Version       int       `json:"version"` // 1
	Name          string    `json:"name"`
	BundleVersion string    `json:"bundleVersion"` // of the last one
	Time          time.Time `json:"time"`          // of its acceptance
	// Key is the fingerprint of the key that signed it.
	Key digest.Digest `json:"key,omitempty"`
	// Identity is that of a signer without a key.
	Identity string `json:"identity,omitempty"`
	// Identities are the bundles' digests in the order of acceptance.
	Identities []digest.Digest `json:"identities"`
}

// A rollbackError means that a bundle is older than one of its name that was accepted before.
type rollbackError struct {
	name string // of the file
	text string
}

func (e *rollbackError) Error() string { return e.name + " is " + e.text }

// Hint returns the remedy.
func (*rollbackError) Hint() string {
	return "use the newest bundle of this name; if going back is what you want, say --allow-older"
}

// accept compares a bundle with the record of its name, and enters it there if by is its valid signature. A signature
// covers the identity, and with it name and version; bundles without one move no record.
func (g *globals) accept(name string, index bundle.Index, by *signed) error {
	if index.Name == "" { // nothing to compare by
		return nil
	}
	dir, err := g.trust.stateDir()
	if err != nil {
		g.Alert(fmt.Sprintf("there is no record of accepted bundles, because your home directory is not known (%v): an older bundle is not recognized", err))
		return nil
	}
	sum := sha256.Sum256([]byte(index.Name))
	file := filepath.Join(dir, "accepted", hex.EncodeToString(sum[:])+".json")
	last, err := readAccepted(file)
	if err != nil {
		return err
	}
	if by == nil {
		if last != nil {
			g.Alert(fmt.Sprintf("%s is not signed, and bundles of its name (%s) were accepted with a signature before; --require-signature refuses it", name, index.Name))
		}
		return nil
	}
	artifact, err := index.Marshal()
	if err != nil {
		return err
	}
	identity := digest.FromBytes(artifact)
	if last != nil {
		if last.Identities[len(last.Identities)-1] == identity {
			return nil
		}
		text, same := last.compare(index, identity)
		switch {
		case text != "" && !g.trust.allowOlder:
			return &rollbackError{name, text}
		case text == "" && same:
			g.Alert(fmt.Sprintf("%s is %s %s, as was the bundle accepted before, with other content", name, index.Name,
				index.Version))
		}
	}
	if g.trust.unrecorded {
		return nil
	}
	return g.enter(file, last, accepted{
		Version: 1, Name: index.Name, BundleVersion: index.Version,
		Time: time.Now().UTC(), Key: by.Key, Identity: by.Identity, Identities: []digest.Digest{identity},
	})
}

// compare returns why a bundle is older than the last one, "" if it is not; same reports whether they have one version.
// Versions that are not semantic versions have no order: of these, only bundles that were accepted before are older.
func (a *accepted) compare(index bundle.Index, identity digest.Digest) (older string, same bool) {
	const day = "2006-01-02 15:04 UTC"
	have, err1 := semver.NewVersion(a.BundleVersion)
	now, err2 := semver.NewVersion(index.Version)
	same = index.Version == a.BundleVersion
	if err1 == nil && err2 == nil {
		if now.LessThan(have) {
			return fmt.Sprintf("%s %s, older than %s, which was accepted here on %s", index.Name, index.Version,
				a.BundleVersion, a.Time.Format(day)), false
		}
		if now.GreaterThan(have) {
			return "", false
		}
		same = true
	}
	if slices.Contains(a.Identities, identity) {
		return fmt.Sprintf("%s %s of an older build: another one was accepted here later, on %s", index.Name,
			index.Version, a.Time.Format(day)), same
	}
	return "", same
}

// enter writes the record with one more bundle, the last one from now on.
func (g *globals) enter(file string, last *accepted, next accepted) error {
	if last != nil {
		id := next.Identities[0]
		next.Identities = append(slices.DeleteFunc(last.Identities, func(d digest.Digest) bool { return d == id }), id)
		next.Identities = next.Identities[max(0, len(next.Identities)-maxAccepted):]
	}
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	dir, err := disk.OpenOwn(filepath.Dir(file))
	if err == nil {
		err = errors.Join(disk.WriteFileIn(dir, filepath.Base(file), 0o600, append(data, '\n')), dir.Close())
	}
	if err != nil {
		g.Alert(fmt.Sprintf("the record of accepted bundles cannot be written (%v): an older bundle will not be recognized", err))
	}
	return nil
}

// readAccepted reads a record, nil if there is none. A damaged one is an error: without it, older bundles would pass.
func readAccepted(file string) (*accepted, error) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no bundle of this name was accepted
	}
	var a accepted
	data, err := builder.ReadFile(file)
	if err == nil {
		if err = json.Unmarshal(data, &a); err == nil && (a.Version != 1 || len(a.Identities) == 0) {
			err = errors.New("damaged, or of a later kkbundle")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("record of accepted bundles: %s: %w: remove the file to begin a new one", file, err)
	}
	return &a, nil
}
