// Package bundle reads and writes kkbundle's bundles, and keeps the cache of their blobs.
//
// This is the specification of the file format, version 1. "Must" binds writers; a reader must refuse forbidden bytes
// in the parts that it reads. Numbers are decimal, binary numbers little-endian, offsets in bytes from 0.
//
// # Shape
//
// A bundle, NAME.kkb, is a sequence of zstd frames (RFC 8878) followed by one skippable frame, the seek table, and
// nothing else: no other skippable frame, no byte after it. Decompressed by any zstd decoder it is a tar archive of an
// OCI image layout, version 1.0.0, which any tool reads:
//
//	zstd -dc NAME.kkb | tar -x -C DIR
//
// Reading can also start at any frame, since frames are independent of one another.
//
// # The tar
//
// The archive has exactly these entries, in this order:
//
//  1. oci-layout, with the content {"imageLayoutVersion":"1.0.0"}
//  2. index.json, see "index.json"
//  3. blobs/sha256/HEX, once for every blob that is reachable from index.json, ordered by class and in a class by HEX,
//     ascending. HEX is the blob's sha256 in 64 lower-case hexadecimal digits. Other digest algorithms are refused.
//  4. kkbundle.json, see "kkbundle.json"
//
// then 1024 zero bytes and no more. There are no entries for directories.
//
// The classes, in order, are: index, manifest, config, content. A blob's class is the first of them that applies. It is
// an index or a manifest if a descriptor in index.json, or in the manifests array of an index, gives it one of these
// media types:
//
//	index     application/vnd.oci.image.index.v1+json
//	          application/vnd.docker.distribution.manifest.list.v2+json
//	manifest  application/vnd.oci.image.manifest.v1+json
//	          application/vnd.docker.distribution.manifest.v2+json
//
// It is a config if it is the config of a manifest, and content otherwise: layers, and descriptors in those two places
// with any other media type, which are never parsed. Three kinds of manifest are refused there, because nobody would
// follow them to their blobs:
//
//	application/vnd.oci.artifact.manifest.v1+json
//	application/vnd.docker.distribution.manifest.v1+json
//	application/vnd.docker.distribution.manifest.v1+prettyjws
//
// So a reader of a pipe knows all names first, holds only manifests
// in memory, and meets each blob after its referrers.
//
// Each entry is: header, content, zero bytes up to a multiple of 512. The header is one block of 512 bytes, POSIX
// ustar, all bytes not listed being zero:
//
//	offset  bytes  value
//	0       100    the name
//	100     8      mode, "0000444" and a zero byte
//	108     8      uid, "0000000" and a zero byte
//	116     8      gid, the same
//	124     12     size of the content, 11 octal digits with leading zeros and a zero byte
//	136     12     mtime, "00000000000" and a zero byte
//	148     8      checksum: the sum of all bytes of the block, with 8 spaces here, as 6 octal digits with leading zeros,
//	               a zero byte and a space
//	156     1      "0"
//	257     8      "ustar", a zero byte, "00"
//	329     8      "0000000" and a zero byte
//	337     8      "0000000" and a zero byte
//
// A content of 2^33 bytes or more does not fit 11 octal digits. Its header is three blocks: such a block with the
// name blobs/sha256/PaxHeaders.0/HEX, mode "0000000", "x" at 156, zero bytes at 329 to 344, and the length of the
// record that follows as its size; a block with the record, "N size=SIZE" and a newline, N being the length of the
// whole record in decimal, and zero bytes; and then a block as above, with the size field 00000000000.
//
// # Frames
//
// Every frame but the seek table must have the single segment flag, a content size in a field of at most 4 bytes, the
// xxh64 checksum, and no dictionary; its unused and reserved bits are 0; it must not be empty. A frame of n bytes of
// content must not have more than n + n/1024 + 64 bytes, divided downwards.
//
// The decompressed stream must be cut into frames as follows. frame_size is in kkbundle.json: a multiple of 131072,
// from 131072 to 8388608.
//
//   - The content of index.json is one frame, that of kkbundle.json another. Each has at most 67108864 bytes.
//   - The content of a blob of more than 65536 bytes is cut into pieces of frame_size bytes, the last one being the
//     rest; each piece is one frame. These frames do not depend on where the blob lies, so they can be copied from one
//     bundle to another.
//   - Everything else is glue. It consists of units, which are never split: (a) an entry's header, together with content
//     and padding where that is a blob of at most 65536 bytes, or oci-layout; (b) the padding after a content that has
//     frames of its own, if there is any; (c) the 1024 zero bytes at the end. A glue frame ends before a content that
//     has frames of its own, and before a unit that would take it over 131072 bytes; it has at least one unit.
//
// It follows that frame 0 is glue and frame 1 is index.json. With n frames, frame n-2 is kkbundle.json and frame n-1 is
// glue. An empty blob is a header in a glue frame.
//
// How a frame is compressed is the writer's choice, recorded as encoder in kkbundle.json. This writer stores content
// that a trial cannot shrink by 3 %, as raw blocks of 131072 bytes; content of 1 MiB or more is sampled first. It
// promises the same bytes for the same index.json, blobs and encoder, on any architecture, with any number of workers,
// from a cache in any state.
//
// # The seek table
//
// The last frame is a table in the published seekable format of zstd, with checksums: the 4 bytes of the number
// 0x184D2A5E; the length of the rest in 4 bytes; for each frame before it, in order, 12 bytes: its length in the file,
// the length of its content, and its checksum, which is the frame's last 4 bytes; then, as the footer, the number of
// these entries in 4 bytes, one byte 0x80, and the 4 bytes of the number 0x8F92EAB1.
//
// The lengths in the file add up to where the table begins. There are at least 5 frames and at most 4194304. A reader
// must compare an entry with the frame's own header before it takes memory for the content, and must see that exactly
// one frame lies in the range that the entry gives it.
//
// # kkbundle.json
//
// The directory gives the position of each blob. It is canonical JSON (below) of this form, without the line breaks:
//
//	{"version":1,"requires":[],"encoder":"…","frame_size":4194304,"blobs":[
//	{"digest":"sha256:HEX","size":12,"frame":2,"at":512},…]}
//
// blobs has every blob of the tar once and nothing else, sorted by digest. frame is the number of the frame that its
// content begins in, counted from 0. at is, for a blob of at most 65536 bytes, the offset of its content in that
// frame's content (of an empty blob: where it would be), and 0 for the others. encoder is at most 512 bytes of text for
// people; where frames of several encoders were copied together it names each, with " + " between them. requires names
// features that a reader must have, sorted; version 1 defines none, and a reader that meets a version or a name it does
// not know must refuse the bundle and say which. Everything after requires may then be of another form.
//
// Sizes are below 2^53+1. Since the cutting of frames is fixed, a reader can and should compute every frame's content
// length and every blob's position from the order and sizes of the blobs, and refuse any difference.
//
// # index.json
//
// The index is an OCI image index with one descriptor per item, in canonical JSON, keys in this order, those with a
// question mark only where they have a value:
//
//	{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[ITEM,…],"annotations"?:{…}}
//	ITEM:     {"mediaType":…,"digest":…,"size":…,"annotations":{…},"platform"?:PLATFORM,"artifactType"?:…}
//	PLATFORM: {"architecture":…,"os":…,"os.version"?:…,"os.features"?:[…],"variant"?:…}
//
// Annotations are sorted by key, bytewise, and differ; an object of them is not empty, nor are keys, and it has at most
// 1024. Those of an item are:
//
//	io.kkbundle.kind                   image, chart, file, referrer, manifest, lock, closure, sbom, tool, git; a lower-case word
//	io.kkbundle.ref                    the upstream reference, exactly; not empty
//	org.opencontainers.image.title     ? the short name people know
//	org.opencontainers.image.version   ? its version
//	io.kkbundle.absent                 ? digests that are absent, sorted, each once, separated by commas
//	io.kkbundle.lacks                  ? platforms it was wanted for and upstream does not have, sorted, separated by commas
//	io.kkbundle.referrers              ? unknown: not all that is attached to it upstream could be looked up
//	io.kkbundle.signed-by              ? sha256:… of the DER form of the public key that its signature was checked with; or
//	                                   IDENTITY ISSUER of the certificate, separated by a space, for one without a key
//	io.kkbundle.groups                 ? names of its groups, sorted, each once, separated by commas; an item without one
//	                                   belongs to every selection
//	io.kkbundle.verified               ? the source of its digest: a value of the lock's key verified
//	org.opencontainers.image.ref.name  the value of io.kkbundle.ref where the grammar of the OCI image specification
//	                                   allows that and no other item has the same io.kkbundle.ref; else it must be missing
//
// and any others. The reference of a referrer, which is attached to an image or to another referrer, is the repository
// with @ and its digest; its manifest's subject is the digest it is attached to. One that cosign attached by a tag has
// the repository with : and that tag. The grammar is component ("/" component)*, a component being alphanum (separator
// alphanum)*, alphanum [A-Za-z0-9]+ and a separator one of - . _ : @ + or --. Those of the index are
// org.opencontainers.image.title and org.opencontainers.image.version, the bundle's name and version;
// io.kkbundle.platforms, its platforms, sorted, each once, separated by commas; io.kkbundle.from, for a bundle made
// from other bundles, their identities, sorted, separated by commas; io.kkbundle.groups, for a bundle with groups, the
// table of them, sorted by name, in at most 1 MiB of JSON: [{"name":…,"description"?:…,"optional"?:true,"absent"?:true}],
// absent meaning that a copy left the items of the group out; and any others, such as policies. Empty values of
// the named ones are left out.
//
// Items are sorted by kind, reference, platform (os/architecture[/variant], nothing where there is none) and digest,
// bytewise; no two agree in all four. There is no time anywhere.
//
// The identity of a bundle is the sha256 of index.json. It depends on no compression, cutting or cache, and covers all
// content, since everything is reachable from it by digests. Signatures and other statements about a bundle are files
// beside it (NAME.kkb.sigstore.json), about its identity; statements about an item lie inside, as items or referrers.
//
// # Completeness
//
// From each item the references are followed: from an index, its manifests; from a manifest, config and layers. Every
// blob reached must be there with the size that each reference says, except a child of an index whose digest is listed
// as absent by the item that is followed; each digest listed must be such a child. Image indexes are never rewritten:
// if not all platforms are selected, the index keeps its bytes and digest, and the other children are absent with their
// attestations. Every blob in the bundle must be reached. subject is not followed.
//
// An index or manifest has at most 4194304 bytes, and indexes are nested at most 8 deep. An index that has config or
// layers, and a manifest that has manifests or no config, are refused. All together have at most 1048576 references.
//
// # Content of files and charts
//
// A file is an image manifest with artifactType application/vnd.kkbundle.file.v1, the empty config {} of type
// application/vnd.oci.empty.v1+json, and one layer of type application/octet-stream, the file. The layer's annotation
// io.kkbundle.mode gives permission bits in octal. A chart is the artifact that Helm pushes.
//
// # Content of Git repositories
//
// A Git repository is an image manifest with artifactType application/vnd.kkbundle.git.v1. Its config, of type
// application/vnd.kkbundle.git.document.v1+json, is JSON with refs, [{"name":…,"id":…,"peeled"?:…}] sorted by name, head
// for the ref that a clone checks out, objects for their number, depth for the commits of each history where that is
// limited, and shallow for the commits without their parents. Its two layers are of the types
// application/vnd.kkbundle.git.pack.v1, a canonical pack as package git describes it, and
// application/vnd.kkbundle.git.index.v1, the index of that pack, version 2. Programs that do not know the kind carry,
// compare and verify it as they do every item of an unknown kind.
//
// # Canonical JSON
//
// There is no white space and no newline at the end. Keys stand in the order given above. Numbers are decimal integers
// without sign or leading zeros. Strings are UTF-8, at most 65536 bytes, without the control characters below U+0020
// and from U+007F to U+009F and without U+2028 and U+2029; " and \ are escaped with \ and nothing else is escaped. Any
// other spelling of the same content is refused.
//
// # Parts
//
// A bundle can be cut into parts, NAME.kkb.001, NAME.kkb.002 and so on, at most 999, three digits each: the same
// bytes, cut anywhere. None is empty. Beside them lies NAME.kkb.parts.json, canonical JSON of this form:
//
//	{"version":1,"size":SIZE,"parts":[{"size":SIZE,"sha256":"HEX"},…]}
//
// size is that of the bundle and the sum of the others; parts has every part once, by number; HEX is the sha256 of
// the part's bytes in lower-case hexadecimal digits. It has at most 262144 bytes. A writer writes it after everything
// else: where it is, all parts were whole. By hand:
//
//	cat NAME.kkb.[0-9]* | zstd -dc | tar -x -C DIR
//
// A reader takes the name of any part, or of parts.json, and reads across the parts; to open it needs the first and the
// last (and, where index.json or kkbundle.json do not end in these, the next ones). It refuses a part whose size
// differs from parts.json. Without parts.json it warns and reads the existing parts, assuming that a missing part has
// the size of the first; verifying fails. The sha256 serve to find a part that must be copied again; verifying compares
// contents with their digests all the same.
//
// # Encryption
//
// A bundle can be the content of an age file (age-encryption.org/v1, binary), NAME.kkb.age. Everything above is about
// the content, and so are identity and signatures; a signature beside it is NAME.kkb.sigstore.json. A bundle is never
// encrypted in another way. The recipients are of any kind that age defines. A reader tells an age file by its first
// line, which no bundle begins with, and decrypts the chunks that it needs: 64 KiB of content each, authenticated one
// by one. The header has at most 2 MiB and 1024 stanzas; a writer uses at most 256 recipients. The last chunk is
// decrypted first, so that a file that was cut is refused before anything else is read. An encrypted bundle in parts
// is the age file, cut as above: NAME.kkb.age.001, and the sizes and sha256 of NAME.kkb.age.parts.json are those of
// the encrypted bytes. By hand:
//
//	cat NAME.kkb.age.[0-9]* | age -d -i KEY | zstd -dc | tar -x -C DIR
//
// # In a registry
//
// A bundle as a whole can be one artifact of an OCI registry: an image manifest with artifactType
// application/vnd.kkbundle.bundle.v1, of at most 4194304 bytes. Its config has the media type
// application/vnd.kkbundle.index.v1+json and is index.json, so that its digest is the identity. Its layers of type
// application/vnd.kkbundle.blob.v1 are the blobs, each once, sorted by digest, their bytes being the content and not
// frames. Layers of type application/vnd.dev.sigstore.bundle.v0.3+json are signatures of the identity; their annotation
// org.opencontainers.image.title is the end of the file's name that the signature has beside NAME.kkb: sigstore.json or
// SIGNER.sigstore.json. A reader passes over layers of other types. The manifest's annotations io.kkbundle.encoder and
// io.kkbundle.level say how the file was compressed: that encoder writes the same file again. Name and version are
// those of the index. A reader trusts the identity only, and checks everything else against the digest that refers to
// it.
//
// # Reading
//
// Open: read the last bytes of the file, which hold seek table and kkbundle.json or tell how much more of the end is
// needed; then from byte 0 to the end of frame 1. A byte range of a blob: of the frames from the first to the last one
// it touches, decode each and cut.
//
// The checksums stop accidents, not attackers. Content must be checked against its digest before it is handed on, or by
// its receiver.
//
// From a pipe: frames are found by their own headers, entries by those of the tar. Indexes and manifests come first and
// are held; an index may come after its children. A blob that a manifest has as config or content ends them: none of
// theirs may come later. frame_size, the positions and the seek table are compared when they arrive. A reader that
// passes contents on from a pipe does so before it has seen kkbundle.json, so also before version and requires.
//
// Verify: a bundle is good if the seek table and both JSON documents are as said here; every frame decodes to the bytes
// that belong at its place, so that tar and directory say the same; every blob has its digest; and the bundle is
// complete. A verifier names every bad blob and not only the first.
package bundle
