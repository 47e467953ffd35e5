package kubeadm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
)

// An Authority names one of the certificate authorities that kubeadm makes.
type Authority string

// The authorities. Etcd's is kubeadm's only if etcd runs on control planes.
const (
	KubernetesAuthority Authority = "kubernetes"
	EtcdAuthority       Authority = "etcd"
	FrontProxyAuthority Authority = "front-proxy"
)

// Authorities returns the authorities that kubeadm makes for a cluster.
func Authorities(c *manifest.Cluster) []Authority {
	list := []Authority{KubernetesAuthority, FrontProxyAuthority}
	if c.Etcd.Type == manifest.EtcdInternal {
		list = append(list, EtcdAuthority)
	}
	return list
}

// IsKnown reports whether kubeadm makes an authority of this name.
func (a Authority) IsKnown() bool {
	return slices.Contains([]Authority{KubernetesAuthority, EtcdAuthority, FrontProxyAuthority}, a)
}

// AuthorityNames lists authorities in a sentence.
func AuthorityNames(list []Authority) string {
	names := make([]string, len(list))
	for i, a := range list {
		names[i] = string(a)
	}
	return strings.Join(names, ", ")
}

// phase returns the authority's name among the phases of kubeadm init.
func (a Authority) phase() string {
	switch a {
	case EtcdAuthority:
		return "etcd-ca"
	case FrontProxyAuthority:
		return "front-proxy-ca"
	}
	return "ca"
}

// files returns the paths of the authority in a directory with kubeadm's names.
func (a Authority) files(dir string) task.PairFiles {
	name := path.Join(dir, a.phase())
	if a == EtcdAuthority {
		name = path.Join(dir, "etcd/ca")
	}
	return task.PairFiles{Cert: name + ".crt", Key: name + ".key"}
}

// A Generation distinguishes the authorities before a rotation from those after it.
type Generation string

// The generations. Their text names directories below marks.RotationDir.
const (
	OldGeneration Generation = "old"
	NewGeneration Generation = "new"
)

// other returns the other generation.
func (g Generation) other() Generation {
	if g == OldGeneration {
		return NewGeneration
	}
	return OldGeneration
}

func (g Generation) dir() string { return path.Join(marks.RotationDir, string(g)) }

// A RotationError means that a rotation of authorities cannot begin or go on, or that it excludes another command.
type RotationError struct{ Reason, Advice string }

// Error returns the reason.
func (e *RotationError) Error() string { return e.Reason }

// Hint returns the remedy.
func (e *RotationError) Hint() string { return e.Advice }

// Refuses marks an error that ends a run before any change.
func (*RotationError) Refuses() {}

// A Rotation replaces authorities of a cluster. Control planes keep its state in marks.RotationDir, and every node
// records its own stage.
type Rotation struct {
	// Names are the authorities that are replaced.
	Names []Authority
	// End is the generation that stays, "" before the other one is being removed.
	End Generation

	pairs map[Generation]map[Authority]pki.Pair // nil before the new authorities are made
}

// Begun reports whether the new authorities exist.
func (r *Rotation) Begun() bool { return r.pairs != nil }

// Has reports whether the rotation replaces an authority.
func (r *Rotation) Has(a Authority) bool { return slices.Contains(r.Names, a) }

// FindRotation returns the rotation that is in progress on control planes. It has no Names if there is none.
func FindRotation(ctx context.Context, s *task.Site) (*Rotation, error) {
	r := &Rotation{}
	for _, t := range s.Connected(manifest.RoleControlPlane) {
		names, err := t.Read(ctx, marks.RotationNames)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !r.Begun() {
			for _, name := range strings.Fields(string(names)) {
				a := Authority(name)
				if !a.IsKnown() {
					return nil, fmt.Errorf("%s on %s: %q is no authority of kubeadm", marks.RotationNames, t.Name, name)
				}
				r.Names = append(r.Names, a)
			}
			if err := r.load(ctx, t); err != nil {
				return nil, err
			}
		}
		end, err := t.Read(ctx, marks.RotationEnd)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		switch g := Generation(strings.TrimSpace(string(end))); g {
		case "":
		case OldGeneration, NewGeneration:
			r.End = g
		default:
			return nil, fmt.Errorf("%s on %s: %q is neither %s nor %s", marks.RotationEnd, t.Name, g, OldGeneration,
				NewGeneration)
		}
	}
	return r, nil
}

