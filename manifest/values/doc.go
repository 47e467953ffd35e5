// Package values has the values of a manifest: the table that defines them, who gave each, and their place in files.
//
// A text names a value as ${name}; $${ stands for ${ itself. There are no expressions: a reference is replaced by the
// value, and everything else stays as it is. References are replaced in parsed YAML, before anything is decoded, so
// that a value cannot change the structure around it and every later problem has its line and column.
//
// The manifest and its cluster files are expanded as trees. All other files are expanded as text, and only if they opt
// in by a comment at their beginning (see Set.YAML). The package is pure: it opens no file and reads no variable.
package values
