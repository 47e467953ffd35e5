// Package upgrade brings the nodes of a cluster to another release or other settings, one batch after the other, and
// back: one walk in two directions. It also says which changes are not for install.
package upgrade
