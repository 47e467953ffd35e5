// Package marks names everything that kkbundle leaves on a host, in a cluster or in the work directory to tell a
// later run something, and reads and writes it. All lists the marks with their writers and readers; docs/resume.md is
// made from it.
//
// What a setting, a file or a receipt of a task is, package task knows. The record of a node's cluster is read and
// written by package member.
package marks
