//go:build linux

package mutate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/discover"
)

// maxRendered is the finder's bound of a rendered chart.
const maxRendered = 64 * mib

type chartFile struct {
	name string
	data []byte
}

// chartFiles are the files of a chart that uses what charts use.
func chartFiles() []chartFile {
	return []chartFile{
		{"Chart.yaml", []byte("apiVersion: v2\nname: demo\nversion: 0.1.0\nappVersion: \"1.0\"\ndependencies:\n- {name: sub, version: 0.1.0, condition: sub.enabled}\nannotations:\n  artifacthub.io/images: |\n    - {name: app, image: \"docker.io/library/app:1.0\"}\n")},
		{"values.yaml", []byte("image: {repository: app, tag: \"1.0\"}\nsub: {enabled: true}\nlist: [a, b]\nfew: &few {x: 1}\nmore: *few\n")},
		{"values.schema.json", []byte(
			`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"list":{"type":"array","items":{"type":"string","pattern":"^[a-z]+$"}}},"definitions":{"x":{"$ref":"#/definitions/y"},"y":{"type":"integer"}}}`)},
		{
			"templates/_helpers.tpl",
			[]byte("{{- define \"demo.name\" -}}{{ .Release.Name | trunc 63 | trimSuffix \"-\" }}{{- end }}\n{{- define \"demo.again\" -}}{{ include \"demo.name\" . }}{{- end }}\n"),
		},
		{
			"templates/deployment.yaml",
			[]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {{ include \"demo.again\" . }}\nspec:\n  template:\n    spec:\n      containers:\n{{- range $i, $x := .Values.list }}\n      - name: {{ $x }}\n        image: \"{{ $.Values.image.repository }}:{{ $.Values.image.tag }}\"\n        args: {{ toJson (dict \"a\" (list 1 2)) }}\n{{- end }}\n"),
		},
		{
			"templates/config.yaml",
			[]byte("{{- if .Capabilities.APIVersions.Has \"v1\" }}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  text: {{ tpl \"{{ .Values.image.tag }}\" . | quote }}\n  file: {{ .Files.Get \"values.yaml\" | b64enc }}\n{{- end }}\n{{- with (lookup \"v1\" \"Secret\" \"\" \"x\") }}{{ .data }}{{ end }}\n"),
		},
		{"crds/crd.yaml", []byte(
			"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: xs.example.com}\nspec: {group: example.com, names: {kind: X, plural: xs}, scope: Namespaced, versions: [{name: v1, served: true, storage: true}]}\n")},
		{"charts/sub/Chart.yaml", []byte("apiVersion: v2\nname: sub\nversion: 0.1.0\n")},
		{
			"charts/sub/templates/pod.yaml",
			[]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: \"registry.example/sub:{{ .Values.tag | default `1` }}\"}]}\n"),
		},
	}
}

// packChart makes an archive. Entries may have sizes and types that do not fit.
func packChart(files []chartFile, header func(*tar.Header)) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{Name: "demo/" + f.name, Mode: 0o644, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		header(h)
		if w.WriteHeader(h) != nil {
			continue
		}
		_, _ = w.Write(f.data) // an entry that claims less is cut
	}
	_ = w.Close() // the last entry may claim more
	_ = z.Close()
	return b.Bytes()
}

// hostileTemplate does what no template should. Endless loops and growth without a bound end in the finder's limits
// of time and memory, which TestFinderStops and the script find-hostile hold; here templates have to end.
func hostileTemplate(r *rand.Rand) string {
	return pick(r,
		`{{ range $i := until 100000 }}{{ $i }}{{ end }}`,
		`{{ repeat 10000000 "x" }}`,
		`{{ include "demo.again" (include "demo.again" .) }}{{ template "nothing" }}`,
		`{{ define "loop" }}{{ include "loop" . }}{{ end }}{{ include "loop" . }}`,
		`{{ $x := dict }}{{ $_ := set $x "x" $x }}{{ toYaml $x | len }}`,
		`{{ fromYaml (repeat 10000 "[") }}{{ fromJson (repeat 10000 "{\"a\":") }}`,
		`{{ index .Values.list 1000000 }}`,
		`{{ printf "%1000000d" 1 }}`,
		`{{ regexMatch (repeat 500 "(a?){50}") (repeat 500 "a") }}`,
		`{{ regexReplaceAll "((a*)*)*b" (repeat 20000 "a") "x" }}`,
		`{{ .Files.Get "../../../etc/passwd" }}{{ env "HOME" }}{{ getHostByName "example.com" }}`,
		`{{ genPrivateKey "rsa" }}`,
		`{{ untilStep 0 1000000 1 | len }}`,
		`{{ seq 0 100000 }}`,
		`{{ substr 5 -1 "abc" }}{{ slice (list 1 2) 5 1 }}{{ trunc -9223372036854775808 "abc" }}`,
		`{{ dateInZone "x" (now) "nowhere" }}{{ semverCompare "^x" "1" }}{{ mod 1 0 }}{{ div 1 0 }}`,
		`{{ tpl (repeat 1000 "{{ tpl \"x\" . }}") . }}`,
		`{{ wrapWith 1 (repeat 1000 "y") (repeat 3000 "x") | len }}`,
		`{{ . | toJson | b64enc | b64enc | sha256sum }}`,
		`{{ nindent 1000000 "a" | len }}{{ randAlphaNum 1000000 | len }}`,
		strings.Repeat("{{ if true }}", 20_000),
		"a: &a [x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
		strings.Repeat("- ", 20_000)+"a\n",
		strings.Repeat("---\nkind: Pod\n", 20_000),
	)
}

