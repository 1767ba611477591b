package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// parseSpaces reads NAME:uid[:MAX_UID] and NAME:name. Their order gives the
// ids, so it must not change once a cluster is founded.
func parseSpaces(texts []string) ([]ids.Space, error) {
	var spaces []ids.Space
	seen := map[string]bool{}
	for i, text := range texts {
		parts := strings.Split(text, ":")
		if len(parts) < 2 {
			return nil, fmt.Errorf("%q: want NAME:uid[:MAX_UID] or NAME:name", text)
		}
		if err := name(parts[0]); err != nil {
			return nil, fmt.Errorf("%q: the name: %w", text, err)
		}
		kind, err := ids.ParseKind(parts[1])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		s := ids.Space{ID: ids.SpaceID(i + 1), Name: parts[0], Kind: kind}
		switch {
		case kind == ids.KindUID && len(parts) == 2:
			s.MaxUID = ids.DefaultMaxUID
		case kind == ids.KindUID && len(parts) == 3:
			if s.MaxUID, err = strconv.ParseUint(parts[2], 10, 64); err != nil {
				return nil, fmt.Errorf("%q: %q is no uid", text, parts[2])
			}
		case len(parts) > 2:
			return nil, fmt.Errorf("%q: too many parts", text)
		}
		if seen[s.Name] {
			return nil, fmt.Errorf("%q: a space %q is listed before it: each name once", text, s.Name)
		}
		seen[s.Name] = true
		spaces = append(spaces, s)
	}
	return spaces, nil
}

func spaceTexts(spaces []ids.Space) []string {
	var texts []string
	for _, s := range spaces {
		t := s.Name + ":" + s.Kind.String()
		if s.Kind == ids.KindUID {
			t += ":" + strconv.FormatUint(s.MaxUID, 10)
		}
		texts = append(texts, t)
	}
	return texts
}
