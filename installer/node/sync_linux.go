package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Parameters of the disk measurement: writes like those of etcd's log, enough samples for the 99th percentile.
const (
	syncBytes  = 2300
	syncWrites = 2000
	syncTime   = 5 * time.Second
	// syncSpace must be free, so that the measurement never fills the disk.
	syncSpace = 64 << 20
)

// sync measures Probe.Sync.
func (c *storageCollector) sync(ctx context.Context) {
	if c.probe.Sync == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*syncTime)
	defer cancel()
	s, err := answered(ctx, func() (SyncLatency, error) { return c.measure(ctx, c.probe.Sync) })
	if s.Dir = c.probe.Sync; err != nil {
		s.Problem = err.Error()
	}
	c.facts.Sync = &s
}

func (c *storageCollector) measure(ctx context.Context, dir string) (SyncLatency, error) {
	var s SyncLatency
	d, err := c.dir(dir)
	if err != nil {
		return s, err
	}
	s.In, s.Type = c.nearest(dir), d.Type
	if d.Free < syncSpace {
		return s, errors.New("less than 64 MiB are free")
	}
	times, err := measureSync(ctx, c.path(s.In))
	s.count(times)
	return s, err
}

// nearest returns the nearest existing parent of a directory, or the directory itself.
func (c *storageCollector) nearest(name string) string {
	at := filepath.Clean("/" + name)
	for at != "/" {
		if info, err := os.Stat(c.path(at)); err == nil && info.IsDir() {
			break
		}
		at = filepath.Dir(at)
	}
	return at
}

// measureSync writes into an unnamed file, which disappears even if this process is killed.
func measureSync(ctx context.Context, dir string) (times []time.Duration, err error) {
	file, err := nameless(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// etcd's log is preallocated, too.
	if err := unix.Fallocate(int(file.Fd()), 0, 0, syncBytes*syncWrites); err != nil &&
		!errors.Is(err, unix.EOPNOTSUPP) {
		return nil, os.NewSyscallError("fallocate", err)
	}
	data := make([]byte, syncBytes)
	for i := range data {
		data[i] = byte(i * 7) // a compressing disk must not be measured with zeros
	}
	began := time.Now()
	for len(times) < syncWrites && time.Since(began) < syncTime {
		if ctx.Err() != nil {
			return times, ctx.Err()
		}
		if _, err := file.Write(data); err != nil {
			return times, err
		}
		before := time.Now()
		if err := unix.Fdatasync(int(file.Fd())); err != nil {
			return times, os.NewSyscallError("fdatasync", err)
		}
		times = append(times, time.Since(before))
	}
	return times, nil
}

func nameless(dir string) (*os.File, error) {
	const mode = 0o600
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, mode)
	if err == nil {
		return os.NewFile(uintptr(fd), dir), nil
	}
	file, err := os.CreateTemp(dir, ".kkbundle-sync-") // not every filesystem has O_TMPFILE
	if err != nil {
		return nil, err
	}
	return file, errors.Join(os.Remove(file.Name()))
}

// count computes the percentiles: the smallest time that this share of the writes did not exceed.
func (s *SyncLatency) count(times []time.Duration) {
	if s.Writes = len(times); s.Writes == 0 {
		return
	}
	slices.Sort(times)
	at := func(percent int) int64 { return times[(len(times)*percent+99)/100-1].Nanoseconds() }
	s.P50, s.P90, s.P99, s.Max = at(50), at(90), at(99), at(100)
}
