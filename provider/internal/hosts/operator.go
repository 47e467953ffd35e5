package hosts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/semver"
	"sigs.k8s.io/yaml"
)

// A Login is how a host or a bastion lets us in. Key and Password are secret.
type Login struct {
	Address       string
	Port          int32
	User          string
	Key, Password []byte
	SudoPassword  []byte
}

// A Host is a host that work is done on.
type Host struct {
	Name string // in the inventory: the node's name, too, if the bootstrap data takes it from there
	// Owner is the machine that has the host: NAMESPACE/CLUSTER/MACHINE. kkbundle marks the host with it, and touches
	// no host with another mark.
	Owner                      string
	Login                      Login
	InternalIPv4, InternalIPv6 string
	Bastions                   []Login
	KnownHosts                 []byte
	AcceptNew                  bool // remember the key of a host that is not in KnownHosts
}

// A Registry is the site's registry. Password is secret.
type Registry struct {
	Address            string
	Username, Password string
	CA                 []byte
}

// A Bundle is an address of a bundle, and what it takes to read it. Password is secret.
type Bundle struct {
	Source             string
	Username, Password string
	CA                 []byte
	Trust              []byte // PEM of public keys
	RequireSignature   bool
}

// A File is a bundle that Pull has brought here, with its signature policy.
type File struct {
	Path             string
	Trust            []byte
	RequireSignature bool
}

// A Cluster is what work on a host needs to know of its cluster.
type Cluster struct {
	Name, Version        string
	PodCIDR, ServiceCIDR string
	Runtime, Packages    string // "" for those of the bundle's cluster file
	Registry             Registry
}

// Work is all that Provision needs. Document is the bootstrap data, which has secrets.
type Work struct {
	Host     Host
	Cluster  Cluster
	Bundle   File
	Document []byte
}

// A Done is what work on a host leaves to be kept.
type Done struct {
	KnownHosts []byte // with the keys that were accepted
}

// Phases of Provision, in order.
const (
	PhaseBootstrap        = "bootstrap"
	PhaseRepository       = "repository"
	PhaseBinary           = "binary"
	PhaseContainerManager = "container-manager"
	PhaseProvisioning     = "provisioning"
)

// Phases returns the phases of Provision, in order.
func Phases() []string {
	return []string{PhaseBootstrap, PhaseRepository, PhaseBinary, PhaseContainerManager, PhaseProvisioning}
}

// An Operator does the work on hosts. It keeps nothing but bundles: what a host needs is on the host, and a repeated
// run continues.
type Operator struct {
	Runner Runner
	// Dir has a directory of mode 0700 for each run while it lasts, with its inventory and its secrets. It should be in
	// memory.
	Dir string
	// Bundles is the directory of bundles: those with an address file:/// are in its directory site, those pulled
	// beside it.
	Bundles string

	mu      sync.Mutex
	pulling map[string]chan struct{} // by digest: hosts of a cluster want the same bundle
}

