package look

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/kkbundle/kkbundle/installer/addon"
	"github.com/kkbundle/kkbundle/installer/diagnose"
	"github.com/kkbundle/kkbundle/installer/engine"
	"github.com/kkbundle/kkbundle/installer/health"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/node"
	"github.com/kkbundle/kkbundle/installer/peers"
	"github.com/kkbundle/kkbundle/installer/report"
	"github.com/kkbundle/kkbundle/installer/siteregistry"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/capped"
)

// Limits of a support bundle: large enough to find a cause, small enough to be mailed.
const (
	mostOfFile  = 4 << 20   // of a file; of a log, its end
	mostInAll   = 512 << 20 // before compression to about a tenth
	askPatience = time.Minute
)

// SupportOptions are the options of WriteSupportBundle.
type SupportOptions struct {
	StatusOptions
	Namespaces    []string // besides those of Kubernetes and of kkbundle's installation
	AllNamespaces bool
	Values        bool // with the values of variables and config maps
}

// namespaces returns the namespaces whose objects and logs are collected; none means all.
func (o SupportOptions) namespaces() []string {
	if o.AllNamespaces {
		return nil
	}
	list := append([]string{"kube-public", "kube-node-lease"}, o.Namespaces...)
	if o.Cluster != nil {
		list = append(list, addon.OwnNamespaces(o.Cluster)...)
	}
	return slices.Compact(slices.Sorted(slices.Values(append(list, kube.SystemNamespace))))
}

// A SupportBundle is the result of WriteSupportBundle.
type SupportBundle struct {
	Files int
	// Unreached are hosts that could not be asked, Lacking files that could not be collected, each with the reason.
	Unreached, Lacking []string
}

// WriteSupportBundle writes a zstd-compressed tar for a diagnosis of the cluster: logs, facts, versions, configuration,
// and objects except Secrets. Secrets are removed from all files. It works on partly installed hosts and with a cluster
// that does not answer: the bundle names the missing files. The error is a fault on this machine.
func WriteSupportBundle(ctx context.Context, o SupportOptions, w io.Writer) (_ SupportBundle, err error) {
	z, err := zstd.NewWriter(w)
	if err != nil {
		return SupportBundle{}, err
	}
	a := &archive{tar: tar.NewWriter(z), namespaces: o.namespaces()}
	err = lookAt(ctx, o.StatusOptions, func(ctx context.Context, r *engine.Run, from *task.Host) error {
		a.now = r.Now()
		hideSecrets(r)
		a.scrub = newScrubber(r.Mask)
		a.scrub.values = o.Values
		collectHere(r, a)
		_ = r.OnAll(r.Hosts, func(_ int, t *task.Host) error {
			if t.Conn == nil || t.Err != nil {
				a.lacks(&a.said.Unreached, t.Name, t.Err)
				return nil
			}
			collectHost(ctx, t, a)
			return nil
		})
		if from != nil {
			collectCluster(ctx, from, a)
		} else {
			a.lacks(&a.said.Lacking, "cluster", errors.New("no reachable control plane has a cluster of kkbundle"))
		}
		a.status(ctx, r, from)
		a.text("README.txt", a.readme(clusterName(r)))
		return errors.Join(context.Cause(ctx), a.err)
	})
	return a.said, errors.Join(err, a.tar.Close(), z.Close())
}

// hideSecrets adds this machine's secrets to the masker.
func hideSecrets(r *engine.Run) {
	for _, name := range []string{
		task.RegistryPassFile, siteregistry.OldLogin(task.RegistryPassFile),
		siteregistry.OldLogin(task.HarborRobotFile), task.RegistrySecretFile, task.RegistryHashFile, task.PushPassFile,
		task.PushHashFile, task.HarborAdminFile, task.HarborDatabaseFile, task.HarborRobotFile, peers.LoginFile,
	} {
		if data, err := r.Dir.Read(name); err == nil {
			for line := range strings.Lines(string(data)) {
				line = strings.TrimSpace(line)
				r.Mask.Hide(line)
				_, secret, _ := strings.Cut(line, ":") // USER:PASSWORD, or USER:HASH
				r.Mask.Hide(secret)
			}
		}
	}
	for _, h := range r.Options.Inventory.Hosts() {
		for _, secret := range []string{h.SSH.Password.Reveal(), h.Sudo.Password.Reveal(), h.SSH.PrivateKey.Reveal()} {
			r.Mask.Hide(secret)
		}
	}
}

