package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/opencontainers/go-digest"

	"github.com/kkbundle/kkbundle/internal/disk"
)

const (
	home    = "https://github.com/kkbundle/kkbundle"
	formula = "kkbundle.rb"
	manual  = "kkbundle-manual.tar.gz"
	share   = "share" // directory of manual pages and completions, which cmd/internal/manpages writes
)

// formulaText installs a program of the release with its manual pages and completions. Homebrew makes files in bin
// executable.
const formulaText = `class Kkbundle < Formula
  desc "Takes Kubernetes and its applications to sites without internet"
  homepage "{{.Home}}"
  version "{{.Number}}"
  license "Apache-2.0"
{{range .Systems}}
  on_{{.Name}} do
{{- range .Programs}}
    on_{{.Name}} do
      url "{{$.Base}}/{{.File}}"
      sha256 "{{.Sum}}"
    end
{{- end}}
  end
{{end}}
  resource "manual" do
    url "{{.Base}}/{{.Manual}}"
    sha256 "{{.ManualSum}}"
  end

  def install
    bin.install Dir["kkbundle-*"].first => "kkbundle"
    resource("manual").stage do
      man1.install Dir["man/man1/*"]
      bash_completion.install "completions/bash/kkbundle"
      zsh_completion.install "completions/zsh/_kkbundle"
      fish_completion.install "completions/fish/kkbundle.fish"
    end
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/kkbundle version")
  end
end
`

type formulaSystem struct {
	Name     string // on_NAME in the formula
	Programs []formulaProgram
}

type formulaProgram struct{ Name, File, Sum string }

// writeFormula writes the Homebrew formula, if the release has the programs of all systems.
func (r *release) writeFormula() error {
	systems := []formulaSystem{{Name: "macos"}, {Name: "linux"}}
	for i, system := range []string{"darwin", "linux"} {
		for _, arch := range [][2]string{{"arm", "arm64"}, {"intel", "amd64"}} {
			file := "kkbundle-" + system + "-" + arch[1]
			sum := r.sum(file)
			if sum == "" {
				return nil
			}
			systems[i].Programs = append(systems[i].Programs, formulaProgram{arch[0], file, sum})
		}
	}
	if r.sum(manual) == "" {
		return nil
	}
	var text bytes.Buffer
	err := template.Must(template.New(formula).Parse(formulaText)).Execute(&text, map[string]any{
		"Home": home, "Base": home + "/releases/download/" + r.version, "Number": strings.TrimPrefix(r.version, "v"),
		"Systems": systems, "Manual": manual, "ManualSum": r.sum(manual),
	})
	if err != nil {
		return err
	}
	r.add(formula, digest.SHA256.FromBytes(text.Bytes()))
	return disk.WriteFile(filepath.Join(r.dir, formula), 0o644, &text)
}

// writeManual packs the manual pages and completions, if they were written.
func (r *release) writeManual() error {
	root := filepath.Join(r.dir, share)
	if _, err := os.Stat(root); err != nil {
		return nil //nolint:nilerr // without them
	}
	var file bytes.Buffer
	z := gzip.NewWriter(&file)
	packed := archive{tar.NewWriter(z), r.date}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		return packed.file(name, 0o644, bytes.NewReader(data), int64(len(data)))
	})
	if err != nil {
		return err
	}
	if err := packed.Close(); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(r.dir, manual), 0o644, &file)
}
