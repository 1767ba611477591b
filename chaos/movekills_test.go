package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/check"
	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// participants of a move. The directory is in a Set that is neither source nor target.
var participants = []string{"source leader", "target leader", "directory leader", "source owner", "target owner", "seqctl"}

// seqctlItself is the participant that is no process of the cluster.
const seqctlItself = "seqctl"

// moveKills kills participants of moves between s2 and s3, while clients use their keys.
type moveKills struct {
	*stage
	custody *custody
	// at is the Set that has the keys.
	at  string
	rng *rand.Rand
	// starting is how long it took from the start of a seqctl to that of its move.
	starting time.Duration
	tries    map[string]*aim
}

// aim is how often a kill was to fall in a step, and did.
type aim struct{ kills, hits int }

// Whoever takes part in a move is killed in each step of it: the move ends by itself, no
// key is ever served by two Sets, and no number is issued twice or lost. In the short form
// each participant is killed once, in a step that is drawn; in the long form in every step,
// and started again at once and only when the move is over.
//
// Some steps last milliseconds. A kill that is seen to have come too late is done again,
// and how many fell where they should is logged.
func TestAMoveOutlivesTheKillOfAnyParticipantInAnyStep(t *testing.T) {
	f := startSets(t, cluster.ProcessOptions{Sets: 3}, map[string]string{"part_keys": "300"})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const warm = 2000
	allocAll(t, f.client, warm, 1)
	c := clients{targets: f.targets(t, 4), keys: 100, rate: 50, timeout: 10 * time.Second}
	h := f.underLoad(t, c, func(s *stage) {
		f.move(t, "s1", "s2", halfOf(s.no))
		k := &moveKills{stage: s, at: "s2", rng: rand.New(rand.NewPCG(seed, 1)), starting: 50 * time.Millisecond, tries: map[string]*aim{}}
		k.custody = f.watchCustody(t, []uint64{5, s.no<<20 + 2}, "s1", "s2", "s3")
		if long() == 1 {
			for _, late := range []bool{false, true} {
				for _, step := range moveSteps {
					for _, who := range participants {
						k.inStep(who, step, late)
					}
				}
			}
		} else {
			steps := k.rng.Perm(len(moveSteps))
			for i, who := range participants {
				k.inStep(who, moveSteps[steps[i]], k.rng.IntN(2) == 0)
			}
		}
		// On the way back the directory's leader is the target's too.
		k.kill("directory leader", moveSteps[k.rng.IntN(len(moveSteps))], "s1", false)
		t.Logf("numbers by Set, asked directly: %v", k.custody.total)
		if k.custody.total["s2"] == 0 || k.custody.total["s3"] == 0 {
			t.Error("the watch over who serves has seen one Set only")
		}
		for _, step := range moveSteps {
			if a := k.tries[step]; a != nil {
				t.Logf("%-10s %d of %d kills fell in it", step, a.hits, a.kills)
			}
		}
	})
	// An owner that is back only after its lease has lost numbers as a lost machine
	// does, and declares them.
	if r := judge(t, h, check.Options{}); r.DeclaredGaps == 0 && long() == 0 {
		currentAll(t, f.client, warm, 1)
		allocAll(t, f.client, warm, 2)
	}
}

// inStep kills a participant in a step, and again if it was too late, a few times.
func (k *moveKills) inStep(who, step string, late bool) {
	k.t.Helper()
	const attempts = 2
	for range attempts + 2*long() {
		to := map[string]string{"s2": "s3", "s3": "s2"}[k.at]
		if k.kill(who, step, to, late) {
			return
		}
	}
}

// victim is the process to kill; nil for seqctl.
func (k *moveKills) victim(who, to string) *cluster.Process {
	k.t.Helper()
	switch who {
	case "source leader":
		return k.f.leaderOf(k.t, k.at)
	case "target leader":
		return k.f.leaderOf(k.t, to)
	case "directory leader":
		return k.f.leaderOf(k.t, "s1")
	case "source owner":
		return k.f.p.AllocsOf(k.at)[0]
	case "target owner":
		return k.f.p.AllocsOf(to)[0]
	}
	return nil
}

