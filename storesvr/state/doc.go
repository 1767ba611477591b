// Package state is the durable tier's state machine: Apply(state, command) → reply.
//
// It is pure: no clock, no randomness, no I/O, no goroutine. Every replica
// that applies the same commands in the same order holds the same state.
//
// Invariant, per key: every number ≤ Floor was issued or is in the gap ledger;
// numbers in (Floor, Bound] may have been issued; none above Bound was.
// Floor == Bound means that nothing is at risk.
//
// The fence is here and nowhere else (fence.go): a command of an AllocSvr
// counts only if it comes from the present incarnation of the session, has a
// batch sequence above the last applied one, and, for each key or section it
// touches, names the section's present epoch, owned by that session. Uniqueness
// (G1) rests on this fence and on the bound being durable before a number is
// issued, never on a clock.
//
// # Moves between Sets
//
// Only the Set that has a key's position in its own Ranges, and has not frozen it,
// acquires, raises or advances the key (admitKey). No two Sets do so at once:
//   - The target gets a range only by Activate, and that believes nothing but a map:
//     the newest one known must give it the range. A Set drops a range together with
//     learning a map that says so, so no map older than that proves anything to it later.
//   - The map changes only by CommitPart, which follows a seal of that very part. From the
//     seal on the source serves nothing of the range until AbortPart, which excludes
//     CommitPart for ever, or until the range comes back by another part.
//   - While records come in for a part, the map gives this Set nothing of its range unless that
//     part was committed: so it may discard them on the word that the part was aborted or is
//     over, and may not (Discard) once it knows such a map. A target that was given up and comes
//     back when its move is forgotten rests on that: its own word was never waited for.
//   - Part numbers are used once, and each side keeps the newest it has heard of: a late or
//     repeated Freeze, Thaw, Seal, Import or Discard of an earlier part is refused, also of
//     one that was over before it ever arrived, since Thaw and Discard leave a mark behind.
//     A move that is over (MovesEnded) is refused whole.
//
// And the target knows every number that was issued:
//   - Whoever owns a section at the freeze may know more than the record, so the seal waits
//     until each has vacated or ended. A section that changes hands meanwhile changes nothing:
//     its next owner acquires nothing of the range. A session that resumes still waits,
//     or has closed and handed back all of it, which its arena knows.
//   - A session that ends while it waits is lost to the range too, and its holes are declared on
//     the way out. One that ends after it vacated is not (Outgoing.Vacated): its record stands at
//     its floor, before and after, so what was compared stays what it was.
//   - After it vacated, a session's hand-back may not say anything new (RefusedCur), and after the
//     range is gone it is not listened to (RefusedRange). One that arrives after the range came
//     back finds a record that is Moved, and changes nothing.
//   - Imports join by the higher floor. In whichever Set it is, a key's floor never falls, and
//     what is left of it in others is no higher: they gave away all they knew, and settle
//     leaves what is not theirs alone. Their epochs and bounds are void: a join rewrites
//     them, and the comparison before the seal does not overlook one.
//   - Preload brings records ahead of their part, so that the part has little left to
//     import. They are leftovers: an owner's record is out of their reach, and what is not
//     owned is compared with its owner's before the seal, whatever came into it.
//
// A Set that goes back to an older state than it has acted on is beyond this: a restored backup
// is a new cluster, and its Sets must be restored so that no range has two owners.
//
// What it does not do: decide who should own a section (storesvr/placement),
// or when a lease has run out (storesvr/lease). It only records such verdicts.
package state
