package charts

import (
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
)

// TestDeployedVersion has a release whose upgrade was interrupted: the deployed revision counts.
func TestDeployedVersion(t *testing.T) {
	t.Parallel()
	cfg := &action.Configuration{Releases: storage.Init(driver.NewMemory())}
	o := InstallOptions{Release: "flannel", Namespace: "default"}
	is := func(want string) {
		t.Helper()
		if got, err := deployedVersion(cfg, o); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	add := func(revision int, version string, status release.Status) {
		t.Helper()
		r := &release.Release{
			Name: "flannel", Namespace: "default", Version: revision, Info: &release.Info{Status: status},
			Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "flannel", Version: version}},
		}
		if err := cfg.Releases.Create(r); err != nil {
			t.Fatal(err)
		}
	}
	is("")
	add(1, "v0.27.4", release.StatusDeployed)
	is("v0.27.4")
	add(2, "v0.28.0", release.StatusPendingUpgrade)
	is("v0.27.4")
}
