package sim

import (
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// brief says in a few words what a message holds.
func brief(body any) string {
	switch m := body.(type) {
	case *seqpb.AllocRequest:
		return fmt.Sprintf("%s %v %v n=%v", m.Space, m.Uids, m.Names, m.Counts)
	case *seqpb.AllocReply:
		s := fmt.Sprintf("first=%v", m.First)
		for _, d := range m.Discontinuities {
			s += fmt.Sprintf(" hole[%d]=%d..%d", d.Index, d.From, d.To)
		}
		for _, f := range m.Failures {
			s += fmt.Sprintf(" failed[%d]=%s(%s)", f.Index, f.Code, f.Message)
		}
		if len(m.Replayed) > 0 {
			s += fmt.Sprintf(" replayed=%v", m.Replayed)
		}
		return s
	case *seqpb.CurrentRequest:
		return fmt.Sprintf("%s %v %v", m.Space, m.Uids, m.Names)
	case *seqpb.CurrentReply:
		return fmt.Sprintf("%v failures=%d", m.Current, len(m.Failures))
	case *seqpb.ExecuteRequest:
		c, err := state.DecodeCommand(m.Batch)
		if err != nil {
			return err.Error()
		}
		b, _ := c.(state.Batch)
		s := fmt.Sprintf("session=%d.%d seq=%d", b.Session, b.Incarnation, b.Seq)
		for i, op := range b.Ops {
			if i == 8 {
				s += fmt.Sprintf(" … %d ops", len(b.Ops))
				break
			}
			switch op.Kind {
			case state.OpExtend:
				s += fmt.Sprintf(" extend(%s e%d cur=%d step=%d)", op.Key, op.Epoch, op.Cur, op.Step)
			case state.OpReturn:
				s += fmt.Sprintf(" return(%s e%d cur=%d)", op.Key, op.Epoch, op.Cur)
			case state.OpRelease:
				s += fmt.Sprintf(" release(section %d e%d)", op.Section, op.Epoch)
			}
		}
		return s
	case *seqpb.ExecuteReply:
		if m.Refusal != nil && m.Refusal.Code != seqpb.RefusalCode_REFUSAL_NONE {
			return fmt.Sprintf("refused %s", m.Refusal.Code)
		}
		r, err := state.DecodeReply(m.Outcome)
		if err != nil {
			return err.Error()
		}
		s := fmt.Sprintf("refusal=%d", r.Refusal)
		for i, o := range r.Results {
			if i == 8 {
				break
			}
			s += fmt.Sprintf(" (%d floor=%d bound=%d hole=%d..%d)", o.Refusal, o.Floor, o.Bound, o.HoleFrom, o.HoleTo)
		}
		return s
	case *seqpb.TakeWindowRequest:
		s := fmt.Sprintf("session %d to %d", m.FromSession, m.ToSession)
		for i, p := range m.Parts {
			if i == 8 {
				s += fmt.Sprintf(" … %d parts", len(m.Parts))
				break
			}
			s += fmt.Sprintf(" (section %d e%d %d/%d %d bytes)", p.Section, p.Epoch, p.Part+1, p.Parts, len(p.Window))
		}
		return s
	case *seqpb.TakeWindowReply:
		if m.Refusal != nil {
			return fmt.Sprintf("refused %s: %s", m.Refusal.Code, m.Refusal.Message)
		}
		return "taken"
	case *seqpb.SessionUp:
		switch {
		case m.Hello != nil:
			return fmt.Sprintf("hello %s resume=%d.%d", m.Hello.Node, m.Hello.ResumeSession, m.Hello.ResumeIncarnation)
		case m.Heartbeat != nil:
			return fmt.Sprintf("heartbeat %d directive=%d", m.Heartbeat.Number, m.Heartbeat.Directive)
		case m.Leaving != nil:
			return "leaving"
		}
	case *seqpb.SessionDown:
		s := ""
		if w := m.Welcome; w != nil {
			s += fmt.Sprintf("welcome session=%d.%d resumed=%v(%s) batch=%d ", w.Session, w.Incarnation, w.Resumed, w.NotResumed, w.BatchSeq)
		}
		if m.Ack != nil {
			s += fmt.Sprintf("ack %d ", m.Ack.Number)
		}
		if d := m.Directive; d != nil {
			s += fmt.Sprintf("directive %d sections=%v epochs=%v revoke=%v ", d.Version, d.Section, d.Epoch, d.Revoke)
		}
		if m.Routes != nil {
			s += "routes "
		}
		if m.Refusal != nil {
			s += fmt.Sprintf("refusal %s %s ", m.Refusal.Code, m.Refusal.Message)
		}
		if m.Goodbye != nil {
			s += "goodbye"
		}
		return s
	case *raft.AppendEntriesRequest:
		return fmt.Sprintf("term=%d prev=%d entries=%d commit=%d", m.Term, m.PrevLogEntry, len(m.Entries), m.LeaderCommitIndex)
	case nil:
		return ""
	}
	return fmt.Sprintf("%T", body)
}
