// Package begin makes the run of every verb, and holds what verbs do before they change anything: they examine the
// hosts and judge the facts, and refuse hosts of other clusters, renamed nodes, hosts that cannot be left out, and a
// cluster whose authorities are being replaced.
package begin
