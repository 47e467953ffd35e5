// Package delta makes the difference between two bundles, and a bundle from another one and a difference.
//
// This is the specification of the file, NAME.kkd, version 1. A pack, NAME.kkp, is a delta against nothing. Numbers
// are little-endian; a varint is an unsigned LEB128 number, as in encoding/binary; text is a varint with its length
// and its bytes.
//
// # Shape
//
//	the 17 bytes "kkbundle delta 1" and a newline
//	4 bytes: the length of the head, at most 1 MiB
//	the head, JSON
//	three sections: base, made, blobs
//	32 bytes: the sha256 of everything before
//
// A reader must check the last before it uses anything else.
//
// The head is an object with the fields
//
//	version      1
//	requires     names of features that a reader must have; "code" for entries of kind 2
//	old          the identity of the bundle OLD, or "" in a pack
//	new          the identity of the bundle NEW
//	encoder      NEW's encoder, as its kkbundle.json has it
//	frameSize    NEW's frame size
//	size         bytes of NEW
//	sha256       of the bytes of NEW, in hexadecimal digits
//	base         bytes of the store that come from OLD
//	store        bytes of the store
//	content      bytes of the blobs that are made
//	sections     the lengths of the three sections
//
// The encoder must be the reader's own, because frames of NEW are made again; another one is refused.
//
// # The store
//
// The reader keeps a store of bytes, addressed from 0. Its beginning, base bytes, is copied from OLD. The entries of
// the section made are appended. The blobs of NEW that OLD lacks are then put together from ranges of the store.
//
// # Section base
//
// One zstd frame. It has the number of blobs as a varint, and for each blob: 32 bytes, the sha256 of a blob of OLD,
// or OLD's identity for its index.json; one byte, 0 if the ranges are of its bytes, 1 if they are of what gunzip
// makes of them; the number of pieces; for each piece, the number of its ranges; for each range, two varints: the
// distance from the end of the piece's range before (for the first: the offset), and the length. Pieces follow one
// another in the store. No blob is named twice, no two ranges of a blob overlap, each piece has a range, and no range
// is empty.
//
// If only the digests of OLD's blobs were known, not its content, the section has no blobs: whatever OLD lacks is made.
//
// # Section made
//
// Entries to the end of the section. Each is: one byte, the kind; a varint, the bytes that the entry appends to the
// store; a varint, the number of ranges of its dictionary; for each, its address and length as varints; a varint, the
// length of the data; the data. A dictionary is the concatenation of its ranges, at most 48 MiB. All of them must lie
// in the store as it is. All dictionaries and steps together have at most 16 times the bytes that the entries append,
// and 1 GiB.
//
//	kind 0   zstd: one frame, whose window is at most 64 MiB, made with the dictionary as raw content under the id 1
//	kind 1   edits: the new bytes are the dictionary's, edited. The data is one zstd frame with three parts, each preceded by its
//	         length as a varint: steps, differences, insertions. A step is three varints: move the position in the dictionary
//	         (zigzag-coded), add the next so many bytes of the differences to the dictionary's bytes there, modulo 256, and advance;
//	         take the next so many bytes of the insertions
//
//	kind 2   code: zstd without dictionary, with ranges of converted instructions. Before the length of the data stand, as varints, the
//	         number of ranges, and for each: the machine (0 x86-64, 1 arm64), the distance from the end of the range before, and the
//	         length, which is not 0
//
// An entry of kind 1 or 2 appends at most 48 MiB. A reader that does not know kind 2 refuses the delta, because the
// head requires "code".
//
// In a range of kind 2 the operands of some instructions are targets, and the reader makes them distances again: it
// subtracts the position. Positions count from the beginning of the range.
//
//	x86-64   The range is read from its beginning. E8 or E9 is an opcode of 1 byte; 48 to 4F, then 89, 8B or 8D, then a byte that is 5
//	         after and with C7, is an opcode of 3. The operand is the 4 bytes after it, and reading goes on after the operand. Any
//	         other byte is passed over; so are the last bytes, where fewer than 7 are left. An operand whose last byte is neither 00
//	         nor FF stays. The position is that after the operand; of the difference the lower 25 bits count, and bit 24 fills those
//	         above it
//	arm64    Of each 4 bytes: bl (the upper 6 bits are 100101): the lower 26 bits, less the position divided by 4; adrp (bit 31 and
//	         bits 28 to 24 are 1 and 10000): the 21 bits of the operand, less the position divided by 4096
//
// All are taken without what overflows.
//
// # Section blobs
//
// One zstd frame: the number of blobs, and for each: 32 bytes, its sha256, or NEW's identity for its index.json,
// which is the first; its size; the id of a gzip encoder as text (package regzip), empty for bytes as they are; if it
// is not empty, the gzip header as text; the address of its frame; the number of steps. A step is: a varint, bytes to
// take from the frame, which advances; a varint, zigzag-coded, the distance of a range from the end of the range
// before (at first from 0); a varint, the range's length. The frame of an archive is everything but the contents of
// its files; a blob that is no archive is frame only. No blob is made twice. Only the last step of a blob may be
// empty. All steps of all blobs together take at most 64 times the bytes of the store, and 1 GiB.
//
// # Work
//
// A delta is applied before the signature of its result can be checked, so a reader bounds the work that a few bytes
// can ask for. It reads each blob of OLD at most once, with what gunzip makes of it; it needs free space for the
// store and for the contents of the blobs before it begins; and the limits above bound the bytes that it reads from
// the store. So the work is at most proportional to OLD and to the store, and the part of the store that is not of
// OLD to the delta itself: zstd makes at most 32768 times the bytes that it is given.
//
// # In a registry
//
// A delta is an OCI image manifest whose artifact type is application/vnd.kkbundle.delta.v1, whose config is the
// empty JSON object and whose only layer, of the same type, is the file. Its subject is the published bundle that the
// delta, alone or followed by another one with the same subject, makes. The annotations io.kkbundle.delta.old and
// io.kkbundle.delta.new are the identities of OLD and NEW. Clients find it through the referrers API or the fallback
// tag of the OCI distribution specification 1.1.
//
// # Promises
//
// A reader writes nothing under the result's name unless its size and sha256 are those of the head. Memory does not
// depend on the size of the bundles, apart from about 200 bytes for each file in their changed layers when a delta is
// made.
package delta
