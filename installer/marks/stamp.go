package marks

import (
	"context"
	"errors"
	"io/fs"

	"github.com/kkbundle/kkbundle/installer/task"
)

// A Stamp is a file of task.StampDir, by its path. Its presence says that something has begun or is in force on the
// host, its content, if it has one, what exactly.
type Stamp string

// The stamps, besides those of settings. All says who writes and reads them.
const (
	KubeadmBegun     Stamp = task.StampDir + "/kubeadm-begun"
	Member           Stamp = task.StampDir + "/member"
	EtcdMember       Stamp = task.StampDir + "/etcd-member"
	Clock            Stamp = task.StampDir + "/clock"
	UpgradeBegun     Stamp = task.StampDir + "/upgrade-begun"
	ServerUpgraded   Stamp = task.StampDir + "/upgrade-control-plane"
	EndpointMove     Stamp = task.StampDir + "/endpoint-move"
	AuthorityStage   Stamp = task.StampDir + "/authority-rotation"
	SecretsEncrypted Stamp = task.StampDir + "/secrets-encrypted"
	Namespaces       Stamp = task.StampDir + "/namespaces"
	DNSCrowded       Stamp = task.StampDir + "/dns-crowded"
	JoinProof        Stamp = task.StampDir + "/join-proof"
	NetworkProof     Stamp = task.StampDir + "/network-proof"
	VolumeProof      Stamp = task.StampDir + "/volume-proof"
)

// Setting returns the stamp of a task's setting, which task.Settle writes.
func Setting(name string) Stamp { return Stamp(task.StampDir + "/" + name) }

// File returns the stamp with a content.
func (s Stamp) File(data []byte) task.File {
	return task.File{Path: string(s), Mode: 0o600, Data: data}
}

// Read returns the content of a host's stamp. there is false if the host has none.
func (s Stamp) Read(ctx context.Context, t *task.Host) (data []byte, there bool, err error) {
	data, err = t.Read(ctx, string(s))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return data, err == nil, err
}

// Exists reports whether a host has the stamp.
func (s Stamp) Exists(ctx context.Context, t *task.Host) (bool, error) {
	return t.Test(ctx, "test", "-e", string(s))
}

// Any reports whether a host has one of several stamps, and gives those as a reason.
func Any(ctx context.Context, t *task.Host, stamps ...Stamp) (bool, error) {
	return t.AnyExists(ctx, paths(stamps)...)
}

// Remove removes stamps.
func Remove(ctx context.Context, t *task.Host, stamps ...Stamp) error {
	return t.Run(ctx, append([]string{"rm", "-f"}, paths(stamps)...)...)
}

func paths(stamps []Stamp) []string {
	list := make([]string, len(stamps))
	for i, s := range stamps {
		list[i] = string(s)
	}
	return list
}
