package builder

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kkbundle/kkbundle/fetch"
	"github.com/kkbundle/kkbundle/manifest"
)

// A together resolves the variants of a manifest. Requests that are the same in several variants are made once.
type together struct {
	family   *Family
	sessions []*session
	finders  []*finder
	charts   map[string][]fetch.Chart // by request
	git      map[string]manifest.Pin  // repositories that are searched, by request
	pins     [][]sharedPins           // of each variant
	found    []map[string][]string    // of each variant, the places of images that nobody lists
}

// sharedPins are the pins of requests that the same variants make.
type sharedPins []manifest.Pin

// answers are what sandbox processes found, by their work. Variants share them.
type answers map[[sha256.Size]byte]findAnswer

// resolve makes the lock of all variants. If kubeadm lists other images than the catalog does, it resolves again.
func (f *Family) resolve(ctx context.Context, s *session) (*manifest.Lock, error) {
	known := answers{}
	sessions := make([]*session, len(f.Projects))
	for i, p := range f.Projects {
		own := *s
		own.Project = p
		sessions[i] = &own
	}
	for again := true; ; again = false {
		t := &together{
			family: f, sessions: sessions, charts: map[string][]fetch.Chart{}, git: map[string]manifest.Pin{},
		}
		if err := t.resolve(ctx, known); err != nil {
			return nil, err
		}
		differs := false
		j := manifest.NewJoint()
		for i, own := range sessions {
			l, d, err := t.lock(ctx, i)
			if err != nil {
				return nil, fmt.Errorf("variant %s: %w", own.Variant, err)
			}
			differs = differs || d
			j.Add(own.Variant, l)
		}
		if differs && again {
			continue
		}
		for i, own := range sessions {
			f.Projects[i] = own.Project
		}
		return j.Lock(), nil
	}
}

// resolve looks up everything: charts, the images in charts and files, and the rest.
func (t *together) resolve(ctx context.Context, known answers) error {
	if err := t.bringCharts(ctx); err != nil {
		return err
	}
	if err := t.bringRepositories(ctx); err != nil {
		return err
	}
	var errs []error
	var names []string
	for _, s := range t.sessions {
		f := &finder{session: s, answers: known}
		var list []fetch.Chart
		for _, c := range s.Manifest.Charts {
			list = append(list, t.charts[s.chartRequest(c)]...)
		}
		for _, r := range s.searched() {
			if pin, ok := t.git[s.gitRequest(r)]; ok {
				f.repositories = append(f.repositories, pin)
			}
		}
		errs, names = append(errs, f.find(ctx, list)), append(names, s.Variant)
		t.finders = append(t.finders, f)
	}
	if err := OfVariants(names, errs); err != nil {
		return err
	}
	return t.pinAll(ctx)
}

// A sharing collects requests with the variants that make each.
type sharing struct {
	of    map[string][]int                    // variants, by request
	order []string                            // of requests
	add   map[string]func(b *manifest.Bundle) // puts the items of a request into a manifest
}

func newSharing() *sharing {
	return &sharing{of: map[string][]int{}, add: map[string]func(*manifest.Bundle){}}
}

func (r *sharing) put(request string, variant int, add func(b *manifest.Bundle)) {
	if _, known := r.of[request]; !known {
		r.order = append(r.order, request)
		r.add[request] = add
	}
	if list := r.of[request]; len(list) == 0 || list[len(list)-1] != variant {
		r.of[request] = append(list, variant)
	}
}

// each calls visit for each set of variants with the same requests, and a manifest of these: the settings are those of
// the first variant.
func (r *sharing) each(sessions []*session, visit func(variants []int, b *manifest.Bundle) error) error {
	sets := map[string]*manifest.Bundle{}
	var order []string
	for _, request := range r.order {
		set := fmt.Sprint(r.of[request])
		b := sets[set]
		if b == nil {
			own := *sessions[r.of[request][0]].Manifest
			own.Images, own.Charts, own.Files, own.Packages, own.Git = nil, nil, nil, nil, nil
			own.Self = manifest.Self{}
			b, order = &own, append(order, set)
			sets[set] = b
		}
		r.add[request](b)
	}
	for _, set := range order {
		var variants []int
		for word := range strings.FieldsSeq(strings.Trim(set, "[]")) {
			n, err := strconv.Atoi(word)
			if err != nil {
				return err
			}
			variants = append(variants, n)
		}
		if err := visit(variants, sets[set]); err != nil {
			return err
		}
	}
	return nil
}

// settings identifies what a lookup depends on besides its item: two variants with the same make the same requests.
func (s *session) settings() string {
	b := s.Manifest
	return identity(struct {
		Platforms          []string
		Policy             manifest.PlatformPolicy
		Referrers          manifest.ReferrerPolicy
		Indexes            manifest.IndexPolicy
		Root               string
		Sources, Overrides any
	}{b.Platforms, b.PlatformPolicy, b.Referrers, b.Indexes, b.Trust.Root, b.Sources, b.Overrides})
}

