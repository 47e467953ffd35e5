package kubeadm

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/endpoint"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

// An authorityStage is a state that all nodes reach before the next one begins.
type authorityStage string

// The stages. In each of them every client trusts every server, also those that are still in the stage before.
const (
	stageTrust authorityStage = "trust" // both generations are trusted; certificates are the old generation's
	// both generations are trusted; certificates are those of the generation that stays
	stageIssue  authorityStage = "issue"
	stageFinish authorityStage = "finish" // only the generation that stays is trusted
)

const (
	kubeletPKI      = "/var/lib/kubelet/pki"
	kubeletClient   = kubeletPKI + "/kubelet-client-current.pem"
	managerManifest = kube.ManifestsDir + "/kube-controller-manager.yaml"
	managerProcess  = "kube-controller-manager"
	argumentsWait   = 2 * time.Minute
	caData          = "certificate-authority-data: "
)

// TrustTask makes the programs of every node trust both generations.
func TrustTask(r *Rotation) task.Task { return r.stageTask("authority-trust", stageTrust, "") }

// IssueTask gives every node certificates of a generation. Both are trusted still.
func IssueTask(r *Rotation, to Generation) task.Task {
	return r.stageTask("authority-issue", stageIssue, to)
}

// FinishTask removes the other generation from every node.
func FinishTask(r *Rotation, to Generation) task.Task {
	return r.stageTask("authority-remove", stageFinish, to)
}

// CheckIssuedTask refuses to remove the other generation while a node has a certificate of it.
func CheckIssuedTask(r *Rotation, to Generation) task.Task {
	step := r.stageTask("authority-check", stageFinish, to)
	n := nodeStage{r, stageIssue, to}
	step.Where, step.Done, step.InDryRun = task.Each, nil, true
	step.Do = func(ctx context.Context, t *task.Host) error {
		problem, err := n.otherIssuer(ctx, t)
		if err != nil {
			return err
		}
		if problem == "" {
			problem, err = n.unread(ctx, t)
		}
		if err == nil && problem != "" {
			err = &RotationError{problem, "run kkbundle certs rotate-ca again, and then --finish"}
		}
		return err
	}
	return step
}

// unread returns a sentence if programs of the node may use files from before the stage, "" otherwise.
func (n nodeStage) unread(ctx context.Context, t *task.Host) (string, error) {
	for _, stage := range []authorityStage{stageIssue, stageFinish} {
		if ok, err := (nodeStage{n.Rotation, stage, n.to}).recorded(ctx, t); err != nil || ok {
			return "", err
		}
	}
	return "the certificates of " + t.Name + " may not be in use yet", nil
}

// stageTask brings nodes to a stage, one by one. Workers know the authority of Kubernetes only.
func (r *Rotation) stageTask(name string, stage authorityStage, to Generation) task.Task {
	step := task.Task{Name: name, Roles: []manifest.Role{manifest.RoleCluster}, Where: task.OneByOne, AllOrNone: true}
	if !r.Has(KubernetesAuthority) {
		step.Roles = []manifest.Role{manifest.RoleControlPlane}
	}
	n := nodeStage{r, stage, to}
	step.Done = n.done
	step.Do = n.do
	return step
}

// A nodeStage brings a node to a stage.
type nodeStage struct {
	*Rotation
	stage authorityStage
	to    Generation // "" for stageTrust
}

func (n nodeStage) record() task.File {
	return marks.AuthorityStage.File(fmt.Appendf(nil, "%s %s %s\n", n.stage, n.to, n.id()))
}

// recorded reports whether the programs of the node use the files of the stage. A node that has left stageTrust
// trusts both, too.
func (n nodeStage) recorded(ctx context.Context, t *task.Host) (bool, error) {
	text, there, err := marks.AuthorityStage.Read(ctx, t)
	if err != nil || !there {
		return false, err
	}
	if n.stage == stageTrust {
		return bytes.HasSuffix(text, []byte(" "+n.id()+"\n")) && !bytes.HasPrefix(text, []byte(stageFinish)), nil
	}
	return bytes.Equal(text, n.record().Data), nil
}

func (n nodeStage) done(ctx context.Context, t *task.Host) (bool, error) {
	if !n.Begun() {
		task.Because(ctx, "%s", n.reason(t))
		return false, nil
	}
	files, err := n.changes(ctx, t)
	if err != nil {
		return false, err
	}
	for _, f := range files {
		if !bytes.Equal(f.have, f.want) {
			task.Because(ctx, "%s is of another stage", f.path)
			return false, nil
		}
	}
	if n.stage != stageTrust {
		if problem, err := n.otherIssuer(ctx, t); err != nil || problem != "" {
			task.Because(ctx, "%s", problem)
			return false, err
		}
	}
	ok, err := n.recorded(ctx, t)
	if err == nil && !ok {
		task.Because(ctx, "programs have not read the files of this stage")
	}
	return ok, err
}

