package manifest

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"
	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/internal/capped"
	"github.com/kkbundle/kkbundle/internal/plain"
	"github.com/kkbundle/kkbundle/manifest/catalogfile"
	"github.com/kkbundle/kkbundle/manifest/document"
	"github.com/kkbundle/kkbundle/manifest/scalar"
)

// lockChecker makes a lock's checks beyond the types.
type lockChecker struct{ *checker }

func (c lockChecker) check(l *Lock) {
	c.Name(l.Metadata.Name)
	c.Version("metadata.version", l.Metadata.Version)
	c.pinnedDigest("manifest", l.Manifest)
	for i, in := range l.Inputs {
		c.pinnedDigest(document.Join(document.Index("inputs", i), "digest"), in.Digest.String())
	}
	catalogfile.CheckKubeadm(c.Words, l.Kubeadm)
	names := map[string]int{}
	for i, v := range l.Values {
		if at, twice := document.Earlier(names, v.Name, i); twice {
			c.Add(document.Index("values", i), "value %s is there twice, first on %s", document.Shorten(v.Name),
				c.Place(document.Index("values", at)))
		}
	}
	first := map[[3]string][]int{}
	for i := range l.Items {
		p := &l.Items[i]
		path := document.Index("items", i)
		c.pinnedDigest(document.Join(path, "digest"), p.Digest.String())
		c.pinnedDigest(document.Join(path, "provenance"), p.Provenance.String())
		c.pinnedKind(path, p)
		if p.Size < 0 {
			c.Add(document.Join(path, "size"), "%d is not a size", p.Size)
		}
		for j, platform := range p.Platforms {
			c.pinnedPlatform(document.Index(document.Join(path, "platforms"), j), platform)
		}
		for j, platform := range p.Lacks {
			c.pinnedPlatform(document.Index(document.Join(path, "lacks"), j), platform)
		}
		c.pinnedPackage(path, p)
		for j, group := range p.Groups {
			if !document.IsName(group, false) {
				c.Add(document.Index(document.Join(path, "groups"), j), "%q is not the name of a group",
					document.Shorten(group))
			}
		}
		if p.Platform != "" {
			c.pinnedPlatform(document.Join(path, "platform"), p.Platform)
		}
		id := [3]string{p.Kind, p.Ref, p.Platform}
		for _, at := range first[id] {
			if other := l.Items[at].Variants; len(other) == 0 || len(p.Variants) == 0 ||
				slices.ContainsFunc(other, func(v string) bool { return slices.Contains(p.Variants, v) }) {
				c.Add(path, "%s %s is there twice, first on %s", p.Kind, document.Shorten(p.Ref),
					c.Place(document.Index("items", at)))
				break
			}
		}
		first[id] = append(first[id], i)
		c.pinnedVariants(path, p.Variants, l)
	}
	for i, in := range l.Inputs {
		c.pinnedVariants(document.Index("inputs", i), in.Variants, l)
	}
	for i, v := range l.Variants {
		path := document.Index("variants", i)
		c.pinnedDigest(document.Join(path, "manifest"), v.Manifest)
		if slices.ContainsFunc(l.Variants[:i], func(o LockedVariant) bool { return o.Name == v.Name }) {
			c.Add(path, "variant %s is there twice", document.Shorten(v.Name))
		}
	}
}

// pinnedVariants requires names of the lock's variants.
func (c lockChecker) pinnedVariants(path string, names []string, l *Lock) {
	for j, name := range names {
		if !slices.ContainsFunc(l.Variants, func(v LockedVariant) bool { return v.Name == name }) {
			c.Add(document.Index(document.Join(path, "variants"), j), "the lock has no variant %s",
				document.Shorten(name))
		}
	}
}

// pinnedKind checks the fields that only one kind of item has.
func (c lockChecker) pinnedKind(path string, p *Pin) {
	if p.Provenance != "" && p.Kind != ItemChart {
		c.Add(document.Join(path, "provenance"), "only a chart has it")
	}
	c.pinnedReferrer(path, p)
	c.pinnedGit(path, p)
}

// pinnedReferrer checks the fields that only images and their referrers have.
func (c lockChecker) pinnedReferrer(path string, p *Pin) {
	c.pinnedDigest(document.Join(path, "subject"), p.Subject.String())
	c.pinnedDigest(document.Join(path, "keyDigest"), p.KeyDigest.String())
	if (p.Subject != "") != (p.Kind == ItemReferrer) {
		c.Add(path, "a referrer has a subject, and nothing else has one")
	}
	if p.Complete && p.Kind != ItemImage {
		c.Add(document.Join(path, "complete"), "only an image has platforms")
	}
	if (p.Key == "") != (p.KeyDigest == "") || p.Key != "" && p.Kind != ItemImage {
		c.Add(path, "an image that has key has keyDigest too, and nothing else has them")
	}
	c.pinnedDigest(document.Join(path, "rootDigest"), p.RootDigest.String())
	some, all := p.Identity+p.Issuer+p.Root+p.RootDigest.String() != "", p.Identity != "" && p.Issuer != "" &&
		p.Root != "" && p.RootDigest != ""
	if some != all || some && (p.Kind != ItemImage || p.Key != "") {
		c.Add(path, "an image that has identity has issuer, root and rootDigest too, and no key; nothing else has them")
	}
}