// load reads both generations from a control plane.
func (r *Rotation) load(ctx context.Context, t *task.Host) error {
	pairs := map[Generation]map[Authority]pki.Pair{OldGeneration: {}, NewGeneration: {}}
	for g, of := range pairs {
		for _, a := range r.Names {
			pair, err := readPair(ctx, t, a.files(g.dir()))
			if err != nil {
				return err
			}
			of[a] = pair
		}
	}
	r.pairs = pairs
	return nil
}

// readPair reads an authority of a control plane and checks it.
func readPair(ctx context.Context, t *task.Host, f task.PairFiles) (pki.Pair, error) {
	cert, err := t.Read(ctx, f.Cert)
	if err != nil {
		return pki.Pair{}, err
	}
	key, err := t.Read(ctx, f.Key)
	if err != nil {
		return pki.Pair{}, err
	}
	parsed, err := pki.ParseCertificate(cert)
	if err != nil {
		return pki.Pair{}, fmt.Errorf("%s on %s: %w", f.Cert, t.Name, err)
	}
	if !parsed.IsCA {
		return pki.Pair{}, fmt.Errorf("%s on %s is no authority's certificate", f.Cert, t.Name)
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		// the library's error could quote the key
		return pki.Pair{}, fmt.Errorf("%s on %s does not fit %s", f.Key, t.Name, f.Cert)
	}
	return pki.Pair{Cert: cert, Key: key}, nil
}

// files returns the content of marks.RotationDir. The names come last.
func (r *Rotation) files() []task.File {
	var list []task.File
	for _, g := range []Generation{OldGeneration, NewGeneration} {
		for _, a := range r.Names {
			list = append(list, a.files(g.dir()).Files(r.pairs[g][a])...)
		}
	}
	text := ""
	for _, a := range r.Names {
		text += string(a) + "\n"
	}
	return append(list, task.File{Path: marks.RotationNames, Mode: 0o600, Data: []byte(text)})
}

// id identifies the rotation in the records of nodes.
func (r *Rotation) id() string {
	sum := sha256.New()
	for _, a := range r.Names {
		sum.Write(r.pairs[NewGeneration][a].Cert)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// both returns the certificates of both generations.
func (r *Rotation) both(a Authority, first Generation) []byte {
	return bytes.Join([][]byte{
		bytes.TrimSpace(r.pairs[first][a].Cert), bytes.TrimSpace(r.pairs[first.other()][a].Cert),
		nil,
	}, []byte("\n"))
}

// of returns the certificate of one generation.
func (r *Rotation) of(a Authority, g Generation) []byte {
	return append(bytes.TrimSpace(slices.Clone(r.pairs[g][a].Cert)), '\n')
}

// contains reports whether PEM data have the certificate of a generation.
func (r *Rotation) contains(data []byte, a Authority, g Generation) bool {
	want, _ := pem.Decode(r.pairs[g][a].Cert)
	for block := range blocks(data) {
		if bytes.Equal(block.Bytes, want.Bytes) {
			return true
		}
	}
	return false
}

// first returns the generation of the first certificate in PEM data. It is the one that kubeadm signs with.
func (r *Rotation) first(data []byte, a Authority) (Generation, error) {
	for block := range blocks(data) {
		one := pem.EncodeToMemory(block)
		for _, g := range []Generation{OldGeneration, NewGeneration} {
			if r.contains(one, a, g) {
				return g, nil
			}
		}
		break
	}
	return "", errors.New("the first certificate belongs to neither the old nor the new authority")
}

// blocks yields the PEM blocks of data.
func blocks(data []byte) func(yield func(*pem.Block) bool) {
	return func(yield func(*pem.Block) bool) {
		for rest := data; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil || !yield(block) {
				return
			}
		}
	}
}

// MakeAuthoritiesTask makes the new authorities on the lead with kubeadm, beside copies of the old ones.
func MakeAuthoritiesTask(r *Rotation) task.Task {
	return task.Task{
		Name: "authority-make", Roles: []manifest.Role{manifest.RoleControlPlane}, Where: task.First, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if r.Begun() {
				return true, nil
			}
			task.Because(ctx, "new authorities are made: %s", AuthorityNames(r.Names))
			return false, nil
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := r.create(ctx, t); err != nil {
				return err
			}
			return r.load(ctx, t)
		},
	}
}

