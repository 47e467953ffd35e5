package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"

	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
)

// etcdManifest is the manifest of kubeadm's etcd on a control plane.
const etcdManifest = kube.ManifestsDir + "/etcd.yaml"

// QuotaTasks returns the tasks that bring the cluster file's quota to the members of kubeadm's etcd. kubeadm itself
// writes the quota where it makes a member, so that they find nothing to do on new control planes.
func QuotaTasks(c *manifest.Cluster) []task.Task {
	if c.Etcd.Type != manifest.EtcdInternal || c.Etcd.Quota == 0 {
		return nil
	}
	return []task.Task{quotaTask(), quotaConfigTask()}
}

// quotaTask replaces the quota in etcd's manifest, one control plane after the other. The kubelet restarts the member.
func quotaTask() task.Task {
	return task.Task{
		Name: "etcd-quota", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.OneByOne, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			have, want, _, err := quotaManifest(ctx, t)
			if have != want {
				task.Because(ctx, "%s has another quota", etcdManifest)
			}
			return have == want, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			_, want, quota, err := quotaManifest(ctx, t)
			if err == nil {
				err = etcd.CheckQuota(ctx, t, quota, t.Site.Cluster.Etcd.Quota.Bytes())
			}
			if err != nil {
				return err
			}
			if _, err := etcd.FitDatabases(ctx, t); err != nil {
				return plain.Advise(fmt.Errorf(
					"etcd on %s is not restarted with another quota, because another member may have to serve meanwhile: %w", t.Name, err),
					"bring all members back first; kkbundle status names them")
			}
			if err := t.Edit(ctx, etcdManifest, []byte(want)); err != nil {
				return err
			}
			return task.Eventually(ctx, etcd.LeaderTimeout,
				func(ctx context.Context) error { return runsWithQuota(ctx, t) })
		},
	}
}

// runsWithQuota returns nil if the host's member runs with the cluster file's quota, all members are healthy, and the
// host's API server is ready.
func runsWithQuota(ctx context.Context, t *task.Host) error {
	process := fmt.Sprintf("^etcd .*--%s=%d( .*)?$", etcd.QuotaArgument, t.Site.Cluster.Etcd.Quota.Bytes())
	if runs, err := t.Test(ctx, "pgrep", "--full", "--", process); err != nil || !runs {
		return errors.Join(err, fmt.Errorf("the kubelet of %s has not restarted etcd with the new quota", t.Name))
	}
	if _, err := etcd.FitDatabases(ctx, t); err != nil {
		return err
	}
	return t.ServerReady(ctx)
}

// quotaManifest returns the manifest of etcd on a host, the manifest with the cluster file's quota, and the quota of
// the first. All are empty before kubeadm has written it.
func quotaManifest(ctx context.Context, t *task.Host) (have, want string, quota int64, err error) {
	data, err := t.Read(ctx, etcdManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", 0, nil
	}
	if err != nil {
		return "", "", 0, err
	}
	have = string(data)
	want, quota, err = withQuota(have, t.Site.Cluster.Etcd.Quota.Bytes())
	if err != nil {
		err = fmt.Errorf("%s on %s: %w", etcdManifest, t.Name, err)
	}
	return have, want, quota, err
}

