package cli_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/kkbundle/kkbundle/charts"
	"github.com/kkbundle/kkbundle/cmd/internal/cli"
	"github.com/kkbundle/kkbundle/git/gittest"
	"github.com/kkbundle/kkbundle/installer/plan"
	"github.com/kkbundle/kkbundle/internal/pki"
	"github.com/kkbundle/kkbundle/manifest"
	"github.com/kkbundle/kkbundle/manifest/catalog"
	"github.com/kkbundle/kkbundle/manifest/scalar"
	"github.com/kkbundle/kkbundle/registry/registrytest"
)

// A docsBlock is a block of code of a page.
type docsBlock struct {
	page   string
	line   int    // of the page
	file   string // name in its first line, for a file that the reader writes
	text   string
	notRun string // reason in the comment before it
}

var (
	notRunGrammar = regexp.MustCompile(`^<!-- not run: (.+) -->$`)
	fileGrammar   = regexp.MustCompile(`^# ([A-Za-z0-9./-]+\.yaml)$`)
)

// docsBlocks returns the blocks of a page: fenced ones, and those indented by four blanks.
func docsBlocks(page, text string) (list []docsBlock) {
	var current *docsBlock
	fenced, notRun := false, ""
	end := func() {
		if current != nil {
			list = append(list, *current)
		}
		current = nil
	}
	for i, line := range strings.Split(text, "\n") {
		code, indented := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, "```"):
			if fenced = !fenced; fenced {
				end()
				current = &docsBlock{page: page, line: i + 1, notRun: notRun}
				notRun = ""
				continue
			}
			end()
		case fenced:
			if m := fileGrammar.FindStringSubmatch(line); m != nil && current.text == "" {
				current.file = m[1]
			}
			current.text += line + "\n"
		case indented:
			if current == nil {
				current = &docsBlock{page: page, line: i + 1, notRun: notRun}
				notRun = ""
			}
			current.text += code + "\n"
		case line == "" && current != nil:
			current.text += "\n" // an indented block goes on after it, or ends
		default:
			end()
			if m := notRunGrammar.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
				notRun = m[1]
			} else if line != "" {
				notRun = ""
			}
		}
	}
	end()
	return list
}

// pages returns README and the pages of docs that people write.
func pages(t *testing.T) map[string]string {
	t.Helper()
	root := filepath.Join("..", "..", "..")
	all := map[string]string{}
	add := func(path string) {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.ToSlash(path)] = string(data)
	}
	add("README.md")
	add("README.zh.md")
	err := fs.WalkDir(os.DirFS(root), "docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" && path != "docs/reference/commands.md" { // made of help texts
			add(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A shellCommand is one program of a command line.
type shellCommand struct{ words []string }

// shellCommands splits a line of shell: words with quotes, comments, pipes, lists and redirections.
func shellCommands(line string) []shellCommand {
	var list []shellCommand
	var words []string
	var word strings.Builder
	quote, started := rune(0), false
	endWord := func() {
		if started {
			words = append(words, word.String())
		}
		word.Reset()
		started = false
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			list = append(list, shellCommand{withoutRedirections(words)})
		}
		words = nil
	}
	for _, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, started = r, true
		case r == '#' && !started:
			endCommand()
			return list
		case r == ' ':
			endWord()
		case r == '|' || r == ';' || r == '&':
			endCommand()
		default:
			word.WriteRune(r)
			started = true
		}
	}
	endCommand()
	return list
}

// withoutRedirections leaves out > FILE, < FILE and variables before the program.
func withoutRedirections(words []string) (rest []string) {
	skip := false
	for _, w := range words {
		switch {
		case skip:
			skip = false
		case w == ">" || w == "<" || w == "2>" || w == ">>":
			skip = true
		case strings.HasPrefix(w, ">") || strings.HasPrefix(w, "2>"):
		case len(rest) == 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(w):
		default:
			rest = append(rest, w)
		}
	}
	return rest
}

// commandLines returns the lines of a block that call kkbundle.
func (b docsBlock) commandLines() (lines []string) {
	joined := strings.ReplaceAll(b.text, "\\\n", " ")
	for line := range strings.Lines(joined) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
		for _, c := range shellCommands(line) {
			if len(c.words) > 0 && c.words[0] == "kkbundle" {
				lines = append(lines, line)
				break
			}
		}
	}
	return lines
}