// pinnedPackage requires names without commas, which separate them in a bundle's index.
func (c lockChecker) pinnedPackage(path string, p *Pin) {
	names := p.Provides
	if p.Package != "" || len(names) > 0 {
		names = append([]string{p.Package}, names...)
	}
	if len(names) > 0 && !IsPackageRef(p.Ref) {
		c.Add(path, "a package is below %s, and nothing else has its names", packagesPrefix)
	}
	for _, name := range names {
		if !scalar.IsPackageName(name) || strings.Contains(name, ",") {
			c.Add(path, "%q is not a package name", document.Shorten(name))
		}
	}
}

func (c lockChecker) pinnedDigest(path, s string) {
	if s != "" {
		c.Digest(path, s)
	}
}

// pinnedPlatform requires the normalized spelling: a lock is not written by hand.
func (c lockChecker) pinnedPlatform(path, s string) {
	if p, err := scalar.PlatformString(s); err != nil {
		c.Add(path, "%v", err)
	} else if p != s {
		c.Add(path, "write %s", p)
	}
}

const lockHeader = `# Written by kkbundle lock: what the manifest resolved to. Keep it beside the manifest and in version control;
# build --locked puts exactly this into a bundle. Write it anew with kkbundle lock after changing the manifest.
`

// A TooLargeError means that a lock has more than ParseLock reads.
type TooLargeError struct {
	Pins         int
	Bytes, Limit int
}

// Error names the size and the remedy.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the lock has %d pins in %d bytes, and at most %d bytes are read: split the manifest into several bundles", e.Pins, e.Bytes, e.Limit)
}

// Marshal returns the lock as YAML, the items sorted: the same pins give the same bytes in any order. A lock that
// ParseLock would not read is a *TooLargeError.
func (l *Lock) Marshal() ([]byte, error) {
	out := *l
	out.APIVersion, out.Kind = APIVersion, KindLock
	out.Items = slices.SortedFunc(slices.Values(l.Items), comparePins)
	body, err := yaml.Marshal(&out)
	if err != nil {
		return nil, fmt.Errorf("write the lock: %w", err)
	}
	data := append([]byte(lockHeader), body...)
	if l := lockLimits(); len(data) > l.Size || capped.Values(data) > l.Values {
		return nil, &TooLargeError{Pins: len(out.Items), Bytes: len(data), Limit: l.Size}
	}
	return data, nil
}

func comparePins(a, b Pin) int {
	for _, pair := range [][2]string{
		{a.Kind, b.Kind},
		{a.Ref, b.Ref},
		{a.Platform, b.Platform},
		{a.Digest.String(), b.Digest.String()},
		{strings.Join(a.Variants, ","), strings.Join(b.Variants, ",")},
	} {
		if d := strings.Compare(pair[0], pair[1]); d != 0 {
			return d
		}
	}
	return 0
}

// Fingerprint returns the digest of everything in the manifest that determines its items: platforms, policies, images,
// charts, files and packages (with the catalog's additions, if merged), in any order, and the settings for finding
// images. Found images are excluded. So are the bundle's name and version, and sources and addresses of overrides,
// which affect where bytes come from and not which.
func (b *Bundle) Fingerprint() (digest.Digest, error) {
	items := struct {
		Platforms []string
		Policy    PlatformPolicy
		Images    []string
		Charts    []string
		Files     []string
		Referrers ReferrerPolicy `yaml:",omitempty"`
		Indexes   IndexPolicy    `yaml:",omitempty"`
		Find      *findSettings  `yaml:",omitempty"`
		Sums      []string       `yaml:",omitempty"`
		Packages  []string       `yaml:",omitempty"`
		Git       []string       `yaml:",omitempty"`
		Self      Self           `yaml:",omitempty"`
	}{Platforms: slices.Sorted(slices.Values(b.Platforms)), Policy: orDefault(b.PlatformPolicy, PolicyStrict)}
	if b.Referrers != ReferrersAll {
		items.Referrers = b.Referrers
	}
	if b.Indexes != IndexesPinned {
		items.Indexes = b.Indexes
	}
	for _, image := range b.Images {
		ref, err := image.Ref()
		if err != nil {
			return "", err
		}
		more := Image{
			Verify: image.Verify, Platforms: slices.Sorted(slices.Values(image.Platforms)),
			Referrers: image.Referrers, Indexes: image.Indexes, Group: image.Group,
		}
		if more.Verify != nil || len(more.Platforms) > 0 || more.Referrers+ReferrerPolicy(more.Indexes) != "" ||
			more.Group != "" {
			ref += "\n" + canonical(more)
		}
		items.Images = append(items.Images, ref)
	}
	items.Charts, items.Files = canonicalEach(b.Charts), canonicalEach(b.Files)
	items.Git, items.Packages = canonicalEach(b.Git), canonicalEach(b.Packages)
	items.Find, items.Self = b.findSettings(), b.Self
	for _, o := range b.Overrides {
		if len(o.SHA256) > 0 {
			items.Sums = append(items.Sums, canonical(Override{URL: o.URL, SHA256: o.SHA256}))
		}
	}
	slices.Sort(items.Sums)
	slices.Sort(items.Images)
	sum := sha256.Sum256([]byte(canonical(items)))
	return digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(sum[:])), nil
}