// kill moves everything to another Set by a seqctl of its own, and kills a participant in
// a step. It answers whether the move was in that step still when it was dead.
func (k *moveKills) kill(who, step, to string, late bool) (hit bool) {
	t, f := k.t, k.f
	t.Helper()
	from := k.at
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	victim := k.victim(who, to)
	w := f.watchMove(t, k.lastMove(ctx)+1, from, to)
	defer w.close()
	begin := time.Now()
	ctl := k.seqctl(ctx, "set", "move", "--from", from, "--to", to, "--all", "--yes", "--output", "json")
	defer ctl.end()
	w.ctl = ctl
	was, abort, in := k.reach(ctx, w, who, step)
	defer abort.end()
	if step != "prepare" && !w.seen.IsZero() {
		k.starting = w.seen.Sub(begin)
	}
	if in {
		fault := history.Fault{Name: "kill-" + strings.ReplaceAll(who, " ", "-")}
		if victim == nil {
			k.harm(fault, func() {
				must(t, ctl.kill())
				must(t, abort.kill())
				hit = w.stillIn(ctx, was)
			})
		} else {
			fault.Node = victim.ID
			if strings.HasSuffix(who, "owner") && late {
				fault.Losses = 1
			}
			k.harm(fault, func() {
				must(t, syscall.Kill(victim.PID(), syscall.SIGKILL))
				hit = w.stillIn(ctx, was)
				_ = victim.Wait(ctx)
				if !late {
					must(t, victim.StartReady(ctx))
				}
			})
		}
	}
	k.note(step, in, hit)
	m := k.outcome(ctx, w.id, ctl)
	if victim != nil && !victim.Running() {
		must(t, victim.StartReady(ctx))
	}
	if m == nil {
		t.Logf("%-16s killed in %-9s: no move was started: %s", who, step, strings.TrimSpace(ctl.err.String()))
		return hit
	}
	t.Logf("%-16s killed in %-9s (%s): move %d %s → %s ended %s after %d ms, %d parts%s",
		who, step, aimed(in, hit, was), m.Id, from, to, m.State, m.EndedMs-m.StartedMs, m.Parts, reason(m))
	k.told(ctl, m)
	k.settle(ctx, m)
	k.custody.oneOwner(begin, from, to)
	return hit
}

// reach waits for a step, and has the move aborted if that is the step. abort is the
// seqctl that does it, if one does.
func (k *moveKills) reach(ctx context.Context, w *moveWatch, who, step string) (was *seqpb.MoveStatus, abort *ctlRun, in bool) {
	parts := uint32(k.rng.IntN(4))
	switch {
	case step == "prepare":
		// What is asked and counted before a move starts is part of it, and all there is
		// for long enough to be hit.
		pause(k.t, time.Duration(k.rng.Int64N(int64(k.starting)*3/4)))
		return &seqpb.MoveStatus{State: step}, nil, true
	case step != "aborting":
		was, in = w.until(ctx, parts, step)
		return was, nil, in
	}
	// Between parts a move is aborted at once.
	if was, in = w.until(ctx, parts, "frozen", "sealed"); !in {
		return was, nil, false
	}
	if who == seqctlItself {
		abort = k.seqctl(ctx, "set", "abort", fmt.Sprint(w.id), "--yes")
		was, in = w.until(ctx, 0, step)
		return was, abort, in
	}
	rep, err := w.directory.SetAbort(ctx, &seqpb.SetAbortRequest{Id: w.id})
	must(k.t, err)
	return rep.Move, nil, rep.Move.GetState() == step
}

// outcome is how a move ended; nil if none was started, and seqctl has ended.
func (k *moveKills) outcome(ctx context.Context, id uint64, ctl *ctlRun) *seqpb.MoveStatus {
	k.t.Helper()
	const late = 2 * time.Second // a directory may be at work still for a seqctl that is gone
	var gone time.Time
	for ; k.lastMove(ctx) < id; pause(k.t, 10*time.Millisecond) {
		switch {
		case !ctl.over():
		case gone.IsZero():
			gone = time.Now()
		case time.Since(gone) > late:
			if !ctl.killed && ctl.wait() == nil {
				k.t.Errorf("seqctl says %s, and there is no move", ctl.out.String())
			}
			return nil
		}
	}
	if ctl.killed {
		k.tellsOf(ctx, id)
	}
	m, err := k.f.awaitMove(ctx, id)
	must(k.t, err)
	return m
}

// lastMove is the newest that there has been.
func (k *moveKills) lastMove(ctx context.Context) (id uint64) {
	k.t.Helper()
	for {
		err := k.f.setAdmin(func(c *rpc.SetAdminConn) (*seqpb.Refusal, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			rep, err := c.SetMoves(ctx, &seqpb.SetMovesRequest{})
			for _, m := range rep.GetMoves() {
				id = max(id, m.Id)
			}
			return rep.GetRefusal(), err
		})
		if err == nil {
			return id
		}
		if ctx.Err() != nil {
			k.t.Fatalf("the directory does not answer: %v", err)
		}
		pause(k.t, 20*time.Millisecond)
	}
}

