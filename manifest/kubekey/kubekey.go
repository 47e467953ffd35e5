// Package kubekey reads files of KubeKey directly, wherever kkbundle takes an inventory or a cluster file:
//
//   - v4: kubekey.kubesphere.io/v1, Inventory and Config,
//   - v3: kubekey.kubesphere.io/v1alpha2, Cluster,
//   - CAPKK: infrastructure.cluster.x-k8s.io/v1beta1, KKCluster and KKMachineTemplate, with the documents of Cluster
//     API beside them.
//
// It builds a tree in the shape of kkbundle's own files from the nodes of the foreign ones, so that the same decoder
// and the same checks apply, and every problem has its place in the foreign file. KubeKey's defaults apply where they
// differ from kkbundle's. Settings that cannot be carried over are in the notes. The package is as pure as manifest.
package kubekey

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/values"
)

const (
	group = "kubekey.kubesphere.io/"
	v4    = group + "v1"
	v3    = group + "v1alpha2"
	v2    = group + "v1alpha1" // read as v3, of which it is a part
	capi  = "cluster.x-k8s.io/"
	capkk = "infrastructure." + capi
)

// Notes are settings that were changed or ignored, and those that should not be in such a file, each with its place.
type Notes []document.Problem

// ReadInventory reads an inventory: one of kkbundle's own, or of KubeKey. The error is document.Problems.
func ReadInventory(file string, data []byte) (*manifest.Inventory, Notes, error) {
	r, err := open(file, data)
	if err != nil {
		return nil, nil, err
	}
	if r == nil {
		inv, err := manifest.ParseInventory(file, data)
		return inv, nil, err
	}
	t := newTree(r.first.Root, manifest.KindInventory)
	switch {
	case r.kinds["Inventory"].Root != nil:
		v4Reader{r.reader}.inventory(r.kinds["Inventory"].Root, t)
	case r.v3().Root != nil:
		v3Reader{r.reader}.inventory(r.v3().Root, t)
	case r.kinds["KKCluster"].Root != nil:
		capkkReader{r}.inventory(t)
	default:
		return nil, nil, r.refuse("there are no hosts in it")
	}
	inv, err := t.document(file).Inventory()
	if err := r.join(err); err != nil {
		return nil, nil, err
	}
	return inv, r.said(), nil
}

// ReadCluster reads a cluster file: one of kkbundle's own, or of KubeKey, with settings as in manifest.ParseCluster.
// The error is document.Problems.
func ReadCluster(file string, data []byte, settings ...string) (*manifest.Cluster, Notes, error) {
	return ReadClusterWith(nil, file, data, settings...)
}

// ReadClusterWith is ReadCluster of a file with values of a manifest; nil expands nothing.
func ReadClusterWith(set *values.Set, file string, data []byte, settings ...string) (*manifest.Cluster, Notes, error) {
	if !mayBeForeign(data) {
		c, err := manifest.ParseClusterWith(set, file, data, settings...)
		return c, nil, err
	}
	data, err := manifest.ExpandForeign(set, file, data)
	if err != nil {
		return nil, nil, err
	}
	r, err := open(file, data)
	if err != nil {
		return nil, nil, err
	}
	if r == nil {
		c, err := manifest.ParseCluster(file, data, settings...)
		return c, nil, err
	}
	t := newTree(r.first.Root, manifest.KindCluster)
	switch {
	case r.kinds["Config"].Root != nil:
		v4Reader{r.reader}.cluster(r.kinds["Config"].Root, t)
	case r.v3().Root != nil:
		v3Reader{r.reader}.cluster(r.v3().Root, t)
	case r.kinds["KKCluster"].Root != nil, r.kinds["KKMachineTemplate"].Root != nil:
		capkkReader{r}.cluster(t)
	default:
		return nil, nil, r.refuse("it does not describe a cluster")
	}
	c, err := t.document(file).Cluster(settings...)
	if err := r.join(err); err != nil {
		return nil, nil, err
	}
	return c, r.said(), nil
}

// mayBeForeign reports whether data may contain a file of KubeKey.
func mayBeForeign(data []byte) bool {
	return bytes.Contains(data, []byte(group)) || bytes.Contains(data, []byte(capkk))
}

// documents are the documents of a file, the first one of each kind.
type documents struct {
	*reader
	first     manifest.Document
	kinds     map[string]manifest.Document
	templates []manifest.Document // the KKMachineTemplates
}

