package rpc

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/seqsvr/seqsvr/proto/gen/descriptors"
)

// ask is a request of one field.
func ask(field uint64, value string) []byte { return appendField(nil, field, []byte(value)) }

// told takes the fields of one number out of a message.
func told(t *testing.T, m []byte, field uint64) (values [][]byte) {
	t.Helper()
	for len(m) > 0 {
		no, v, rest, err := nextField(m)
		if err != nil {
			t.Fatal(err)
		}
		if no == field {
			values = append(values, v)
		}
		m = rest
	}
	return values
}

func TestReflectionListsWhatIsServed(t *testing.T) {
	r := newReflection(Services{Seq: newFakeSeq()})
	rep, err := r.answer(ask(askServices, "*"))
	if err != nil {
		t.Fatal(err)
	}
	services := told(t, told(t, rep, tellServices)[0], 1)
	if len(services) != 1 || string(told(t, services[0], 1)[0]) != "seqsvr.v1.Seq" {
		t.Fatalf("%q", services)
	}
}

// What a tool is given must make a whole set of files that describes the symbol.
func TestReflectionGivesWholeFiles(t *testing.T) {
	r := newReflection(Services{})
	for _, f := range descriptors.Files {
		for _, q := range append([][]byte{ask(askFileByName, f.Name)}, asks(f.Symbols)...) {
			rep, err := r.answer(q)
			if err != nil {
				t.Fatal(err)
			}
			set := &descriptorpb.FileDescriptorSet{}
			for _, raw := range told(t, told(t, rep, tellFiles)[0], 1) {
				d := &descriptorpb.FileDescriptorProto{}
				if err := proto.Unmarshal(raw, d); err != nil {
					t.Fatal(err)
				}
				set.File = append(set.File, d)
			}
			if set.File[0].GetName() != f.Name {
				t.Fatalf("%q: answered %s first, want %s", q, set.File[0].GetName(), f.Name)
			}
			if _, err := protodesc.NewFiles(set); err != nil {
				t.Fatalf("%q: %v", q, err)
			}
		}
	}
}

func asks(symbols []string) (all [][]byte) {
	for _, s := range symbols {
		all = append(all, ask(askFileOfSymbol, s))
	}
	return all
}

func TestReflectionKnowsEveryService(t *testing.T) {
	var all []string
	for _, f := range descriptors.Files {
		all = append(all, f.Symbols...)
	}
	for _, s := range allServices(Services{}) {
		if !slices.Contains(all, s.name) {
			t.Errorf("no file defines %s", s.name)
		}
	}
}

func TestReflectionRefusesWhatItDoesNotKnow(t *testing.T) {
	r := newReflection(Services{})
	for _, q := range [][]byte{ask(askFileByName, "nope.proto"), ask(askFileOfSymbol, "seqsvr.v1.Nope"), ask(askExtensions, "x"), ask(askExtension, "")} {
		rep, err := r.answer(q)
		if err != nil || len(told(t, rep, tellError)) != 1 || len(told(t, rep, tellFiles)) != 0 {
			t.Errorf("%q: %q %v", q, rep, err)
		}
	}
	for _, q := range []string{"", "\x80", "\x1a\x7f", "\x1b", "\x0a\x01h"} {
		if rep, err := r.answer([]byte(q)); err == nil {
			t.Errorf("%q: answered %q", q, rep)
		}
	}
}

func FuzzReflection(f *testing.F) {
	f.Add(ask(askServices, "*"))
	f.Add(ask(askFileByName, "seq.proto"))
	r := newReflection(Services{})
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = r.answer(b) })
}

func TestGrpcurlListsAndDescribes(t *testing.T) {
	grpcurl, err := exec.LookPath("grpcurl")
	if err != nil {
		t.Skip("grpcurl is not on the PATH")
	}
	s, err := Listen("127.0.0.1:0", Services{Seq: newFakeSeq()}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Stop(t.Context()) }()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"list"}, "seqsvr.v1.Seq"},
		{[]string{"list", "seqsvr.v1.Seq"}, "seqsvr.v1.Seq.Alloc"},
		{[]string{"describe", "seqsvr.v1.AllocReply"}, "repeated .seqsvr.v1.Discontinuity discontinuities"},
	} {
		out, err := exec.Command(grpcurl, append([]string{"-plaintext", s.Addr().String()}, c.args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("grpcurl %q: %s %v", c.args, out, err)
		}
	}
}
