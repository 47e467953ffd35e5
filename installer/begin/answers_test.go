//go:build linux && amd64

package begin

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/precheck"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/manifest"
)

// kubeletStandIn returns a program that reads its settings as the kubelet does.
func kubeletStandIn(t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubelet")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", file, "../settingcheck/testdata/program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestBundledProgramsAreAsked: settings of the site's own cluster file are asked of the bundle's programs, before any
// host is touched, for each release on the way. A precheck reports them; an installation ends there, except with
// --force.
func TestBundledProgramsAreAsked(t *testing.T) {
	t.Parallel()
	program := kubeletStandIn(t)
	runOf := func(settings string) *engine.Run {
		s := sitetest.NewSite(t, "cp1")
		s.Options.Cluster = tasktest.Cluster(t, "kubernetes: {version: v1.34.3"+settings+"}")
		b := sitetest.BundleWith(t, s.Options.Cluster, func(name string) []byte {
			if name == "kubelet" {
				return program
			}
			return sitetest.FileContent(t, s.Options.Cluster, name)
		})
		r := s.Run(t, b)
		r.Precheck = nil
		return r
	}
	r := runOf(", kubelet: {featureGates: {KubeletInUserNamespace: true, NoSuchGate: true}}")
	before := tasktest.Cluster(t, "kubernetes: {version: v1.33.7, kubelet: {maxOpenFiles: 100}}")
	r.Between = []*manifest.Cluster{before}
	report, err := examineAll(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(report.Results, func(r precheck.Result) bool { return r.ID == "program-settings" })
	if i < 0 {
		t.Fatal("the report has no result of this check")
	}
	result := report.Results[i]
	for _, want := range []string{
		"kubernetes.kubelet.featureGates.NoSuchGate: kubelet v1.34.3 does not start with --feature-gates=NoSuchGate=true: unrecognized feature gate: NoSuchGate",
		"kubelet v1.33.7 could not be asked whether it takes its configuration (the bundle lacks the file kubelet",
	} {
		if !strings.Contains(result.Found, want) {
			t.Errorf("found %q, want %q", result.Found, want)
		}
	}
	if strings.Contains(result.Found, "KubeletInUserNamespace") || result.OK || result.Level != precheck.Block {
		t.Errorf("%+v", result)
	}
	if err := precheckHosts(t.Context(), r); err == nil || !strings.Contains(err.Error(), "program-settings") {
		t.Errorf("an installation goes on: %v", err)
	}
	r.Force = true
	if err := precheckHosts(t.Context(), r); err != nil {
		t.Errorf("with --force: %v", err)
	}
	r.Options.Selection.Skip = []string{"program-settings"}
	if a := answers(t.Context(), r); a != nil {
		t.Errorf("asked although the check was left out: %+v", a)
	}
	for _, settings := range []string{"", ", kubelet: {featureGates: {KubeletInUserNamespace: true}}"} {
		a := answers(t.Context(), runOf(settings))
		if settings == "" && a != nil || settings != "" && (a == nil || len(a.Refused)+len(a.Unasked) > 0) {
			t.Errorf("%q: %+v, %v", settings, a, errors.New("unexpected answers"))
		}
	}
}
