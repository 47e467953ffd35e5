package node

import "time"

// Expiring returns the certificates in PEM files and directories on this machine that expire before a time. Certificate
// authorities are excluded, since nothing renews them automatically. Missing and unreadable files are ignored.
func Expiring(before time.Time, paths ...string) []Certificate {
	var soon []Certificate
	for _, one := range certificates(&system{root: "/"}, paths) {
		if one.Problem == "" && !one.CA && one.NotAfter.Before(before) {
			soon = append(soon, one)
		}
	}
	return soon
}
