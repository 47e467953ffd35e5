package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kkbundle/kkbundle/cmd/internal/terminal"
	"github.com/kkbundle/kkbundle/deploy"
	"github.com/kkbundle/kkbundle/manifest/values"
)

// TestPullSecretOfOneRegistry holds that nodes get no other login of a person's docker configuration.
func TestPullSecretOfOneRegistry(t *testing.T) {
	t.Parallel()
	const file = `{"auths": {"https://harbor.site/v2/": {"auth": "cm9ib3Q6eA=="}, "ghcr.io": {"auth": "bWluZTpteS1zZWNyZXQ="}}, "credsStore": "pass"}`
	got, err := pullSecret([]byte(file), "harbor.site")
	if err != nil || string(got) != `{"auths":{"harbor.site":{"auth":"cm9ib3Q6eA=="}}}` {
		t.Errorf("got %s, %v", got, err)
	}
	for text, host := range map[string]string{
		file: "quay.io", `{"auths": {"quay.io": {}}}`: "quay.io",
		"secret-word": "quay.io",
	} {
		if _, err := pullSecret([]byte(text), host); err == nil || strings.Contains(err.Error(), "secret-word") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestUnfinishedDeployment holds that a run that did not end is not summed up as one that did, and says what stays.
func TestUnfinishedDeployment(t *testing.T) {
	t.Parallel()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	one := &deploy.Report{Results: []deploy.Result{{}}}
	for _, c := range []struct {
		isInterrupted bool
		report        *deploy.Report
		dryRun        bool
		want          string
	}{
		{false, &deploy.Report{}, false, ""},
		{false, one, true, ""},
		{false, one, false, "stopped: 1 release done and kept; the same command continues\n"},
		{true, one, false, "interrupted: 1 release done and kept; the same command continues\n"},
		{
			true, &deploy.Report{}, false,
			"interrupted: no release was finished; run the same command again to continue\n",
		},
	} {
		var log strings.Builder
		g := &globals{Console: terminal.NewConsole(terminal.Streams{
			In: strings.NewReader(""), Out: io.Discard,
			Err: &log,
		})}
		ctx := t.Context()
		if c.isInterrupted {
			ctx = interrupted
		}
		if noteUnfinished(ctx, g, c.report, c.dryRun); log.String() != c.want {
			t.Errorf("got %q, want %q", log.String(), c.want)
		}
	}
}

// A directory does not hide the deployment of the same name.
func TestRemoveBesideADirectory(t *testing.T) {
	t.Parallel()
	err := runDeployRemove(t.Context(), &globals{}, kubeFlags{kubeconfig: "none.conf"}, t.TempDir(), true)
	if err == nil || !strings.Contains(err.Error(), "none.conf") {
		t.Errorf("got %v, want the kubeconfig that is missing", err)
	}
}

func TestSiteValues(t *testing.T) {
	t.Parallel()
	for _, o := range []deployOptions{
		{sets: []string{"web=password"}},
		{sets: []string{"=a=b"}},
		{values: []string{"web"}},
		{values: []string{"=f"}},
	} {
		if _, _, err := o.siteValues(nil); exitCode(err) != 64 {
			t.Errorf("%v %v: %v", o.sets, o.values, err)
		}
	}
	table := values.Table{{Name: "domain", At: values.Site}, {Name: "key", At: values.Site}}
	o := deployOptions{sets: []string{"shop/web=a.b=c=d", "domain=a=b", "key=x"}}
	list, given, err := o.siteValues(table)
	if len(given) != 2 || given[0].Name != "domain" || given[0].Text != "a=b" || given[1].Text != "x" {
		t.Errorf("given %v", given)
	}
	if err != nil || len(list) != 1 || list[0].Release != "shop/web" || list[0].Set != "a.b=c=d" {
		t.Errorf("got %v, %v", list, err)
	}
}

// TestDeploymentVersions holds that version is that of the result, as in the results of all commands, and
// bundleVersion that of the bundle.
func TestDeploymentVersions(t *testing.T) {
	t.Parallel()
	for name, print := range map[string]func(*globals) error{
		"deploy": func(g *globals) error {
			return printDeployment(g, &deploy.Report{Name: "shop", Version: "1.4.0"}, deployOptions{}, 0)
		},
		"deploy ls": func(g *globals) error {
			return printDeployed(g, []*deploy.Record{{Name: "shop", Bundle: "1.4.0", Version: 7}})
		},
	} {
		var out bytes.Buffer
		g := &globals{Console: terminal.NewConsole(terminal.Streams{Out: &out, Err: io.Discard})}
		g.JSON = true
		if err := print(g); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Version       int    `json:"version"`
			BundleVersion string `json:"bundleVersion"`
			Bundles       []struct {
				Version       *int   `json:"version"`
				BundleVersion string `json:"bundleVersion"`
			} `json:"bundles"`
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, &out)
		}
		of := got.BundleVersion
		if len(got.Bundles) == 1 && got.Bundles[0].Version == nil {
			of = got.Bundles[0].BundleVersion
		}
		if got.Version != 1 || of != "1.4.0" {
			t.Errorf("%s: %s", name, &out)
		}
	}
}

// TestRedirecting holds that a run without the flag keeps what an earlier run chose, and that the flag's value is no
// default.
func TestRedirecting(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]deploy.Redirecting{
		"":                       deploy.RedirectAsBefore,
		"--redirect-pods":        deploy.RedirectPods,
		"--redirect-namespace a": deploy.RedirectPods,
		"--redirect-pods=false":  deploy.RedirectNothing,
		"--redirect-pods=false --redirect-namespace a": deploy.RedirectNothing,
	} {
		var o deployOptions
		f := pflag.NewFlagSet("deploy", pflag.ContinueOnError)
		o.addRedirect(f)
		if err := f.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if got := o.redirecting(f); got != want {
			t.Errorf("%q: got %d, want %d", args, got, want)
		}
	}
}