// TestDocsCommandLines checks every call of kkbundle in README, docs and examples of help against the real commands.
func TestDocsCommandLines(t *testing.T) {
	t.Parallel()
	check := func(where, line string) {
		for _, c := range shellCommands(line) {
			if len(c.words) == 0 || c.words[0] != "kkbundle" {
				continue
			}
			// [--flag VALUE]
			words := slices.DeleteFunc(slices.Clone(c.words[1:]),
				func(w string) bool { return strings.HasPrefix(w, "[") || strings.HasSuffix(w, "]") })
			if _, err := cli.CheckCommandLine(words); err != nil {
				t.Errorf("%s: %s: %v", where, line, err)
			}
		}
	}
	n := 0
	for page, text := range pages(t) {
		for _, b := range docsBlocks(page, text) {
			for _, line := range b.commandLines() {
				check(fmt.Sprintf("%s:%d", page, b.line), line)
				n++
			}
		}
	}
	for command, lines := range cli.HelpExamples() {
		for _, line := range lines {
			check("example of "+command, strings.TrimSpace(line))
			n++
		}
	}
	if n < 150 {
		t.Errorf("only %d command lines", n)
	}
}

// TestDocsCommandLinesAreChecked shows that a wrong one is found.
func TestDocsCommandLinesAreChecked(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"kkbundle bild manifest.yaml", "kkbundle build --split 4XB m.yaml",
		"kkbundle inspect", "kkbundle etcd bakup", "kkbundle push --regitry a b.kkb",
	} {
		if path, err := cli.CheckCommandLine(shellCommands(line)[0].words[1:]); err == nil {
			t.Errorf("%q passes as %s", line, path)
		}
	}
	b := docsBlocks("p", "text\n\n<!-- not run: needs a disk -->\n    kkbundle a | ssh b  # c\n\nmore\n\n```yaml\n# x.yaml\na: 1\n```\n")
	if len(b) != 2 || b[0].notRun != "needs a disk" || b[1].file != "x.yaml" || len(b[0].commandLines()) != 1 {
		t.Errorf("%+v", b)
	}
}

// needsMore returns why a line cannot run here: it needs hosts, root, a terminal, or other programs.
func needsMore(line string) string {
	programs := []string{"kkbundle", "cat", "echo", "tar", "zstd", "cp", "mkdir"}
	hosts := []string{
		"install", "deploy", "precheck", "status", "nodes", "upgrade", "endpoint", "etcd", "certs", "secrets", "reset",
		"provision", "upgrade-machine", "support-bundle", "adopt", "handover", "registry", "serve", "mirror-config",
	}
	for _, c := range shellCommands(line) {
		switch {
		case len(c.words) == 0:
		case !slices.Contains(programs, c.words[0]):
			return c.words[0]
		case c.words[0] == "kkbundle" && len(c.words) > 1 && slices.Contains(hosts, c.words[1]):
			return c.words[1]
		}
	}
	return ""
}

