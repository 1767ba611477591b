// Package httpd is a node's admin HTTP server: liveness, readiness, metrics,
// version, and profiles when they are switched on.
//
// It is for operators' networks, not for clients; it changes nothing.
package httpd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/buildinfo"
)

// Config of a Server.
type Config struct {
	// Ready is nil when the node serves, else why not.
	Ready func() error
	// Collectors are the node's metrics; the process's and Go's are added.
	Collectors []prometheus.Collector
	Pprof      bool
	Logger     *zap.Logger
}

// Server serves until Stop.
type Server struct {
	addr net.Addr
	http *http.Server
	done chan struct{}
}

// Limits of what a peer may do to it.
const (
	readTimeout    = 10 * time.Second
	writeTimeout   = 60 * time.Second // a CPU profile takes 30
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// Serve serves on ln, which it owns from now on.
func Serve(ln net.Listener, cfg Config) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	h, err := Handler(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{addr: ln.Addr(), done: make(chan struct{}), http: &http.Server{
		Handler: h, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: zap.NewStdLog(cfg.Logger.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("admin http server ended", zap.Error(err))
		}
	}()
	return s, nil
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.addr }

// Stop waits for requests under way until ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	<-s.done
	return err
}

// pauses are, beside what the collector has by default, the distributions of the
// times for which all goroutines stood still and for which ready ones waited for a
// processor: of a pause, stopping is waiting until all have stopped, and grows
// with the load of the machine; the rest is the runtime's own.
var pauses = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/sched/(pauses/.*|latencies):seconds$`)}

// Handler is what the server serves.
func Handler(cfg Config) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	cs := append([]prometheus.Collector{
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(pauses)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildMetric(),
	}, cfg.Collectors...)
	for _, c := range cs {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if cfg.Ready != nil {
			if err := cfg.Ready(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(buildinfo.Get())
	})
	if cfg.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux, nil
}

func buildMetric() prometheus.Collector {
	i := buildinfo.Get()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "seqsvr_build_info", Help: "What build this is; always 1.",
		ConstLabels: prometheus.Labels{"version": i.Version, "commit": i.Commit, "go": i.Go},
	})
	g.Set(1)
	return g
}
