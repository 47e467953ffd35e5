// Package tasktest has helpers for tests of steps: a cluster out of a few lines of YAML, and golden files.
package tasktest