// lock waits until nobody else pulls a bundle.
func (o *Operator) lock(ctx context.Context, sum string) (unlock func(), err error) {
	o.mu.Lock()
	if o.pulling == nil {
		o.pulling = map[string]chan struct{}{}
	}
	if o.pulling[sum] == nil {
		o.pulling[sum] = make(chan struct{}, 1)
	}
	one := o.pulling[sum]
	o.mu.Unlock()
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Provision runs the bootstrap document on a host, which is prepared from the bundle first. reached gets the name of
// each phase that begins.
func (o *Operator) Provision(ctx context.Context, w Work, reached func(phase string)) (done Done, err error) {
	dir, err := o.open(w.Host)
	if err != nil {
		return Done{}, err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	args := slices.Concat([]string{"provision", "--owner", w.Host.Owner}, dir.connection(w.Host))
	if args, err = dir.bundled(args, w); err != nil {
		return Done{}, err
	}
	args = append(args, "--", w.Host.Name, "-", w.Bundle.Path)
	at, step := "", ""
	progress := func(e Event) {
		if e.Event == "task" && e.Task != "" {
			step = e.Task
		}
		if e.Event == "task" && e.Phase != at && slices.Contains(Phases(), e.Phase) {
			at = e.Phase
			reached(at)
		}
	}
	_, err = o.Runner.Run(ctx, Call{Args: args, Stdin: w.Document, Progress: progress})
	var failed *Failure
	if at == PhaseProvisioning && errors.As(err, &failed) {
		err = failed.withoutCommand(w.Host.Name + ": " + step)
	}
	return dir.done(), err
}

// Check reads the bootstrap document and reports its mistakes. No host is contacted.
func (o *Operator) Check(ctx context.Context, name string, document []byte) error {
	_, err := o.Runner.Run(ctx, Call{Args: []string{"provision", "--check", "--", name, "-"}, Stdin: document})
	return err
}

// Clean removes everything that kkbundle and kubeadm left on a host, except user volumes. It needs no bundle, and a
// host where nothing was installed is clean. A host with another mark than the owner's, or with an installation without
// one, is refused and stays as it is.
func (o *Operator) Clean(ctx context.Context, h Host, c Cluster) (done Done, err error) {
	dir, err := o.open(h)
	if err != nil {
		return Done{}, err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	cluster := map[string]any{
		"apiVersion": "kkbundle.io/v1", "kind": "Cluster", "metadata": map[string]any{"name": c.Name},
		"kubernetes": map[string]any{"version": c.Version}, "imageRegistry": map[string]any{"type": "none"}, "cni": map[string]any{"type": "none"},
	}
	if c.Runtime != "" {
		cluster["cri"] = map[string]any{"type": c.Runtime}
	}
	file, err := dir.writeYAML("cluster.yaml", cluster)
	if err != nil {
		return Done{}, err
	}
	args := slices.Concat([]string{"reset", "--yes", "--owner", h.Owner, "--cluster", file, "--limit", h.Name}, dir.connection(h))
	_, err = o.Runner.Run(ctx, Call{Args: args})
	return dir.done(), err
}

// Contents is what a bundle has.
type Contents struct {
	Name     string `json:"name"`
	Version  string `json:"bundleVersion"`
	Digest   string `json:"digest"`
	Versions []string
	// HasCluster reports whether the bundle has a cluster file.
	HasCluster bool
}

// Inspect returns what a bundle has. Of a published or served bundle, only its manifests are read.
func (o *Operator) Inspect(ctx context.Context, b Bundle) (c Contents, err error) {
	dir, err := o.directory()
	if err != nil {
		return Contents{}, err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	args, stdin, err := dir.source(b)
	if err != nil {
		return Contents{}, err
	}
	address, err := o.address(b.Source)
	if err != nil {
		return Contents{}, err
	}
	out, err := o.Runner.Run(ctx, Call{Args: slices.Concat([]string{"inspect"}, args, []string{"--", address}), Stdin: stdin})
	if err != nil {
		return Contents{}, err
	}
	var listing struct {
		Contents
		Items []struct{ Kind, Name string } `json:"items"`
	}
	if err := json.Unmarshal(out, &listing); err != nil {
		return Contents{}, fmt.Errorf("kkbundle inspect %s: the result is no JSON: %w", b.Source, err)
	}
	c = listing.Contents
	for _, i := range listing.Items {
		// A control plane of a version always has its API server, whatever the pod network replaces.
		if version, ok := apiServer(i.Name); ok && i.Kind == "image" && !slices.Contains(c.Versions, version) {
			c.Versions = append(c.Versions, version)
		}
		c.HasCluster = c.HasCluster || i.Kind == "manifest" && i.Name == "cluster.yaml"
	}
	semver.Sort(c.Versions)
	return c, nil
}

// apiServer returns the version of an image of Kubernetes' API server.
func apiServer(image string) (string, bool) {
	name, _, _ := strings.Cut(image, "@")
	repository, tag, ok := cutLast(name, ":")
	if !ok || !strings.HasSuffix("/"+repository, "/kube-apiserver") || !semver.IsValid(tag) {
		return "", false
	}
	return tag, true
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Pull returns the path of a bundle's file, which it downloads if it is not there yet. digest is the one that Inspect
// returned: another bundle, which the address may give by now, is refused.
func (o *Operator) Pull(ctx context.Context, b Bundle, digest string) (path string, err error) {
	if strings.HasPrefix(b.Source, "file://") {
		return o.address(b.Source)
	}
	algorithm, sum, _ := strings.Cut(digest, ":")
	if _, err := hex.DecodeString(sum); algorithm != "sha256" || err != nil || len(sum) != sha256.Size*2 {
		return "", fmt.Errorf("%s: %q is no digest of a bundle", b.Source, digest)
	}
	unlock, err := o.lock(ctx, sum)
	if err != nil {
		return "", err
	}
	defer unlock()
	// A directory for each bundle: its signature and its parts are beside it, and all of them are there or none.
	whole := filepath.Join(o.Bundles, pulledDir, sum)
	now := time.Now()
	if err := os.Chtimes(whole, now, now); err == nil { // Keep goes by the time of the last use
		return filepath.Join(whole, bundleFile), nil
	}
	partial := whole + ".part" // of the same file system; a repeated pull continues in it
	if err := os.MkdirAll(partial, 0o700); err != nil {
		return "", err
	}
	got, err := o.pull(ctx, b, filepath.Join(partial, bundleFile))
	if err != nil {
		return "", err
	}
	if got != digest {
		err := fmt.Errorf("%s: the address gives %q by now, and KKBundle's status has %s; wait until the KKBundle is read again, "+
			"or publish a bundle under a tag of its own", b.Source, got, digest)
		return "", errors.Join(err, os.RemoveAll(partial))
	}
	return filepath.Join(whole, bundleFile), os.Rename(partial, whole)
}

const (
	pulledDir  = "pulled" // below Operator.Bundles: a directory for each digest
	bundleFile = "bundle.kkb"
)

// Keep removes pulled bundles that have none of the digests, and what is left of their downloads, if nobody has used
// them since a time. A run that reads one has it open or has used it a short time ago.
func (o *Operator) Keep(digests []string, since time.Time) error {
	dir := filepath.Join(o.Bundles, pulledDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.ModTime().After(since) || slices.Contains(digests, "sha256:"+strings.TrimSuffix(e.Name(), ".part")) {
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}

// pull downloads a bundle to a path and returns its digest.
func (o *Operator) pull(ctx context.Context, b Bundle, path string) (digest string, err error) {
	dir, err := o.directory()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()
	args, stdin, err := dir.source(b)
	if err != nil {
		return "", err
	}
	// --force: what a pull that was cut off has left there is nobody's.
	args = slices.Concat([]string{"pull", "--force", "--cache", filepath.Join(o.Bundles, "cache"), "--output", path}, args, []string{"--", b.Source})
	out, err := o.Runner.Run(ctx, Call{Args: args, Stdin: stdin})
	if err != nil {
		return "", err
	}
	var result struct{ Digest string }
	if err := json.Unmarshal(out, &result); err != nil {
		return "", fmt.Errorf("kkbundle pull %s: the result is no JSON: %w", b.Source, err)
	}
	return result.Digest, nil
}

// SiteDir is the directory below Operator.Bundles of the files that people put there, for addresses file:///.
const SiteDir = "site"

// address returns the argument for a bundle's source. A file is only ever one that people have put there: not a pulled
// bundle, whose signature was checked by another KKBundle's keys.
func (o *Operator) address(source string) (string, error) {
	name, ok := strings.CutPrefix(source, "file:///")
	if !ok {
		return source, nil
	}
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%s: the file is outside of the directory of bundles; name a file in it", source)
	}
	return filepath.Join(o.Bundles, SiteDir, name), nil
}

// A runDir is the directory of one run.
type runDir struct{ path string }

func (o *Operator) directory() (runDir, error) {
	path, err := os.MkdirTemp(o.Dir, "run-")
	return runDir{path}, err
}

func (d runDir) remove() error { return os.RemoveAll(d.path) }

func (d runDir) write(name string, data []byte) (string, error) {
	path := filepath.Join(d.path, name)
	return path, os.WriteFile(path, data, 0o600)
}

func (d runDir) writeYAML(name string, value any) (string, error) {
	data, err := yaml.Marshal(value)
	if err != nil {
		return "", err
	}
	return d.write(name, data)
}

const knownHosts = "known_hosts"

// open makes the directory of a run on a host, with its inventory.
func (o *Operator) open(h Host) (runDir, error) {
	d, err := o.directory()
	if err != nil {
		return d, err
	}
	if err := d.inventory(h); err != nil {
		return d, errors.Join(err, d.remove())
	}
	return d, nil
}

func (d runDir) inventory(h Host) error {
	if _, err := d.write(knownHosts, h.KnownHosts); err != nil {
		return err
	}
	entry, err := d.login("host", h.Login)
	if err != nil {
		return err
	}
	if h.InternalIPv4 != "" {
		entry["internalIPv4"] = h.InternalIPv4
	}
	if h.InternalIPv6 != "" {
		entry["internalIPv6"] = h.InternalIPv6
	}
	hosts := map[string]any{h.Name: entry}
	var hops []string
	for i, b := range h.Bastions {
		hop, err := d.login("bastion"+strconv.Itoa(i), b)
		if err != nil {
			return err
		}
		hop["ssh"].(map[string]any)["bastion"] = "none"
		name := fmt.Sprintf("bastion-%d.%s", i+1, h.Name)
		hosts[name] = hop
		hops = append(hops, name)
	}
	if len(hops) > 0 {
		entry["ssh"].(map[string]any)["bastion"] = strings.Join(hops, ",")
	}
	// kkbundle wants a control plane in every inventory. No role changes what provision and reset do here.
	_, err = d.writeYAML("inventory.yaml", map[string]any{
		"apiVersion": "kkbundle.io/v1", "kind": "Inventory", "hosts": hosts,
		"groups": map[string]any{"kube_control_plane": []string{h.Name}, "kube_worker": []string{h.Name}},
	})
	return err
}

// login returns the entry of a host, and writes its secrets to files.
func (d runDir) login(name string, l Login) (map[string]any, error) {
	ssh := map[string]any{"user": l.User, "port": l.Port}
	entry := map[string]any{"address": l.Address, "ssh": ssh}
	switch {
	case len(l.Key) > 0:
		path, err := d.write(name+"-key", l.Key)
		if err != nil {
			return nil, err
		}
		ssh["key"] = path
	case len(l.Password) > 0:
		path, err := d.write(name+"-password", l.Password)
		if err != nil {
			return nil, err
		}
		ssh["passwordFile"] = path
	}
	if len(l.SudoPassword) > 0 {
		path, err := d.write(name+"-sudo", l.SudoPassword)
		if err != nil {
			return nil, err
		}
		entry["sudo"] = map[string]any{"passwordFile": path}
	}
	return entry, nil
}

func (d runDir) connection(h Host) []string {
	args := []string{
		"--inventory", filepath.Join(d.path, "inventory.yaml"), "--work-dir", filepath.Join(d.path, "work"),
		"--known-hosts", filepath.Join(d.path, knownHosts),
	}
	if h.AcceptNew {
		args = append(args, "--accept-new")
	}
	return args
}

// done returns what a run has left. A file that cannot be read has taught nothing.
func (d runDir) done() Done {
	data, err := os.ReadFile(filepath.Join(d.path, knownHosts))
	if err != nil {
		return Done{}
	}
	return Done{KnownHosts: data}
}

// settings returns the values that differ from the bundle's cluster file. Paths and names only: the registry's password
// is in a file.
func (d runDir) settings(c Cluster) ([]string, error) {
	registry := map[string]any{"type": "existing", "address": c.Registry.Address}
	if len(c.Registry.CA) > 0 {
		path, err := d.write("registry-ca.pem", c.Registry.CA)
		if err != nil {
			return nil, err
		}
		registry["ca"] = path
	}
	if c.Registry.Username != "" {
		path, err := d.write("registry-password", []byte(c.Registry.Password))
		if err != nil {
			return nil, err
		}
		registry["auth"] = map[string]any{"username": c.Registry.Username, "passwordFile": path}
	}
	text, err := json.Marshal(registry)
	if err != nil {
		return nil, err
	}
	// "PATH=" sets the default: a mapping is added to the one of the bundle's cluster file, whose registry may have another login, or hosts.
	settings := []string{
		"metadata.name=" + c.Name, "kubernetes.upgradeFrom=", "kubernetes.version=" + c.Version, "imageRegistry=", "imageRegistry=" + string(text),
		"imageDistribution.peers=",
	}
	for _, s := range []struct{ path, value string }{
		{"kubernetes.podCIDR", c.PodCIDR}, {"kubernetes.serviceCIDR", c.ServiceCIDR}, {"cri.type", c.Runtime}, {"osPackages", c.Packages},
	} {
		if s.value != "" {
			settings = append(settings, s.path+"="+s.value)
		}
	}
	return settings, nil
}

// source returns the arguments that read a bundle, and standard input with the password.
func (d runDir) source(b Bundle) (args []string, stdin []byte, err error) {
	file := func(flag, name string, data []byte) {
		if err != nil || len(data) == 0 {
			return
		}
		var path string
		path, err = d.write(name, data)
		args = append(args, flag, path)
	}
	remote := !strings.HasPrefix(b.Source, "file://")
	if remote {
		file("--ca", "source-ca.pem", b.CA)
	}
	policy, policyErr := d.policy(b.Trust, b.RequireSignature)
	args = append(args, policy...)
	if remote && b.Username != "" {
		args = append(args, "--username", b.Username, "--password-stdin")
		stdin = []byte(b.Password)
	}
	return args, stdin, errors.Join(err, policyErr)
}

// policy returns the arguments for a signature policy.
func (d runDir) policy(trust []byte, require bool) (args []string, err error) {
	if len(trust) > 0 {
		path, err := d.write("trust.pem", trust)
		if err != nil {
			return nil, err
		}
		args = append(args, "--trust", path)
	}
	if require {
		args = append(args, "--require-signature")
	}
	return args, nil
}

// InternalAddresses returns the node's addresses of a host: those given, else its address if it is one.
func InternalAddresses(address, v4, v6 string) []string {
	var all []string
	if a, err := netip.ParseAddr(address); err == nil {
		switch {
		case a.Unmap().Is4() && v4 == "":
			v4 = a.Unmap().String()
		case !a.Unmap().Is4() && v6 == "":
			v6 = a.String()
		}
	}
	for _, one := range []string{v4, v6} {
		if one != "" {
			all = append(all, one)
		}
	}
	return all
}
