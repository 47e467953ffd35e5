package manifest

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/manifest/catalogfile"
)

// A LockedVariant is what a lock of several variants has of one alone.
type LockedVariant struct {
	Name string `yaml:"name" kk:"required" doc:"Name of the variant."`
	// Manifest is the Fingerprint of the variant.
	Manifest  string        `yaml:"manifest" kk:"required" doc:"Fingerprint of the variant's items."`
	Values    []LockedValue `yaml:"values,omitempty" doc:"Values that the variant was read with."`
	Undecided []string      `yaml:"undecided,omitempty" doc:"Texts that may be images and match no item of the variant."`
}

// A Joint makes one lock of those of variants. Pins that several of them have are shared.
type Joint struct {
	lock Lock
	pins map[[3]string][]int // positions by kind, reference and platform
}

// NewJoint returns a Joint for the bundle of a manifest.
func NewJoint() *Joint {
	return &Joint{pins: map[[3]string][]int{}}
}

// Add adds the lock of a variant.
func (j *Joint) Add(variant string, l *Lock) {
	j.lock.Metadata = Metadata{strings.TrimSuffix(l.Metadata.Name, "-"+variant), l.Metadata.Version}
	j.lock.Variants = append(j.lock.Variants, LockedVariant{variant, l.Manifest, l.Values, l.Undecided})
	for _, pin := range l.Items {
		pin.Variants = nil
		id := [3]string{pin.Kind, pin.Ref, pin.Platform}
		i := slices.IndexFunc(j.pins[id], func(i int) bool {
			have := j.lock.Items[i]
			have.Variants = nil
			return reflect.DeepEqual(have, pin)
		})
		if i < 0 {
			i = len(j.pins[id])
			j.pins[id] = append(j.pins[id], len(j.lock.Items))
			j.lock.Items = append(j.lock.Items, pin)
		}
		at := &j.lock.Items[j.pins[id][i]]
		at.Variants = append(at.Variants, variant)
	}
	for _, in := range l.Inputs {
		i := slices.IndexFunc(j.lock.Inputs, func(o Input) bool { return o.Path == in.Path && o.Digest == in.Digest })
		if i < 0 {
			i = len(j.lock.Inputs)
			j.lock.Inputs = append(j.lock.Inputs, Input{Path: in.Path, Digest: in.Digest})
		}
		j.lock.Inputs[i].Variants = append(j.lock.Inputs[i].Variants, variant)
	}
	if j.lock.Kubeadm == nil {
		j.lock.Kubeadm = map[string]catalogfile.KubeadmImages{}
	}
	maps.Copy(j.lock.Kubeadm, l.Kubeadm)
}

// Lock returns the lock of all variants that were added. What all of them have names none.
func (j *Joint) Lock() *Lock {
	l := j.lock
	l.APIVersion, l.Kind = APIVersion, KindLock
	var all []string
	for _, v := range l.Variants {
		all = append(all, v.Name+" "+v.Manifest)
	}
	l.Manifest = digest.FromString(strings.Join(all, "\n")).String()
	l.Items, l.Inputs = slices.Clone(l.Items), slices.Clone(l.Inputs)
	for i := range l.Items {
		l.Items[i].Variants = someOf(l.Items[i].Variants, len(all))
	}
	for i := range l.Inputs {
		l.Inputs[i].Variants = someOf(l.Inputs[i].Variants, len(all))
	}
	slices.SortFunc(l.Inputs, func(a, b Input) int {
		return strings.Compare(a.Path+" "+a.Digest.String(), b.Path+" "+b.Digest.String())
	})
	return &l
}

// someOf returns the names sorted, and none for all variants.
func someOf(names []string, all int) []string {
	if len(names) == all {
		return nil
	}
	return slices.Sorted(slices.Values(names))
}

// Of returns the lock of a variant, "" for that of a manifest without variants. ok is false if the lock has none.
func (l *Lock) Of(variant string) (_ *Lock, ok bool) {
	if variant == "" {
		return l, len(l.Variants) == 0
	}
	i := slices.IndexFunc(l.Variants, func(v LockedVariant) bool { return v.Name == variant })
	if i < 0 {
		return &Lock{}, false
	}
	v := l.Variants[i]
	own := &Lock{
		APIVersion: l.APIVersion, Kind: l.Kind, Metadata: Metadata{l.Metadata.Name + "-" + variant, l.Metadata.Version},
		Manifest: v.Manifest, Values: v.Values, Undecided: v.Undecided, Kubeadm: l.Kubeadm,
	}
	for _, pin := range l.Items {
		if inVariant(pin.Variants, variant) {
			pin.Variants = nil
			own.Items = append(own.Items, pin)
		}
	}
	for _, in := range l.Inputs {
		if inVariant(in.Variants, variant) {
			in.Variants = nil
			own.Inputs = append(own.Inputs, in)
		}
	}
	return own, true
}

func inVariant(names []string, variant string) bool {
	return len(names) == 0 || slices.Contains(names, variant)
}
