package cli_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	crane "github.com/google/go-containerregistry/cmd/crane/cmd"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/crypto/bcrypt"
)

// journeyGrammar matches the permitted lines of a journey: a command that succeeds, a look at its result, or a step
// of the reader.
var journeyGrammar = regexp.MustCompile(
	`^(exec|stdin|stdout|stderr|! stdout|! stderr|cd|cp|cmp|env|exists|! exists|grep|mkdir|mv|rm|kill|wait|answers|wrote) ?`)

// TestJourneys runs testdata/journey: ways of users from nothing to a result. Each begins in a directory with the
// files that the user writes and nothing else, with a fresh home, and no command of it may fail. Upstream's hosts,
// and harbor.site, are stand-ins behind a proxy, as in TestDocs; the site's other registries are real ones, started
// by the journeys.
func TestJourneys(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/journey/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d journeys, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range journeyProblems(string(data)) {
			t.Errorf("%s: %s", file, problem)
		}
	}
	u := startInternet(t)
	u.files.put("/downloads.example/model-7.bin", noise("model", 3<<20)) // for parts
	testscript.Run(t, testscript.Params{
		Dir:                "testdata/journey",
		RequireUniqueNames: true,
		Setup:              func(env *testscript.Env) error { return u.journey(env) },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"answers": answers,
			"wrote":   wrote,
		},
	})
}

// journey prepares a script: the environment of a new user of a machine behind the proxy, and a free port.
func (u *internet) journey(env *testscript.Env) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	vars := []string{"WORK=" + env.WorkDir, "SITE=" + l.Addr().String()}
	for _, v := range u.environment(env.WorkDir) {
		if !strings.HasPrefix(v, "PATH=") && !strings.HasPrefix(v, "COSIGN_PASSWORD=") {
			vars = append(vars, v)
		}
	}
	for _, v := range env.Vars {
		if strings.HasPrefix(v, "PATH=") {
			vars = append(vars, v)
		}
	}
	env.Vars = vars
	return os.Mkdir(filepath.Join(env.WorkDir, ".home"), 0o700)
}

// journeyProblems returns the lines of a script that a journey may not have: those that skip, or that expect a
// command to fail.
func journeyProblems(text string) (list []string) {
	script, _, _ := strings.Cut(text, "\n-- ")
	if !strings.HasPrefix(script, "# ") {
		list = append(list, "no comment says what the user wants")
	}
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line != "" && line[0] != '#' && !journeyGrammar.MatchString(line) {
			list = append(list, fmt.Sprintf("%q: a journey has commands that succeed", line))
		}
	}
	return list
}

// TestJourneysHaveNoCommandThatFails shows that a line which expects a failure is found.
func TestJourneysHaveNoCommandThatFails(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"! exec kkbundle build", "exits 1 kkbundle build", "? exec kkbundle build",
		"[mounts] exec true", "skip", "stop",
	} {
		if list := journeyProblems("# a user\nexec true\n" + line + "\n-- a --\n! text\n"); len(list) != 1 {
			t.Errorf("%s: %q", line, list)
		}
	}
	if list := journeyProblems("# a user\nexec true\n! stdout x\n-- a --\n! text\n"); len(list) != 0 {
		t.Errorf("%q", list)
	}
}

// TestJourneyOfANewcomerIsInREADME wants the commands of the first journey to stand in README as they are run.
func TestJourneyOfANewcomerIsInREADME(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("testdata/journey/newcomer.txtar")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, b := range docsBlocks("README.md", pages(t)["README.md"]) {
		for _, line := range b.commandLines() {
			for _, c := range shellCommands(line) {
				known[strings.Join(c.words, " ")] = true
			}
		}
	}
	n := 0
	for line := range strings.Lines(string(script)) {
		if command, ok := strings.CutPrefix(strings.TrimSpace(line), "exec kkbundle"); ok {
			n++
			if !known["kkbundle"+command] {
				t.Errorf("README does not name kkbundle%s", command)
			}
		}
	}
	if n < 3 {
		t.Errorf("%d commands", n)
	}
}

// answers ADDRESS waits until a server that the journey started answers there.
func answers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: answers ADDRESS")
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(5 * time.Minute) // a busy machine
	for {
		resp, err := http.Get("http://" + args[0] + "/healthz") //nolint:noctx // a test
		if err == nil {
			_ = resp.Body.Close()
			return
		}
		select {
		case <-tick.C:
		case <-end:
			ts.Fatalf("no server answers at %s: %v", args[0], err)
		}
	}
}

// wrote FILE MODE wants a file with exactly these permissions, such as 600 for a key.
func wrote(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: wrote FILE MODE")
	}
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if mode := fmt.Sprintf("%o", info.Mode().Perm()); mode != args[1] {
		ts.Fatalf("%s has mode %s", args[0], mode)
	}
}

// craneMain is the program crane.
func craneMain() {
	if err := crane.Root.Execute(); err != nil {
		os.Exit(1)
	}
}

// htpasswdMain stands in for `htpasswd -nbB USER PASSWORD` of Apache's tools.
func htpasswdMain() {
	hash, err := bcrypt.GenerateFromPassword([]byte(os.Args[3]), bcrypt.MinCost)
	if err != nil {
		os.Exit(1)
	}
	fmt.Printf("%s:%s\n", os.Args[2], hash)
}
