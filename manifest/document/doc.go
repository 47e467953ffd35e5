// Package document reads YAML files that people write, strictly: Decode reports every problem of a file at once, with
// its place and its remedy, and a Checker adds those that the types do not show. A Tree is a file behind its values;
// others can be laid over it, and each value knows where it was set (Values).
//
// Go types are the only description of a file: the decoder, the JSON Schema and the checks for required fields and
// permitted values all read the same struct tags (see Field). What the files are about is up to package manifest.
package document
