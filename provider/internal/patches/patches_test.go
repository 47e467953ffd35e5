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

const a = "/p/etcda.yaml"

func file(path, content string) bootstrapv1.File {
	return bootstrapv1.File{Path: path, Content: content}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	yes := true
	appended, template := file("/p/etcdappended.yaml", "x"), file("/p/etcdtemplate.yaml", "x")
	appended.Append, template.ContentFormat = &yes, bootstrapv1.FileContentFormatTemplate
	all := []bootstrapv1.File{file(a, "x"), file("/p/kube-scheduler0+json.json", "x"), appended, template}
	for _, no := range []string{
		"/p/./etcd.yaml", "/p/sub/etcd.yaml", "/etcd.yaml", "/p/../etcd.yaml", "/p", "/p/etcd.yaml/", "p/etcd.yaml",
		"/p/audit.yaml", "/p/etcd.txt", "/p/etcd", // no patches of kubeadm's
	} {
		all = append(all, file(no, "x"))
	}
	const want = a + " /p/kube-scheduler0+json.json"
	for dir, want := range map[string]string{"/p": want, "/p/": want, "": "", "p": "", "/q": ""} {
		var got []string
		for _, f := range patches.Files(specOf(dir, all...)) {
			got = append(got, f.Path)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("in %q: %q, want %s", dir, got, want)
		}
	}
	for _, command := range []string{"sed -i s/a/b/ " + a, "cd /p && sh patch.sh", "true"} {
		s := specOf("/p/", all...)
		s.PreKubeadmCommands = []string{"true", command}
		if got := patches.Files(s); (len(got) > 0) != (command == "true") {
			t.Errorf("beside the command %q: %v", command, got)
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
	appended := file(a, "x")
	appended.Append = &yes
	motd := file("/etc/motd", "hello")
	for name, c := range map[string]struct {
		from, to *bootstrapv1.KubeadmConfigSpec
		want     bool
	}{
		"the same":                       {specOf("/p", motd, file(a, "x")), specOf("/p", motd, file(a, "x")), true},
		"another content":                {specOf("/p", motd, file(a, "x")), specOf("/p", motd, file(a, "y")), true},
		"another order":                  {specOf("/p", motd, file(a, "x")), specOf("/p", file(a, "y"), motd), true},
		"one more":                       {specOf("/p", motd), specOf("/p", motd, file(a, "x")), true},
		"one less":                       {specOf("/p", motd, file(a, "x")), specOf("/p", motd), false},
		"another file":                   {specOf("/p", motd), specOf("/p", file("/etc/motd", "bye")), false},
		"another file more":              {specOf("/p"), specOf("/p", motd), false},
		"another directory":              {specOf("/p", file(a, "x")), specOf("/q", file(a, "x")), false},
		"no directory":                   {specOf("", file(a, "x")), specOf("", file(a, "y")), false},
		"what is appended":               {specOf("/p"), specOf("/p", appended), false},
		"what was appended":              {specOf("/p", appended), specOf("/p", file(a, "x")), false},
		"a file that is there twice":     {specOf("/p", file(a, "x"), file(a, "y")), specOf("/p", file(a, "x")), false},
		"a file that then is there more": {specOf("/p", file(a, "x")), specOf("/p", file(a, "x"), file(a, "x")), true},
	} {
		if got := patches.CanWrite(c.from, c.to); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
