package wire

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	spacesMax  = 1024
	maxSpaceID = 1<<16 - 1
)

// Spaces is the message form of spaces.
func Spaces(spaces []ids.Space) []*seqpb.Space {
	if len(spaces) == 0 {
		return nil
	}
	out := make([]*seqpb.Space, 0, len(spaces))
	for _, s := range spaces {
		out = append(out, &seqpb.Space{Id: uint32(s.ID), Name: s.Name, Kind: s.Kind.String(), MaxUid: s.MaxUID})
	}
	return out
}

// ParseSpaces reads spaces; their names and ids are unique. The error is a *MalformedError.
func ParseSpaces(pb []*seqpb.Space) ([]ids.Space, error) {
	if len(pb) > spacesMax {
		return nil, malformed("spaces", "%d, at most %d are read", len(pb), spacesMax)
	}
	var out []ids.Space
	names, numbers := make(map[string]bool, len(pb)), make(map[uint32]bool, len(pb))
	for _, s := range pb {
		if s == nil || s.Id == 0 || s.Id > maxSpaceID || s.Name == "" || len(s.Name) > textBytesMax {
			return nil, malformed("spaces", "one has no id in [1, %d] or no name of at most %d bytes", maxSpaceID, textBytesMax)
		}
		if names[s.Name] || numbers[s.Id] {
			return nil, malformed("spaces", "%q (%d) is listed twice", s.Name, s.Id)
		}
		names[s.Name], numbers[s.Id] = true, true
		kind, err := ids.ParseKind(s.Kind)
		if err != nil {
			return nil, malformed("spaces", "%q: %v", s.Name, err)
		}
		out = append(out, ids.Space{ID: ids.SpaceID(s.Id), Name: s.Name, Kind: kind, MaxUID: s.MaxUid})
	}
	return out, nil
}
