package allocsvr

import "github.com/prometheus/client_golang/prometheus"

// metric is one number of Stats as Prometheus sees it.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*Stats) float64
}

func counter(name, help string, f func(*Stats) float64) metric {
	return metric{prometheus.NewDesc("seqsvr_alloc_"+name, help, nil, nil), prometheus.CounterValue, f}
}

func gauge(name, help string, f func(*Stats) float64) metric {
	return metric{prometheus.NewDesc("seqsvr_alloc_"+name, help, nil, nil), prometheus.GaugeValue, f}
}

var metrics = []metric{
	counter("numbers_total", "Numbers issued in this session.", func(s *Stats) float64 { return float64(s.Allocated) }),
	gauge("numbers_per_second", "Numbers issued a second, smoothed.", func(s *Stats) float64 { return s.Rate }),
	counter("raises_total", "Raises that a caller waited for.", func(s *Stats) float64 { return float64(s.Raises) }),
	counter("prefetches_total", "Raises ahead of need.", func(s *Stats) float64 { return float64(s.Prefetches) }),
	counter("cold_waits_total", "Requests that waited for the store group.", func(s *Stats) float64 { return float64(s.ColdWaits) }),
	counter("cold_looks_total", "Looks at single keys for which requests waited.", func(s *Stats) float64 { return float64(s.ColdLooks) }),
	gauge("waiting", "Requests that wait now.", func(s *Stats) float64 { return float64(s.Waiting) }),
	gauge("waiting_for_room", "Requests that wait for room in the arena now.", func(s *Stats) float64 { return float64(s.Crowded) }),
	gauge("watched_keys", "Keys of all subscriptions.", func(s *Stats) float64 { return float64(s.Watched) }),
	counter("busy_total", "Refusals because a queue was full.", func(s *Stats) float64 { return float64(s.Busy) }),
	counter("discontinuities_total", "Holes declared to callers.", func(s *Stats) float64 { return float64(s.Discontinuities) }),
	counter("released_sections_total", "Sections handed back.", func(s *Stats) float64 { return float64(s.Released) }),
	counter("evicted_keys_total", "Keys handed back for being idle, or for want of room.", func(s *Stats) float64 { return float64(s.Evicted) }),
	gauge("returning_keys", "Keys whose hand-back is not acknowledged yet.", func(s *Stats) float64 { return float64(s.Returning) }),
	gauge("request_ids", "Request ids remembered.", func(s *Stats) float64 { return float64(s.RequestIDs) }),
	gauge("request_ids_limit", "Request ids remembered at most.", func(s *Stats) float64 { return float64(s.RequestIDsMax) }),
	gauge("request_id_bytes", "Memory of request ids, in the arena and beside it.", func(s *Stats) float64 { return float64(s.RequestIDBytes) }),
	counter("request_ids_forgotten_total", "Request ids that made room for others.", func(s *Stats) float64 { return float64(s.RequestIDsForgotten) }),
	counter("windows_sent_total", "Request-id windows that went along with sections.", func(s *Stats) float64 { return float64(s.WindowsSent) }),
	counter("windows_unsent_total", "Request-id windows that could not go along.", func(s *Stats) float64 { return float64(s.WindowsUnsent) }),
	counter("windows_taken_total", "Request-id windows that came with sections.", func(s *Stats) float64 { return float64(s.WindowsTaken) }),
	counter("batches_total", "Batches committed by the store group.", func(s *Stats) float64 { return float64(s.Batches) }),
	counter("batch_retries_total", "Batches repeated for want of an outcome.", func(s *Stats) float64 { return float64(s.BatchRetries) }),
	gauge("queued_operations", "Operations waiting for the store group.", func(s *Stats) float64 { return float64(s.Queued) }),
	gauge("keys", "Keys held.", func(s *Stats) float64 { return float64(s.Keys) }),
	gauge("arena_bytes", "Arena in use.", func(s *Stats) float64 { return float64(s.ArenaBytes) }),
	gauge("arena_limit_bytes", "Arena at most.", func(s *Stats) float64 { return float64(s.ArenaLimit) }),
	gauge("sections_serving", "Sections served.", func(s *Stats) float64 { return float64(s.Serving) }),
	gauge("sections_closing", "Sections being handed back.", func(s *Stats) float64 { return float64(s.Closing) }),
	gauge("lease_remaining_seconds", "For how long the lease holds.", func(s *Stats) float64 { return s.LeaseRemaining.Seconds() }),
}

var stepDesc = prometheus.NewDesc("seqsvr_alloc_step",
	"How many numbers raises asked for, each, by space; their count is that of the raises in this session.", []string{"space"}, nil)

type collector struct{ s *Server }

// Collector presents Stats to a Prometheus registry of the caller's.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.desc
	}
	ch <- stepDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	st := c.s.Stats()
	for _, m := range metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&st))
	}
	for _, l := range st.Steps {
		ch <- prometheus.MustNewConstHistogram(stepDesc, l.Raises, float64(l.Numbers), l.UpTo, l.Space)
	}
}