func aimed(in, hit bool, was *seqpb.MoveStatus) string {
	switch {
	case !in:
		return "not seen"
	case !hit:
		return fmt.Sprintf("after %d parts, missed", was.Parts)
	}
	return fmt.Sprintf("after %d parts", was.Parts)
}

func (k *moveKills) note(step string, in, hit bool) {
	a := k.tries[step]
	if a == nil {
		a = &aim{}
		k.tries[step] = a
	}
	if in {
		a.kills++
	}
	if hit {
		a.hits++
	}
}

// settle takes what an aborted move left behind to where the rest is.
func (k *moveKills) settle(ctx context.Context, m *seqpb.MoveStatus) {
	k.t.Helper()
	k.at = m.To
	switch {
	case m.State == "done":
	case len(m.Moved) > 0:
		k.f.move(k.t, m.From, m.To, nil)
	default:
		k.at = m.From
	}
	k.owns(ctx, k.at)
}

// ctlRun is a seqctl at work. A nil one has never been started.
type ctlRun struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
	ended    chan struct{}
	status   error // valid once ended
	killed   bool
}

func (k *moveKills) seqctl(ctx context.Context, args ...string) *ctlRun {
	k.t.Helper()
	r := &ctlRun{ended: make(chan struct{})}
	servers := append(k.f.p.Addrs(), k.f.p.StoreAddrs()...)
	r.cmd = exec.CommandContext(ctx, program(k.t, "seqctl"), append([]string{"--server", strings.Join(servers, ","), "--timeout", "30s"}, args...)...)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	must(k.t, r.cmd.Start())
	go func() {
		defer close(r.ended)
		r.status = r.cmd.Wait()
	}()
	return r
}

// kill is no error when it has ended.
func (r *ctlRun) kill() error {
	if r == nil {
		return nil
	}
	r.killed = true
	if err := r.cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func (r *ctlRun) wait() error {
	<-r.ended
	return r.status
}

func (r *ctlRun) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// end leaves none behind.
func (r *ctlRun) end() {
	if r != nil {
		_ = r.kill()
		_ = r.wait()
	}
}

// told: seqctl, unless it was killed, said how the move ended, or that it goes on.
func (k *moveKills) told(r *ctlRun, m *seqpb.MoveStatus) {
	k.t.Helper()
	if r.killed {
		return
	}
	err := r.wait()
	var said struct{ ID, State string }
	switch text := r.err.String(); {
	case err == nil:
		if err := json.Unmarshal(r.out.Bytes(), &said); err != nil || said.ID != fmt.Sprint(m.Id) || said.State != m.State {
			k.t.Errorf("seqctl says %q of move %d, which ended %s: %v", r.out.String(), m.Id, m.State, err)
		}
	case m.State == "aborted" && strings.Contains(text, "was aborted"):
	case strings.Contains(text, "the move goes on"), strings.Contains(text, "the move may have started"):
		k.t.Logf("seqctl gave up: %s", text)
	default:
		k.t.Errorf("seqctl ended with %v, move %d with %s: %s", err, m.Id, m.State, text)
	}
}

// tellsOf: whoever asks after the move has lost its seqctl hears of it.
func (k *moveKills) tellsOf(ctx context.Context, id uint64) {
	k.t.Helper()
	r := k.seqctl(ctx, "set", "status", fmt.Sprint(id), "--output", "json")
	err := r.wait()
	var said struct{ ID, State string }
	if err != nil || json.Unmarshal(r.out.Bytes(), &said) != nil || said.ID != fmt.Sprint(id) || said.State == "" {
		k.t.Errorf("after its seqctl was killed the status of move %d is %v %s %s", id, err, r.out.String(), r.err.String())
	}
}

// owns: by the map, a Set has all of the keys that move.
func (k *moveKills) owns(ctx context.Context, set string) {
	k.t.Helper()
	must(k.t, k.f.setAdmin(func(c *rpc.SetAdminConn) (*seqpb.Refusal, error) {
		rep, err := c.SetList(ctx, &seqpb.SetListRequest{})
		if err != nil || rep.Refusal != nil {
			return rep.GetRefusal(), err
		}
		half := fmt.Sprintf("uid:0-%d", halfOf(k.no)[0].Last+1)
		for _, s := range rep.Sets {
			if has := slices.Contains(s.Ranges, half); has != (s.Name == set && set != "s1") {
				k.t.Errorf("set %s has %v, while %s should have %s", s.Name, s.Ranges, set, half)
			}
		}
		return nil, nil
	}))
}
