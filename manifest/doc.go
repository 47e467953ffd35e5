// Package manifest holds the files that people write for kkbundle, and the lock that kkbundle writes for them:
//
//   - Bundle: what goes into a bundle,
//   - Cluster: what the cluster shall be,
//   - Inventory: which hosts there are and how they are reached,
//   - Lock: what a Bundle resolved to, each item with its digest.
//
// The package is pure: it opens no file, no connection and no clock. Callers hand in a name, which is only used in
// messages, and the bytes. Parsing is strict, and an error from a Parse function is always Problems: everything that
// is wrong with the file, in the order of the file, each with its line and column.
//
// Go types are the only description of the files: the decoder, the JSON Schemas and the checks for required fields
// and permitted values all read the same struct tags (see field).
package manifest
