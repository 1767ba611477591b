package httpd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg Config) func(path string) (int, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve(ln, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return func(path string) (int, string) {
		t.Helper()
		r, err := c.Get("http://" + s.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
}

func TestReadinessSaysWhyNot(t *testing.T) {
	var ready atomic.Bool
	get := start(t, Config{Ready: func() error {
		if ready.Load() {
			return nil
		}
		return errors.New("no lease yet")
	}})
	if code, body := get("/readyz"); code != 503 || !strings.Contains(body, "no lease yet") {
		t.Errorf("%d %q", code, body)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("a node that is not ready is alive all the same: %d", code)
	}
	ready.Store(true)
	if code, body := get("/readyz"); code != 200 {
		t.Errorf("%d %q", code, body)
	}
}

func TestMetricsAndVersion(t *testing.T) {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "seqsvr_test_total", Help: "x"})
	c.Add(3)
	get := start(t, Config{Collectors: []prometheus.Collector{c}})
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, "seqsvr_test_total 3") || !strings.Contains(body, "seqsvr_build_info{") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("%d %s", code, body)
	}
	if _, body := get("/metrics"); !strings.Contains(body, "go_sched_pauses_total_gc_seconds_bucket{") || !strings.Contains(body, "go_sched_pauses_stopping_gc_seconds_bucket{") || !strings.Contains(body, "go_sched_latencies_seconds_bucket{") {
		t.Errorf("pauses of the runtime are missing: %s", body)
	}
	if code, body := get("/version"); code != 200 || !strings.Contains(body, `"go":"go1.`) {
		t.Errorf("%d %q", code, body)
	}
}

func TestProfilesAreOffUnlessAskedFor(t *testing.T) {
	if code, _ := start(t, Config{})("/debug/pprof/"); code != 404 {
		t.Errorf("off: %d", code)
	}
	if code, _ := start(t, Config{Pprof: true})("/debug/pprof/"); code != 200 {
		t.Errorf("on: %d", code)
	}
}

func TestAMetricTwiceIsRefused(t *testing.T) {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "x", Help: "x"})
	if _, err := Handler(Config{Collectors: []prometheus.Collector{c, c}}); err == nil {
		t.Error("accepted")
	}
}
