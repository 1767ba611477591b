package frame

import (
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// The generated type of each message says what its fields are; the numbers here
// are those of proto/seq.proto.

// AppendAllocRequest appends the message's encoding.
func AppendAllocRequest(b []byte, q *seqpb.AllocRequest) []byte {
	if q.Space != "" {
		b = appendString(b, 1, q.Space)
	}
	b = appendPacked(b, 2, q.Uids)
	for _, s := range q.Names {
		b = appendString(b, 3, s)
	}
	b = appendPacked(b, 4, q.Counts)
	for _, id := range q.RequestIds {
		b = appendString(b, 5, id)
	}
	b = appendUint(b, 6, q.MapVersion)
	b = appendUint(b, 7, q.SetVersion)
	return appendUint(b, 8, uint64(q.TimeoutMs))
}

// ParseAllocRequest reads a message into q, whose memory it uses again. Nothing
// in q refers to b.
func ParseAllocRequest(b []byte, q *seqpb.AllocRequest) error {
	space, uids, counts := q.Space, q.Uids[:0], q.Counts[:0]
	*q = seqpb.AllocRequest{Uids: uids, Counts: counts}
	f := fields{rest: b, ok: true}
	text := texts{body: b}
	for f.ok && f.next() {
		switch {
		case f.field == 1 && f.wire == wireBytes:
			q.Space = same(space, f.bytes)
		case f.field == 2 && f.wire == wireBytes:
			q.Uids, f.ok = packed(q.Uids, f.bytes)
		case f.field == 3 && f.wire == wireBytes:
			q.Names = append(q.Names, text.of(&f))
		case f.field == 4 && f.wire == wireBytes:
			q.Counts, f.ok = packed(q.Counts, f.bytes)
		case f.field == 5 && f.wire == wireBytes:
			q.RequestIds = append(q.RequestIds, append(make([]byte, 0, len(f.bytes)), f.bytes...))
		case f.field == 6 && f.wire == wireVarint:
			q.MapVersion = f.num
		case f.field == 7 && f.wire == wireVarint:
			q.SetVersion = f.num
		case f.field == 8 && f.wire == wireVarint && f.num <= 1<<32-1:
			q.TimeoutMs = uint32(f.num)
		default:
			f.ok = false
		}
	}
	if f.ok {
		return nil
	}
	*q = seqpb.AllocRequest{}
	return q.Unmarshal(b)
}

// AppendCurrentRequest appends the message's encoding.
func AppendCurrentRequest(b []byte, q *seqpb.CurrentRequest) []byte {
	if q.Space != "" {
		b = appendString(b, 1, q.Space)
	}
	b = appendPacked(b, 2, q.Uids)
	for _, s := range q.Names {
		b = appendString(b, 3, s)
	}
	b = appendUint(b, 4, q.MapVersion)
	b = appendUint(b, 5, q.SetVersion)
	return appendUint(b, 6, uint64(q.TimeoutMs))
}

// ParseCurrentRequest is like ParseAllocRequest.
func ParseCurrentRequest(b []byte, q *seqpb.CurrentRequest) error {
	space, uids := q.Space, q.Uids[:0]
	*q = seqpb.CurrentRequest{Uids: uids}
	f := fields{rest: b, ok: true}
	text := texts{body: b}
	for f.ok && f.next() {
		switch {
		case f.field == 1 && f.wire == wireBytes:
			q.Space = same(space, f.bytes)
		case f.field == 2 && f.wire == wireBytes:
			q.Uids, f.ok = packed(q.Uids, f.bytes)
		case f.field == 3 && f.wire == wireBytes:
			q.Names = append(q.Names, text.of(&f))
		case f.field == 4 && f.wire == wireVarint:
			q.MapVersion = f.num
		case f.field == 5 && f.wire == wireVarint:
			q.SetVersion = f.num
		case f.field == 6 && f.wire == wireVarint && f.num <= 1<<32-1:
			q.TimeoutMs = uint32(f.num)
		default:
			f.ok = false
		}
	}
	if f.ok {
		return nil
	}
	*q = seqpb.CurrentRequest{}
	return q.Unmarshal(b)
}

// AppendAllocReply appends the message's encoding.
func AppendAllocReply(b []byte, r *seqpb.AllocReply) ([]byte, error) {
	if len(r.Discontinuities) > 0 || len(r.Failures) > 0 || r.Routes != nil {
		return r.Marshal(b)
	}
	b = appendPacked(b, 1, r.First)
	b = appendPacked(b, 4, r.Replayed)
	b = appendUint(b, 5, r.WindowSinceMs)
	b = appendUint(b, 6, r.MapVersion)
	return appendUint(b, 7, r.SetVersion), nil
}

// ParseAllocReply reads a message into r, which is empty. Nothing in r refers to b.
func ParseAllocReply(b []byte, r *seqpb.AllocReply) error {
	f := fields{rest: b, ok: true}
	for f.ok && f.next() {
		switch {
		case f.field == 1 && f.wire == wireBytes:
			r.First, f.ok = packed(r.First, f.bytes)
		case f.field == 4 && f.wire == wireBytes:
			r.Replayed, f.ok = packed(r.Replayed, f.bytes)
		case f.field == 5 && f.wire == wireVarint:
			r.WindowSinceMs = f.num
		case f.field == 6 && f.wire == wireVarint:
			r.MapVersion = f.num
		case f.field == 7 && f.wire == wireVarint:
			r.SetVersion = f.num
		default:
			f.ok = false
		}
	}
	if f.ok {
		return nil
	}
	*r = seqpb.AllocReply{}
	return r.Unmarshal(b)
}

// AppendCurrentReply appends the message's encoding.
func AppendCurrentReply(b []byte, r *seqpb.CurrentReply) ([]byte, error) {
	if len(r.Failures) > 0 || r.Routes != nil {
		return r.Marshal(b)
	}
	b = appendPacked(b, 1, r.Current)
	b = appendUint(b, 3, r.MapVersion)
	return appendUint(b, 4, r.SetVersion), nil
}

// ParseCurrentReply is like ParseAllocReply.
func ParseCurrentReply(b []byte, r *seqpb.CurrentReply) error {
	f := fields{rest: b, ok: true}
	for f.ok && f.next() {
		switch {
		case f.field == 1 && f.wire == wireBytes:
			r.Current, f.ok = packed(r.Current, f.bytes)
		case f.field == 3 && f.wire == wireVarint:
			r.MapVersion = f.num
		case f.field == 4 && f.wire == wireVarint:
			r.SetVersion = f.num
		default:
			f.ok = false
		}
	}
	if f.ok {
		return nil
	}
	*r = seqpb.CurrentReply{}
	return r.Unmarshal(b)
}

// same is b as a string, which the last message's is if it reads the same.
func same(last string, b []byte) string {
	if last == string(b) {
		return last
	}
	return string(b)
}

// texts makes the strings of a message, all of one allocation.
type texts struct {
	body []byte
	all  string
}

func (t *texts) of(f *fields) string {
	if t.all == "" {
		t.all = string(t.body)
	}
	end := len(t.body) - len(f.rest)
	return t.all[end-len(f.bytes) : end]
}
