// Package browsertest drives a real browser for tests of pages.
package browsertest

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
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is for a browser that hangs: a machine with a load of 60 takes more than two minutes for the whole of a
// test.
const patience = 10 * time.Minute

// A Browser is a headless Chromium with one page, driven by the DevTools protocol over its pipe.
type Browser struct {
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

// Open starts Chromium, or skips the test where there is none.
func Open(t *testing.T) *Browser {
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	profile := profileDir(t)
	cmd := exec.CommandContext(ctx, path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--no-proxy-server",
		"--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "--user-data-dir="+
			profile, "about:blank")
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
	b := &Browser{t: t, to: ourOut, answers: make(map[int]chan answer), loaded: make(chan struct{}, 16)}
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
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
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
func (b *Browser) listen(from io.Reader) {
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
func (b *Browser) call(method string, params map[string]any, v any) {
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

// Visit goes to an address and waits until it is loaded.
func (b *Browser) Visit(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	<-b.loaded
}

// Loaded waits until the page that something else has asked for is loaded.
func (b *Browser) Loaded() { <-b.loaded }

// Scripts lets the scripts of pages run that are loaded from now on, or not. Eval works in any case.
func (b *Browser) Scripts(run bool) {
	b.t.Helper()
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": !run}, nil)
}

// Eval evaluates an expression in the page, waits for it if it is a promise, and returns it as text.
func (b *Browser) Eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct {
			Value any `json:"value"`
		} `json:"result"`
		ExceptionDetails json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{
		"expression": expression, "returnByValue": true, "awaitPromise": true,
		"userGesture": true,
	}, &r)
	if r.ExceptionDetails != nil {
		b.t.Errorf("%s: %s", expression, r.ExceptionDetails)
	}
	return fmt.Sprint(r.Result.Value)
}

// Look sets the window's size and the colours that are preferred.
func (b *Browser) Look(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height,
		"deviceScaleFactor": 1, "mobile": width < 600,
	}, nil)
	b.call("Emulation.setEmulatedMedia",
		map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.Eval("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))") // it is drawn
}

// Paper shows the page as it is printed, on paper of a width in CSS pixels.
func (b *Browser) Paper(width, height int) {
	b.t.Helper()
	b.Look(width, height, "light")
	b.call("Emulation.setEmulatedMedia", map[string]any{"media": "print"}, nil)
}

// Shoot keeps a picture of the page in $KKBUNDLE_SCREENSHOTS, for people to look at.
func (b *Browser) Shoot(name string) {
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

// Quiet fails if the page did something that it should not.
func (b *Browser) Quiet(where string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Errorf("%s: %s", where, p)
	}
	b.problems = nil
}
