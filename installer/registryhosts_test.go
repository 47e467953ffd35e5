//go:build linux

package installer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/sitetest"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/installer/tasktest"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

func TestRegistryPair(t *testing.T) {
	t.Parallel()
	p := sitetest.NewPairSite(t)
	if err := p.R.Phases(t.Context(), p.Phases()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"certificates@ changed", "registry-address@reg1 changed", "registry-address@reg2 changed",
		"registry-answers@reg1 done", "registry-answers@reg2 done",
		"registry@reg1 changed", "registry@reg2 changed", "seed-registry@reg1 changed", "seed-registry@reg2 changed",
		"verify-registry@reg1 done", "verify-registry@reg2 done",
	}
	if diff := cmp.Diff(p.States(), want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
	port := fmt.Sprint(p.Options.Cluster.ImageRegistry.Port)
	for _, name := range []string{"reg1", "reg2"} {
		tasktest.Golden(t, "keepalived-"+name+".conf",
			[]byte(strings.ReplaceAll(p.Hosts[name].Content(siteregistry.AddressDir+"/keepalived.conf"), ":"+port,
				":5000")))
	}
	cert, err := pki.ParseCertificate([]byte(p.Hosts["reg2"].Content(siteregistry.ConfigDir + "/tls.crt")))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"reg1", "reg2", "localhost", "127.0.0.2", "127.0.0.3", sitetest.PairVIP} {
		if err := cert.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if got := sitetest.MustAccess(t, p.R).Address; got != sitetest.PairVIP+":"+port {
		t.Errorf("nodes pull from %s", got)
	}
	if err := p.R.Phases(t.Context(), p.Phases()); err != nil {
		t.Fatal(err)
	}
	for _, state := range p.States() {
		if !strings.HasSuffix(state, " done") {
			t.Error("a second time:", state)
		}
	}
	// Missing content of one host is noticed and pushed there only.
	if err := os.RemoveAll(filepath.Join(p.Hosts["reg2"].Root, siteregistry.DataDir,
		"docker/registry/v2/repositories/registry.k8s.io/pause")); err != nil {
		t.Fatal(err)
	}
	if err := p.R.Phases(t.Context(),
		[]task.Phase{{Name: "verify", Tasks: []task.Task{health.VerifyRegistryTask()}}}); err == nil ||
		!strings.Contains(err.Error(), "reg2: verify verify-registry: the registry on this host lacks images") {
		t.Errorf("got %v", err)
	}
	p.States()
	p.R.Hosts[2].Failed = false
	if err := p.R.Phases(t.Context(), p.Phases()); err != nil {
		t.Fatal(err)
	}
	if got := p.States(); !slices.Contains(got, "seed-registry@reg2 changed") ||
		!slices.Contains(got, "seed-registry@reg1 done") {
		t.Errorf("got %q", got)
	}
}

// Hosts that do not hear each other both take the address: nodes would pull from either.
func TestRegistryAddressTwice(t *testing.T) {
	t.Parallel()
	p := sitetest.NewPairSite(t)
	p.Hold("reg1", "reg2")
	var twice interface{ Hint() string }
	if err := siteregistry.CheckSharedAddress(t.Context(), p.R.Site); !errors.As(err, &twice) ||
		!strings.Contains(err.Error(), "reg1 and reg2 have the address 127.0.0.4 at once") ||
		!strings.Contains(twice.Hint(), "112") {
		t.Errorf("got %v", err)
	}
	p.Hold()
	if err := siteregistry.CheckSharedAddress(t.Context(), p.R.Site); err == nil ||
		!strings.Contains(err.Error(), "no registry host has the address 127.0.0.4") {
		t.Errorf("got %v", err)
	}
	p.R.Hosts[1].Err, p.R.Hosts[1].Conn = errors.New("lost"), nil // it may be there
	if err := siteregistry.CheckSharedAddress(t.Context(), p.R.Site); err != nil {
		t.Error(err)
	}
}

func TestRegistryAddressRefused(t *testing.T) {
	t.Parallel()
	p := sitetest.NewPairSite(t)
	task := siteregistry.AddressTask()
	if err := os.Remove(filepath.Join(p.Hosts["reg1"].Root, siteregistry.KeepalivedBinary)); err != nil {
		t.Fatal(err)
	}
	var missing interface{ Hint() string }
	if err := task.Do(t.Context(), p.R.Hosts[1]); !errors.As(err, &missing) ||
		!strings.HasPrefix(err.Error(), "reg1 has no ") || !strings.Contains(missing.Hint(), "keepalived") {
		t.Errorf("without keepalived: %v", err)
	}
	p.Hosts["reg1"].Answer("ip", func(_ context.Context, cmd host.Cmd) error {
		_, err := io.WriteString(cmd.Stdout, "2: eth0    inet 10.0.0.3/24 brd 10.0.0.255 scope global eth0\n")
		return err
	})
	if err := task.Do(t.Context(), p.R.Hosts[1]); err == nil ||
		!strings.Contains(err.Error(), "no interface of reg1 has a network with the address 127.0.0.4") {
		t.Errorf("in another network: %v", err)
	}
}

// A run that is not about the registry hosts needs one of them; one that is about all hosts needs both.
func TestRegistryLost(t *testing.T) {
	t.Parallel()
	lost := errors.New("reg1: no route to host")
	for name, tc := range map[string]struct {
		limit []string
		lost  []string
		want  string // the hosts that the registry's tasks run on; "" if the run does not begin
	}{
		"all hosts, one lost":        {lost: []string{"reg1"}},
		"other hosts, one lost":      {limit: []string{"cp1"}, lost: []string{"reg1"}, want: "reg2"},
		"other hosts, none lost":     {limit: []string{"cp1"}, want: "reg1 reg2"},
		"other hosts, both lost":     {limit: []string{"cp1"}, lost: []string{"reg1", "reg2"}},
		"the lost one itself":        {limit: []string{"reg1"}, lost: []string{"reg1"}},
		"the one that is there":      {limit: []string{"reg2"}, lost: []string{"reg1"}, want: "reg2"},
		"all hosts, and none is not": {want: "reg1 reg2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := sitetest.NewPairSite(t)
			p.Options.Limit = tc.limit
			p.Options.Helper = func(string) ([]byte, error) { return []byte("#!/bin/sh\n"), nil }
			p.Options.Dial = func(_ context.Context, h manifest.Host) (host.Host, error) {
				if slices.Contains(tc.lost, h.Name) {
					return nil, lost
				}
				return p.Hosts[h.Name], nil
			}
			for _, h := range p.Hosts {
				h.Answer("uname", func(_ context.Context, cmd host.Cmd) error {
					_, err := io.WriteString(cmd.Stdout, "x86_64\n")
					return err
				})
			}
			r := p.Run(t, p.R.Bundle)
			r.Hosts = nil
			err := r.Connect(t.Context())
			if tc.want == "" {
				if !errors.Is(err, lost) {
					t.Errorf("got %v, want that a host is lost", err)
				}
				return
			}
			if got := names(engine.TargetsOf(r.Site, siteregistry.SeedTask())); err != nil || got != tc.want {
				t.Errorf("got %s, %v; want %s", got, err, tc.want)
			}
		})
	}
}