// TestDocs runs the commands of README and docs as they are written, in a fresh directory with a fresh home, against
// stand-ins of every upstream host: HTTPS_PROXY leads there, and SSL_CERT_FILE has their authority. Other pages than
// README begin with its files and its bundle. Commands that need hosts, root or other programs are only parsed, by
// TestDocsCommandLines, and so are blocks after <!-- not run: reason -->. With -short, only README's run.
func TestDocs(t *testing.T) {
	t.Parallel()
	u := startInternet(t)
	begin := t.TempDir()
	all := pages(t)
	if ran := u.run(t, "README.md", all["README.md"], begin); ran < 5 {
		t.Fatalf("README runs %d commands", ran)
	}
	if testing.Short() {
		return
	}
	delete(all, "README.md")
	for _, name := range []string{"site.kkb", "site-1.3.0.kkb"} { // what pages call a bundle, and an earlier one
		if err := os.Link(filepath.Join(begin, "site-1.4.0.kkb"), filepath.Join(begin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(begin, "site")); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	total := 0
	t.Run("pages", func(t *testing.T) {
		for page, text := range all {
			if strings.HasPrefix(page, "docs/") && strings.HasSuffix(page, ".zh.md") {
				continue // TestChinesePages: its commands are those of the English page
			}
			t.Run(page, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				u.prepare(t, page, begin, dir)
				n := u.run(t, page, text, dir)
				mu.Lock()
				defer mu.Unlock()
				total += n
			})
		}
	})
	if total < 30 {
		t.Errorf("%d commands of pages ran", total)
	}
}

// prepare fills the directory of a page: README's files, at the site its bundles alone, and files of another tool to
// convert. Pages for beginners, and of an own chart, begin with nothing.
func (u *internet) prepare(t *testing.T, page, begin, dir string) {
	t.Helper()
	var err error
	switch {
	case page == "README.zh.md" || page == "docs/start/bundle.md" || page == "docs/recipes/chart.md":
	case strings.HasPrefix(page, "docs/site/"), strings.HasPrefix(page, "docs/day-two/"):
		for _, name := range []string{"site.kkb", "site-1.4.0.kkb"} {
			err = errors.Join(err, os.Link(filepath.Join(begin, name), filepath.Join(dir, name)))
		}
	default:
		err = os.CopyFS(dir, os.DirFS(begin))
	}
	if page == "docs/recipes/harbor.md" {
		err = errors.Join(err, os.Link(u.ca, filepath.Join(dir, "harbor-ca.pem")))
	}
	if page == "docs/start/convert.md" {
		for name, text := range foreignFiles() {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
	}
	if page == "docs/build/self.md" {
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, "hooks"), 0o700),
			os.WriteFile(filepath.Join(dir, "hooks", "pre_install.sh"), []byte("#!/bin/sh\n"), 0o600))
	}
	if page == "docs/start/inputs.md" {
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, "mychart"), 0o700), os.WriteFile(
			filepath.Join(dir, "mychart", "Chart.yaml"), []byte("apiVersion: v2\nname: mychart\nversion: 1.0.0\n"), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func foreignFiles() map[string]string {
	return map[string]string{
		"config.yaml": "apiVersion: kubekey.kubesphere.io/v1\nkind: Config\nspec:\n" +
			"  download: {kubernetes: {kube_version: [v1.36.3]}, cni: {type: [flannel]}}\n  storage_class: {local: {enabled: false}}\n",
		"inventory.yaml": "apiVersion: kubekey.kubesphere.io/v1\nkind: Inventory\nspec:\n  hosts:\n    cp1: {connector: {host: 10.0.0.1}}\n" +
			"  groups: {kube_control_plane: {hosts: [cp1]}, kube_worker: {hosts: [cp1]}}\n",
	}
}

// run writes the files of a page and runs its commands, in its order. It returns the number of commands.
func (u *internet) run(t *testing.T, page, text, dir string) (ran int) {
	t.Helper()
	for _, b := range docsBlocks(page, text) {
		if b.notRun != "" {
			continue
		}
		if b.file != "" {
			at := filepath.Join(dir, b.file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700),
				os.WriteFile(at, []byte(b.text), 0o600)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		for _, line := range b.commandLines() {
			if needsMore(line) != "" {
				continue
			}
			ran++
			c := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", line)
			c.Dir, c.Env = dir, u.environment(dir)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: %s\n%v\n%s", page, b.line, line, err, out)
			}
		}
	}
	return ran
}

// An internet is stand-ins of upstream hosts behind a proxy.
type internet struct {
	proxy, bin, ca string
	images, site   *registrytest.Server
	files          *fileServer
	git            http.Handler
}

func startInternet(t *testing.T) *internet {
	t.Helper()
	dir := t.TempDir()
	u := &internet{bin: filepath.Join(dir, "bin"), ca: filepath.Join(dir, "ca.pem"), files: newFileServer()}
	t.Cleanup(u.files.stop)
	u.images, u.site = registrytest.Start(t, registrytest.Options{}), registrytest.Start(t, registrytest.Options{})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(u.bin, 0o700), os.Symlink(self, filepath.Join(u.bin, "kkbundle"))); err != nil {
		t.Fatal(err)
	}
	authority, pair, err := pki.NewAuthority("lab", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(u.ca, pair.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	u.publish(t)
	u.publishGit(t)
	u.proxy = u.listen(t, authority)
	return u
}

// environment is that of a new user of a machine behind the proxy.
func (u *internet) environment(dir string) []string {
	home := filepath.Join(dir, ".home")
	return []string{
		"HOME=" + home, "PATH=" + u.bin + ":" + os.Getenv("PATH"), "HTTPS_PROXY=" + u.proxy, "HTTP_PROXY=" + u.proxy,
		"SSL_CERT_FILE=" + u.ca,
		"COSIGN_PASSWORD=docs", "TMPDIR=" + os.TempDir(), "GORACE=atexit_sleep_ms=0",
	}
}

// publish puts stand-ins for the items that the pages name, and for those of README's cluster, at their upstream
// addresses.
func (u *internet) publish(t *testing.T) {
	t.Helper()
	source, err := startUpstream(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(source.stop)
	repo, desc, options, err := source.find("hub/library/app:1.0")
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(repo.Digest(desc.Digest.String()), options...)
	if err != nil {
		t.Fatal(err)
	}
	// as KubeKey
	c := (&manifest.Cluster{
		Kubernetes: manifest.Kubernetes{Version: "v1.36.3"},
		DNS:        manifest.ClusterDNS{NodeLocal: true},
	}).WithDefaults()
	more, err := catalog.Resolve(c, plan.Needed(c), catalog.Options{Platforms: []string{"linux/amd64", "linux/arm64"}})
	if err != nil {
		t.Fatal(err)
	}
	refs := []string{"docker.io/library/nginx:1.29"}
	for _, image := range more.Images {
		ref, err := image.Ref()
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	for _, ref := range refs {
		to, err := name.ParseReference(u.images.Host + "/" + strings.ReplaceAll(ref, ":5000", ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.WriteIndex(to, index); err != nil {
			t.Fatal(err)
		}
	}
	team, err := name.ParseReference(u.site.Host + "/team/app:1.0")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(team, index); err != nil {
		t.Fatal(err)
	}
	u.publishChart(t, "ghcr.io/stefanprodan/charts", "podinfo", "6.9.0")
	u.publishFiles(t, more)
}

// publishChart puts a chart without images into a registry, as Helm pushes it.
func (u *internet) publishChart(t *testing.T, below, chart, version string) {
	t.Helper()
	archive, err := archiveOf(t, chart, version)
	if err != nil {
		t.Fatal(err)
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.helm.config.v1+json")
	img, err = mutate.Append(img, mutate.Addendum{Layer: static.NewLayer(archive, "application/vnd.cncf.helm.chart.content.v1.tar+gzip")})
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(u.images.Host + "/" + below + "/" + chart + ":" + version)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img); err != nil {
		t.Fatal(err)
	}
}

func (u *internet) publishFiles(t *testing.T, more catalog.Additions) {
	t.Helper()
	at := func(address string) string {
		where, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		return "/" + where.Host + where.Path
	}
	sums := map[string]string{}
	for _, f := range append(more.Files,
		manifest.File{URL: "https://github.com/mikefarah/yq/releases/download/v4.50.1/yq_{os}_{arch}"}) {
		for _, platform := range []string{"linux/amd64", "linux/arm64"} {
			address := manifest.FileURL(f, platform)
			u.files.put(at(address), []byte(address))
			if f.Checksums != "" {
				sums[at(scalar.Expand(f.Checksums, platform))] += fmt.Sprintf("%x  %s\n",
					sha256.Sum256([]byte(address)), path.Base(address))
			}
		}
	}
	for at, text := range sums {
		u.files.put(at, []byte(text))
	}
	flannel, err := flannelChart(filepath.Join(t.TempDir(), "flannel"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range more.Charts {
		u.files.put(at(c.URL), flannel)
	}
	ingress, err := archiveOf(t, "ingress-nginx", "4.14.0")
	if err != nil {
		t.Fatal(err)
	}
	u.files.put("/kubernetes.github.io/ingress-nginx/ingress-nginx-4.14.0.tgz", ingress)
	u.files.put("/kubernetes.github.io/ingress-nginx/index.yaml",
		[]byte("apiVersion: v1\nentries:\n  ingress-nginx:\n  - {apiVersion: v2, name: ingress-nginx, version: 4.14.0, urls: [ingress-nginx-4.14.0.tgz]}\n"))
}

// publishGit puts the repositories that the page of Git names at their addresses, and empty ones at the site's server.
func (u *internet) publishGit(t *testing.T) {
	t.Helper()
	root := t.TempDir()
	u.git = gittest.Backend(root)
	sample := gittest.Sample(t)
	for _, at := range []string{"github.com/stefanprodan/podinfo", "git.example.com/ops/deploy.git", "git.example.com/ops/docs.git"} {
		gittest.Run(t, root, "clone", "-q", "--bare", sample.Dir, at)
	}
	mirror := filepath.Join(root, "gitea.site", "mirror")
	if err := os.MkdirAll(mirror, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"podinfo", "deploy", "handbook"} {
		gittest.Bare(t, mirror, name)
	}
}

// archiveOf returns a chart without images.
func archiveOf(t *testing.T, name, version string) ([]byte, error) {
	t.Helper()
	dir := t.TempDir()
	about := fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\n", name, version)
	if err := os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte(about), 0o600); err != nil {
		return nil, err
	}
	c, err := charts.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = c.Archive(&b)
	return b.Bytes(), err
}

// listen starts the proxy. It answers for every host itself.
func (u *internet) listen(t *testing.T, authority *pki.Authority) string {
	t.Helper()
	inner := &channelListener{conns: make(chan net.Conn), done: make(chan struct{})}
	var mu sync.Mutex
	certificates := map[string]*tls.Certificate{}
	secure := &http.Server{
		Handler: u, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				mu.Lock()
				defer mu.Unlock()
				if certificates[hello.ServerName] == nil {
					pair, err := authority.Issue(pki.ParseNames([]string{hello.ServerName}), time.Now(), time.Hour)
					if err != nil {
						return nil, err
					}
					cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
					if err != nil {
						return nil, err
					}
					certificates[hello.ServerName] = &cert
				}
				return certificates[hello.ServerName], nil
			},
		},
	}
	go func() { _ = secure.ServeTLS(inner, "", "") }()
	proxy := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodConnect {
				http.Error(w, "no plain HTTP", http.StatusForbidden)
				return
			}
			conn, _, err := http.NewResponseController(w).Hijack() // first: the client's next bytes are TLS
			if err != nil {
				return
			}
			if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err == nil {
				inner.conns <- conn
			}
		}),
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = proxy.Serve(l) }()
	t.Cleanup(func() { _ = proxy.Close(); _ = inner.Close(); _ = secure.Close() })
	return "http://" + l.Addr().String()
}

// A channelListener accepts connections from a channel.
type channelListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *channelListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *channelListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *channelListener) Addr() net.Addr { return &net.TCPAddr{} }

// ServeHTTP implements http.Handler: registries of upstream below the name of their host, registries of the site, Git
// repositories, and files.
func (u *internet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := strings.TrimSuffix(r.Host, ":443")
	to, prefix := u.images, "/"+host
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		prefix = "/docker.io"
	case "harbor.site", "registry.site", "registry.corp", "registry.corp.example":
		to, prefix = u.site, ""
	}
	if !strings.HasPrefix(r.URL.Path, "/v2/") {
		r.URL.Path = "/" + host + r.URL.Path
		if path.Base(r.URL.Path) == "git-upload-pack" || path.Base(r.URL.Path) == "git-receive-pack" || r.URL.Query().Has("service") {
			u.git.ServeHTTP(w, r)
			return
		}
		u.files.ServeHTTP(w, r)
		return
	}
	server, err := url.Parse(to.URL)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(server)
		p.Out.Host = p.In.Host
		p.Out.Header.Set("X-Forwarded-Proto", "https")
		if rest, ok := strings.CutPrefix(p.In.URL.Path, "/v2/"); ok && rest != "" && prefix != "" {
			p.Out.URL.Path = "/v2" + prefix + "/" + rest
		}
	}, ErrorLog: log.New(&bytes.Buffer{}, "", 0)}).ServeHTTP(w, r)
}
