// Package results keeps the outcome of the lab's tests, one file per test and host system.
// docs/reference/platforms.md and deploy-matrix.md are generated from them.
package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kkbundle/kkbundle/manifest"
)

// DirEnv is the environment variable that names the directory for results. Tests write none without it.
const DirEnv = "KKBUNDLE_RESULTS"

// A Lab is what booted the hosts of a test.
type Lab string

// The labs.
const (
	Namespaces Lab = "lab"             // package hosts: containers of one kernel
	Machines   Lab = "virtual machine" // a kernel of their own
	Processes  Lab = "processes"       // no hosts: genuine programs on the testing machine
)

// An Outcome is how a test ended.
type Outcome string

// The outcomes. A skipped test leaves no result.
const (
	Passed Outcome = "passed"
	Failed Outcome = "failed"
)

// A Result is the last run of a test.
type Result struct {
	Test    string  `json:"test"`
	Outcome Outcome `json:"outcome"`
	// Date is the day of the run in UTC. It is empty for a run before results were kept.
	Date    string   `json:"date,omitempty"`
	Version string   `json:"version,omitempty"` // of kkbundle
	Seconds int      `json:"seconds,omitempty"`
	Lab     Lab      `json:"lab"`
	Hosts   []string `json:"hosts"` // ID and version of their distributions, as debian/12
	// Arches are the hosts' architectures in Go's spelling. They are empty in results from before they were noted, of
	// amd64.
	Arches []string `json:"arches,omitempty"`
	Cluster
	// StandIns are programs that took the place of genuine ones.
	StandIns []string `json:"standIns,omitempty"`
	// Given are programs that were built elsewhere and given to the lab, with module and commit.
	Given []string `json:"given,omitempty"`
	// Moves are the cluster's ways from one release to another while an application was asked.
	Moves []Move `json:"moves,omitempty"`
}

// A Move is an upgrade or a rollback, with what an application's clients noticed of it.
type Move struct {
	From     string `json:"from"` // of Kubernetes
	To       string `json:"to"`
	Rollback bool   `json:"rollback,omitempty"`
	Topology string `json:"topology"`        // as "1 control plane, 2 nodes"
	Kills    int    `json:"kills"`           // of kkbundle on the way
	Seconds  int    `json:"seconds"`         // of all its runs
	Runs     int    `json:"runs,omitempty"`  // that were not killed, if there were several
	Stage    int    `json:"stage,omitempty"` // seconds of the stage before, which are not in Seconds
	Asked    int    `json:"asked"`           // questions to the application
	Missed   int    `json:"missed"`          // of them without an answer
	// Away are the milliseconds for which the API did not answer, each time longer than a second.
	Away []int `json:"away,omitempty"`
}

// A Cluster is the part of a cluster file that the pages compare.
type Cluster struct {
	Distribution manifest.Distribution `json:"distribution"`
	Kubernetes   string                `json:"kubernetes,omitempty"`
	Runtime      manifest.RuntimeType  `json:"runtime"`
	Network      manifest.NetworkType  `json:"network"`
	Registry     manifest.RegistryType `json:"registry"`
	Etcd         manifest.EtcdType     `json:"etcd"`
	Endpoint     manifest.EndpointType `json:"endpoint"`
}

// ClusterOf reads a cluster file.
func ClusterOf(file string) (Cluster, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Cluster{}, fmt.Errorf("cluster of a result: %w", err)
	}
	parsed, err := manifest.ParseCluster(file, data)
	if err != nil {
		return Cluster{}, err
	}
	c := parsed.WithDefaults()
	return Cluster{
		Distribution: c.Kubernetes.Distribution, Kubernetes: c.Kubernetes.Version, Runtime: c.CRI.Type,
		Network:  c.CNI.Type,
		Registry: c.ImageRegistry.Type, Etcd: c.Etcd.Type, Endpoint: c.ControlPlaneEndpoint.Type,
	}, nil
}

// HostID returns ID/VERSION_ID from the text of /etc/os-release, as debian/12.
func HostID(osRelease string) string {
	values := map[string]string{}
	for line := range strings.Lines(osRelease) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = strings.Trim(value, `"'`)
	}
	return values["ID"] + "/" + values["VERSION_ID"]
}

// ArchOf returns the architecture in Go's spelling for what uname -m prints.
func ArchOf(machine string) string {
	switch machine = strings.TrimSpace(machine); machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	default:
		return machine
	}
}

// Write replaces the result of the same test on the same hosts in dir.
func Write(dir string, r Result) error {
	r.Hosts = slices.Compact(slices.Sorted(slices.Values(r.Hosts)))
	r.Arches = slices.Compact(slices.Sorted(slices.Values(r.Arches)))
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("result of %s: %w", r.Test, err)
	}
	name := filepath.Join(dir, fileName(r))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(name+".tmp", append(data, '\n'), 0o644)); err != nil {
		return fmt.Errorf("result of %s: %w", r.Test, err)
	}
	return os.Rename(name+".tmp", name)
}

func fileName(r Result) string {
	if len(r.Hosts) == 0 {
		return r.Test + ".json"
	}
	return r.Test + "." + strings.ReplaceAll(strings.Join(r.Hosts, "+"), "/", "-") + ".json"
}

// Load reads the results in dir, sorted by test and hosts.
func Load(dir string) ([]Result, error) {
	files, err := fs.Glob(os.DirFS(dir), "*.json")
	if err != nil {
		return nil, err
	}
	var all []Result
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("result: %w", err)
		}
		var r Result
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("result %s: %w", name, err)
		}
		if err := r.check(name); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func (r Result) check(name string) error {
	if want := fileName(r); name != want {
		return fmt.Errorf("result %s: its content belongs into %s", name, want)
	}
	labs := []Lab{Namespaces, Machines}
	if len(r.Hosts) == 0 {
		labs = []Lab{Processes}
	}
	if r.Outcome != Passed && r.Outcome != Failed || !slices.Contains(labs, r.Lab) {
		return fmt.Errorf("result %s: outcome %q, lab %q, hosts %q", name, r.Outcome, r.Lab, r.Hosts)
	}
	if r.Date == "" {
		return nil
	}
	if _, err := time.Parse(time.DateOnly, r.Date); err != nil {
		return fmt.Errorf("result %s: %w", name, err)
	}
	if r.Version == "" {
		return fmt.Errorf("result %s: a dated result names the version of kkbundle", name)
	}
	return nil
}
