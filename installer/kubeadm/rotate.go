package kubeadm

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/installer/marks"
	"github.com/kkbundle/kkbundle/installer/task"
	"github.com/kkbundle/kkbundle/manifest"
)

// RetiredKeysFile has the keys that rotations removed, in the work directory. Older copies of etcd need them.
const RetiredKeysFile = "encryption-retired.yaml"

// rotationPrefix begins the names of keys that a rotation made. The time follows, so that names order keys.
const rotationPrefix = "kkbundle-2"

// An encryptionConfig is an EncryptionConfiguration whose Secrets are encrypted with keys in the file.
type encryptionConfig struct {
	document kube.Document
	provider kube.Document // of the document: the one that encrypts Secrets
	keys     []encryptionKey
}

type encryptionKey struct {
	Name   string `json:"name"`
	Secret string `json:"secret"`
}

// parseEncryption reads an EncryptionConfiguration. Errors do not quote it: it contains keys.
func parseEncryption(data []byte) (encryptionConfig, error) {
	var c encryptionConfig
	if yaml.Unmarshal(data, &c.document) != nil {
		return c, fmt.Errorf("%s is not an EncryptionConfiguration", EncryptionOnHost)
	}
	resources, _ := c.document["resources"].([]any)
	for _, r := range resources {
		resource, _ := r.(map[string]any)
		if names, _ := resource["resources"].([]any); !slices.ContainsFunc(names,
			func(n any) bool { return n == "secrets" || n == "*." || n == "*.*" }) {
			continue
		}
		providers, _ := resource["providers"].([]any)
		if len(providers) == 0 {
			break
		}
		first, _ := providers[0].(map[string]any)
		for _, kind := range []string{"secretbox", "aescbc", "aesgcm"} {
			if provider, ok := first[kind].(map[string]any); ok {
				c.provider = provider
				return c, c.readKeys()
			}
		}
		return c, fmt.Errorf("%s encrypts Secrets with %s, which has no key in the file", EncryptionOnHost,
			strings.Join(slices.Sorted(maps.Keys(first)), ", "))
	}
	return c, fmt.Errorf("%s has no provider for Secrets", EncryptionOnHost)
}

func (c *encryptionConfig) readKeys() error {
	data, err := yaml.Marshal(c.provider["keys"])
	if err != nil || yaml.Unmarshal(data, &c.keys) != nil || len(c.keys) == 0 {
		return fmt.Errorf("%s has no keys", EncryptionOnHost)
	}
	return nil
}

// with renders the configuration with other keys. The first encrypts.
func (c *encryptionConfig) with(keys []encryptionKey) ([]byte, error) {
	var list []any
	for _, k := range keys {
		list = append(list, kube.Document{"name": k.Name, "secret": k.Secret})
	}
	c.provider["keys"] = list
	return kube.Documents(c.document)
}

// A rotationStage is the next change of a rotation. Each has to be on every control plane before the next may begin: an
// API server that lacks a key cannot read what another one encrypted with it.
type rotationStage int

const (
	rotationAdd     rotationStage = iota // the new key is last: API servers can decrypt with it
	rotationPromote                      // the new key is first: API servers encrypt with it
	rotationRemove                       // only the new key is left, after Secrets were rewritten
)

// A rotationStep is a stage with the keys that every control plane has after it.
type rotationStep struct {
	stage rotationStage
	keys  []encryptionKey
}

// nextRotation returns the step that continues the rotation which the control planes' keys show, or begins one with a
// new key.
func nextRotation(hosts [][]encryptionKey, create func() encryptionKey) (rotationStep, error) {
	newest, same := "", true
	var union []encryptionKey
	for _, keys := range hosts {
		same = same && slices.Equal(keys, hosts[0])
		for _, k := range keys {
			if strings.HasPrefix(k.Name, rotationPrefix) {
				newest = max(newest, k.Name)
			}
			if !slices.Contains(union, k) {
				union = append(union, k)
			}
		}
	}
	isNewest := func(k encryptionKey) bool { return k.Name == newest }
	switch {
	case same && (newest == "" || len(union) == 1):
		return rotationStep{rotationAdd, append(union, create())}, nil
	case newest == "":
		return rotationStep{}, errors.New(
			"control planes have different encryption keys; run kkbundle install, which copies those of the first one to the others")
	}
	others := slices.DeleteFunc(slices.Clone(union), isNewest)
	key := union[slices.IndexFunc(union, isNewest)]
	switch {
	case slices.ContainsFunc(hosts, func(keys []encryptionKey) bool { return !slices.Contains(keys, key) }):
		return rotationStep{rotationAdd, append(others, key)}, nil
	case slices.ContainsFunc(hosts, func(keys []encryptionKey) bool { return keys[0] != key }):
		return rotationStep{rotationPromote, append([]encryptionKey{key}, others...)}, nil
	}
	return rotationStep{rotationRemove, []encryptionKey{key}}, nil
}

// RotateKey replaces the encryption key of Secrets, in Kubernetes' order. It continues an interrupted rotation from the
// keys on the control planes, all of which must be reachable. each runs a task on every control plane, one by one.
// https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/#rotating-a-decryption-key
func RotateKey(ctx context.Context, s *task.Site, each func(ctx context.Context, t task.Task) error) error {
	switch guarded, err := Guarded(ctx, s); {
	case err != nil:
		return err
	case !guarded:
		return fmt.Errorf("cluster %s does not encrypt Secrets: it was installed by a kkbundle release that did not encrypt them; see docs/site/security.md, Encryption of Secrets", s.Cluster.Metadata.Name)
	}
	r := &rotating{site: s, first: s.FirstControlPlane(), each: each}
	// Restart the API servers that have not read their host's file yet: a killed run may have written it without the
	// restart.
	if err := r.bringIntoForce(ctx); err != nil {
		return err
	}
	for {
		if last, err := r.step(ctx); err != nil || last {
			return err
		}
	}
}

