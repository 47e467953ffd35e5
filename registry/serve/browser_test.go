package serve_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kkbundle/kkbundle/bundle/bundletest"
	"github.com/kkbundle/kkbundle/registry/serve"
)

// browserPatience is for a browser that hangs; nothing waits for it otherwise.
const browserPatience = 2 * time.Minute

// A browser is a headless Chromium with one page, driven by the DevTools protocol over its pipe.
type browser struct {
	t       *testing.T
	to      io.WriteCloser
	session string
	next    int

	mu       sync.Mutex
	answers  map[int]chan answer
	loaded   chan struct{} // one for each page that was loaded
	problems []string      // what the page did that it should not: errors, refused loads, dialogs
}

type answer struct {
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// openBrowser starts Chromium, or skips the test where there is none.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, p := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(p); err == nil && path == "" {
			path = found
		}
	}
	if path == "" {
		t.Skip("chromium is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), browserPatience)
	profile := profileDir(t)
	cmd := exec.CommandContext(ctx, path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server",
		"--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "--user-data-dir="+profile, "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+profile)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = theirIn.Close(), theirOut.Close()
	b := &browser{t: t, to: ourOut, answers: make(map[int]chan answer), loaded: make(chan struct{}, 16)}
	go b.listen(ourIn)
	t.Cleanup(func() {
		_ = b.to.Close() // which ends it
		err := cmd.Wait()
		cancel()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its helpers, which are still writing; most are gone
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Errorf("chromium: %v", err)
		}
	})
	var target struct{ TargetID, SessionID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	b.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// profileDir is removed as soon as the browser's helpers, which outlive it a moment, write there no more.
func profileDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kkbundle-browser-") //nolint:usetesting // t.TempDir fails while somebody writes there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Error(err)
				return
			}
		}
	})
	return dir
}

// listen takes answers and events until the browser ends.
func (b *browser) listen(from io.Reader) {
	r := bufio.NewReader(from)
	for {
		message, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, c := range b.answers {
				close(c)
			}
			b.answers = nil
			return
		}
		var m struct {
			answer
			ID     int             `json:"id"`
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		}
		if err := json.Unmarshal(message[:len(message)-1], &m); err != nil {
			continue
		}
		b.mu.Lock()
		if c := b.answers[m.ID]; c != nil {
			c <- m.answer
			delete(b.answers, m.ID)
		}
		switch m.Method {
		case "Page.loadEventFired":
			b.loaded <- struct{}{}
		case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening":
			b.problems = append(b.problems, m.Method+" "+string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call calls a method and decodes its result into v, unless that is nil.
func (b *browser) call(method string, params map[string]any, v any) {
	b.t.Helper()
	b.next++
	c := make(chan answer, 1)
	b.mu.Lock()
	open := b.answers != nil
	if open {
		b.answers[b.next] = c
	}
	b.mu.Unlock()
	if params == nil {
		params = map[string]any{}
	}
	message := map[string]any{"id": b.next, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	data, err := json.Marshal(message)
	if err == nil && open {
		_, err = b.to.Write(append(data, 0))
	}
	if err != nil || !open {
		b.t.Fatalf("%s: chromium is gone: %v", method, err)
	}
	a, ok := <-c
	if !ok || a.Error != nil {
		b.t.Fatalf("%s: %s", method, a.Error)
	}
	if v != nil {
		if err := json.Unmarshal(a.Result, v); err != nil {
			b.t.Fatalf("%s: %v: %s", method, err, a.Result)
		}
	}
}

// visit goes to an address and waits until it is loaded.
func (b *browser) visit(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	<-b.loaded
}

// eval evaluates an expression in the page, waits for it if it is a promise, and returns it as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		ExceptionDetails json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Errorf("%s: %s", expression, r.ExceptionDetails)
	}
	return fmt.Sprint(r.Result.Value)
}

// look sets the window's size and the colours that are preferred.
func (b *browser) look(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.eval("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))") // it is drawn
}

// shoot keeps a picture of the page in $KKBUNDLE_SCREENSHOTS, for people to look at.
func (b *browser) shoot(name string) {
	b.t.Helper()
	dir := os.Getenv("KKBUNDLE_SCREENSHOTS")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), data, 0o600)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// quiet fails if the page did something that it should not.
func (b *browser) quiet(where string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Errorf("%s: %s", where, p)
	}
	b.problems = nil
}

