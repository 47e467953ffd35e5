package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

const (
	// QuotaArgument is the argument of etcd that has the quota in bytes, without the dashes.
	QuotaArgument = "quota-backend-bytes"
	quotaEnv      = "ETCD_QUOTA_BACKEND_BYTES"
	// suggestedQuota is the largest that etcd suggests. https://etcd.io/docs/v3.6/dev-guide/limit/#storage-size-limit
	suggestedQuota = 8 << 30
)

// FitDatabases returns the members' databases, or an error unless all members answer and are healthy. A member with
// the alarm NOSPACE counts as healthy.
func FitDatabases(ctx context.Context, t *task.Host) ([]Database, error) {
	list, err := Databases(ctx, t, true)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, d := range list {
		errs = append(errs, d.Fault())
	}
	return list, errors.Join(errs...)
}

// QuotaWarning returns the warning for a quota above the largest that etcd suggests, "" for others.
func QuotaWarning(c *manifest.Cluster) string {
	if c.Etcd.Quota.Bytes() <= suggestedQuota {
		return ""
	}
	return fmt.Sprintf("etcd.quota is %s, and etcd suggests at most 8Gi: larger databases start, defragment and restore slowly; remove unneeded objects instead", c.Etcd.Quota)
}

// EffectiveQuota returns the quota of a member in bytes: etcd's default for a quota of 0.
func EffectiveQuota(quota int64) int64 { return cmp.Or(quota, defaultQuota) }

// CheckQuota refuses to replace a quota by a smaller one that a member's database has reached: etcd would take no
// changes. A quota of 0 is etcd's default.
func CheckQuota(ctx context.Context, t *task.Host, from, to int64) error {
	from, to = EffectiveQuota(from), EffectiveQuota(to)
	if to >= from {
		return nil
	}
	list, err := FitDatabases(ctx, t)
	if err != nil {
		return plain.Advise(fmt.Errorf("etcd's quota is not lowered, because the size of its databases is unknown: %w",
			err),
			"bring all members back first; kkbundle status names them")
	}
	for _, d := range list {
		if d.Size >= to {
			return plain.Advise(fmt.Errorf(
				"etcd's quota is not lowered to %s: the database of %s has %s, and etcd would take no changes",
				plain.Size(to), d.Endpoint, plain.Size(d.Size)),
				"run kkbundle etcd defrag --always first, or write a larger etcd.quota into the cluster file")
		}
	}
	return nil
}

// checkEnvQuota checks the quota of a new environment file against that of the host's.
func checkEnvQuota(ctx context.Context, t *task.Host, env string) error {
	have, err := t.Read(ctx, etcdEnv)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return CheckQuota(ctx, t, envQuota(string(have)), envQuota(env))
}

// envQuota returns the quota in an environment file, 0 if it has none.
func envQuota(text string) int64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), quotaEnv+"="); ok {
			n, _ := strconv.ParseInt(value, 10, 64) // etcd would not have started with another value
			return n
		}
	}
	return 0
}
