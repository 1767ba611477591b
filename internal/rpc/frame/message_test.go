package frame

import (
	"bytes"
	"math"
	"testing"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

var (
	allocRequests = []*seqpb.AllocRequest{
		{},
		{Space: "uid", Uids: []uint64{0}, TimeoutMs: 90},
		{Space: "uid", Uids: []uint64{0, 1, 127, 128, math.MaxUint32, math.MaxUint64}, Counts: []uint32{1, 2, math.MaxUint32}, MapVersion: 1, SetVersion: 1 << 63, TimeoutMs: math.MaxUint32},
		{Space: "conv", Names: []string{"", "a", "si_1001_1002"}, RequestIds: [][]byte{{}, []byte("0123456789abcdef")}},
	}
	currentRequests = []*seqpb.CurrentRequest{
		{},
		{Space: "uid", Uids: []uint64{5, 1 << 40}, MapVersion: 3, SetVersion: 4, TimeoutMs: 5},
		{Space: "conv", Names: []string{"x", ""}},
	}
	allocReplies = []*seqpb.AllocReply{
		{},
		{First: []uint64{1, 0, math.MaxInt64}, Replayed: []uint32{0, 2}, WindowSinceMs: 1, MapVersion: 2, SetVersion: 3},
		{First: []uint64{0, 9}, Failures: []*seqpb.Failure{{Code: seqpb.Code_CODE_NOT_OWNER, OwnerAddr: "b:1"}}},
		{First: []uint64{9}, Discontinuities: []*seqpb.Discontinuity{{From: 1, To: 8}}, Routes: &seqpb.RouteTable{Cluster: "c"}},
	}
	currentReplies = []*seqpb.CurrentReply{
		{},
		{Current: []uint64{0, 7}, MapVersion: 1, SetVersion: 2},
		{Current: []uint64{0}, Failures: []*seqpb.Failure{{Index: 0, Code: seqpb.Code_CODE_BUSY}}},
		{Routes: &seqpb.RouteTable{MapVersion: 3}},
	}
)

// codec is one message's two codecs.
type codec[M any] struct {
	append    func([]byte, *M) ([]byte, error)
	parse     func([]byte, *M) error
	marshal   func(*M, []byte) ([]byte, error)
	unmarshal func(*M, []byte) error
	// used is a message whose memory a parse may use again.
	used func() *M
}

var (
	allocRequestCodec = codec[seqpb.AllocRequest]{
		func(b []byte, m *seqpb.AllocRequest) ([]byte, error) { return AppendAllocRequest(b, m), nil },
		ParseAllocRequest, (*seqpb.AllocRequest).Marshal, (*seqpb.AllocRequest).Unmarshal,
		func() *seqpb.AllocRequest {
			return &seqpb.AllocRequest{Space: "uid", Uids: []uint64{9, 9}, Names: []string{"old"}, Counts: []uint32{7}, RequestIds: [][]byte{{1}}, MapVersion: 9, SetVersion: 9, TimeoutMs: 9}
		},
	}
	currentRequestCodec = codec[seqpb.CurrentRequest]{
		func(b []byte, m *seqpb.CurrentRequest) ([]byte, error) { return AppendCurrentRequest(b, m), nil },
		ParseCurrentRequest, (*seqpb.CurrentRequest).Marshal, (*seqpb.CurrentRequest).Unmarshal,
		func() *seqpb.CurrentRequest {
			return &seqpb.CurrentRequest{Space: "uid", Uids: []uint64{9, 9}, Names: []string{"old"}, MapVersion: 9, SetVersion: 9, TimeoutMs: 9}
		},
	}
	allocReplyCodec = codec[seqpb.AllocReply]{
		AppendAllocReply, ParseAllocReply, (*seqpb.AllocReply).Marshal, (*seqpb.AllocReply).Unmarshal,
		func() *seqpb.AllocReply { return &seqpb.AllocReply{} },
	}
	currentReplyCodec = codec[seqpb.CurrentReply]{
		AppendCurrentReply, ParseCurrentReply, (*seqpb.CurrentReply).Marshal, (*seqpb.CurrentReply).Unmarshal,
		func() *seqpb.CurrentReply { return &seqpb.CurrentReply{} },
	}
)

func agrees[M any](t *testing.T, c codec[M], m *M) {
	t.Helper()
	b, err := c.append([]byte("before"), m)
	if err != nil {
		t.Fatal(err)
	}
	b = b[len("before"):]
	var theirs M
	if err := c.unmarshal(&theirs, b); err != nil {
		t.Fatalf("the generated codec cannot read %+v: %v", m, err)
	}
	g, err := c.marshal(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	ours := c.used()
	if err := c.parse(g, ours); err != nil {
		t.Fatalf("cannot read %+v: %v", m, err)
	}
	for i := range g {
		g[i] = 0xff // nothing may refer to it
	}
	var again M
	if g, err = c.marshal(ours, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.unmarshal(&again, g); err != nil {
		t.Fatal(err)
	}
	if !equalDeep(m, &theirs) || !equalDeep(m, &again) {
		t.Errorf("%+v: the generated codec reads %+v, ours %+v", m, &theirs, &again)
	}
}

// equalDeep compares by the generated encoding, which follows pointers.
func equalDeep[M any](a, b *M) bool {
	x, errX := any(a).(interface{ Marshal([]byte) ([]byte, error) }).Marshal(nil)
	y, errY := any(b).(interface{ Marshal([]byte) ([]byte, error) }).Marshal(nil)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func TestMessagesAreThoseOfTheGeneratedCodec(t *testing.T) {
	for _, m := range allocRequests {
		agrees(t, allocRequestCodec, m)
	}
	for _, m := range currentRequests {
		agrees(t, currentRequestCodec, m)
	}
	for _, m := range allocReplies {
		agrees(t, allocReplyCodec, m)
	}
	for _, m := range currentReplies {
		agrees(t, currentReplyCodec, m)
	}
}

// sameReading holds that both codecs read the same out of any bytes, or both refuse.
func sameReading[M any](t *testing.T, c codec[M], b []byte) {
	t.Helper()
	ours, theirs := c.used(), new(M)
	errOurs, errTheirs := c.parse(bytes.Clone(b), ours), c.unmarshal(theirs, bytes.Clone(b))
	if (errOurs == nil) != (errTheirs == nil) {
		t.Fatalf("%x: ours says %v, the generated codec %v", b, errOurs, errTheirs)
	}
	if errOurs == nil && !equalDeep(ours, theirs) {
		t.Fatalf("%x: we read %+v, the generated codec %+v", b, ours, theirs)
	}
}

func FuzzMessages(f *testing.F) {
	for _, m := range allocRequests {
		b, _ := m.Marshal(nil)
		f.Add(b)
	}
	for _, m := range currentRequests {
		b, _ := m.Marshal(nil)
		f.Add(b)
	}
	for _, m := range allocReplies {
		b, _ := m.Marshal(nil)
		f.Add(b)
	}
	for _, m := range currentReplies {
		b, _ := m.Marshal(nil)
		f.Add(b)
	}
	f.Add([]byte{0x10, 5, 0x10, 6})                   // uids, not packed
	f.Add([]byte{0x40, 0x80, 0x80, 0x80, 0x80, 0x10}) // a time-out of 33 bits
	f.Add([]byte{0x0a, 1, 'a', 0x0a, 1, 'b'})         // a space twice
	f.Fuzz(func(t *testing.T, b []byte) {
		sameReading(t, allocRequestCodec, b)
		sameReading(t, currentRequestCodec, b)
		sameReading(t, allocReplyCodec, b)
		sameReading(t, currentReplyCodec, b)
	})
}

func TestReadingAWarmRequestAllocatesNothing(t *testing.T) {
	b := AppendAllocRequest(nil, &seqpb.AllocRequest{Space: "uid", Uids: []uint64{1, 2, 3}, MapVersion: 1, SetVersion: 2, TimeoutMs: 90})
	q := &seqpb.AllocRequest{}
	if n := testing.AllocsPerRun(100, func() {
		if err := ParseAllocRequest(b, q); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