// create fills marks.RotationDir of a control plane, except for the names.
func (r *Rotation) create(ctx context.Context, t *task.Host) error {
	for _, args := range [][]string{
		{"rm", "-rf", marks.RotationDir},
		{
			"install", "-d", "-m", "0700", marks.RotationDir, OldGeneration.dir(), NewGeneration.dir(),
			OldGeneration.dir() + "/etcd", NewGeneration.dir() + "/etcd",
		},
	} {
		if err := t.Run(ctx, args...); err != nil {
			return err
		}
	}
	config, err := certificatesConfig(ctx, t, NewGeneration.dir(), t.Site.Endpoint(), nil)
	if err != nil {
		return err
	}
	for _, a := range r.Names {
		now, old := a.files(kube.PKIDir), a.files(OldGeneration.dir())
		if err := errors.Join(t.Run(ctx, "cp", "-p", now.Cert, old.Cert),
			t.Run(ctx, "cp", "-p", now.Key, old.Key)); err != nil {
			return err
		}
		if err := Run(ctx, t, config, "init", "phase", "certs", a.phase()); err != nil {
			return err
		}
	}
	return nil
}

// KeepAuthoritiesTask copies both generations to every control plane.
func KeepAuthoritiesTask(r *Rotation) task.Task {
	return task.Task{
		Name: "authority-keep", Roles: []manifest.Role{manifest.RoleControlPlane}, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if !r.Begun() {
				task.Because(ctx, "both authorities are kept in %s", marks.RotationDir)
				return false, nil
			}
			return t.HasFiles(ctx, r.files()...)
		},
		Do: func(ctx context.Context, t *task.Host) error {
			for _, g := range []Generation{OldGeneration, NewGeneration} {
				if err := t.Run(ctx, "install", "-d", "-m", "0700", marks.RotationDir, g.dir(), g.dir()+
					"/etcd"); err != nil {
					return err
				}
			}
			return t.Write(ctx, r.files()...)
		},
	}
}

// EndAuthoritiesTask records on control planes which generation stays, before the other one is removed from the first
// file.
func EndAuthoritiesTask(r *Rotation, to Generation) task.Task {
	end := task.File{Path: marks.RotationEnd, Mode: 0o600, Data: []byte(string(to) + "\n")}
	return task.Task{
		Name: "authority-end", Roles: []manifest.Role{manifest.RoleControlPlane}, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			if there, err := t.Test(ctx, "test", "-e", marks.RotationNames); err != nil || !there {
				return true, err // removed by an interrupted run, which had finished everything else
			}
			return t.HasFiles(ctx, end)
		},
		Do: func(ctx context.Context, t *task.Host) error { return t.Write(ctx, end) },
	}
}

// ForgetAuthoritiesTask removes the other generation with its key from control planes. The names go first: a
// directory with them is complete.
func ForgetAuthoritiesTask() task.Task {
	return task.Task{
		Name: "authority-forget", Roles: []manifest.Role{manifest.RoleControlPlane}, AllOrNone: true,
		Done: func(ctx context.Context, t *task.Host) (bool, error) {
			there, err := t.AnyExists(ctx, marks.RotationDir)
			return !there, err
		},
		Do: func(ctx context.Context, t *task.Host) error {
			if err := t.Run(ctx, "rm", "-f", marks.RotationNames); err != nil {
				return err
			}
			return t.Run(ctx, "rm", "-rf", marks.RotationDir)
		},
	}
}

// CheckAuthorities refuses a rotation that cannot work: each authority needs its key and one certificate on every
// control plane.
func CheckAuthorities(ctx context.Context, s *task.Site, names []Authority) error {
	var first []byte
	for _, t := range s.Connected(manifest.RoleControlPlane) {
		var all []byte
		for _, a := range names {
			f := a.files(kube.PKIDir)
			pair, err := readPair(ctx, t, f)
			if errors.Is(err, fs.ErrNotExist) {
				return &RotationError{fmt.Sprintf(
					"%s or %s is missing on %s: the authority %s is kept outside the cluster", f.Cert, f.Key, t.Name,
					a), "replace this authority where its key is, or name the other ones with --ca"}
			}
			if err != nil {
				return err
			}
			if n := countBlocks(pair.Cert); n != 1 {
				return &RotationError{
					fmt.Sprintf("%s on %s has %d certificates", f.Cert, t.Name, n),
					"complete the rotation that somebody began by hand: leave the certificate that fits " + f.Key,
				}
			}
			all = append(all, pair.Cert...)
		}
		if first == nil {
			first = all
		}
		if !bytes.Equal(first, all) {
			return &RotationError{
				fmt.Sprintf("%s has other authorities than the first control plane", t.Name),
				"join the control plane again: kkbundle nodes delete, then kkbundle nodes add",
			}
		}
	}
	return nil
}

func countBlocks(data []byte) (n int) {
	for range blocks(data) {
		n++
	}
	return n
}
