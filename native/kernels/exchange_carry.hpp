// SPDX-License-Identifier: Apache-2.0
// The kernels beside a copy engine (docs/GPU.md, "carried"): it moves pieces into landing slots of the receiver, while
// `hp_gate` (one warp) raises flags, waits for flags and credits, and exchanges fingerprints; `hp_land` folds a piece
// where it landed, or copies it on; `hp_pack` casts what is to be sent. So waiting takes one warp of the chip.
// Counters are by slot and peer and go on across calls and replays of a graph. Included by exchange.hpp, once a variant.

namespace hp::HP_VARIANT {

constexpr u32 kLandAtOnce = HP_SIZE <= 2 ? 4 : HP_SIZE <= 4 ? 2 : 1;  // vectors of each source that a thread has under way

HP_DEV u32* land_word(const HpExchange& x, u32 owner, u64 offset, u32 peer, u32 slot) {
  return reinterpret_cast<u32*>(at(x.scratch[owner]) + offset) + peer * HP_LAND_SLOTS + slot;
}
HP_DEV char* landing(const HpExchange& x, u64 offset, u32 from, u32 to, u32 slot, u32 owner) {
  return at(x.scratch[owner]) + offset + (u64(row(from, to)) * HP_LAND_SLOTS + slot) * x.land_bytes;
}

HP_DEV void wait_word(const HpExchange& x, u32* counter, u32 least, u32 peer, bool acquires) {
  Patience patience;
  while (i32(relaxed(counter) - least) < 0)
    if (give_up(x, patience, peer)) return;
  if (acquires) acquire(counter);
}

// One thread for each peer. What it tells comes before what it waits for.
HP_DEV void gate(const HpExchange& x, const Place& here) {
  const u32 rank = x.rank, p = here.thread;
  if (here.block || p >= HP_SIZE || p == rank) return;
  const bool speaks = x.heads && (x.peers >> p & 1);
  u32 head = 0;
  if (speaks) head = send_head(x, p);
  if (x.told >> p & 1) {  // the copies of that slot have ended
    u32* sent = land_word(x, rank, x.off_land_sent, p, x.told_slot);
    const u32 count = *sent + 1;
    release(land_word(x, p, x.off_land_flag, rank, x.told_slot), count);
    set(sent, count);
  }
  if (x.credit >> p & 1)  // the slot there is free
    wait_word(x, land_word(x, rank, x.off_land_credit, p, x.slot), *land_word(x, rank, x.off_land_sent, p, x.slot), p, false);
  if (x.land_to >> p & 1) {  // our own is sent, and may be overwritten
    u32* passed = land_word(x, rank, x.off_land_passed, p, x.slot);
    const u32 count = *passed + 1;
    wait_word(x, land_word(x, rank, x.off_land_sent, p, x.slot), count, rank, false);
    *passed = count;
  }
  if (x.land_from >> p & 1)
    wait_word(x, land_word(x, rank, x.off_land_flag, p, x.slot), *land_word(x, rank, x.off_land_got, p, x.slot) + 1, p, true);
  if (speaks) check_head(x, p, head);
}

HP_DEV void fold_landed(const HpExchange& x, u64 first, u64 step) {
  const u32 rank = x.rank;
  const u64 n = x.own_n, whole = n / kPerVector;
  const bool aligned = is_aligned(x.own_from | x.own_to);
  for (u64 base = first; base < vectors(n); base += kLandAtOnce * step) {
    Vec c[HP_SIZE][kLandAtOnce];
    const bool plain = aligned && base + (kLandAtOnce - 1) * step < whole;
#pragma unroll
    for (u32 r = 0; r < HP_SIZE; ++r) {
      const char* from = r == rank ? nullptr : landing(x, x.off_land, r, rank, x.slot, rank);
#pragma unroll
      for (u32 u = 0; u < kLandAtOnce; ++u) {
        const u64 i = base + u * step;
        if (!plain && i >= vectors(n)) continue;
        if (r != rank)
          c[r][u] = load_slot(from + i * 16);
        else
          c[r][u] = plain ? load_own_plain(at(x.own_from), i) : load_own(at(x.own_from), i, n);
      }
    }
#pragma unroll
    for (u32 u = 0; u < kLandAtOnce; ++u) {
      const u64 i = base + u * step;
      if (!plain && i >= vectors(n)) continue;
      Fold fold;
#pragma unroll
      for (u32 r = 0; r < HP_SIZE; ++r) fold.add(c[r][u], r == 0);
      if (plain)
        fold.store_plain(at(x.own_to), i);
      else
        fold.store(at(x.own_to), i, n);
    }
  }
}

HP_DEV void copy_landed(char* to, const char* from, bool slot, u64 n, u64 first, u64 step) {
  for (u64 base = first; base < vectors(n); base += 4 * step) {
    Vec v[4];
#pragma unroll
    for (u32 u = 0; u < 4; ++u) {
      const u64 i = base + u * step;
      if (i < vectors(n)) v[u] = slot ? load_slot(from + i * 16) : load_own(from, i, n);
    }
#pragma unroll
    for (u32 u = 0; u < 4; ++u) {
      const u64 i = base + u * step;
      if (i < vectors(n)) store_plain(to, i, n, v[u]);
    }
  }
}

// The last block to end gives the slot back: loads have come home by then, as their values were used.
HP_DEV void land(const HpExchange& x, const Place& here) {
  const u32 rank = x.rank;
  const u64 first = u64(here.block) * here.threads + here.thread, step = u64(here.blocks) * here.threads;
  if constexpr (kFold) {
    fold_landed(x, first, step);
  } else {
    if (x.own_from != x.own_to) copy_landed(at(x.own_to), at(x.own_from), false, x.own_n, first, step);
    for (u32 r = 0; r < HP_SIZE; ++r)
      if (r != rank && (x.land_from >> r & 1))
        copy_landed(at(x.recv[r]), landing(x, x.off_land, r, rank, x.slot, rank), true, x.recv_n[r], first, step);
  }
  here.meet();
  if (here.thread != 0) return;
  u32* done = land_word(x, rank, x.off_land_done, 0, x.slot);
  if (add(done, 1) + 1 != here.blocks) return;
  set(done, 0);
  for (u32 r = 0; r < HP_SIZE; ++r)
    if (x.land_from >> r & 1) {
      u32* got = land_word(x, rank, x.off_land_got, r, x.slot);
      set(got, *got + 1);
      set(land_word(x, r, x.off_land_credit, rank, x.slot), *got);
    }
}

// Elements that travel in another type are cast into a slot of our own, from which they are copied.
HP_DEV void pack_slots(const HpExchange& x, const Place& here) {
  const u64 first = u64(here.block) * here.threads + here.thread, step = u64(here.blocks) * here.threads;
  for (u32 p = 0; p < HP_SIZE; ++p)
    if (x.land_to >> p & 1) {
      char* to = landing(x, x.off_pack, x.rank, p, x.slot, x.rank);
      for (u64 i = first; i < vectors(x.send_n[p]); i += step) store_vector(to + i * 16, load_own(at(x.send[p]), i, x.send_n[p]));
    }
}

}  // namespace hp::HP_VARIANT
