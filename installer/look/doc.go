// Package look reports on a cluster and changes nothing: its status, and the support bundle without secrets.
package look
