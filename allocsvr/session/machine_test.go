package session

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// play is a machine with a clock, and what it did last.
type play struct {
	t   *testing.T
	m   *machine
	now time.Duration
}

func newPlay(t *testing.T, id Identity, stores ...string) *play {
	if len(stores) == 0 {
		stores = []string{"s1", "s2", "s3"}
	}
	return &play{t: t, m: newMachine(Peer{Node: "a1", Cluster: "c"}, stores, id, lease.Bugs{}, nil), now: time.Hour}
}

func (p *play) expect(acts []action, want string) {
	p.t.Helper()
	var got []string
	for _, a := range acts {
		switch a := a.(type) {
		case connect:
			got = append(got, "connect "+a.addr)
		case disconnect:
			got = append(got, "disconnect")
		case send:
			switch {
			case a.up.Hello != nil:
				got = append(got, fmt.Sprintf("hello %d/%d", a.up.Hello.ResumeSession, a.up.Hello.ResumeIncarnation))
			case a.up.Leaving != nil:
				got = append(got, "leaving")
			}
		case beat:
			got = append(got, fmt.Sprintf("beat %d", a.number))
		default:
			got = append(got, strings.TrimPrefix(fmt.Sprintf("%T", a), "session."))
		}
	}
	if s := strings.Join(got, ", "); s != want {
		p.t.Errorf("got  %s\nwant %s", s, want)
	}
}

func (p *play) opened() []action              { return p.m.opened(p.m.gen) }
func (p *play) broken() []action              { return p.m.broken(p.now, p.m.gen) }
func (p *play) tick(d time.Duration) []action { p.now += d; return p.m.tick(p.now) }
func (p *play) down(d *seqpb.SessionDown) []action {
	return p.m.down(p.now, p.m.gen, d)
}

func (p *play) welcome(session uint64, inc uint32) []action {
	return p.down(&seqpb.SessionDown{Welcome: &seqpb.Welcome{
		ClusterId: "id", Session: session, Incarnation: inc, Sections: 8, TtlMs: 2000, MarginMs: 200, HeartbeatMs: 400,
	}})
}

func (p *play) ack(n uint64) { p.down(&seqpb.SessionDown{Ack: &seqpb.HeartbeatAck{Number: n}}) }

func (p *play) refuse(c seqpb.RefusalCode, leader string) []action {
	return p.down(&seqpb.SessionDown{Refusal: &seqpb.Refusal{Code: c, Message: "because", Leader: leader}})
}

func (p *play) attach(session uint64, inc uint32) {
	p.m.start(p.now)
	p.opened()
	p.welcome(session, inc)
}

func (p *play) valid() bool { return p.m.lease.Valid(p.now) }

const (
	notLeader = seqpb.RefusalCode_REFUSAL_NOT_LEADER
	expired   = seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED
)

func TestItRegistersWithTheLeaderItIsPointedTo(t *testing.T) {
	p := newPlay(t, Identity{})
	p.expect(p.m.start(p.now), "connect s1")
	p.expect(p.opened(), "hello 0/0")
	p.expect(p.refuse(notLeader, "s3"), "disconnect, connect s3")
	p.expect(p.opened(), "hello 0/0")
	p.expect(p.welcome(7, 1), "leased, welcomed, beat 1")
}

func TestTheLeaseRunsFromTheSendingOfTheAcknowledgedHeartbeat(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	if p.valid() {
		t.Error("a welcome is no lease")
	}
	sent := p.now
	p.now += 300 * time.Millisecond // the acknowledgement was slow
	p.ack(1)
	if got := p.m.lease.Deadline(); got != sent+1800*time.Millisecond {
		t.Errorf("deadline %v after the sending, want TTL − margin", got-sent)
	}
	p.ack(1)
	p.ack(99)
	if got := p.m.lease.Deadline(); got != sent+1800*time.Millisecond {
		t.Error("a repeated or invented acknowledgement moved the deadline")
	}
}

