package arena

// hugePageBytes is the huge page of amd64, and of arm64 with pages of 4 KiB.
// Elsewhere there is none of this size, and the kernel says so.
const hugePageBytes = 2 << 20

// huge makes huge pages of the memory that the file has just grown into: the
// search for an address takes longer than the access to it where millions of keys
// have pages of 4 KiB. Nothing is in that memory yet, so nobody waits for it. A huge
// page holds up to 2 MB that the file does not have yet; it will be found there when
// the file grows. No huge page (an older kernel, a file on a disk, memory in
// pieces) is slower and nothing else: what was reserved stays.
func (r *File) huge() {
	for r.size > r.hugeEnd && r.hugeEnd+hugePageBytes <= int64(len(r.mem)) {
		r.hugeErr = makeHuge(r.mem[r.hugeEnd : r.hugeEnd+hugePageBytes])
		r.hugeEnd += hugePageBytes
	}
}
