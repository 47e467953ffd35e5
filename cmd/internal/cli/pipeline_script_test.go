package cli_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"go.yaml.in/yaml/v3"
)

// pipeline FILE NAME=VALUE... runs the shell steps of an example in docs/build/pipelines in the script's directory,
// as its CI system would for a tag. Steps see the variables that the file sets, with the values given here where
// there are any, those given here whose names are the system's own (CI_, GITHUB_, HOME, PATH) or a project's setting
// (KKBUNDLE_), and no others; one that a step uses and nobody sets is an error.
func pipeline(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 {
		ts.Fatalf("usage: [!] pipeline FILE NAME=VALUE...")
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "build", "pipelines", args[0]))
	ts.Check(err)
	given := map[string]string{}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		given[key] = value
	}
	read := gitlabSteps
	if strings.HasPrefix(args[0], "github") {
		read = githubSteps
	}
	steps, err := read(data)
	ts.Check(err)
	if len(steps) == 0 {
		ts.Fatalf("%s has no steps", args[0])
	}
	for _, s := range steps {
		err := ts.Exec("env", s.command(ts, given)...)
		if err == nil {
			continue
		}
		if neg {
			return
		}
		ts.Fatalf("step %s: %v", s.name, err)
	}
	if neg {
		ts.Fatalf("all steps succeeded")
	}
}

// A ciStep is what a CI system gives to one shell.
type ciStep struct {
	name, script string
	variables    map[string]string
}

// command is what follows env.
func (s ciStep) command(ts *testscript.TestScript, given map[string]string) []string {
	path := ts.Getenv("PATH")
	if more, err := os.ReadFile(given["GITHUB_PATH"]); err == nil {
		for _, line := range strings.Fields(string(more)) {
			path = line + ":" + path
		}
	}
	args := []string{"-i", "PATH=" + path, "SSL_CERT_FILE=" + ts.Getenv("CA"), "CURL_CA_BUNDLE=" + ts.Getenv("CA")}
	for key, value := range s.variables {
		if v, ok := given[key]; ok {
			value = v
		}
		if strings.Contains(value, "${{") {
			ts.Fatalf("step %s: the test gives no %s", s.name, key)
		}
		args = append(args, key+"="+os.Expand(value, func(name string) string { return given[name] }))
	}
	for key, value := range given {
		own := slices.ContainsFunc([]string{"CI_", "GITHUB_", "KKBUNDLE_", "HOME"},
			func(p string) bool { return strings.HasPrefix(key, p) })
		if _, set := s.variables[key]; own && !set {
			args = append(args, key+"="+value)
		}
	}
	return append(args, "sh", "-euc", s.script)
}

func githubSteps(data []byte) (steps []ciStep, err error) {
	type env = map[string]string
	var file struct {
		Env  env
		Jobs map[string]struct {
			Env   env
			Steps []struct {
				Name, Run string
				Env       env
			}
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	for _, job := range file.Jobs {
		for _, s := range job.Steps {
			if s.Run != "" {
				steps = append(steps, ciStep{s.Name, s.Run, merged(file.Env, job.Env, s.Env)})
			}
		}
	}
	if len(file.Jobs) != 1 {
		return nil, fmt.Errorf("%d jobs: their order is not known here", len(file.Jobs))
	}
	return steps, nil
}

func gitlabSteps(data []byte) (steps []ciStep, err error) {
	var file struct {
		Stages    []string
		Variables map[string]string
		Default   struct {
			BeforeScript []string `yaml:"before_script"`
		}
		Jobs map[string]yaml.Node `yaml:",inline"`
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	for _, stage := range file.Stages {
		for name, node := range file.Jobs {
			var job struct {
				Stage     string
				Variables map[string]string
				Script    []string
			}
			if err := node.Decode(&job); err != nil {
				return nil, err
			}
			if job.Stage == stage {
				script := strings.Join(slices.Concat(file.Default.BeforeScript, job.Script), "\n")
				steps = append(steps, ciStep{name, script, merged(file.Variables, job.Variables)})
			}
		}
	}
	return steps, nil
}

func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, one := range all {
		for key, value := range one {
			out[key] = value
		}
	}
	return out
}

// installer PATH makes the file server have, under that path, a program that runs the kkbundle that is tested, and sets
// $KKBUNDLE_URL and $KKBUNDLE_SHA256 to what pipelines need to install it.
func installer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: installer PATH")
	}
	var program string
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "kkbundle")); err == nil && program == "" {
			program = filepath.Join(dir, "kkbundle")
		}
	}
	data := []byte("#!/bin/sh\nexec " + program + " \"$@\"\n")
	of(ts).files.put(args[0], data)
	ts.Setenv("KKBUNDLE_URL", "https://"+of(ts).files.host+args[0])
	ts.Setenv("KKBUNDLE_SHA256", fmt.Sprintf("%x", sha256.Sum256(data)))
}