func TestASilentLeaderIsLeftBeforeTheLeaseEnds(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	p.ack(1)
	p.expect(p.tick(400*time.Millisecond), "beat 2")
	p.expect(p.tick(400*time.Millisecond), "beat 3")
	at, _ := p.m.wake()
	if want := p.now + 100*time.Millisecond; at != want {
		t.Errorf("wakes in %v, want 100 ms: a quarter of the TTL after the first unanswered heartbeat", at-p.now)
	}
	p.expect(p.tick(100*time.Millisecond), "disconnect, connect s2")
	if !p.valid() {
		t.Error("the lease is over already")
	}
	p.expect(p.opened(), "hello 7/1")
	p.expect(p.welcome(7, 2), "welcomed, beat 4")
	if !p.valid() {
		t.Error("resuming ended the lease")
	}
}

func TestALateMessageOfALeftStreamIsNotLookedAt(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	old := p.m.gen
	p.broken()
	for _, d := range []*seqpb.SessionDown{
		{Ack: &seqpb.HeartbeatAck{Number: 1}},
		{Directive: &seqpb.Directive{Version: 9}},
		{Refusal: &seqpb.Refusal{Code: expired}},
	} {
		p.expect(p.m.down(p.now, old, d), "")
	}
	p.expect(p.m.broken(p.now, old), "")
	if p.valid() {
		t.Error("a late acknowledgement renewed the lease")
	}
}

func TestItRestsOnlyAfterEveryStoreWasTried(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	for _, s := range []string{"s2", "s3", "s1", "s2"} {
		p.expect(p.broken(), "disconnect, connect "+s)
	}
	p.expect(p.broken(), "disconnect")
	at, _ := p.m.wake()
	if at-p.now != backOffMin {
		t.Errorf("rests %v, want %v", at-p.now, backOffMin)
	}
	p.expect(p.tick(backOffMin), "connect s3")
	// Rests grow, but stay below what costs a lease.
	for range 200 {
		if p.m.phase == resting {
			at, _ := p.m.wake()
			if at-p.now > 500*time.Millisecond {
				t.Fatalf("rests %v", at-p.now)
			}
			p.tick(at - p.now)
		} else {
			p.broken()
		}
	}
}

func TestLeadersThatPointAtEachOtherDoNotSpinForever(t *testing.T) {
	p := newPlay(t, Identity{}, "s1", "s2")
	p.m.start(p.now)
	for i := 0; p.m.phase != resting; i++ {
		if i > 10 {
			t.Fatal("still following hints")
		}
		p.opened()
		other := "s1"
		if p.m.addr == "s1" {
			other = "s2"
		}
		p.refuse(notLeader, other)
	}
}

func TestPatienceWithTheHelloGrows(t *testing.T) {
	p := newPlay(t, Identity{})
	p.m.start(p.now)
	var waits []time.Duration
	for range 6 {
		if p.m.phase == resting {
			at, _ := p.m.wake()
			p.tick(at - p.now)
		}
		p.opened()
		at, _ := p.m.wake()
		waits = append(waits, at-p.now)
		p.tick(at - p.now)
	}
	if fmt.Sprint(waits) != "[500ms 1s 2s 4s 8s 8s]" {
		t.Errorf("waits %v", waits)
	}
}

func TestAnExpiredSessionIsDroppedAndANewOneRegistered(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	p.ack(1)
	p.expect(p.refuse(expired, ""), "lost, disconnect, connect s1")
	if p.valid() {
		t.Error("the lease outlived its session")
	}
	p.expect(p.opened(), "hello 0/0")
	p.expect(p.welcome(8, 1), "welcomed, beat 2")
}

func TestAResumeThatIsNotGrantedDropsTheOldSessionFirst(t *testing.T) {
	p := newPlay(t, Identity{ClusterID: "id", Session: 7, Incarnation: 3})
	p.m.start(p.now)
	p.expect(p.opened(), "hello 7/3")
	p.expect(p.welcome(8, 1), "lost, leased, welcomed, beat 1")
}