func TestRegistryNamesOfOne(t *testing.T) {
	t.Parallel()
	r := sitetest.NewSite(t, "cp1", "node1").Run(t, nil)
	want := pki.Names{Hosts: []string{"cp1", "localhost"}, Addresses: []netip.Addr{
		netip.MustParseAddr("10.0.0.3"),
		netip.MustParseAddr("127.0.0.1"),
	}}
	if diff := cmp.Diff(siteregistry.CertificateNames(r.Site), want,
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}

func TestRegistryServices(t *testing.T) {
	t.Parallel()
	p := sitetest.NewPairSite(t)
	for _, name := range []string{"reg1", "reg2"} {
		p.Hosts[name].Put(t, "/etc/systemd/system/"+siteregistry.Unit, "")
	}
	_, pair, err := pki.NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p.Hosts["reg1"].Put(t, siteregistry.CertificateFiles().Cert, string(pair.Cert))
	// The script looks at the host's own files: below its root they are, and systemctl is a program there.
	p.Hosts["reg1"].Answer("sh", func(ctx context.Context, cmd host.Cmd) error {
		if !slices.Contains(cmd.Args, siteregistry.Unit) {
			t.Errorf("asked for %q", cmd.Args)
		}
		_, err := io.WriteString(cmd.Stdout, siteregistry.Unit+"\n")
		return err
	})
	p.R.Hosts[2].Err = errors.New("reg2: no answer")
	s := health.Survey{Registries: health.SurveyRegistries(t.Context(), p.R.Site)}
	if all := s.Registries[0].Certificates; len(all) != 1 || all[0].Path != siteregistry.CertificateFiles().Cert {
		t.Errorf("certificates of reg1, which is no node: %+v", all)
	}
	var got []string
	for _, f := range s.JudgeRegistries() {
		got = append(got, f.ID+" "+f.Host+" "+string(f.State)+" "+f.Found)
	}
	want := []string{
		"registry-service reg1 failed kkbundle-registry.service does not run",
		"host-reachable reg2 failed reg2: no answer",
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