func prepareChart(t *testing.T) func(context.Context, *rand.Rand, func()) string {
	f, err := discover.NewFinder(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := search(f, packChart(chartFiles(), func(*tar.Header) {}), charts.ValuesFile{}); err != nil {
		t.Fatalf("without a mutation: %v", err)
	}
	return func(_ context.Context, r *rand.Rand, ready func()) string {
		name, archive, values := mutateChart(r)
		ready()
		_ = search(f, archive, values) // an error is the right answer
		return name
	}
}

// mutateChart returns an archive and values of a user.
func mutateChart(r *rand.Rand) (name string, archive []byte, values charts.ValuesFile) {
	files := chartFiles()
	at := r.IntN(len(files))
	whole := func(*tar.Header) {}
	switch r.IntN(8) {
	case 0:
		name, archive = mutateBytes(r, packChart(files, whole))
		return "archive " + name, archive, values
	case 1:
		odd := pick(r, "demo/../../../etc/cron.d/x", "/etc/passwd", strings.Repeat("d/", 5000)+"x",
			"demo/templates/\x00", "", ".", "demo\\x", "other/Chart.yaml")
		kind := pick[byte](r, tar.TypeReg, tar.TypeReg, tar.TypeSymlink, tar.TypeLink, tar.TypeChar, tar.TypeDir,
			tar.TypeXGlobalHeader, tar.TypeGNUSparse)
		size := pick[int64](r, 0, 1, 1<<20, 1<<40)
		return "archive entry", packChart(files, func(h *tar.Header) {
			switch {
			case r.IntN(len(files)) > 0:
			case r.IntN(2) == 0:
				h.Name = odd
			default:
				h.Typeflag, h.Size, h.Linkname = kind, size, odd
			}
		}), values
	case 2:
		files[at].data = bytes.Repeat(pick(r, []byte{0}, []byte("a: b\n"), []byte("{{ 1 }}"), []byte("- {}\n"),
			[]byte("#\n")), mib<<r.IntN(5))
		return "bomb " + files[at].name, packChart(files, whole), values
	case 3:
		nested := files
		for range 1 + r.IntN(6) { // charts in charts
			nested = append(chartFiles(), chartFile{"charts/demo.tgz", packChart(nested, whole)})
		}
		return "nested", packChart(nested, whole), values
	case 4, 5:
		text := hostileTemplate(r)
		files = append(files, chartFile{"templates/hostile.yaml", []byte(text)})
		return "template " + text[:min(len(text), 60)], packChart(files, whole), values
	case 6:
		name, values.Data = mutateBytes(r, []byte("list: [x]\nimage: {tag: 2}\n"))
		values.Name = "values.yaml"
		return "values " + name, packChart(files, whole), values
	}
	name, files[at].data = mutateJSON(r, files[at].data)
	return files[at].name + " " + name, packChart(files, whole), values
}

// search does with a chart what the finder process does with it.
func search(f *discover.Finder, archive []byte, values charts.ValuesFile) error {
	if c, err := charts.Load(bytes.NewReader(archive)); err == nil {
		_ = c.Annotations()
		_, _ = c.Config()
		_ = c.CRDs()
	}
	o := charts.RenderOptions{Release: "r", Namespace: "n", KubeVersion: "v1.34.3", MaxOutput: maxRendered}
	if values.Name != "" {
		var err error
		if o.Values, err = charts.ReadValues(values); err != nil {
			return err
		}
	}
	rendering, err := charts.Render(bytes.NewReader(archive), o)
	if err != nil {
		return err
	}
	for _, file := range rendering.Files {
		if _, err := f.YAML([]byte(file.Content), discover.Place{File: file.Name}); err != nil {
			return err
		}
	}
	for _, file := range rendering.Annotations {
		f.Annotation(file.Content, discover.Place{File: file.Name})
	}
	return nil
}