func TestLeavingIsRepeatedToEachLeaderUntilGoodbye(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	p.expect(p.m.leave("stop"), "leaving")
	p.expect(p.m.leave("stop"), "")
	p.broken()
	p.opened()
	p.expect(p.welcome(7, 2), "welcomed, beat 2, leaving")
	p.expect(p.down(&seqpb.SessionDown{Goodbye: &seqpb.Goodbye{}}), "ended, disconnect")
	if _, ok := p.m.wake(); ok {
		t.Error("still wants to be woken")
	}
}

func TestLeavingWithAnExpiredSessionIsTheEnd(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	p.m.leave("stop")
	p.expect(p.refuse(expired, ""), "lost, ended, disconnect")
}

func TestAGoodbyeNobodyAskedForIsIgnored(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	p.expect(p.down(&seqpb.SessionDown{Goodbye: &seqpb.Goodbye{}}), "")
}

func TestAnOlderDirectiveIsIgnored(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(7, 1)
	p.expect(p.down(&seqpb.SessionDown{Directive: &seqpb.Directive{Version: 5}}), "directed")
	p.expect(p.down(&seqpb.SessionDown{Directive: &seqpb.Directive{Version: 4}}), "")
	// Another leader counts anew.
	p.broken()
	p.opened()
	p.welcome(7, 2)
	p.expect(p.down(&seqpb.SessionDown{Directive: &seqpb.Directive{Version: 1}}), "directed")
}

func TestAnotherClusterIsReportedAndTriedAgain(t *testing.T) {
	p := newPlay(t, Identity{})
	p.m.start(p.now)
	p.opened()
	p.expect(p.refuse(seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER, ""), "refused, disconnect, connect s2")
}

func TestAnArenaOfAClusterThatWasFoundedAnewIsLeftBehind(t *testing.T) {
	wrong := seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER
	p := newPlay(t, Identity{ClusterID: "old", Session: 7, Incarnation: 3})
	p.m.start(p.now)
	p.expect(p.opened(), "hello 7/3")
	p.expect(p.refuse(wrong, ""), "disconnect, connect s1")
	p.expect(p.opened(), "hello 0/0")
	// This store is of quite another cluster, so the arena is not given up for it.
	p.expect(p.refuse(wrong, ""), "refused, disconnect, connect s2")
	p.expect(p.opened(), "hello 7/3")
	p.expect(p.refuse(wrong, ""), "disconnect, connect s2")
	p.expect(p.opened(), "hello 0/0")
	p.expect(p.welcome(1, 1), "lost, leased, welcomed, beat 1")
	// A process that has served does not change its cluster.
	p.broken()
	p.expect(p.opened(), "hello 1/1")
	p.expect(p.refuse(wrong, ""), "refused, disconnect, connect s1")
}

func TestAMalformedWelcomeIsNoWelcome(t *testing.T) {
	p := newPlay(t, Identity{})
	p.m.start(p.now)
	p.opened()
	p.expect(p.down(&seqpb.SessionDown{Welcome: &seqpb.Welcome{Session: 7, Incarnation: 1, Sections: 8, TtlMs: 100, MarginMs: 100}}),
		"disconnect, connect s2")
}

func TestALeaseThatHoldsAgainIsToldOncePerStream(t *testing.T) {
	p := newPlay(t, Identity{})
	p.attach(5, 1)
	ack := func(n uint64) []action { return p.down(&seqpb.SessionDown{Ack: &seqpb.HeartbeatAck{Number: n}}) }
	p.expect(ack(9), "") // never sent
	p.expect(ack(1), "renewed")
	p.expect(ack(1), "")
	p.expect(p.tick(400*time.Millisecond), "beat 2")
	p.expect(ack(2), "")
	p.broken()
	p.opened()
	p.welcome(5, 2)
	p.expect(ack(3), "renewed")
}