// open sorts the documents of a file by kind. The result is nil for a file of kkbundle's own.
func open(file string, data []byte) (*documents, error) {
	if !mayBeForeign(data) {
		return nil, nil //nolint:nilnil // a file of our own is a normal case that callers branch on
	}
	list, err := manifest.ParseDocuments(file, data)
	if err != nil {
		return nil, err
	}
	r := &documents{reader: &reader{file: file}, kinds: map[string]manifest.Document{}}
	ours := false
	for _, d := range list {
		head := r.peek(d.Root)
		version, kind := head.text("apiVersion"), head.text("kind")
		switch {
		case version == manifest.APIVersion:
			ours = true
		case !slices.Contains(kindsOf(version), kind):
			r.note(d.Root, "a document of kind %s is not read", shown(kind))
		case r.kinds[kind].Root != nil && kind != "KKMachineTemplate":
			r.problem(d.Root, "a second %s starts here; write one a file", kind)
		case r.kinds[kind].Root == nil:
			r.kinds[kind] = d
		}
		if kind == "KKMachineTemplate" {
			r.templates = append(r.templates, d)
		}
	}
	if ours || len(list) == 0 {
		return nil, nil //nolint:nilnil // as above: a comment named KubeKey
	}
	r.first = list[0]
	return r, nil
}

// kindsOf returns the supported kinds of a version.
func kindsOf(version string) []string {
	switch {
	case version == v4:
		return []string{"Inventory", "Config"}
	case version == v3, version == v2:
		return []string{"Cluster"}
	case strings.HasPrefix(version, capkk):
		return []string{"KKCluster", "KKMachineTemplate"}
	case strings.HasPrefix(version, capi):
		return []string{"Cluster"}
	case strings.HasPrefix(version, "controlplane."+capi):
		return []string{"KubeadmControlPlane", "K3sControlPlane"}
	}
	return nil
}

// spec returns the spec of a document, and notes what else lies beside it. A spec that was indented too far lies below
// metadata, where nothing reads it.
func (r *reader) spec(top *object) *object {
	top.ignore("apiVersion", "kind", "status")
	spec, meta := top.sub("spec"), top.sub("metadata")
	top.done()
	switch {
	case meta.take("spec") != nil:
		r.problem(meta.keys["spec"],
			"metadata.spec: spec lies below metadata, where it is not read; move it and all below it to the left, beside metadata")
	case top.take("spec") == nil:
		r.problem(top.node, "spec is missing")
	}
	meta.ignore("name", "namespace", "labels", "annotations", "creationTimestamp", "generation", "resourceVersion",
		"uid", "managedFields",
		"finalizers", "ownerReferences", "selfLink", "generateName", "deletionTimestamp")
	meta.done()
	return spec
}

// v3 returns the file's Cluster if it is KubeKey's and not Cluster API's.
func (r *documents) v3() manifest.Document {
	d := r.kinds["Cluster"]
	if d.Root != nil && strings.HasPrefix(r.peek(d.Root).text("apiVersion"), group) {
		return d
	}
	return manifest.Document{}
}

// refuse returns the error for a file of KubeKey that is of the wrong kind.
func (r *documents) refuse(why string) error {
	r.problem(r.first.Root, "%s: name another file", why)
	return r.join(nil)
}

// join adds the problems of the converted file. A missing value may be missing only because the original was wrong.
func (r *reader) join(err error) error {
	var more document.Problems
	errors.As(err, &more)
	translated := len(r.problems) == 0
	for _, p := range more {
		if translated || !strings.Contains(p.Message, " is missing") && !strings.Contains(p.Message, " is required") {
			r.problems = append(r.problems, p)
		}
	}
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, byPlace)
	return slices.Compact(r.problems)
}

// said returns the notes about a file.
func (r *reader) said() Notes {
	if r.secrets > 0 {
		what := "a password or key is"
		if r.secrets > 1 {
			what = fmt.Sprintf("%d passwords and keys are", r.secrets)
		}
		r.note(r.secret, "%s in this file, the first one here; kkbundle does not print them, but every reader of the file has them: "+
			"passwordEnv, passwordFile and key in a file of kkbundle keep them elsewhere", what)
	}
	slices.SortStableFunc(r.notes, byPlace)
	return slices.Compact(r.notes)
}

func byPlace(a, b document.Problem) int {
	if a.Line != b.Line {
		return a.Line - b.Line
	}
	return a.Column - b.Column
}
