package state

import "github.com/seqsvr/seqsvr/sets"

// direct carries out a directory's command.
func (s *State) direct(index uint64, c Command) Reply {
	d := s.Meta.Directory
	if d == nil {
		return Reply{Refusal: RefusedDirectory, Detail: "this set does not have the directory: ask the one that has"}
	}
	var rep Reply
	var err error
	version := d.Map.Version
	switch c := c.(type) {
	case CreateSet:
		err = d.CreateSet(c.Name, c.Stores)
	case UpdateSet:
		err = d.UpdateSet(c.Name, c.Stores)
	case RetireSet:
		err = d.RetireSet(c.Name)
	case StartMove:
		rep.Move, err = d.StartMove(c.From, c.To, c.Ranges, s.Meta.Genesis.Spaces, c.NowMS)
	case OpenPart:
		err = d.OpenPart(c.Move, c.Part, c.Range)
	case CommitPart:
		err = d.CommitPart(c.Move, c.Part, c.Keys, c.Checksum, c.FrozenUS)
	case AbortPart:
		err = d.AbortPart(c.Move, c.Part, c.Reason)
	case EndPart:
		if err = d.EndPart(c.Move, c.Part, c.NowMS); err == nil && c.Next != (sets.Range{}) {
			// Refused when the move is being aborted, or goes on elsewhere: the driver sees that it is not open.
			_ = d.OpenPart(c.Move, c.Part+1, c.Next)
		}
	case AbortMove:
		err = d.AbortMove(c.Move, c.Reason, c.NowMS)
	}
	if err != nil {
		return Reply{Refusal: RefusedDirectory, Detail: sets.Text(err, s.Meta.Genesis.Spaces)}
	}
	if d.Map.Version != version {
		s.Meta.Published = d.Published
		s.Meta.RouteVersion = index
	}
	return rep
}

func (s *State) putMap(index uint64, p sets.Published) Refusal {
	if s.Meta.Directory != nil {
		return RefusedDirectory
	}
	if !s.validMap(p) {
		return RefusedInvalid
	}
	s.learn(index, p)
	return OK
}

// validMap: p is of this cluster's spaces.
func (s *State) validMap(p sets.Published) bool {
	return p.Map.Version == 0 && p.Validate() == nil ||
		p.Validate() == nil && p.Map.Validate(s.Meta.Genesis.Spaces) == nil
}

// learn keeps the newer map. The directory Set has none to learn.
func (s *State) learn(index uint64, p sets.Published) {
	if s.Meta.Directory == nil && p.Map.Version > s.Meta.Published.Map.Version {
		s.Meta.Published = p
		s.Meta.RouteVersion = index
	}
}

// newest is the newer one of p and the map that is known here.
func (s *State) newest(p sets.Published) *sets.Published {
	if p.Map.Version > s.Meta.Published.Map.Version {
		return &p
	}
	return &s.Meta.Published
}
