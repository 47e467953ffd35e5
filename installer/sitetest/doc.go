// Package sitetest is a site for tests of the installer's verbs: hosts that are directories of this machine, and
// programs on them that answer as those of a cluster do.
package sitetest
