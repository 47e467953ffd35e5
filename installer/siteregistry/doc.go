// Package siteregistry sets up the registry that a site's nodes pull from: the CNCF distribution's, Harbor, two of them
// with one address, or the login and authority of one that exists. It fills it from the bundle.
package siteregistry
