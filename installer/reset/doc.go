// Package reset removes a cluster from its hosts: what kkbundle installed, or, when asked, a cluster that it did not
// make.
package reset