// givenQuota matches the quota's argument in a manifest of etcd. Its groups are the text before the number, the
// number, and a quote.
func givenQuota() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^( *- ["']?--` + etcd.QuotaArgument + `=)([0-9]+)(["']?)$`)
}

// manifestQuota returns the quota in a manifest of etcd, 0 for etcd's default.
func manifestQuota(text string) (int64, error) {
	found := givenQuota().FindStringSubmatch(text)
	if found == nil {
		return 0, nil
	}
	return strconv.ParseInt(found[2], 10, 64)
}

// withQuota returns a manifest of etcd with another quota, and the former one, 0 for etcd's default.
func withQuota(text string, quota int64) (changed string, former int64, err error) {
	value := strconv.FormatInt(quota, 10)
	if given := givenQuota(); given.MatchString(text) {
		former, err = manifestQuota(text)
		return given.ReplaceAllString(text, "${1}"+value+"${3}"), former, err
	}
	command := regexp.MustCompile(`(?m)^( *- )etcd$`)
	if !command.MatchString(text) {
		return text, 0, errors.New(
			"the manifest has no command etcd, so it is not kubeadm's; set the quota there by hand, and leave etcd.quota out")
	}
	return command.ReplaceAllString(text, "${0}\n${1}--"+etcd.QuotaArgument+"="+value), 0, nil
}

// KeepQuota writes the quota of a control plane's member of etcd into the kept manifest of the member, if the quota
// there is smaller. It returns the quota in bytes, 0 if the kept manifest stays as it is.
func KeepQuota(ctx context.Context, t *task.Host, kept string) (int64, error) {
	var quotas [2]int64
	var text string
	for i, file := range []string{etcdManifest, kept} {
		data, err := t.Read(ctx, file)
		if err != nil {
			return 0, err
		}
		text = string(data)
		quota, err := manifestQuota(text)
		if err != nil {
			return 0, fmt.Errorf("%s on %s: %w", file, t.Name, err)
		}
		quotas[i] = etcd.EffectiveQuota(quota)
	}
	now, former := quotas[0], quotas[1]
	if now <= former {
		return 0, nil
	}
	text, _, err := withQuota(text, now)
	if err != nil {
		return 0, fmt.Errorf("%s on %s: %w", kept, t.Name, err)
	}
	return now, t.Edit(ctx, kept, []byte(text))
}

// CheckUpgradeQuota refuses an upgrade of a control plane that would give its member a smaller quota which a database
// has reached. kubeadm makes the manifest of an upgraded member from the cluster file, and a file without a quota
// means etcd's default.
func CheckUpgradeQuota(ctx context.Context, t *task.Host) error {
	data, err := t.Read(ctx, etcdManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // etcd is external
	}
	if err != nil {
		return err
	}
	former, err := manifestQuota(string(data))
	if err != nil {
		return fmt.Errorf("%s on %s: %w", etcdManifest, t.Name, err)
	}
	config, err := ConfigOf(ctx, t.Site)
	if err != nil {
		return err
	}
	quota, err := config.etcdQuota()
	if err != nil {
		return err
	}
	return etcd.CheckQuota(ctx, t, former, quota)
}

// etcdQuota returns the quota of members that kubeadm makes, 0 for etcd's default.
func (k Config) etcdQuota() (int64, error) {
	part, _ := k.ClusterConfiguration()["etcd"].(map[string]any)
	local, _ := part["local"].(map[string]any)
	for _, a := range argsOf(local["extraArgs"]) {
		if a.name == etcd.QuotaArgument {
			return strconv.ParseInt(fmt.Sprint(a.value), 10, 64)
		}
	}
	return 0, nil
}

// quotaConfigTask writes the quota into kubeadm's configuration in the cluster, for control planes that join and for
// upgrades. It comes after the members: a full etcd takes it only with the larger quota.
func quotaConfigTask() task.Task {
	return task.Task{
		Name: "etcd-quota-config", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if there, err := t.AnyExists(ctx, etcdManifest); err != nil || !there {
				return !there, err // kubeadm writes both
			}
			_, changed, err := quotaConfig(ctx, t)
			return !changed, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			d, _, err := quotaConfig(ctx, t)
			if err != nil {
				return err
			}
			return storeConfiguration(ctx, t, d)
		},
	}
}

// quotaConfig returns kubeadm's configuration in the cluster with the cluster file's quota.
func quotaConfig(ctx context.Context, t *task.Host) (d kube.Document, changed bool, err error) {
	if d, err = storedConfiguration(ctx, t); err != nil {
		return nil, false, err
	}
	part, _ := d["etcd"].(map[string]any)
	local, _ := part["local"].(map[string]any)
	if local == nil {
		return nil, false, errors.New("kubeadm's configuration in the cluster has no etcd of type internal")
	}
	before := argsOf(local["extraArgs"])
	after := mergeArgs(before,
		[]argument{{etcd.QuotaArgument, strconv.FormatInt(t.Site.Cluster.Etcd.Quota.Bytes(), 10)}})
	beta4 := d["apiVersion"] != "kubeadm.k8s.io/v1beta3"
	local["extraArgs"] = Config{beta4: beta4}.renderArgs(after)
	return d, !slices.Equal(mergeArgs(before, nil), after), nil
}