// reason describes the stage before the new authorities exist.
func (n nodeStage) reason(t *task.Host) string {
	what, restarts := "certificates are issued by the new authorities", "the kubelet restarts"
	if n.stage == stageTrust {
		what = "the old and the new authorities are trusted"
	}
	if t.Is(manifest.RoleControlPlane) {
		restarts = strings.Join(ControlPlaneProcesses(t.Site.Cluster), ", ") + " and the kubelet restart"
	}
	return what + "; " + restarts
}

// A changedFile is a file of a node with the content of a stage.
type changedFile struct {
	path       string
	have, want []byte
}

// changes returns the files of a node that a stage sets, in the order in which they are written.
func (n nodeStage) changes(ctx context.Context, t *task.Host) ([]changedFile, error) {
	controls := t.Is(manifest.RoleControlPlane)
	var list []changedFile
	for _, a := range n.Names {
		if a != KubernetesAuthority && !controls {
			continue
		}
		f := a.files(kube.PKIDir)
		have, err := t.Read(ctx, f.Cert)
		if err != nil {
			return nil, err
		}
		first, err := n.first(have, a)
		if err != nil {
			return nil, fmt.Errorf("%s on %s: %w", f.Cert, t.Name, err)
		}
		if controls && n.stage != stageTrust {
			key, err := t.Read(ctx, f.Key)
			if err != nil {
				return nil, err
			}
			list = append(list, changedFile{f.Key, key, n.pairs[n.to][a].Key})
		}
		list = append(list, changedFile{f.Cert, have, n.certificates(a, have, first)})
		if a != KubernetesAuthority {
			continue
		}
		if controls {
			manager, err := n.manager(ctx, t, first)
			if err != nil {
				return nil, err
			}
			list = append(list, manager)
		}
		kubeconfigs, err := n.kubeconfigs(ctx, t)
		if err != nil {
			return nil, err
		}
		list = append(list, kubeconfigs...)
	}
	return list, nil
}

// certificates returns the certificates of an authority that are trusted in a stage. kubeadm signs with the first one.
func (n nodeStage) certificates(a Authority, have []byte, first Generation) []byte {
	switch n.stage {
	case stageIssue:
		return n.both(a, n.to)
	case stageFinish:
		return n.of(a, n.to)
	}
	if n.contains(have, a, OldGeneration) && n.contains(have, a, NewGeneration) {
		return have
	}
	return n.both(a, first)
}

// manager returns the controller manager's static pod with the authority that signs the requests of kubelets.
func (n nodeStage) manager(ctx context.Context, t *task.Host, first Generation) (changedFile, error) {
	have, err := t.Read(ctx, managerManifest)
	if err != nil {
		return changedFile{}, err
	}
	want, err := withSigner(string(have), n.signer(first))
	if err != nil {
		return changedFile{}, fmt.Errorf("%s on %s: %w", managerManifest, t.Name, err)
	}
	return changedFile{managerManifest, have, []byte(want)}, nil
}

// signer returns the files with which the controller manager signs.
func (n nodeStage) signer(first Generation) task.PairFiles {
	switch n.stage {
	case stageTrust:
		return KubernetesAuthority.files(first.dir())
	case stageIssue:
		return KubernetesAuthority.files(n.to.dir())
	}
	return KubernetesAuthority.files(kube.PKIDir)
}

const (
	signingCert = "--cluster-signing-cert-file="
	signingKey  = "--cluster-signing-key-file="
)

// withSigner returns the controller manager's static pod with another signing authority.
func withSigner(text string, signer task.PairFiles) (string, error) {
	for flag, value := range map[string]string{signingCert: signer.Cert, signingKey: signer.Key} {
		lines := strings.SplitAfter(text, "\n")
		found := 0
		for i, line := range lines {
			before, old, ok := strings.Cut(strings.TrimRight(line, "\n"), "- "+flag)
			if !ok || strings.TrimSpace(before) != "" {
				continue
			}
			if !strings.HasPrefix(old, kube.PKIDir+"/") {
				return "", fmt.Errorf("the controller manager signs with %s, which is not kubeadm's", old)
			}
			lines[i] = before + "- " + flag + value + "\n"
			found++
		}
		if found != 1 {
			return "", fmt.Errorf("the flag %s is there %d times, not once", strings.TrimSuffix(flag, "="), found)
		}
		text = strings.Join(lines, "")
	}
	return text, nil
}