// canonicalEach returns the canonical text of each item, sorted.
func canonicalEach[T any](list []T) (texts []string) {
	for _, one := range list {
		texts = append(texts, canonical(one))
	}
	slices.Sort(texts)
	return texts
}

// canonical returns YAML with keys in the order of the type, map keys sorted, and unset fields left out. So a field
// added by a later version does not change the fingerprints of manifests without it.
func canonical(v any) string {
	text, err := yaml.Marshal(v)
	if err != nil {
		return err.Error() // never happens for plain structs, maps and strings
	}
	return string(text)
}

// A StaleError lists the differences between a lock and its manifest.
type StaleError struct {
	// Missing are the items of the manifest that the lock has no pin for.
	Missing []string
	// Stale are the lock's items that the manifest no longer has, or has with another digest.
	Stale []string
	// Changed are the changed files among those used to find images.
	Changed []string
}

// Error names the items, the first few of each.
func (e *StaleError) Error() string {
	text := "the lock does not fit the manifest"
	if len(e.Missing) == 0 && len(e.Stale) == 0 && len(e.Changed) == 0 {
		text += ": settings of its items have changed"
	}
	for _, part := range []struct {
		what  string
		items []string
	}{{"not in the lock", e.Missing}, {"no longer in the manifest", e.Stale}, {"changed", e.Changed}} {
		if len(part.items) > 0 {
			text += "; " + part.what + ": " + plain.Few(part.items, mostChanges)
		}
	}
	return text
}

// mostChanges is the number of items that a StaleError names.
const mostChanges = 5

// Hint returns the remedy.
func (*StaleError) Hint() string { return "run kkbundle lock" }

// Covers returns nil if the lock was written for this manifest, with the catalog's additions merged. The error is a
// *StaleError.
func (l *Lock) Covers(b *Bundle) error {
	fingerprint, err := b.Fingerprint()
	if err != nil {
		return err
	}
	changed := l.changedValues(b)
	if l.Manifest == fingerprint.String() && changed == nil {
		return l.signed(b)
	}
	if l.Manifest == fingerprint.String() {
		return &StaleError{Changed: changed}
	}
	m := matcher{lock: l, used: make([]bool, len(l.Items)), byRef: map[[2]string][]int{}}
	for i, p := range l.Items {
		id := [2]string{p.Kind, p.Ref}
		m.byRef[id] = append(m.byRef[id], i)
	}
	m.stale.Changed = changed
	m.bundle(b)
	for i, p := range l.Items {
		// these come and go with images, or with the places that need them
		if !m.used[i] && p.Kind != ItemReferrer && len(p.WantedBy) == 0 {
			m.stale.Stale = append(m.stale.Stale, p.Kind+" "+p.Ref)
		}
	}
	return &m.stale
}

