package upgrade

import (
	"context"
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/etcd"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
)

// etcdStatus is the output of etcdctl endpoint status.
type etcdStatus []struct {
	Endpoint string `json:"Endpoint"`
	Status   struct {
		Version string `json:"version"`
	} `json:"Status"`
}

// etcdVersions returns the running versions of kubeadm's etcd, one for each control plane. It is empty if a member
// gives none: then nothing is known about the oldest.
func (u *upgrade) etcdVersions(ctx context.Context) []string {
	first := u.FirstControlPlane()
	out, err := first.Kubectl(task.WithoutOutput(ctx), etcdctlArgs(first, "endpoint", "status", "--cluster",
		"--write-out=json")...)
	var members etcdStatus
	if bad := capped.JSON(out, capped.MaxValues, &members); err != nil || bad != nil ||
		len(members) < len(u.controlPlanes()) {
		return nil
	}
	var versions []string
	for _, m := range members {
		if m.Status.Version == "" {
			return nil
		}
		versions = append(versions, m.Status.Version)
	}
	return versions
}

// mustPass reports whether a step that exists for its etcd has to be made: not if an API server is beyond it already,
// and not if every member is new enough.
func (p Plan) mustPass(s catalog.Step, c *manifest.Cluster) (bool, error) {
	if versionLess(majorMinor(s.Cluster.Kubernetes.Version)+".0", majorMinor(p.newestServer())+".0") {
		return false, nil
	}
	if len(p.etcd) == 0 {
		return true, nil
	}
	for _, running := range p.etcd {
		take, err := catalog.Through(c, "etcd", running)
		if err != nil || take != "" {
			return true, err
		}
	}
	return false, nil
}

// isOfRunningMinor reports whether a step is of the minor release that the upgrade starts at: it exists for its etcd
// alone.
func (p Plan) isOfRunningMinor(s catalog.Step) bool {
	return s.Etcd != "" && majorMinor(s.Cluster.Kubernetes.Version) == majorMinor(p.start())
}

// externalEtcdVersion returns the version of the etcd program on a host, such as 3.6.5.
func externalEtcdVersion(ctx context.Context, t *task.Host) (string, error) {
	out, err := t.Output(ctx, "etcd", "--version")
	if err != nil {
		return "", fmt.Errorf("version of etcd on %s: %w", t.Name, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(strings.TrimPrefix(first, "etcd Version:")), nil
}

// oldestExternalEtcd returns the oldest version of etcd on its hosts.
func (u *upgrade) oldestExternalEtcd(ctx context.Context) (string, error) {
	members := u.WithRole(manifest.RoleEtcd)
	versions := make([]string, len(members))
	err := u.OnAll(members, func(i int, t *task.Host) (err error) {
		versions[i], err = externalEtcdVersion(ctx, t)
		return err
	})
	if err != nil {
		return "", err
	}
	oldest := versions[0]
	for _, v := range versions {
		if versionLess(v, oldest) {
			oldest = v
		}
	}
	return oldest, nil
}

// runningEtcd calls do for each wanted host of external etcd, with the version of its program. Hosts without the
// program are left out: they are no members yet.
func runningEtcd(ctx context.Context, r *engine.Run, do func(t *task.Host, version string) error) error {
	if r.Cluster.Etcd.Type != manifest.EtcdExternal {
		return nil
	}
	for _, t := range wantedHosts(r, manifest.RoleEtcd) {
		there, err := t.Test(ctx, "test", "-e", etcd.Programs("etcd")[0].Path)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		version, err := externalEtcdVersion(ctx, t)
		if err == nil {
			err = do(t, version)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// etcdChanges returns the changes of the version of external etcd.
func etcdChanges(ctx context.Context, r *engine.Run) (changes []Change, err error) {
	err = runningEtcd(ctx, r, func(t *task.Host, running string) error {
		want, err := catalog.Version(r.Cluster, "etcd")
		if want, _, _ = strings.Cut(strings.TrimPrefix(want, "v"), "-"); err == nil && want != running {
			changes = withChange(changes, Change{Component: "etcd", From: "v" + plain.Line(running), To: "v" + want},
				t.Name)
		}
		return err
	})
	return changes, err
}

// checkExternalEtcd refuses to skip a version of etcd beside the cluster. Its tasks bring it to the bundle's version
// in one step.
func checkExternalEtcd(ctx context.Context, r *engine.Run) error {
	return runningEtcd(ctx, r, func(t *task.Host, running string) error {
		take, err := catalog.Through(r.Cluster, "etcd", running)
		if err != nil || take == "" {
			return err
		}
		v, err := semver.NewVersion(take)
		if err != nil {
			return err
		}
		release := fmt.Sprintf("v%d.%d.%d", v.Major(), v.Minor(), v.Patch())
		return &RefusedError{
			r.Cluster.Metadata.Name, r.Cluster.Kubernetes.Version,
			fmt.Sprintf("etcd on %s is %s, and the bundle's must not be reached from it directly", t.Name, running),
			"write components: {etcd: {version: " + release +
				"}} into the cluster file of the present release, build that bundle and upgrade with it; then use this one",
		}
	})
}
