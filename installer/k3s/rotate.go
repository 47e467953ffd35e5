package k3s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/cri"
	"github.com/kkbundle/kkbundle/installer/host"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// encryptsSecrets reports whether the servers encrypt Secrets. New clusters do. k3s refuses to begin with it later, so
// servers follow the first server's configuration.
func encryptsSecrets(ctx context.Context, r *task.Site) (bool, error) {
	data, err := r.FirstControlPlane().Read(ctx, ConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var config struct {
		Encryption bool `json:"secrets-encryption"`
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return false, fmt.Errorf("%s on %s: %w", ConfigFile, r.FirstControlPlane().Name, err)
	}
	return config.Encryption, nil
}

// An encryptionStatus is the answer of k3s secrets-encrypt status.
// https://github.com/k3s-io/k3s/blob/v1.34.3%2Bk3s1/pkg/server/handlers/secrets-encrypt.go
type encryptionStatus struct {
	Stage string `json:"stage"`
	// Key names the key that Secrets are written with.
	Key string `json:"activekey"`
	// Equal means that all servers run with the same keys.
	Equal bool `json:"hashmatch"`
}

// The stages of a rotation between commands. In all others k3s is at work.
const (
	stageStart    = "start"
	stageFinished = "reencrypt_finished"
)

// rotationWait suffices for 18,000 Secrets: k3s rewrites about five a second.
const rotationWait = time.Hour

func statusOf(ctx context.Context, t *task.Host) (encryptionStatus, error) {
	var s encryptionStatus
	out, err := t.Output(ctx, cri.K3sProgram, "secrets-encrypt", "status", "--output=json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("answer of k3s secrets-encrypt status: %w", err)
	}
	return s, nil
}

// begin makes k3s rotate. k3s' command waits 90 seconds for an answer, which its server gives when all Secrets are
// rewritten. So a failed command is no error if Secrets are written with another key than before.
// https://github.com/k3s-io/k3s/blob/main/pkg/cli/secretsencrypt/secrets_encrypt.go
func begin(ctx context.Context, t *task.Host, before encryptionStatus) error {
	err := t.Run(ctx, cri.K3sProgram, "secrets-encrypt", "rotate-keys")
	if !errors.As(err, new(*host.ExitError)) {
		return err // nil, or the connection is lost
	}
	if now, failed := statusOf(ctx, t); failed == nil && now.Key != before.Key {
		return nil
	}
	return err
}

// RotateKey replaces the key that encrypts Secrets. k3s creates it and rewrites all Secrets; then every server
// restarts, one by one, and takes it from etcd. After an interruption, a rotation in progress is completed. each runs
// a task on every server, one by one. https://docs.k3s.io/cli/secrets-encrypt
func RotateKey(ctx context.Context, r *task.Site, each func(ctx context.Context, t task.Task) error) error {
	encrypted, err := encryptsSecrets(ctx, r)
	if err != nil {
		return err
	}
	if !encrypted {
		return fmt.Errorf("cluster %s does not encrypt Secrets: it was installed by a kkbundle release that did not encrypt them, and k3s cannot begin later", r.Cluster.Metadata.Name)
	}
	first := r.FirstControlPlane()
	before, err := statusOf(ctx, first)
	if err != nil {
		return err
	}
	if before.Equal && (before.Stage == stageStart || before.Stage == stageFinished) {
		if err := begin(ctx, first, before); err != nil {
			return err
		}
	}
	if err := task.Eventually(ctx, rotationWait, func(ctx context.Context) error {
		now, err := statusOf(ctx, first)
		if err == nil && now.Stage != stageFinished {
			err = fmt.Errorf("k3s on %s rewrites Secrets: stage %s", first.Name, now.Stage)
		}
		return err
	}); err != nil {
		return err
	}
	if len(r.WithRole(manifest.RoleControlPlane)) == 1 {
		return nil
	}
	return each(ctx, task.Task{Name: "k3s-server", Done: func(context.Context,
		*task.Host,
	) (bool, error) {
		return false, nil
	}, Do: func(ctx context.Context, t *task.Host) error {
		if err := t.Systemctl(ctx, "restart", Unit(true)); err != nil {
			return t.WithUnitLog(ctx, Unit(true), err)
		}
		return waitUntilNode(ctx, t, Unit(true))
	}})
}