// kubeconfigs returns the kubeconfigs of a node with the authorities of the stage.
func (n nodeStage) kubeconfigs(ctx context.Context, t *task.Host) ([]changedFile, error) {
	paths := []string{kubeletConf}
	if t.Is(manifest.RoleControlPlane) {
		paths = append(paths, kube.AdminConf, superConf, managerConf, schedulerConf)
	}
	var list []changedFile
	for _, file := range paths {
		have, err := t.Read(ctx, file)
		if errors.Is(err, fs.ErrNotExist) && file == superConf {
			continue
		}
		if err != nil {
			return nil, err
		}
		want, err := n.kubeconfig(have)
		if err != nil {
			return nil, fmt.Errorf("%s on %s: %w", file, t.Name, err)
		}
		list = append(list, changedFile{file, have, want})
	}
	return list, nil
}

// kubeconfig returns a kubeconfig with the authorities of the stage.
func (n nodeStage) kubeconfig(have []byte) ([]byte, error) {
	lines := strings.SplitAfter(string(have), "\n")
	found := false
	for i, line := range lines {
		before, data, ok := strings.Cut(strings.TrimRight(line, "\n"), caData)
		if !ok || strings.TrimSpace(before) != "" {
			continue
		}
		certs, err := base64.StdEncoding.DecodeString(strings.TrimSpace(data))
		if err != nil {
			return nil, errors.New("certificate-authority-data is not base64")
		}
		found = true
		lines[i] = before + caData + base64.StdEncoding.EncodeToString(n.certificates(KubernetesAuthority, certs,
			OldGeneration)) + "\n"
	}
	if !found {
		return nil, errors.New("the kubeconfig has no certificate-authority-data")
	}
	return []byte(strings.Join(lines, "")), nil
}

// do brings the node to the stage. The record comes last, so that a killed run restarts the programs again.
func (n nodeStage) do(ctx context.Context, t *task.Host) error {
	if err := n.write(ctx, t); err != nil {
		return err
	}
	if n.stage == stageIssue {
		if err := n.issue(ctx, t); err != nil {
			return err
		}
	}
	if t.Is(manifest.RoleControlPlane) {
		if err := n.restart(ctx, t); err != nil {
			return err
		}
	}
	if n.Has(KubernetesAuthority) {
		if err := restartKubelet(ctx, t); err != nil {
			return err
		}
	}
	return t.Write(ctx, n.record())
}

func (n nodeStage) write(ctx context.Context, t *task.Host) error {
	files, err := n.changes(ctx, t)
	if err != nil {
		return err
	}
	for _, f := range files {
		if bytes.Equal(f.have, f.want) {
			continue
		}
		if err := t.Edit(ctx, f.path, f.want); err != nil {
			return err
		}
	}
	return nil
}

// issue gives the node certificates of the generation. kubeadm writes its first authority into kubeconfigs, so these
// are corrected.
func (n nodeStage) issue(ctx context.Context, t *task.Host) error {
	if t.Is(manifest.RoleControlPlane) {
		if err := t.Run(ctx, "kubeadm", "certs", "renew", "all"); err != nil {
			return err
		}
		if err := n.write(ctx, t); err != nil {
			return err
		}
	}
	if n.Has(KubernetesAuthority) {
		if err := n.issueKubelet(ctx, t); err != nil {
			return err
		}
	}
	problem, err := n.otherIssuer(ctx, t)
	if err == nil && problem != "" {
		err = errors.New(problem)
	}
	return err
}

//go:embed scripts/use-client.sh
var useClientScript string

// issueKubelet gives the kubelet a client certificate of the generation, made on the lead. The kubelet itself asks
// for the next one when it ends.
func (n nodeStage) issueKubelet(ctx context.Context, t *task.Host) error {
	if from, err := n.issued(ctx, t, kubeletClient, KubernetesAuthority); err != nil || from {
		return err
	}
	pair, err := n.kubeletPair(ctx, t.Site.FirstControlPlane(), t.Name)
	if err != nil {
		return err
	}
	now, err := t.Clock(ctx)
	if err != nil {
		return err
	}
	name := "kubelet-client-" + now.UTC().Format("2006-01-02-15-04-05") + ".pem" // the kubelet's own form
	if err := t.Write(ctx, task.File{
		Path: path.Join(kubeletPKI, name), Mode: 0o600,
		Data: slices.Concat(pair.Cert, pair.Key),
	}); err != nil {
		return err
	}
	return t.Run(ctx, host.Script("use-client.sh", useClientScript, kubeletPKI, name)...)
}

// kubeletPair makes a client certificate of a node's kubelet on a control plane.
func (n nodeStage) kubeletPair(ctx context.Context, t *task.Host, node string) (pair pki.Pair, err error) {
	config, err := certificatesConfig(ctx, t, n.to.dir(), t.Site.Endpoint(), nil)
	if err != nil {
		return pki.Pair{}, err
	}
	const file = marks.KubeadmClient
	if err := t.Write(ctx, task.File{Path: file, Mode: 0o600, Data: config}); err != nil {
		return pki.Pair{}, err
	}
	defer func() { err = errors.Join(err, t.Run(context.WithoutCancel(ctx), "rm", "-f", file)) }()
	out, err := t.Output(task.WithoutOutput(ctx), "kubeadm", "kubeconfig", "user", "--client-name=system:node:"+node,
		"--org=system:nodes", "--config="+file)
	if err != nil {
		return pki.Pair{}, err
	}
	cert, key, err := userOf(out)
	if err != nil {
		return pki.Pair{}, fmt.Errorf("output of kubeadm kubeconfig user: %w", err)
	}
	return pki.Pair{Cert: cert, Key: key}, nil
}