// signed requires the image's pin to have the manifest's key, too: removing it from the lock alone has no effect. It
// also refuses packages that were locked before signatures were required.
func (l *Lock) signed(b *Bundle) error {
	var stale StaleError
	images := map[string][]*Pin{}
	var charts []string // references of the charts with a checked signature, sorted
	for i := range l.Items {
		switch p := &l.Items[i]; {
		case p.Kind == ItemImage:
			images[p.Ref] = append(images[p.Ref], p)
		case p.Kind == ItemChart && p.Verified == VerifiedSignature:
			charts = append(charts, p.Ref)
		}
	}
	slices.Sort(charts)
	for _, image := range b.Images {
		ref, err := image.Ref()
		if err != nil {
			return err
		}
		if v := image.Verify; v != nil && !slices.ContainsFunc(images[ref], func(p *Pin) bool {
			return p.Key == v.Key && p.Identity == v.Identity && p.Issuer == v.Issuer && (p.Identity == "" ||
				p.Root == b.Trust.Root)
		}) {
			stale.Missing = append(stale.Missing, ItemImage+" "+ref+" with its key "+cmp.Or(v.Key, v.Identity))
		}
	}
	for _, c := range b.Charts {
		if c.Verify == nil {
			continue
		}
		prefix := ChartRef(c, c.Name, "")
		if i, _ := slices.BinarySearch(charts, prefix); i == len(charts) || !strings.HasPrefix(charts[i], prefix) {
			stale.Missing = append(stale.Missing, ItemChart+" "+ChartRef(c, c.Name, c.Version)+" signed by "+
				c.Verify.Key)
		}
	}
	for _, p := range l.Items {
		if p.Package != "" && p.Verified == VerifiedUpstream {
			distribution, _ := PackageDistribution(p.Ref)
			stale.Changed = append(stale.Changed, "packages of "+distribution+
				", whose signatures an earlier version did not record")
		}
	}
	stale.Changed = slices.Compact(stale.Changed)
	if len(stale.Missing)+len(stale.Changed) > 0 {
		return &stale
	}
	return nil
}

// matcher finds the pins of a manifest's items.
type matcher struct {
	lock  *Lock
	byRef map[[2]string][]int
	used  []bool
	stale StaleError
}

func (m *matcher) bundle(b *Bundle) {
	for _, image := range b.Images {
		ref, _ := image.Ref() // Fingerprint has refused an invalid one
		m.want(ItemImage, ref, func(Pin) bool { return true })
	}
	for _, chart := range b.Charts {
		m.chart(chart)
	}
	for _, f := range b.Files {
		for _, platform := range f.PlatformsIn(b.Platforms) {
			sum := f.Sum(platform)
			m.want(ItemFile, FileURL(f, platform), func(p Pin) bool {
				return (p.Platform == "" || p.Platform == platform) && (sum == "" || p.Digest.String() == "sha256:"+sum)
			})
			if !f.PerPlatform() {
				break
			}
		}
	}
	for _, r := range b.Git {
		m.want(ItemGit, r.Ref(), r.Fits)
	}
	for _, program := range b.Programs() {
		m.want(ItemTool, program.Ref(), func(p Pin) bool { return p.Platform == program.Platform })
	}
	for _, set := range b.Packages {
		m.packages(set)
	}
}

// packages marks the pins of a set. Only repositories know which packages it resolves to: another set of the same
// distribution has another Fingerprint.
func (m *matcher) packages(set PackageSet) {
	found := false
	for i, p := range m.lock.Items {
		if strings.HasPrefix(p.Ref, PackageRef(set.Distribution, "")) {
			m.used[i], found = true, true
		}
	}
	if !found {
		m.stale.Missing = append(m.stale.Missing, "packages "+set.Distribution)
	}
}

// want marks the pins of an item.
func (m *matcher) want(kind, ref string, fits func(Pin) bool) {
	found := false
	for _, i := range m.byRef[[2]string{kind, ref}] {
		if fits(m.lock.Items[i]) {
			m.used[i], found = true, true
		}
	}
	if !found {
		m.stale.Missing = append(m.stale.Missing, kind+" "+ref)
	}
}

// chart marks the pins of a chart, whose reference has the version that its range resolved to.
func (m *matcher) chart(c Chart) {
	found := false
	for i, p := range m.lock.Items {
		if p.Kind == ItemChart && c.Fits(p) {
			m.used[i], found = true, true
		}
	}
	if !found {
		m.stale.Missing = append(m.stale.Missing, ItemChart+" "+c.label())
	}
}

// label returns a chart's display name.
func (c Chart) label() string {
	switch {
	case c.URL != "":
		return c.URL
	case c.Path != "":
		return c.Path
	default:
		return ChartRef(c, c.Name, c.Version)
	}
}

// Fits reports whether a pin can be the result of resolving this chart.
func (c Chart) Fits(p Pin) bool {
	switch {
	case c.URL != "":
		return p.Ref == c.URL
	case c.Path != "":
		return strings.HasPrefix(p.Ref, localPrefix) && (c.Name == "" || c.Name == p.Name)
	}
	if p.Ref != ChartRef(c, c.Name, p.Version) {
		return false
	}
	if p.Version == c.Version {
		return true
	}
	version, err := semver.NewVersion(p.Version)
	if err != nil {
		return false
	}
	constraint, err := semver.NewConstraint(c.Version)
	return err == nil && constraint.Check(version)
}
