package redis

import (
	"net"
	"os/exec"
	"strings"
	"testing"
)

// tool runs a program of Redis' own against the server, if the machine has it.
func tool(t *testing.T, s *Server, stdin, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not on the PATH", name)
	}
	host, port, err := net.SplitHostPort(s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, append([]string{"-h", host, "-p", port}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %s %v", name, args, out, err)
	}
	return string(out)
}

func TestRedisCli(t *testing.T) {
	for _, protocol := range []string{"-2", "-3"} {
		s, _ := start(t, Config{})
		in := "incr 7\nincrby 7 10\nget 7\nmget 7 8\nping\nselect 1\nincr si_1\nset 7 1\n"
		got := tool(t, s, in, "redis-cli", protocol)
		want := "1\n11\n11\n11\n\nPONG\nOK\n1\nERR unknown command 'set'\n\n"
		if strings.TrimRight(got, "\n") != strings.TrimRight(want, "\n") {
			t.Errorf("redis-cli %s: %q, want %q", protocol, got, want)
		}
	}
}

func TestRedisBenchmark(t *testing.T) {
	s, l := start(t, Config{})
	for _, pipeline := range []string{"1", "16"} {
		got := tool(t, s, "", "redis-benchmark", "--dbnum", "1", "-t", "incr", "-n", "2000", "-c", "10", "-P", pipeline, "-q")
		if !strings.Contains(got, "requests per second") {
			t.Errorf("pipelines of %s: %q", pipeline, got)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, last := range l.last {
		if len(l.last) != 1 || last != 4000 {
			t.Errorf("%v is at %d, of %d keys; want one at 4000", k, last, len(l.last))
		}
	}
}