// userOf returns the certificate and the key of a kubeconfig's user. Its errors do not quote the kubeconfig.
func userOf(kubeconfig []byte) (cert, key []byte, err error) {
	var config struct {
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if yaml.Unmarshal(kubeconfig, &config) != nil || len(config.Users) != 1 ||
		len(config.Users[0].User.Certificate) == 0 {
		return nil, nil, errors.New("not a kubeconfig whose user has a certificate")
	}
	return config.Users[0].User.Certificate, config.Users[0].User.Key, nil
}

// leaves returns the files with certificates that an authority has signed on a node.
func (n nodeStage) leaves(t *task.Host, a Authority) []string {
	if !t.Is(manifest.RoleControlPlane) {
		return []string{kubeletClient}
	}
	const dir = kube.PKIDir + "/"
	switch a {
	case FrontProxyAuthority:
		return []string{dir + "front-proxy-client.crt"}
	case EtcdAuthority:
		return []string{dir + "etcd/server.crt", dir + "etcd/peer.crt", dir + "etcd/healthcheck-client.crt", dir +
			"apiserver-etcd-client.crt"}
	}
	return []string{
		dir + servingCert, dir + "apiserver-kubelet-client.crt", kube.AdminConf, superConf, managerConf,
		schedulerConf, kubeletClient,
	}
}

// otherIssuer returns a sentence about a certificate of the node that the generation has not issued, "" if there is
// none.
func (n nodeStage) otherIssuer(ctx context.Context, t *task.Host) (string, error) {
	for _, a := range n.Names {
		if a != KubernetesAuthority && !t.Is(manifest.RoleControlPlane) {
			continue
		}
		for _, file := range n.leaves(t, a) {
			from, err := n.issued(ctx, t, file, a)
			if errors.Is(err, fs.ErrNotExist) && file == superConf {
				continue
			}
			if err != nil {
				return "", err
			}
			if !from {
				return fmt.Sprintf("%s on %s was issued by the %s authority", file, t.Name, n.to.other()), nil
			}
		}
	}
	return "", nil
}

// issued reports whether the generation's authority signed the certificate in a PEM file or a kubeconfig.
func (n nodeStage) issued(ctx context.Context, t *task.Host, file string, a Authority) (bool, error) {
	data, err := t.Read(ctx, file)
	if err != nil {
		return false, err
	}
	if strings.HasSuffix(file, ".conf") {
		if data, _, err = userOf(data); err != nil {
			return false, fmt.Errorf("%s on %s: %w", file, t.Name, err)
		}
	}
	leaf, err := pki.ParseCertificate(data)
	if err != nil {
		return false, fmt.Errorf("%s on %s: %w", file, t.Name, err)
	}
	authority, err := pki.ParseCertificate(n.pairs[n.to][a].Cert)
	if err != nil {
		return false, err
	}
	return leaf.CheckSignatureFrom(authority) == nil, nil
}

// restart restarts the control plane, and checks that it uses the files of the stage.
func (n nodeStage) restart(ctx context.Context, t *task.Host) error {
	if err := RestartControlPlane(ctx, t); err != nil {
		return err
	}
	if !n.Has(KubernetesAuthority) {
		return nil
	}
	certs, err := t.Read(ctx, kube.ClusterCA)
	if err != nil {
		return err
	}
	first, err := n.first(certs, KubernetesAuthority)
	if err != nil {
		return err
	}
	want := signingCert + n.signer(first).Cert
	if err := task.Eventually(ctx, argumentsWait, func(ctx context.Context) error {
		running, err := arguments(ctx, t, managerProcess)
		if err == nil && !slices.Contains(running, want) {
			err = fmt.Errorf("%s on %s runs without %s", managerProcess, t.Name, want)
		}
		return err
	}); err != nil {
		return err
	}
	if err := endpoint.RestartKubeVIP(ctx, t); err != nil {
		return err
	}
	trusted := certs
	if n.stage == stageIssue {
		trusted = n.of(KubernetesAuthority, n.to)
	}
	own := net.JoinHostPort(t.IP.String(), strconv.Itoa(manifest.DefaultPort))
	return task.Eventually(ctx, argumentsWait,
		func(ctx context.Context) error { return endpoint.APIAnswers(ctx, t, own, trusted) })
}
