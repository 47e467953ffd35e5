package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/disk"
)

const (
	maxMemories = 4096
	maxMemory   = 16 << 10 // bytes of one record
)

// errUnchanged means a file still matches its record.
var errUnchanged = errors.New("unchanged")

// A memory is the record of an address's last download. It is valid only as long as the server confirms the same
// version, by a strong validator (see validator).
type memory struct {
	URL       string        `json:"url"` // the requested URL, possibly a mirror's
	Validator string        `json:"validator"`
	Digest    digest.Digest `json:"digest"`
	Size      int64         `json:"size"`
}

// ask makes a request conditional (RFC 9110, 13.1.2 and 13.1.3).
func (m *memory) ask(h http.Header) {
	if strings.HasPrefix(m.Validator, `"`) {
		h.Set("If-None-Match", m.Validator)
	} else {
		h.Set("If-Modified-Since", m.Validator)
	}
}

func (m *memory) descriptor() ocispec.Descriptor {
	return ocispec.Descriptor{Digest: m.Digest, Size: m.Size}
}

// Records remember the last download of each address in a directory.
type Records struct {
	dir   string
	store Store
	log   *slog.Logger
}

// NewRecords returns the records in a directory, nil for "".
func NewRecords(dir string, store Store, log *slog.Logger) *Records {
	if dir == "" {
		return nil
	}
	return &Records{dir: dir, store: store, log: log}
}

func (r *Records) file(address string) string {
	return filepath.Join(r.dir, SHA256Of([]byte(address)).Encoded()+".json")
}

// recall returns the record of an address, if the store still has the content. An invalid record counts as none.
func (r *Records) recall(ctx context.Context, address string) *memory {
	data, err := capped.ReadFile(r.file(address), maxMemory)
	if err != nil {
		return nil
	}
	var m memory
	if json.Unmarshal(data, &m) != nil || m.URL != address || m.Validator == "" || CheckDigest(m.Digest) != nil {
		return nil
	}
	if size, ok, err := r.store.Stat(ctx, m.Digest); err != nil || !ok || size != m.Size {
		return nil
	}
	return &m
}

// memorize records the content of an address. A failure only costs a later run another download.
func (r *Records) memorize(ctx context.Context, m memory) {
	if err := r.write(m); err != nil {
		r.log.DebugContext(ctx, "not remembered", "url", m.URL, "error", err)
	}
}

func (r *Records) write(m memory) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(data) > maxMemory {
		return fmt.Errorf("%d bytes exceed the limit of %d for a record", len(data), maxMemory)
	}
	dir, err := disk.OpenOwn(r.dir)
	if err != nil {
		return err
	}
	if err := dir.Close(); err != nil {
		return err
	}
	if err := r.forgetOldest(); err != nil {
		return err
	}
	f, err := os.CreateTemp(r.dir, "*.new")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), r.file(m.URL))
}

// forgetOldest makes room for another record, and removes incomplete files of killed runs.
func (r *Records) forgetOldest() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil || len(entries) < maxMemories {
		return err
	}
	var infos []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, info := range infos[:len(infos)/8] {
		if err := os.Remove(filepath.Join(r.dir, info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
