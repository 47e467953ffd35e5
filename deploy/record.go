package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kkbundle/kkbundle/installer/kube"
	"github.com/kkbundle/kkbundle/internal/capped"
)

// Namespace holds the records and the lock of deploy.
const Namespace = "kkbundle"

// recordKey is the key of a record in its ConfigMap.
const recordKey = "record.json"

// A State is where a deployment stands.
type State string

// The states of a deployment.
const (
	StateDeploying State = "deploying" // running, or interrupted
	StateDeployed  State = "deployed"
	StateFailed    State = "failed"
	StateRemoving  State = "removing" // running, or interrupted
)

// A Record is what deploy made for one bundle name. It lies in the cluster, is readable by everybody who may read
// ConfigMaps there, and holds no secrets.
type Record struct {
	Version  int       `json:"recordVersion"` // 1
	Name     string    `json:"name"`          // of the bundle
	Bundle   string    `json:"version"`       // of the bundle
	Digest   string    `json:"digest"`        // of the bundle
	Registry string    `json:"registry"`
	State    State     `json:"state"`
	By       string    `json:"by"`
	Changed  time.Time `json:"changed"`
	Parts    []Part    `json:"parts"`
	// Namespaces were created by deploy. Pulls have a pull secret of deploy.
	Namespaces []string `json:"namespaces,omitempty"`
	Pulls      []string `json:"pulls,omitempty"`
	// Values are those of the site that somebody gave, without those that are secret. SecretValues are the names of
	// these; they lie in a Secret.
	Values       map[string]string `json:"values,omitempty"`
	SecretValues []string          `json:"secretValues,omitempty"`
	// Groups has a word for each group of the bundle: on or off.
	Groups map[string]string `json:"groups,omitempty"`
	// Redirect is nil without an admission policy.
	Redirect *Redirect `json:"redirect,omitempty"`
}

// A Part is a release or a set of YAML.
type Part struct {
	Namespace string `json:"namespace"`
	Release   string `json:"release"`
	// Chart and Version are those of a release; "" for YAML.
	Chart   string `json:"chart,omitempty"`
	Version string `json:"version,omitempty"`
	// Objects are those of YAML, also of earlier versions of the bundle that no longer have them.
	Objects []Object `json:"objects,omitempty"`
	// Status is the state of the release as Helm names it. It is not recorded, but read.
	Status string `json:"status,omitempty"`
}

// An Object names an object.
type Object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// String returns namespace and name of the release.
func (p Part) String() string { return p.Namespace + "/" + p.Release }

func recordName(bundle string) string { return "kkbundle.deploy." + bundle }

// part returns the part of a release, nil if there is none.
func (r *Record) part(name string) *Part {
	if i := slices.IndexFunc(r.Parts, func(p Part) bool { return p.String() == name }); i >= 0 {
		return &r.Parts[i]
	}
	return nil
}

// records returns the records of all bundles, by name.
func (c *cluster) records(ctx context.Context) ([]*Record, error) {
	list, err := c.kube.CoreV1().ConfigMaps(Namespace).List(ctx, metav1.ListOptions{LabelSelector: NameLabel})
	if err != nil {
		return nil, &ObjectError{"ConfigMaps in " + Namespace, err}
	}
	var records []*Record
	for _, m := range list.Items {
		r := &Record{}
		if err := capped.JSON([]byte(m.Data[recordKey]), capped.MaxValues, r); err != nil {
			return nil, &ObjectError{"ConfigMap " + Namespace + "/" + m.Name, err}
		}
		if r.Version != 1 {
			return nil, &ObjectError{
				"ConfigMap " + Namespace + "/" + m.Name,
				fmt.Errorf("record version %d was written by a newer kkbundle", r.Version),
			}
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b *Record) int { return cmp.Compare(a.Name, b.Name) })
	return records, nil
}

// write writes a record.
func (c *cluster) write(ctx context.Context, r *Record) error {
	r.Version, r.Changed = 1, time.Now().UTC().Truncate(time.Second)
	for i := range r.Parts {
		r.Parts[i].Status = ""
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	data, err := json.Marshal(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: recordName(r.Name), Namespace: Namespace, Labels: labelsOf(r.Name)},
		Data:       map[string]string{recordKey: string(text)},
	})
	if err != nil {
		return err
	}
	_, err = c.kube.CoreV1().ConfigMaps(Namespace).Patch(ctx, recordName(r.Name), types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: kube.FieldManager, Force: new(true)})
	if err != nil {
		return &ObjectError{"ConfigMap " + Namespace + "/" + recordName(r.Name), err}
	}
	return nil
}

func (c *cluster) forget(ctx context.Context, name string) error {
	err := c.kube.CoreV1().ConfigMaps(Namespace).Delete(ctx, recordName(name), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return &ObjectError{"ConfigMap " + Namespace + "/" + recordName(name), err}
	}
	return nil
}

// List returns what is deployed in a cluster, with the state of each release now.
func List(ctx context.Context, config *rest.Config, logger *slog.Logger) ([]*Record, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	c, err := connect(ctx, config, logger)
	if err != nil {
		return nil, err
	}
	list, err := c.records(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		for i := range r.Parts {
			if p := &r.Parts[i]; p.Chart != "" {
				if p.Status, err = c.status(ctx, *p, logger); err != nil {
					return nil, err
				}
			}
		}
	}
	return list, nil
}
