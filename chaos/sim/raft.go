package sim

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// raftTimeout is when a Raft RPC gives up; the request may still arrive later.
const raftTimeout = 500 * time.Millisecond

// raftTransport is raft.InmemTransport's idea (hand the request to the peer's
// consumer channel) with a network in between. Requests are copied; there is no
// pipelining, so Raft falls back to one request at a time for each follower.
type raftTransport struct {
	net      *Network
	proc     *process
	addr     raft.ServerAddress
	consumer chan raft.RPC
}

func newRaftTransport(n *Network, p *process, addr string) *raftTransport {
	return &raftTransport{net: n, proc: p, addr: raft.ServerAddress(addr), consumer: make(chan raft.RPC, 64)}
}

func (t *raftTransport) Consumer() <-chan raft.RPC          { return t.consumer }
func (t *raftTransport) LocalAddr() raft.ServerAddress      { return t.addr }
func (t *raftTransport) SetHeartbeatHandler(func(raft.RPC)) {}
func (t *raftTransport) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte {
	return []byte(a)
}
func (t *raftTransport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

func (t *raftTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (t *raftTransport) AppendEntries(_ raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	c := *args
	c.Entries = make([]*raft.Log, len(args.Entries))
	for i, l := range args.Entries {
		e := *l
		e.Data = bytes.Clone(l.Data)
		e.Extensions = bytes.Clone(l.Extensions)
		c.Entries[i] = &e
	}
	return raftCall(t, to, "append", &c, nil, raftTimeout, resp)
}

func (t *raftTransport) RequestVote(_ raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	c := *args
	return raftCall(t, to, "vote", &c, nil, raftTimeout, resp)
}

func (t *raftTransport) RequestPreVote(_ raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	c := *args
	return raftCall(t, to, "pre-vote", &c, nil, raftTimeout, resp)
}

func (t *raftTransport) TimeoutNow(_ raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	c := *args
	return raftCall(t, to, "timeout-now", &c, nil, raftTimeout, resp)
}

func (t *raftTransport) InstallSnapshot(_ raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	all, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	c := *args
	return raftCall(t, to, "snapshot", &c, all, 10*raftTimeout, resp)
}

func raftCall[R any](t *raftTransport, to raft.ServerAddress, what string, args any, data []byte, timeout time.Duration, resp *R) error {
	n := t.net
	if t.proc.ctx.Err() != nil {
		return ErrReset
	}
	m := &Message{From: t.proc.host, To: hostOf(string(to)), Method: "Raft " + what, Body: args}
	p := n.plan(m)
	done := make(chan answer[*R], 1)
	ok := n.fly(func() {
		if !n.carry(m, p) {
			return
		}
		peer := n.lookup(string(to))
		if peer == nil || peer.services.raft == nil {
			if n.sleep(p.delay) {
				done <- answer[*R]{err: ErrRefused}
			}
			return
		}
		reply := make(chan raft.RPCResponse, 1)
		rpc := raft.RPC{Command: args, RespChan: reply}
		if data != nil {
			rpc.Reader = bytes.NewReader(data)
		}
		select {
		case peer.services.raft.consumer <- rpc:
		case <-peer.ctx.Done():
			return
		case <-n.down:
			return
		}
		select {
		case a := <-reply:
			back := &Message{From: m.To, To: m.From, Method: m.Method, Reply: true, Body: a.Response}
			if peer.ctx.Err() != nil || !n.carry(back, n.plan(back)) {
				return
			}
			r, isReply := a.Response.(*R)
			switch {
			case a.Error != nil:
				done <- answer[*R]{err: a.Error}
			case !isReply:
				done <- answer[*R]{err: fmt.Errorf("simulated network: raft answered %T", a.Response)}
			default:
				done <- answer[*R]{reply: r}
			}
		case <-peer.ctx.Done():
		case <-n.down:
		}
	})
	if !ok {
		return ErrReset
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case a := <-done:
		if a.err != nil {
			return a.err
		}
		*resp = *a.reply
		return nil
	case <-timer.C:
		return ErrTimeout
	case <-t.proc.ctx.Done():
		return ErrReset
	case <-n.down:
		return ErrReset
	}
}

var (
	_ raft.Transport   = (*raftTransport)(nil)
	_ raft.WithPreVote = (*raftTransport)(nil)
)
