package patches_test

import (
	"strings"
	"testing"

	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"

	"github.com/kkbundle/kkbundle/provider/internal/patches"
)

func specOf(dir string, files ...bootstrapv1.File) *bootstrapv1.KubeadmConfigSpec {
	var s bootstrapv1.KubeadmConfigSpec
	s.JoinConfiguration.Patches.Directory, s.Files = dir, files
	return &s
}

func file(path, content string) bootstrapv1.File {
	return bootstrapv1.File{Path: path, Content: content}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	yes := true
	appended, template := file("/p/appended", "x"), file("/p/template", "x")
	appended.Append, template.ContentFormat = &yes, bootstrapv1.FileContentFormatTemplate
	all := []bootstrapv1.File{file("/p/a", "x"), file("/p/./b", "x"), appended, template, file("/p/sub/c", "x"), file("/pp", "x"), file("/p/../d", "x"), file("/p", "x")}
	for dir, want := range map[string]string{"/p": "/p/a /p/./b", "/p/": "/p/a /p/./b", "": "", "p": "", "/q": ""} {
		var got []string
		for _, f := range patches.Files(specOf(dir, all...)) {
			got = append(got, f.Path)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("in %q: %q, want %s", dir, got, want)
		}
	}
	var first bootstrapv1.KubeadmConfigSpec
	first.InitConfiguration.Patches.Directory = "/first"
	if got := patches.Directory(&first); got != "/first" {
		t.Errorf("the directory of the first control plane is %q", got)
	}
}

func TestCanWrite(t *testing.T) {
	t.Parallel()
	yes := true
	appended := file("/p/a", "x")
	appended.Append = &yes
	motd := file("/etc/motd", "hello")
	for name, c := range map[string]struct {
		from, to *bootstrapv1.KubeadmConfigSpec
		want     bool
	}{
		"the same":                       {specOf("/p", motd, file("/p/a", "x")), specOf("/p", motd, file("/p/a", "x")), true},
		"another content":                {specOf("/p", motd, file("/p/a", "x")), specOf("/p", motd, file("/p/a", "y")), true},
		"another order":                  {specOf("/p", motd, file("/p/a", "x")), specOf("/p", file("/p/a", "y"), motd), true},
		"one more":                       {specOf("/p", motd), specOf("/p", motd, file("/p/a", "x")), true},
		"one less":                       {specOf("/p", motd, file("/p/a", "x")), specOf("/p", motd), false},
		"another file":                   {specOf("/p", motd), specOf("/p", file("/etc/motd", "bye")), false},
		"another file more":              {specOf("/p"), specOf("/p", motd), false},
		"another directory":              {specOf("/p", file("/p/a", "x")), specOf("/q", file("/p/a", "x")), false},
		"no directory":                   {specOf("", file("/p/a", "x")), specOf("", file("/p/a", "y")), false},
		"what is appended":               {specOf("/p"), specOf("/p", appended), false},
		"what was appended":              {specOf("/p", appended), specOf("/p", file("/p/a", "x")), false},
		"a file that is there twice":     {specOf("/p", file("/p/a", "x"), file("/p/a", "y")), specOf("/p", file("/p/a", "x")), false},
		"a file that then is there more": {specOf("/p", file("/p/a", "x")), specOf("/p", file("/p/a", "x"), file("/p/a", "x")), true},
	} {
		if got := patches.CanWrite(c.from, c.to); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
