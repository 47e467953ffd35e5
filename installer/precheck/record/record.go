// Package record keeps the facts that prechecks judge in a directory, and reads them again: prechecks can run later,
// with another cluster file, and without the hosts.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// A record is a file with the facts about one host. Version 1; keys may be added.
type record struct {
	Version  int              `json:"version"`
	Host     string           `json:"host"`
	Sent     time.Time        `json:"sent,omitzero"`
	Received time.Time        `json:"received,omitzero"`
	SSH      *host.Algorithms `json:"ssh,omitempty"`
	Space    []precheck.Space `json:"space,omitempty"`
	Facts    *node.Facts      `json:"facts,omitempty"`
	Error    string           `json:"error,omitempty"` // reason for missing facts
	Hint     string           `json:"hint,omitempty"`
}

// linksFile is beside the hosts' files; no host has such a name.
const (
	linksFile    = "_links.json"
	recordSuffix = ".json"
	// maxRecord bounds a file to read, in bytes. Facts have some ten kilobytes.
	maxRecord = 16 << 20
)

// Write writes the hosts' facts into a directory, which is created: HOST.json for each. They contain no passwords and
// no keys; only the owner can read the files. It replaces only files of an earlier Write.
func Write(dir string, in precheck.Input) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, h := range in.Hosts {
		one := record{
			Version: 1, Host: h.Name, Sent: h.Sent, Received: h.Received, SSH: h.SSH, Space: h.Space,
			Facts: h.Facts,
		}
		if h.Err != nil {
			one.Error, one.Hint = h.Err.Error(), hintOf(h.Err)
		}
		if err := writeRecord(filepath.Join(dir, h.Name+recordSuffix), one, isRecord); err != nil {
			return err
		}
	}
	isLinks := func(data []byte) bool { return json.Unmarshal(data, &[]precheck.Link{}) == nil }
	return writeRecord(filepath.Join(dir, linksFile), in.Links, isLinks)
}

// isRecord reports whether data is a record of any version.
func isRecord(data []byte) bool {
	var r struct {
		Version int    `json:"version"`
		Host    string `json:"host"`
	}
	return json.Unmarshal(data, &r) == nil && r.Version > 0 && r.Host != ""
}

// writeRecord writes a file atomically. An existing one must be ours.
func writeRecord(path string, v any, ours func([]byte) bool) (err error) {
	switch old, err := readRecord(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	case !ours(old):
		return fmt.Errorf("%s exists and is not what --record writes: name another directory", path)
	}
	var data bytes.Buffer
	e := json.NewEncoder(&data)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".record-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data.Bytes())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// A Recording is a directory written by Write.
type Recording struct {
	dir   string
	Links []precheck.Link
}

// Open opens a directory written by Write, or one with a file HOST.json with the output of `kkbundle-node
// facts` for each host.
func Open(dir string) (*Recording, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	r := &Recording{dir: dir}
	data, err := readRecord(filepath.Join(dir, linksFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r.Links)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, linksFile), err)
	}
	return r, nil
}

// Host returns the record of a host of the inventory. Without a record, Err is set.
func (r *Recording) Host(h manifest.Host) precheck.Host {
	known := precheck.Host{Host: h}
	path := filepath.Join(r.dir, h.Name+recordSuffix)
	one, err := parseRecord(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		known.Err = plain.Advise(fmt.Errorf("there is no %s", path),
			"record the host's facts with kkbundle precheck --record, or by running kkbundle-node facts there")
	case err != nil:
		known.Err = plain.Advise(fmt.Errorf("%s: %w", path, err), "record the host's facts again")
	case one.Facts == nil:
		known.Err = plain.Advise(errors.New(one.Error), one.Hint)
	default:
		known.Facts, known.SSH, known.Sent, known.Received, known.Space = one.Facts, one.SSH, one.Sent, one.Received,
			one.Space
	}
	return known
}

func parseRecord(path string) (record, error) {
	data, err := readRecord(path)
	if err != nil {
		return record{}, err
	}
	var one record
	if err := json.Unmarshal(data, &one); err != nil {
		return record{}, fmt.Errorf("not what --record writes: %w", err)
	}
	if one.Facts == nil && one.Error == "" { // bare facts
		one.Facts = &node.Facts{}
		if err := json.Unmarshal(data, one.Facts); err != nil {
			return record{}, fmt.Errorf("not what --record writes: %w", err)
		}
	} else if one.Version != 1 {
		return record{}, fmt.Errorf("version %d of a record; this kkbundle reads version 1", one.Version)
	}
	if one.Facts != nil && one.Facts.Version != node.FactsVersion {
		return record{}, fmt.Errorf("version %d of facts; this kkbundle reads version %d", one.Facts.Version,
			node.FactsVersion)
	}
	return one, nil
}

// readRecord reads a regular file of bounded size.
func readRecord(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err == nil && len(data) > maxRecord {
		err = fmt.Errorf("larger than %d bytes", maxRecord)
	}
	return data, err
}

// hintOf returns an error's remedy, or "".
func hintOf(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) {
		return hinted.Hint()
	}
	return ""
}
