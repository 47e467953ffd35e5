// Package kkbundle has the text of the documentation, embedded for kkbundle docs and kkbundle serve.
package kkbundle

import "embed"

//go:embed README.md README.zh.md CHANGELOG.md docs bundle/doc.go bundle/delta/doc.go
var documentation embed.FS

// Documentation returns README, CHANGELOG, docs and the specifications of the file formats.
func Documentation() embed.FS { return documentation }
