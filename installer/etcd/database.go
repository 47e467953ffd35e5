package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
)

const (
	// defaultQuota is etcd's own.
	defaultQuota = 2 << 30
	// defragTimeout bounds the work on one member. It reads and writes the database, at most 8 GiB, at 15 MB/s.
	defragTimeout = 10 * time.Minute
	// NoSpace is the name of etcd's alarm that a database has reached its quota.
	NoSpace = "NOSPACE"
)

// A Database is the state of one member and of its database.
type Database struct {
	Endpoint       string
	Member, Leader uint64 // 0 means no leader
	Learner        bool
	Version        string
	Revision       int64
	Size, Used     int64
	Quota          int64
	NoSpace        bool     // etcd's alarm: a database has reached its quota, and etcd takes no changes
	Faults         []string // other alarms and errors
}

// IsLeader reports whether the member leads.
func (d Database) IsLeader() bool { return d.Leader != 0 && d.Leader == d.Member }

// Fault returns an error for a member that must not be left alone: with an alarm other than NOSPACE, or without a
// leader.
func (d Database) Fault() error {
	switch {
	case len(d.Faults) > 0:
		return fmt.Errorf("etcd's member %s: %s", d.Endpoint, strings.Join(d.Faults, ", "))
	case d.Leader == 0:
		return fmt.Errorf("etcd's member %s knows no leader", d.Endpoint)
	case d.Learner:
		return fmt.Errorf("etcd's member %s is a learner", d.Endpoint)
	}
	return nil
}

// Databases asks members from the host: its own, or all members of the cluster. Members that do not answer are an
// error.
func Databases(ctx context.Context, t *task.Host, all bool) ([]Database, error) {
	args := []string{"endpoint", "status", "--write-out=json"}
	if all {
		args = append(args, "--cluster")
	}
	out, err := etcdctl(ctx, t, []string{Endpoint(t)}, args...)
	if err != nil {
		return nil, err
	}
	var list []struct {
		Endpoint string `json:"Endpoint"`
		Status   struct {
			Header struct {
				Member   uint64 `json:"member_id"`
				Revision int64  `json:"revision"`
			} `json:"header"`
			Version string   `json:"version"`
			Size    int64    `json:"dbSize"`
			Used    int64    `json:"dbSizeInUse"`
			Quota   int64    `json:"dbSizeQuota"`
			Leader  uint64   `json:"leader"`
			Learner bool     `json:"isLearner"`
			Errors  []string `json:"errors"`
		} `json:"Status"`
	}
	if err := capped.JSON(out, capped.MaxValues, &list); err != nil {
		return nil, fmt.Errorf("etcd endpoint status from %s: %w", t.Name, err)
	}
	var made []Database
	for _, one := range list {
		s := one.Status
		d := Database{
			Endpoint: one.Endpoint, Member: s.Header.Member, Leader: s.Leader, Learner: s.Learner, Version: s.Version,
			Revision: s.Header.Revision,
			Size:     s.Size, Used: s.Used,
			// members before 3.6 do not name theirs
			Quota: cmp.Or(s.Quota, t.Site.Cluster.Etcd.Quota.Bytes(), defaultQuota),
		}
		for _, text := range s.Errors {
			if strings.Contains(text, "alarm:"+NoSpace) {
				d.NoSpace = true
			} else {
				d.Faults = append(d.Faults, strings.TrimSpace(text))
			}
		}
		made = append(made, d)
	}
	if len(made) == 0 {
		return nil, errors.New("etcd endpoint status from " + t.Name + " names no member")
	}
	// The leader is the last one.
	slices.SortStableFunc(made, func(a, b Database) int { return cmp.Compare(rank(a), rank(b)) })
	return made, nil
}

func rank(d Database) int {
	if d.IsLeader() {
		return 1
	}
	return 0
}

// Defrag rewrites the database of a member, which answers nobody meanwhile.
func Defrag(ctx context.Context, t *task.Host, endpoint string) error {
	ctl := append(CtlArgs(t, endpoint), "--dial-timeout=3s", "--command-timeout="+defragTimeout.String(), "defrag")
	return t.Run(ctx, ctl...)
}

// Compact drops the history before a revision. Watches that are behind it start over.
func Compact(ctx context.Context, t *task.Host, revision int64) error {
	_, err := etcdctl(ctx, t, []string{Endpoint(t)}, "compact", fmt.Sprint(revision))
	if err != nil && strings.Contains(err.Error(), "has been compacted") {
		return nil
	}
	return err
}

// Disarm takes back the alarms of all members.
func Disarm(ctx context.Context, t *task.Host) error {
	_, err := etcdctl(ctx, t, []string{Endpoint(t)}, "alarm", "disarm")
	return err
}