func (s *session) chartRequest(c manifest.Chart) string {
	return identity(struct {
		Chart              manifest.Chart
		Sources, Overrides any
	}{c, s.Manifest.Sources, s.Manifest.Overrides})
}

// identity returns a short text that is the same for the same value.
func identity(v any) string {
	text, err := yaml.Marshal(v)
	if err != nil {
		text = fmt.Appendf(nil, "%#v", v) // never happens for plain structs
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// imageRequest identifies an image's entry besides its reference; "" for most of them.
func imageRequest(image manifest.Image) string {
	if image.Verify == nil && len(image.Platforms) == 0 && image.Referrers == "" && image.Indexes == "" {
		return ""
	}
	return identity(image)
}

// bringCharts pins the charts of all variants and brings their archives into the cache.
func (t *together) bringCharts(ctx context.Context) error {
	r := newSharing()
	for i, s := range t.sessions {
		for _, c := range s.Manifest.Charts {
			r.put(s.chartRequest(c), i, func(b *manifest.Bundle) { b.Charts = append(b.Charts, c) })
		}
	}
	var errs []error
	err := r.each(t.sessions, func(variants []int, b *manifest.Bundle) error {
		s := t.sessions[variants[0]]
		m := s.begin(PhaseResolve)
		defer m.end()
		o := s.fetchOptions(m)
		o.Keep = s.keep
		list, err := fetch.Charts(ctx, b, o)
		errs = append(errs, t.ofVariants(variants, err))
		for _, c := range list {
			request := s.chartRequest(c.Chart)
			t.charts[request] = append(t.charts[request], c)
		}
		return ctx.Err()
	})
	return errors.Join(append(errs, err)...)
}

// bringRepositories brings the repositories of all variants that are searched into the cache.
func (t *together) bringRepositories(ctx context.Context) error {
	r := newSharing()
	for i, s := range t.sessions {
		for _, one := range s.searched() {
			r.put(s.gitRequest(one), i, func(b *manifest.Bundle) { b.Git = append(b.Git, one) })
		}
	}
	return r.each(t.sessions, func(variants []int, b *manifest.Bundle) error {
		s := t.sessions[variants[0]]
		pins, err := s.bring(ctx, b)
		for _, one := range b.Git {
			for _, pin := range pins {
				if pin.Ref == one.Ref() {
					t.git[s.gitRequest(one)] = pin
				}
			}
		}
		return butItems(ctx, err)
	})
}

// gitRequest identifies the lookup of a repository.
func (s *session) gitRequest(r manifest.GitRepository) string {
	r.Group = ""
	return identity(r) + s.settings()
}

// ofVariants adds places, and the names of variants, to the error of requests that not all variants make.
func (t *together) ofVariants(variants []int, err error) error {
	if err == nil {
		return nil
	}
	t.sessions[variants[0]].placeItems(err)
	if len(variants) == len(t.sessions) {
		return err
	}
	var names []string
	for _, i := range variants {
		names = append(names, t.sessions[i].Variant)
	}
	return fmt.Errorf("variant %s: %w", strings.Join(names, ", "), err)
}

// pinAll pins everything but charts.
func (t *together) pinAll(ctx context.Context) error {
	r := newSharing()
	for i := range t.sessions {
		t.requests(r, i)
	}
	t.pins = make([][]sharedPins, len(t.sessions))
	var errs []error
	err := r.each(t.sessions, func(variants []int, b *manifest.Bundle) error {
		s := t.sessions[variants[0]]
		m := s.begin(PhaseResolve)
		defer m.end()
		o := s.fetchOptions(m)
		o.Keep, o.FirstUse = keeping(s.keep, t.finders[variants[0]].repositories), s.announceFirstUse
		l, err := fetch.Resolve(ctx, b, o)
		if err != nil {
			errs = append(errs, t.ofVariants(variants, err))
			return ctx.Err()
		}
		for _, i := range variants {
			t.pins[i] = append(t.pins[i], l.Items)
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// requests adds the images, files, repositories and packages of a variant. Entries of one name are one request: their
// pins are merged.
func (t *together) requests(r *sharing, i int) {
	s, f := t.sessions[i], t.finders[i]
	settings := s.settings()
	byName := map[string][]func(*manifest.Bundle){}
	text := map[string]string{}
	var order []string
	put := func(name, item string, add func(*manifest.Bundle)) {
		if byName[name] == nil {
			order = append(order, name)
		}
		byName[name] = append(byName[name], add)
		text[name] += item
	}
	listed := map[string]bool{}
	for _, image := range s.Manifest.Images {
		ref, _ := image.Ref()
		listed[ref] = true
		one := image
		one.Group = "" // set for each variant
		put("image "+ref, imageRequest(one), func(b *manifest.Bundle) { b.Images = append(b.Images, one) })
	}
	places := map[string][]string{}
	for _, one := range f.found() {
		ref, err := one.Image.Ref()
		if err != nil {
			ref = one.Image.Name // resolving it reports the problem
		}
		if listed[ref] {
			continue
		}
		if places[ref] == nil {
			put("image "+ref, imageRequest(one.Image), func(b *manifest.Bundle) { b.Images = append(b.Images, one.Image) })
		}
		places[ref] = append(places[ref], one.Places...)
	}
	t.found = append(t.found, places)
	listedRequests(s.Manifest, put)
	for _, name := range order {
		adds := byName[name]
		r.put(name+"\n"+text[name]+settings, i, func(b *manifest.Bundle) {
			for _, add := range adds {
				add(b)
			}
		})
	}
}

// listedRequests puts the requests of a manifest for files, repositories and packages.
func listedRequests(m *manifest.Bundle, put func(name, item string, add func(*manifest.Bundle))) {
	for _, file := range m.Files {
		one := file
		one.Group = ""
		put("file "+one.Name+" "+one.URL+one.Path, identity(one), func(b *manifest.Bundle) { b.Files = append(b.Files, one) })
	}
	for _, repository := range m.Git {
		one := repository
		one.Group = ""
		put("git "+one.Ref(), identity(one), func(b *manifest.Bundle) { b.Git = append(b.Git, one) })
	}
	if self := m.Self; len(m.Programs()) > 0 {
		put("self", identity(self), func(b *manifest.Bundle) { b.Self = self })
	}
	for _, set := range m.Packages {
		one := set
		one.Group = ""
		put("packages "+one.Distribution, identity(one), func(b *manifest.Bundle) { b.Packages = append(b.Packages, one) })
	}
}

// lock returns the lock of a variant, and reports whether its kubeadm lists other images than the catalog does.
func (t *together) lock(ctx context.Context, i int) (l *manifest.Lock, differs bool, err error) {
	s, f := t.sessions[i], t.finders[i]
	fingerprint, err := s.Manifest.Fingerprint()
	if err != nil {
		return nil, false, err
	}
	l = &manifest.Lock{
		APIVersion: manifest.APIVersion, Kind: manifest.KindLock, Metadata: s.Manifest.Metadata,
		Manifest: fingerprint.String(),
	}
	seen := map[[3]string]int{}
	add := func(pin manifest.Pin) error {
		id := [3]string{pin.Kind, pin.Ref, pin.Platform}
		at, twice := seen[id]
		if !twice {
			seen[id] = len(l.Items)
			l.Items = append(l.Items, pin)
			return nil
		}
		if have := l.Items[at]; have.Digest != pin.Digest {
			return fmt.Errorf("%s %s: named twice with different content, %s and %s: use different names", pin.Kind,
				pin.Ref, have.Digest, pin.Digest)
		}
		return nil
	}
	for _, c := range s.Manifest.Charts {
		for _, one := range t.charts[s.chartRequest(c)] {
			err = errors.Join(err, add(one.Pin))
		}
	}
	for _, pins := range t.pins[i] {
		for _, pin := range pins {
			if pin.Kind == manifest.ItemImage {
				pin.WantedBy = t.found[i][pin.Ref]
			}
			err = errors.Join(err, add(pin))
		}
	}
	if err != nil {
		return nil, false, err
	}
	if err := f.complete(l); err != nil {
		return nil, false, err
	}
	clusters, err := s.releases()
	if err != nil {
		return nil, false, err
	}
	if differs, err = s.learn(ctx, l, clusters); err != nil {
		return nil, false, err
	}
	l.Kubeadm = s.listed()
	if differs {
		return l, true, nil
	}
	if err := s.judge(l.Undecided); err != nil {
		return nil, false, err
	}
	return l, false, s.checkLock(l, f)
}

// askOnce is ask, with the answer of a variant before that had the same work.
func (f *finder) askOnce(ctx context.Context, job findJob) (a findAnswer, missing []string, err error) {
	if f.answers == nil {
		return f.ask(ctx, job)
	}
	text, err := json.Marshal(job.request)
	if err != nil {
		return a, nil, err
	}
	work := sha256.Sum256(slices.Concat([]byte(job.archive), []byte{'\n'}, text))
	f.asking.Lock()
	a, ok := f.answers[work]
	f.asking.Unlock()
	if ok {
		return a, nil, nil
	}
	if a, missing, err = f.ask(ctx, job); err == nil {
		f.asking.Lock()
		f.answers[work] = a
		f.asking.Unlock()
	}
	return a, missing, err
}
