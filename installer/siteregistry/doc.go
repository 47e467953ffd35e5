// Package siteregistry sets up the registry for a site's nodes and seeds it from the bundle: the CNCF distribution's,
// Harbor, a pair of either with a shared address, or access to an existing one.
package siteregistry
