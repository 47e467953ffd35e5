#!/usr/bin/env python3
"""An independent reader of kkbundle bundles, written from the format's specification (bundle/doc.go) alone.

It needs Python's standard library and the zstd command, and shares no code with kkbundle. Its tests hold the
specification to its word.

    kkb.py list FILE                    items and blobs
    kkb.py range FILE DIGEST OFF LEN    bytes of a blob, to stdout
    kkb.py verify FILE                  everything; exit code 1 and a line for each problem

FILE may be NAME.kkb.parts.json: then the bundle is in parts beside it.
"""
import hashlib
import json
import os
import re
import struct
import subprocess
import sys

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
INDEX_TYPES = {OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"}
MANIFEST_TYPES = {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
SMALL, GLUE, DOCUMENT, MANIFEST = 65536, 131072, 67108864, 4194304
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
ALPHANUM = "[A-Za-z0-9]+"
COMPONENT = ALPHANUM + "(?:(?:[-._:@+]|--)" + ALPHANUM + ")*"
REF_NAME = re.compile(COMPONENT + "(?:/" + COMPONENT + r")*\Z")
OWN = {"io.kkbundle.kind", "io.kkbundle.ref", "io.kkbundle.absent", "org.opencontainers.image.title",
       "org.opencontainers.image.version", "org.opencontainers.image.ref.name"}


class Bad(Exception):
    """The file is not a good bundle."""


def need(condition, message):
    if not condition:
        raise Bad(message)


def unzstd(data):
    """Decodes frames with the zstd command, which checks their checksums."""
    done = subprocess.run(["zstd", "-dcq"], input=data, capture_output=True)
    need(done.returncode == 0, "zstd: " + done.stderr.decode().strip())
    return done.stdout


def frame_extent(data):
    """Walks a frame's header and blocks; returns its length and its content's."""
    need(len(data) >= 13 and data[:4] == b"\x28\xb5\x2f\xfd", "no frame where the table has one")
    flags = data[4]
    need(flags & 0x3F == 0x24, "a frame has flags %#x" % flags)
    width = (1, 2, 4, 8)[flags >> 6]
    need(width <= 4, "a frame's content size has 8 bytes")
    content = int.from_bytes(data[5:5 + width], "little") + (256 if width == 2 else 0)
    at = 5 + width
    while True:
        need(at + 3 <= len(data), "a frame is longer than the table says")
        block = int.from_bytes(data[at:at + 3], "little")
        at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
        if block & 1:
            return at + 4, content


def canonical(text):
    """Canonical JSON of what json.loads returned, which keeps the order of keys."""
    return json.dumps(text, ensure_ascii=False, separators=(",", ":")).encode()


def load_canonical(data, what):
    def pairs(items):
        keys = [k for k, _ in items]
        need(len(set(keys)) == len(keys), what + " has a key twice")
        return dict(items)
    try:
        value = json.loads(data.decode(), object_pairs_hook=pairs)
    except ValueError as e:
        raise Bad("%s: %s" % (what, e)) from e
    need(canonical(value) == data, what + " is not canonical JSON")
    text = data.decode().replace("\\\\", "").replace('\\"', "")
    need(not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\\\\]", text), what + " has control characters or other escapes")
    return value


def padded(n):
    return (n + 511) // 512 * 512


def block(name, size, mode=b"0000444", flag=b"0", device=b"0000000\0"):
    h = bytearray(512)

    def put(at, value):
        h[at:at + len(value)] = value
    put(0, name.encode())
    put(100, mode + b"\0")
    put(108, b"0000000\0")
    put(116, b"0000000\0")
    put(124, b"%011o\0" % size)
    put(136, b"00000000000\0")
    put(148, b" " * 8)
    put(156, flag)
    put(257, b"ustar\x0000")
    put(329, device)
    put(337, device)
    put(148, b"%06o\0 " % sum(h))
    return bytes(h)


def header(name, size):
    if size < 1 << 33:
        return block(name, size)
    body = " size=%d\n" % size
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length += 1
    record = ("%d%s" % (length, body)).encode()
    folder, _, base = name.rpartition("/")
    pax = block(folder + "/PaxHeaders.0/" + base, len(record), b"0000000", b"x", b"")
    return pax + record.ljust(512, b"\0") + block(name, 0)


def read_parts(path):
    """Returns sizes and names of the parts that parts.json names, after comparing them with it."""
    with open(path, "rb") as f:
        d = load_canonical(f.read(262145), "parts.json")
    need(list(d) == ["version", "size", "parts"] and d["version"] == 1, "parts.json has another form")
    need(1 <= len(d["parts"]) <= 999 and d["size"] == sum(p["size"] for p in d["parts"]), "parts.json does not add up")
    parts = []
    for number, p in enumerate(d["parts"], 1):
        name = "%s.%03d" % (path[:-len(".parts.json")], number)
        need(list(p) == ["size", "sha256"] and type(p["size"]) is int and p["size"] > 0, "parts.json has another form")
        need(os.path.getsize(name) == p["size"], name + " has another size than parts.json says")
        with open(name, "rb") as f:
            need(hashlib.sha256(f.read()).hexdigest() == p["sha256"], name + " has another sha256 than parts.json says")
        parts.append((p["size"], name))
    return parts


class Parts:
    """Reads across parts like a file."""
    def __init__(self, parts):
        self.parts, self.pos = parts, 0

    def seek(self, off):
        self.pos = off

    def read(self, length):
        out, start = b"", 0
        for size, name in self.parts:
            if start <= self.pos < start + size and length:
                with open(name, "rb") as f:
                    f.seek(self.pos - start)
                    data = f.read(min(length, start + size - self.pos))
                out, length, self.pos = out + data, length - len(data), self.pos + len(data)
            start += size
        return out


class Bundle:
    def __init__(self, path):
        if path.endswith(".parts.json"):
            parts = read_parts(path)
            self.f, self.size = Parts(parts), sum(size for size, _ in parts)
            self.decoder = ["sh", "-c", 'cat "$@" | zstd -dcq', "sh"] + [name for _, name in parts]
        else:
            self.f = open(path, "rb")
            self.size = os.path.getsize(path)
            self.decoder = ["zstd", "-dcq", path]
        self.read_table()
        n = len(self.frames)
        self.directory = self.read_directory(self.frame(n - 2))
        self.index_bytes = self.frame(1)
        self.index = load_canonical(self.index_bytes, "index.json")
        self.blobs = {b["digest"]: b for b in self.directory["blobs"]}

    def at(self, off, length):
        self.f.seek(off)
        data = self.f.read(length)
        need(len(data) == length, "the file ends early")
        return data

    def read_table(self):
        need(self.size > 26, "it is too short")
        n, flag, magic = struct.unpack("<IBI", self.at(self.size - 9, 9))
        need(magic == 0x8F92EAB1 and flag == 0x80, "no seek table at the end")
        need(5 <= n <= 4194304 and 17 + 12 * n < self.size, "the seek table claims %d frames" % n)
        self.start = self.size - 17 - 12 * n
        table = self.at(self.start, 17 + 12 * n)
        need(struct.unpack_from("<II", table) == (0x184D2A5E, 12 * n + 9), "the seek table has a wrong header")
        self.frames, off = [], 0
        for i in range(n):
            length, content, check = struct.unpack_from("<III", table, 8 + 12 * i)
            limit = DOCUMENT if i in (1, n - 2) else 8388608
            need(0 < content <= limit and length <= content + content // 1024 + 64, "frame %d has absurd sizes" % i)
            self.frames.append((off, length, content, check))
            off += length
        need(off == self.start, "the seek table does not add up to its place")

    def raw(self, i):
        off, length, content, check = self.frames[i]
        data = self.at(off, length)
        need(frame_extent(data) == (length, content), "frame %d is not as the seek table says" % i)
        need(struct.unpack("<I", data[-4:])[0] == check, "frame %d has another checksum than the seek table" % i)
        return data

    def frame(self, i):
        data = unzstd(self.raw(i))
        need(len(data) == self.frames[i][2], "frame %d has another length" % i)
        return data

    def read_directory(self, data):
        d = load_canonical(data, "kkbundle.json")
        need(isinstance(d, dict) and list(d)[:2] == ["version", "requires"], "kkbundle.json has another form")
        need(d["version"] == 1, "it needs format version %r" % d["version"])
        need(d["requires"] == [], "it needs " + ", ".join(d["requires"]))
        need(list(d) == ["version", "requires", "encoder", "frame_size", "blobs"], "kkbundle.json has other keys")
        need(d["frame_size"] % 131072 == 0 and 131072 <= d["frame_size"] <= 8388608, "frame_size is out of bounds")
        need(isinstance(d["encoder"], str) and len(d["encoder"].encode()) <= 512, "encoder is too long")
        last = ""
        for b in d["blobs"]:
            need(list(b) == ["digest", "size", "frame", "at"], "a blob in kkbundle.json has other keys")
            need(DIGEST.match(b["digest"]) and b["digest"] > last, "kkbundle.json is not sorted by digest")
            need(all(type(b[k]) is int and 0 <= b[k] <= 1 << 53 for k in ("size", "frame", "at")), "a number is out of bounds")
            last = b["digest"]
        return d

    def range(self, digest, off, length):
        """Yields bytes of a blob."""
        need(digest in self.blobs, "no blob " + digest)
        b = self.blobs[digest]
        end = min(off + length, b["size"])
        step = self.directory["frame_size"]
        while off < end:
            if b["size"] <= SMALL:
                yield self.frame(b["frame"])[b["at"] + off:b["at"] + end]
                return
            i, skip = divmod(off, step)
            part = self.frame(b["frame"] + i)[skip:skip + end - off]
            yield part
            off += len(part)

    def whole(self, digest):
        need(self.blobs[digest]["size"] <= MANIFEST, digest + " is too large for a manifest")
        return b"".join(self.range(digest, 0, MANIFEST))


class Verifier:
    def __init__(self, bundle):
        self.b = bundle
        self.problems = []
        self.reached = {}

    def bad(self, message, *args):
        self.problems.append(message % args)

    def run(self):
        self.items()
        order = sorted(self.b.blobs, key=lambda d: (self.b.blobs[d]["frame"], self.b.blobs[d]["at"]))
        self.stream(order)
        if not self.problems:
            for item in self.b.index["manifests"]:
                self.follow(item)
            if set(self.reached) != set(order):
                self.bad("not needed by any item: %s", sorted(set(order) - set(self.reached)))
            elif order != sorted(order, key=lambda d: (self.reached[d], d)):
                self.bad("the blobs are in another order than their classes")
        return self.problems

    def items(self):
        x = self.b.index
        want = ["schemaVersion", "mediaType", "manifests"] + ["annotations"] * ("annotations" in x)
        need(list(x) == want and x["schemaVersion"] == 2 and x["mediaType"] == OCI_INDEX, "index.json has another form")
        need(x.get("annotations") != {}, "index.json has empty annotations")
        need(list(x.get("annotations", {})) == sorted(x.get("annotations", {}), key=str.encode), "annotations are not sorted")
        platforms = x.get("annotations", {}).get("io.kkbundle.platforms", "-").split(",")
        need(platforms == sorted(set(platforms)) and "" not in platforms, "the platforms are not sorted")
        keys, refs = [], [i["annotations"]["io.kkbundle.ref"] for i in x["manifests"]]
        for i in x["manifests"]:
            a = i["annotations"]
            need(list(a) == sorted(a, key=str.encode), "annotations are not sorted")
            keys.append(tuple(s.encode() for s in (a["io.kkbundle.kind"], a["io.kkbundle.ref"], self.platform(i), i["digest"])))
            name = a.get("org.opencontainers.image.ref.name")
            ref = a["io.kkbundle.ref"]
            need(name == (ref if REF_NAME.match(ref) and refs.count(ref) == 1 else None), "ref.name of " + ref)
            need(all(a[k] != "" for k in a if k in OWN), "an empty annotation of " + ref)
            absent = self.absent(i)
            need(absent == sorted(set(absent)) and all(map(DIGEST.match, absent)), "absent of " + ref)
        need(keys == sorted(set(keys)), "the items are not sorted")

    @staticmethod
    def platform(item):
        p = item.get("platform")
        return "" if p is None else "/".join(p[k] for k in ("os", "architecture", "variant") if k in p)

    @staticmethod
    def absent(item):
        text = item["annotations"].get("io.kkbundle.absent")
        return text.split(",") if text is not None else []

    def stream(self, order):
        """Compares everything that zstd yields with what the directory calls for."""
        for i in range(len(self.b.frames)):
            try:
                self.b.raw(i)
            except Bad as e:
                self.bad("%s", e)
        with subprocess.Popen(self.b.decoder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as z:
            self.z, self.done, self.glue, self.number = z, 0, 0, 0
            self.entries(order)
            if z.stdout.read(1):
                self.bad("there is more after the end of the tar")
            while z.stdout.read(1 << 20):
                pass
        if z.returncode:
            self.bad("zstd -dc fails")
        if self.number != len(self.b.frames):
            self.bad("%d frames instead of %d", len(self.b.frames), self.number)

    def entries(self, order):
        self.unit(header("oci-layout", len(LAYOUT)) + LAYOUT + bytes(padded(len(LAYOUT)) - len(LAYOUT)), "oci-layout")
        self.document("index.json", 1)
        for digest in order:
            b = self.b.blobs[digest]
            head = header("blobs/sha256/" + digest[7:], b["size"])
            pad = bytes(padded(b["size"]) - b["size"])
            if b["size"] <= SMALL:
                self.small(b, head, pad)
                continue
            self.unit(head, digest)
            self.close()
            self.place(b, self.number, 0)
            h, rest = hashlib.sha256(), b["size"]
            while rest:
                piece = self.take(min(rest, self.b.directory["frame_size"]))
                self.frame_is(len(piece) or 1, digest)
                h.update(piece)
                rest -= len(piece)
                if not piece:
                    break
            if h.hexdigest() != digest[7:]:
                self.bad("blob %s has another digest", digest)
            self.unit(pad, digest)
        self.document("kkbundle.json", len(self.b.frames) - 2)
        self.unit(bytes(1024), "the end")
        self.close()

    def small(self, b, head, pad):
        self.room(len(head) + b["size"] + len(pad))
        self.place(b, self.number, self.glue + len(head))
        data = self.take(len(head) + b["size"] + len(pad))
        content = data[len(head):len(head) + b["size"]]
        if data != head + content + pad or hashlib.sha256(content).hexdigest() != b["digest"][7:]:
            self.bad("blob %s is not as the directory says", b["digest"])
        self.glue += len(data)

    def document(self, name, number):
        size = self.b.frames[number][2]
        self.unit(header(name, size), name)
        self.close()
        if self.number != number:
            self.bad("%s is frame %d", name, self.number)
        data = self.take(size)
        self.frame_is(size, name)
        if name == "index.json" and data != self.b.index_bytes:
            self.bad("index.json is another one in the stream")
        self.unit(bytes(padded(size) - size), name)

    def place(self, b, frame, at):
        if (b["frame"], b["at"]) != (frame, at):
            self.bad("blob %s lies in frame %d at %d, not where the directory says", b["digest"], frame, at)

    def take(self, n):
        data = self.z.stdout.read(n)
        self.done += len(data)
        return data

    def room(self, n):
        if self.glue + n > GLUE:
            self.close()

    def unit(self, want, name):
        if not want:
            return
        self.room(len(want))
        if self.take(len(want)) != want:
            self.bad("the tar differs from the directory at %s", name)
        self.glue += len(want)

    def close(self):
        if self.glue:
            self.frame_is(self.glue, "glue")
            self.glue = 0

    def frame_is(self, size, name):
        if self.number >= len(self.b.frames) or self.b.frames[self.number][2] != size:
            self.bad("frame %d does not have the %d bytes of %s", self.number, size, name)
        self.number += 1

    def follow(self, item):
        absent = {d: False for d in self.absent(item)}
        todo, seen = [(item, self.role(item), 0)], set()
        while todo:
            d, role, depth = todo.pop()
            digest = d["digest"]
            if (digest, role) in seen:
                continue
            seen.add((digest, role))
            if digest not in self.b.blobs or self.b.blobs[digest]["size"] != d["size"]:
                self.bad("%s is missing, or has another size than in what refers to it", digest)
                continue
            self.reached[digest] = min(role, self.reached.get(digest, 3))
            if role > 1:
                continue
            if depth > 8:
                self.bad("indexes are nested too deep")
                continue
            doc = json.loads(self.b.whole(digest))
            if role == 0:
                if "config" in doc or "layers" in doc:
                    self.bad("index %s has config or layers", digest)
                for child in doc.get("manifests") or []:
                    if child["digest"] in absent:
                        absent[child["digest"]] = True
                    else:
                        todo.append((child, self.role(child), depth + 1))
            else:
                if "manifests" in doc or "config" not in doc:
                    self.bad("manifest %s has manifests, or no config", digest)
                    continue
                todo.append((doc["config"], 2, depth + 1))
                todo.extend((layer, 3, depth + 1) for layer in doc.get("layers") or [])
        for digest, found in absent.items():
            if not found:
                self.bad("%s is listed as absent, but no index has it", digest)

    @staticmethod
    def role(d):
        return 0 if d["mediaType"] in INDEX_TYPES else 1 if d["mediaType"] in MANIFEST_TYPES else 3


def main(args):
    if len(args) < 2 or args[0] not in ("list", "range", "verify") or (args[0] == "range") != (len(args) == 5):
        sys.exit(__doc__)
    try:
        b = Bundle(args[1])
        if args[0] == "list":
            print("identity sha256:" + hashlib.sha256(b.index_bytes).hexdigest())
            for i in b.index["manifests"]:
                print("item", i["annotations"]["io.kkbundle.kind"], i["annotations"]["io.kkbundle.ref"],
                      Verifier.platform(i) or "-", i["digest"])
            for d in b.directory["blobs"]:
                print("blob", d["digest"], d["size"])
        elif args[0] == "range":
            for part in b.range(args[2], int(args[3]), int(args[4])):
                sys.stdout.buffer.write(part)
        else:
            problems = Verifier(b).run()
            for p in problems:
                print("bad:", p)
            if problems:
                return 1
            print("good: %d items, %d blobs, %d frames" % (len(b.index["manifests"]), len(b.blobs), len(b.frames)))
    except (Bad, KeyError, TypeError, ValueError, OSError) as e:
        print("bad:", repr(e) if not isinstance(e, Bad) else e)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