// An archive accepts files from several hosts at a time.
type archive struct {
	tar        *tar.Writer
	scrub      *scrubber
	now        time.Time
	namespaces []string // none means all

	mu    sync.Mutex
	bytes int64
	said  SupportBundle
	err   error
}

// text adds a text without its secrets.
func (a *archive) text(name, text string) { a.add(name, []byte(a.scrub.text(text))) }

func (a *archive) add(name string, data []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil || len(data) == 0 {
		return
	}
	if a.bytes += int64(len(data)); a.bytes > mostInAll {
		a.said.Lacking = append(a.said.Lacking, name+": the support bundle is full")
		a.bytes -= int64(len(data))
		return
	}
	const mode = 0o600
	a.err = a.tar.WriteHeader(&tar.Header{
		Name: path.Join("support", name), Mode: mode, Size: int64(len(data)),
		ModTime: a.now,
	})
	if a.err == nil {
		_, a.err = a.tar.Write(data)
		a.said.Files++
	}
}

func (a *archive) lacks(list *[]string, what string, err error) {
	if err == nil {
		err = errors.New("the run has no connection to the host")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	*list = append(*list, what+": "+a.scrub.text(err.Error()))
}

// clusterName returns the name from the cluster file, or from the last report if no file was given.
func clusterName(r *engine.Run) string {
	last := report.Status{Cluster: r.Cluster.Metadata.Name}
	addLastRun(r, &last)
	return cmp.Or(last.Cluster, "(unknown name)")
}

func (a *archive) readme(cluster string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	values, namespaces := "Values of variables and of config maps are left out.", "of all namespaces"
	if a.scrub.values {
		values = "Values of variables and of config maps are included."
	}
	if len(a.namespaces) > 0 {
		namespaces = "of the namespaces " + strings.Join(a.namespaces, ", ")
	}
	text := fmt.Sprintf(`Support bundle of cluster %s, made on %s.

status.json     the output of kkbundle status
work/           install.log, the last run's report, and the logs of failures
cluster/        objects of the cluster; no Secrets
hosts/NAME/     facts, configuration files, logs of units and pods, output of commands

Values with names of secrets (password, token, key and so on) and texts that look like secrets were replaced by %s.
%s
Objects and logs: %s.
The bundle has names of hosts, addresses and images: review it before you pass it on.
`, cluster, a.now.UTC().Format(time.RFC3339), task.Masked, values, namespaces)
	for title, list := range map[string][]string{
		"Hosts that could not be reached":   a.said.Unreached,
		"Files that could not be collected": a.said.Lacking,
	} {
		if len(list) > 0 {
			text += "\n" + title + ":\n  " + strings.Join(list, "\n  ") + "\n"
		}
	}
	return text
}

// collectHere adds the files of the work directory, without keys and passwords.
func collectHere(r *engine.Run, a *archive) {
	for _, name := range []string{task.LogFile, engine.ReportJSONFile} {
		if data, err := r.Dir.Read(name); err == nil {
			a.text("work/"+name, string(data[max(0, len(data)-mostOfFile):]))
		}
	}
	const most = 20 // the latest failures
	list, err := fs.ReadDir(r.Dir.Root.FS(), diagnose.FailuresDir)
	if err != nil {
		return
	}
	for _, dir := range list[max(0, len(list)-most):] {
		files, _ := fs.ReadDir(r.Dir.Root.FS(), path.Join(diagnose.FailuresDir, dir.Name()))
		for _, f := range files {
			name := path.Join(diagnose.FailuresDir, dir.Name(), f.Name())
			if data, err := r.Dir.Read(name); err == nil {
				a.text("work/"+name, string(data[max(0, len(data)-mostOfFile):]))
			}
		}
	}
}

//go:embed scripts/support-bundle.sh
var supportBundleScript string

// hostAnswers returns the files that supportBundleScript prints on every host.
func hostAnswers() []string {
	return []string{
		"versions.txt", "system.txt", "network.txt", "processes.txt", "images.txt",
		"kernel.log", "units.log", "pods.log", "state.txt", "configuration.txt",
	}
}

func collectHost(ctx context.Context, t *task.Host, a *archive) {
	dir := "hosts/" + t.Name + "/"
	for _, file := range hostAnswers() {
		ctx, cancel := context.WithTimeout(ctx, askPatience)
		answer := host.Script("support-bundle.sh", supportBundleScript, append([]string{strconv.Itoa(mostOfFile), file},
			a.namespaces...)...)
		out, err := t.Output(task.WithoutOutput(ctx), answer...)
		cancel()
		if err != nil {
			a.lacks(&a.said.Lacking, dir+file, err)
			continue
		}
		a.text(dir+file, string(out[max(0, len(out)-mostOfFile):]))
	}
	facts, err := t.Facts(ctx, node.Probe{})
	if err != nil {
		a.lacks(&a.said.Lacking, dir+"facts.json", err)
		return
	}
	a.json(dir+"facts.json", facts)
}

// json adds a value of this program's own types.
func (a *archive) json(name string, v any) {
	data, err := json.Marshal(v)
	if err == nil {
		data, err = a.scrub.objects(data)
	}
	if err != nil {
		a.lacks(&a.said.Lacking, name, err)
		return
	}
	a.add(name, data)
}

// clusterKinds returns the kinds of collected objects; Secrets are not among them.
func clusterKinds() []string {
	return []string{
		"nodes", "namespaces", "pods", "deployments", "daemonsets", "statefulsets", "replicasets", "jobs", "cronjobs",
		"services", "endpointslices",
		"configmaps", "persistentvolumes", "persistentvolumeclaims", "storageclasses", "volumeattachments", "leases",
		"networkpolicies", "events",
		"certificatesigningrequests", "apiservices", "validatingwebhookconfigurations", "mutatingwebhookconfigurations",
		"customresourcedefinitions",
		"priorityclasses", "resourcequotas", "limitranges", "poddisruptionbudgets", "ingresses", "ingressclasses",
		"serviceaccounts",
	}
}

func collectCluster(ctx context.Context, t *task.Host, a *archive) {
	for _, kind := range clusterKinds() {
		name := "cluster/" + kind + ".json"
		ctx, cancel := context.WithTimeout(ctx, askPatience)
		out, err := t.Kubectl(task.WithoutOutput(ctx), "get", kind, "--all-namespaces", "--ignore-not-found",
			"--output=json", "--request-timeout="+strconv.Itoa(int(task.LookTimeout.Seconds()))+"s")
		cancel()
		if err != nil {
			a.lacks(&a.said.Lacking, name, err)
			if task.IsUnresponsive(err) || ctx.Err() != nil {
				return
			}
			continue
		}
		if len(bytes.TrimSpace(out)) == 0 {
			continue
		}
		out, err = inNamespaces(out, a.namespaces)
		if err != nil {
			a.lacks(&a.said.Lacking, name, err)
			continue
		}
		clean, err := a.scrub.objects(out)
		if err != nil {
			a.lacks(&a.said.Lacking, name, err)
			continue
		}
		const most = 8 * mostOfFile // a truncated list is useless
		if len(clean) > most {
			a.lacks(&a.said.Lacking, name, fmt.Errorf("%d bytes are more than %d", len(clean), most))
			continue
		}
		a.add(name, clean)
	}
}

// inNamespaces returns a list without the objects of other namespaces.
func inNamespaces(list []byte, namespaces []string) ([]byte, error) {
	if len(namespaces) == 0 {
		return list, nil
	}
	var objects struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	if err := capped.JSON(list, capped.MaxValues, &objects); err != nil {
		return nil, err
	}
	objects.Items = slices.DeleteFunc(objects.Items, func(item json.RawMessage) bool {
		var object struct {
			Metadata struct{ Namespace string }
		}
		err := json.Unmarshal(item, &object)
		return err != nil || object.Metadata.Namespace != "" && !slices.Contains(namespaces, object.Metadata.Namespace)
	})
	return json.Marshal(objects)
}

// status adds the output of kkbundle status.
func (a *archive) status(ctx context.Context, r *engine.Run, from *task.Host) {
	s, err := health.NewSurvey(ctx, r.Site, from)
	out := report.Status{Version: 1, Time: r.Now(), Cluster: r.Cluster.Metadata.Name, Findings: s.Findings()}
	if err != nil {
		a.lacks(&a.said.Lacking, "status.json", err)
	}
	out.Healthy = err == nil && out.Findings.Healthy()
	describe(s, &out)
	addLastRun(r, &out)
	a.json("status.json", out)
}
