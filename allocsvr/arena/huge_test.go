//go:build linux

package arena

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// growInSteps has the file grow as an arena does, and writes each new word.
func growInSteps(t *testing.T, r *File, steps int) {
	t.Helper()
	for i := range steps {
		from := r.Size()
		size := 3*pageBytes + int64(i)*extentBytes
		if err := r.Grow(size); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(r.Name(), &st); err != nil || st.Size != size {
			t.Fatalf("file of %d bytes, want %d: %v", st.Size, size, err)
		}
		if took := st.Blocks * 512; took >= size+hugePageBytes {
			t.Fatalf("%d bytes take %d of memory", size, took)
		}
		words := r.Words(from, size-from)
		for j := range words {
			if w := words[j].Load(); w != 0 {
				t.Fatalf("word %d beyond %d is %#x before its first use", j, from, w)
			}
			words[j].Store(uint64(from)/8 + uint64(j) + 1)
		}
	}
}

func checkWords(t *testing.T, r *File) {
	t.Helper()
	words := r.Words(0, r.Size())
	for j := range words {
		if w := words[j].Load(); w != uint64(j)+1 {
			t.Fatalf("word %d is %d", j, w)
		}
	}
}

// hugeMapped is how much of the file this process has mapped in huge pages.
func hugeMapped(t *testing.T, path string) (kb int64) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip("no smaps:", err)
	}
	ours := false
	for line := range strings.Lines(string(maps)) {
		switch f := strings.Fields(line); {
		case !strings.HasSuffix(f[0], ":"):
			ours = f[len(f)-1] == path
		case ours && f[0] == "ShmemPmdMapped:":
			var n int64
			if _, err := fmt.Sscan(f[1], &n); err != nil {
				t.Fatal(err)
			}
			kb += n
		}
	}
	return kb
}

func TestSharedMemoryIsInHugePagesFromItsFirstUse(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "seqsvr-test-")
	if err != nil {
		t.Skip("no shared memory:", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := NewFile(filepath.Join(dir, "a"), 9<<20) // the last MB cannot be huge
	if err := r.Lock(); err != nil {
		t.Fatal(err)
	}
	growInSteps(t, r, 9)
	if r.hugeEnd != 8<<20 {
		t.Errorf("huge pages up to %d of %d bytes", r.hugeEnd, r.Size())
	}
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(r.mem))); at%hugePageBytes != 0 {
		t.Errorf("mapped at %#x, where no huge page begins", at)
	}
	checkWords(t, r)
	huge := r.hugeErr == nil
	if kb := hugeMapped(t, r.Name()); huge && kb == 0 {
		t.Error("nothing is mapped in huge pages")
	}
	if err := r.Close(false); err != nil {
		t.Fatal(err)
	}

	// The next process finds what there was, and the pages still huge.
	r = NewFile(r.Name(), 9<<20)
	if err := r.Lock(); err != nil {
		t.Fatal(err)
	}
	checkWords(t, r)
	if kb := hugeMapped(t, r.Name()); huge && kb == 0 {
		t.Error("nothing is mapped in huge pages after a restart")
	}
	if err := r.Clear(); err != nil {
		t.Fatal(err)
	}
	growInSteps(t, r, 3)
	checkWords(t, r)
	if err := r.Close(true); err != nil {
		t.Fatal(err)
	}
	if !huge {
		t.Skip("the kernel gave no huge page: ", r.hugeErr)
	}
}