// A rotating is a rotation in progress.
type rotating struct {
	site  *task.Site
	first *task.Host
	each  func(ctx context.Context, t task.Task) error
}

// bringIntoForce restarts the API servers that have not read their file since it was written.
func (r *rotating) bringIntoForce(ctx context.Context) error {
	return r.each(ctx, securityTask(func(ctx context.Context, t *task.Host) (task.Setting, error) {
		data, err := t.Read(ctx, EncryptionOnHost)
		if errors.Is(err, fs.ErrNotExist) {
			return task.Setting{}, fmt.Errorf("%s on %s does not exist: run kkbundle install first", EncryptionOnHost,
				t.Name)
		}
		if err != nil {
			return task.Setting{}, err
		}
		return securitySetting(t, data)
	}))
}

// step takes the next step of the rotation and reports whether it was the last.
func (r *rotating) step(ctx context.Context) (last bool, err error) {
	config, keys, err := r.look(ctx)
	if err != nil {
		return false, err
	}
	next, err := nextRotation(keys, newRotationKey)
	if err != nil {
		return false, err
	}
	if next.stage == rotationRemove {
		if err := r.retire(config, next.keys); err != nil {
			return false, err
		}
		if err := rewriteSecrets(ctx, r.first); err != nil {
			return false, fmt.Errorf("rewrite Secrets with the new key: %w", err)
		}
	}
	data, err := config.with(next.keys)
	if err != nil {
		return false, err
	}
	if err := errors.Join(hideKeys(r.site, data), r.site.Dir.Write(EncryptionFile, data)); err != nil {
		return false, err
	}
	if err := r.each(ctx, securityTask(func(_ context.Context,
		t *task.Host,
	) (task.Setting, error) {
		return securitySetting(t, data)
	})); err != nil {
		return false, err
	}
	if next.stage != rotationRemove {
		return false, nil
	}
	return true, r.first.Write(ctx, rewrittenStamp(data))
}

// look reads the configuration of the first control plane, and the keys of all.
func (r *rotating) look(ctx context.Context) (encryptionConfig, [][]encryptionKey, error) {
	var first encryptionConfig
	var keys [][]encryptionKey
	for _, t := range r.site.WithRole(manifest.RoleControlPlane) {
		data, err := t.Read(ctx, EncryptionOnHost)
		if err != nil {
			return first, nil, err
		}
		if err := hideKeys(r.site, data); err != nil {
			return first, nil, err
		}
		config, err := parseEncryption(data)
		if err != nil {
			return first, nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		if t.Name == r.first.Name {
			first = config
		}
		keys = append(keys, config.keys)
	}
	return first, keys, nil
}

// retire adds the keys that a removal drops to the work directory's retired keys.
func (r *rotating) retire(config encryptionConfig, kept []encryptionKey) error {
	retired, err := retiredKeys(r.site.Dir)
	if err != nil {
		return err
	}
	for _, k := range config.keys {
		if !slices.Contains(kept, k) && !slices.Contains(retired, k) {
			retired = append(retired, k)
		}
	}
	data, err := yaml.Marshal(retired)
	if err != nil {
		return err
	}
	return r.site.Dir.Write(RetiredKeysFile, data)
}

// retiredKeys returns the keys that earlier rotations removed.
func retiredKeys(dir *task.WorkDir) ([]encryptionKey, error) {
	data, err := dir.Read(RetiredKeysFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var keys []encryptionKey
	if yaml.Unmarshal(data, &keys) != nil {
		// a parser's error could quote a key
		return nil, fmt.Errorf("%s is not a list of keys", dir.Join(RetiredKeysFile))
	}
	return keys, nil
}

// AddRetiredKeys lets a control plane decrypt with the retired keys, too: an older copy of etcd has Secrets that are
// encrypted with them. The API server reads the file at its next start.
func AddRetiredKeys(ctx context.Context, t *task.Host) error {
	retired, err := retiredKeys(t.Site.Dir)
	if err != nil || len(retired) == 0 {
		return err
	}
	data, err := t.Read(ctx, EncryptionOnHost)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	config, err := parseEncryption(data)
	if err != nil {
		return fmt.Errorf("%s: %w", t.Name, err)
	}
	keys := config.keys
	for _, k := range retired {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	with, err := config.with(keys)
	if err != nil || bytes.Equal(with, data) {
		return err
	}
	return t.Write(ctx, task.File{Path: EncryptionOnHost, Mode: 0o600, Data: with})
}

// newRotationKey returns a new key that is named after the time.
func newRotationKey() encryptionKey {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails: https://pkg.go.dev/crypto/rand#Read
	return encryptionKey{
		"kkbundle-" + time.Now().UTC().Format("20060102T150405"),
		base64.StdEncoding.EncodeToString(key),
	}
}

// rewrittenStamp records that every Secret is encrypted as an EncryptionConfiguration says.
func rewrittenStamp(config []byte) task.File {
	return marks.SecretsEncrypted.File(fmt.Appendf(nil, "%x\n", sha256.Sum256(config)))
}
