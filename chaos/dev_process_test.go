package chaos

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program builds a command of this module once for all tests.
var program = func() func(t *testing.T, name string) string {
	var mu sync.Mutex
	built := map[string]string{}
	return func(t *testing.T, name string) string {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if built[name] == "" {
			path := filepath.Join(binDir, name)
			out, err := exec.Command("go", "build", "-o", path, "github.com/seqsvr/seqsvr/cmd/"+name).CombinedOutput()
			if err != nil {
				t.Fatalf("building %s: %v\n%s", name, err, out)
			}
			built[name] = path
		}
		return built[name]
	}
}()

var binDir string

func TestMain(m *testing.M) {
	var err error
	if binDir, err = os.MkdirTemp("", "seqsvr-chaos-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(binDir)
	os.Exit(code)
}

// dev is a `seqsvr dev` on a directory and an address that stay the same over restarts.
type dev struct {
	dir, listen string
	cmd         *exec.Cmd
}

// readyWithin is how long a start may take on a busy machine.
const readyWithin = 30 * time.Second

func startDev(t *testing.T, dir string) *dev {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	d := &dev{dir: dir, listen: ln.Addr().String()}
	must(t, ln.Close())
	t.Cleanup(func() {
		if d.cmd != nil {
			d.stop(t) // which also removes what it keeps in shared memory
		}
	})
	d.start(t)
	return d
}

func (d *dev) start(t *testing.T) {
	t.Helper()
	begin := time.Now()
	d.cmd = exec.Command(program(t, "seqsvr"), "dev", "--data", d.dir, "--listen", d.listen, "--redis", "127.0.0.1:0", "--http", "127.0.0.1:0")
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.cmd.Stderr = t.Output()
	stdout, err := d.cmd.StdoutPipe()
	must(t, err)
	must(t, d.cmd.Start())
	ready := make(chan bool, 1)
	go func() {
		sc := bufio.NewScanner(stdout)
		ready <- sc.Scan() && strings.HasPrefix(sc.Text(), "ready listen="+d.listen)
		for sc.Scan() { // keeps the pipe empty until the process ends
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	select {
	case ok := <-ready:
		if !ok {
			t.Fatal("seqsvr dev did not get ready")
		}
		t.Logf("ready after %v", time.Since(begin).Round(time.Millisecond))
	case <-ctx.Done():
		t.Fatalf("seqsvr dev was not ready within %v", readyWithin)
	}
}

func (d *dev) kill(t *testing.T) {
	t.Helper()
	must(t, d.cmd.Process.Kill())
	_ = d.cmd.Wait()
	d.cmd = nil
}

func (d *dev) stop(t *testing.T) {
	t.Helper()
	must(t, d.cmd.Process.Signal(syscall.SIGTERM))
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("seqsvr dev did not stop in order: %v", err)
	}
	d.cmd = nil
}
