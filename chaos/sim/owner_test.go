package sim

import (
	"context"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// owner is an AllocSvr played by the script: it has a real session with the
// real StoreSvrs, but sends exactly the batches that the script says. It shows
// what the StoreSvrs' fence must withstand from any owner.
type owner struct {
	p       *play
	conn    storeConn
	session ids.SessionID
	inc     ids.Incarnation
	epoch   ids.Epoch
	seq     ids.BatchSeq
	cancel  context.CancelFunc
}

// playOwner registers (or resumes) a session and waits until it owns section 0.
func (p *play) playOwner(node string, resume *owner) *owner {
	p.t.Helper()
	hello := &seqpb.Hello{Protocol: 1, Cluster: clusterName, Node: node, Addr: rpcAddr(node), Version: "played"}
	if resume != nil {
		hello.ResumeSession, hello.ResumeIncarnation = uint64(resume.session), uint32(resume.inc)
	}
	proc := p.net.start(node)
	for range 200 {
		time.Sleep(50 * time.Millisecond)
		leader := p.leader()
		if leader == "" {
			continue
		}
		if o := p.greet(storeConn{p.net, proc, rpcAddr(leader)}, hello); o != nil {
			return o
		}
	}
	p.must(false, "the played owner got no session")
	return nil
}

func (p *play) greet(conn storeConn, hello *seqpb.Hello) *owner {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := conn.session(ctx)
	if err != nil || s.Send(&seqpb.SessionUp{Hello: hello}) != nil {
		cancel()
		return nil
	}
	o := &owner{p: p, conn: conn, cancel: cancel}
	owned := newSignal()
	var mu sync.Mutex
	failed := make(chan struct{})
	p.background(func() {
		defer close(failed)
		for {
			d, err := s.Recv()
			if err != nil || d.Refusal != nil && d.Refusal.Code != seqpb.RefusalCode_REFUSAL_NONE {
				return
			}
			mu.Lock()
			if w := d.Welcome; w != nil {
				o.session, o.inc, o.seq = ids.SessionID(w.Session), ids.Incarnation(w.Incarnation), ids.BatchSeq(w.BatchSeq)
			}
			if dir := d.Directive; dir != nil && len(dir.Epoch) > 0 {
				o.epoch = ids.Epoch(dir.Epoch[0])
				owned.set()
			}
			mu.Unlock()
		}
	})
	p.background(func() {
		for number := uint64(1); ctx.Err() == nil; number++ {
			if s.Send(&seqpb.SessionUp{Heartbeat: &seqpb.Heartbeat{Number: number}}) != nil {
				return
			}
			time.Sleep(p.opt.TTL / 5)
		}
	})
	select {
	case <-owned.c:
		mu.Lock()
		defer mu.Unlock()
		return o
	case <-failed:
	case <-time.After(5 * time.Second):
	}
	cancel()
	return nil
}

// execute sends one batch of one operation.
func (o *owner) execute(seq ids.BatchSeq, op state.Op) (state.OpResult, bool) {
	op.Epoch = o.epoch
	rep, err := o.conn.Execute(context.Background(), &seqpb.ExecuteRequest{ClusterId: clusterID, Batch: state.EncodeCommand(nil, state.Batch{
		Session: o.session, Incarnation: o.inc, Seq: seq, Ops: []state.Op{op},
	})})
	if err != nil {
		return state.OpResult{}, false
	}
	out, err := state.DecodeReply(rep.Outcome)
	if err != nil || out.Refusal != state.OK || len(out.Results) != 1 || out.Results[0].Refusal != state.OK {
		return state.OpResult{}, false
	}
	return out.Results[0], true
}

func (o *owner) extend(uid uint64, cur ids.Seq) {
	o.p.t.Helper()
	o.seq++
	res, ok := o.execute(o.seq, state.Op{Kind: state.OpExtend, Key: o.key(uid), Cur: cur, Step: 1000})
	o.p.must(ok && res.Bound > cur, "extend: %+v", res)
}

func (o *owner) key(uid uint64) ids.Key {
	k, err := ids.DefaultSpaces()[0].UID(uid)
	o.p.must(err == nil, "%v", err)
	return k
}

// issue records that the owner gave numbers to a client.
func (o *owner) issue(uid uint64, first int64, n uint32) {
	id := o.p.log.Call(history.Op{Kind: history.Alloc, Key: uidKey(uid), N: n})
	o.p.log.Return(id, history.Op{Outcome: history.OK, First: first, Count: n})
}

// die ends the owner without a word.
func (o *owner) die() {
	o.cancel()
	o.p.net.kill(o.conn.from, true)
}