// browserSite is a server with some of everything, and with names that would like to be more than names.
func browserSite(t *testing.T) *site {
	t.Helper()
	b := bundletest.NewBuilder(t)
	b.Index.Name, b.Index.Version = "site", "1.4.0"
	for i, ref := range []string{"docker.io/library/nginx:1.29", "quay.io/cilium/cilium:v1.19.0", "registry.k8s.io/kube-apiserver:v1.34.3", "registry.k8s.io/a-very-long-path/of-many-words/that-does-not-fit/on-one-line-of-a-telephone/kube-something:v1.34.3-build.20261121"} {
		b.Image(ref, bundletest.RandomImage(t, int64(i), 2, 100_000))
	}
	b.ImageIndex(bundletest.MultiRef, bundletest.MultiImage(t, 2))
	b.Chart(bundletest.ChartRef, "demo", "0.1.0", bundletest.ChartArchive(t, "demo", "0.1.0"))
	b.File("https://dl.k8s.io/v1.34.3/bin/linux/amd64/kubelet", "kubelet", nil, []byte("kubelet"))
	b.File("https://deb.example/pool/c/conntrack_1.4_amd64.deb", "conntrack_1.4_amd64.deb", nil, []byte("no package"))
	b.File("https://rpm.example/os/conntrack-1.4.x86_64.rpm", "conntrack-1.4.x86_64.rpm", nil, []byte("no package"))
	for i, name := range hostileNames() {
		b.File("https://hostile.example/"+name, "x", nil, []byte(fmt.Sprint(i)))
	}
	b.File("javascript:window.hacked=1//", "x", nil, []byte("link"))
	return start(t, serve.Options{}, b.Bundle().Path)
}

func hostileNames() []string {
	return []string{
		`<script>window.hacked=1</script>`, `<img src=x onerror=window.hacked=1>`, `"><svg onload=window.hacked=1>`, `' onmouseover='window.hacked=1`,
		`</title><script>window.hacked=1</script>`, `{{.Host}}${window.hacked=1}`, `<style>body{display:none}</style>`, `<base href="https://evil.example">`,
		"\u202egnp.exe", `<iframe src="javascript:parent.hacked=1"></iframe>`,
	}
}

// TestBrowser holds that the page works in a real browser: it shows what is there, searches while somebody types, copies commands, fits a
// telephone, and takes names for what they are. Nothing on the way is refused by the page's policy, and no script fails.
func TestBrowser(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	s := browserSite(t)
	const visible = `[...document.querySelectorAll("#items .item")].filter(x => x.offsetParent).length`
	typed := func(text string) string {
		return b.eval(`{const q = document.getElementById("q"); q.value = ` + string(mustJSON(t, text)) + `; q.dispatchEvent(new Event("input")); ` + visible + `}`)
	}
	b.look(1280, 900, "light")
	b.visit(s.URL + "/")
	if n := b.eval(visible); n != "20" {
		t.Errorf("%s items are to be seen, want 20", n)
	}
	for text, want := range map[string]string{"nginx": "1", "KUBE registry": "2", "sha256:": "20", "nothing has this": "0", "<script>": "2", "": "20"} {
		if n := typed(text); n != want {
			t.Errorf("%q: %s items, want %s", text, n, want)
		}
	}
	if typed("nginx"); !strings.Contains(b.eval(`document.getElementById("shown").textContent`), "1 on this page") {
		t.Errorf("it does not say how many there are: %s", b.eval(`document.getElementById("shown").textContent`))
	}
	b.shoot("typed")
	label := b.eval(`{const c = document.querySelector(".item:not([hidden]) .copy"); c.click(); new Promise(r => setTimeout(() => r(c.textContent), 50))}`)
	if label != "Copied" && label != "Selected" {
		t.Errorf("the button says %q", label)
	}
	if label == "Selected" && !strings.HasPrefix(b.eval("getSelection().toString()"), "docker pull ") {
		t.Errorf("%q is selected", b.eval("getSelection().toString()"))
	}
	b.eval(`document.querySelector("form").requestSubmit()`)
	<-b.loaded
	if got := b.eval("location.search") + " " + b.eval(visible); got != "?q=nginx 1" {
		t.Errorf("Enter leads to %s", got)
	}
	b.quiet("the page")
	for _, path := range []string{"/", "/?q=hostile", "/?q=%22%3E%3Cscript%3Ewindow.hacked%3D1%3C%2Fscript%3E&kind=%22%3E", "/files/", "/files/hostile.example/", "/files/deb.example/pool/c/", "/charts/", "/apt/", "/yum/rpm.example/"} {
		name := strings.Trim(strings.NewReplacer("/", "_", "?", "_", "%", "").Replace(path), "_")
		b.visit(s.URL + path)
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int{360, 1280} {
				b.look(width, 900, scheme)
				if got := b.eval("document.documentElement.scrollWidth <= innerWidth"); got != "true" {
					t.Errorf("%s is %s pixels wide in a window of %d", path, b.eval("document.documentElement.scrollWidth"), width)
				}
				b.shoot(fmt.Sprintf("%.20s-%d-%s", name, width, scheme))
			}
		}
		if text := b.eval("document.body.textContent"); strings.Contains(text, "\u202e") {
			t.Errorf("%s: a name is shown backwards", path)
		}
		hover := `for (const e of document.querySelectorAll("*")) { e.dispatchEvent(new MouseEvent("mouseover", {bubbles: true})); }`
		if got := b.eval(hover + ` [window.hacked, document.scripts.length, document.querySelectorAll("main img, main svg, main style, iframe, base, a[href^='javascript:']").length].join()`); got != ",1,0" {
			t.Errorf("%s: a name is more than a name: %s", path, got)
		}
		b.quiet(path)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
