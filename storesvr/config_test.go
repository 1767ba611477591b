package storesvr

import (
	"errors"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

func TestARaftTimeoutThatALeaseDoesNotCoverIsRefused(t *testing.T) {
	for _, c := range []struct {
		ttl, raft time.Duration
		ok        bool
		want      time.Duration
	}{
		{ttl: 2 * time.Second, want: 300 * time.Millisecond, ok: true},
		{ttl: time.Second, want: 200 * time.Millisecond, ok: true}, // shortened
		{ttl: 2 * time.Second, raft: 400 * time.Millisecond, want: 400 * time.Millisecond, ok: true},
		{ttl: 2 * time.Second, raft: 401 * time.Millisecond, want: 401 * time.Millisecond},
	} {
		cfg := Config{
			ID: "s1", Cluster: "c", Set: "s", RPCAddr: "s1:1", RaftAddr: "s1:2", LeaseTTL: c.ttl, RaftTimeout: c.raft,
			Peers: []state.StoreNode{{ID: "s1", RaftAddr: "s1:2"}}, Bootstrap: true,
		}.withDefaults()
		err := cfg.validate()
		var ce *ConfigError
		if (err == nil) != c.ok || cfg.RaftTimeout != c.want || err != nil && (!errors.As(err, &ce) || ce.Key != "raft_timeout") {
			t.Errorf("lease_ttl %v, raft_timeout %v: %v is used, %v", c.ttl, c.raft, cfg.RaftTimeout, err)
		}
	}
}
