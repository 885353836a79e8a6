// SPDX-License-Identifier: Apache-2.0
// The exchange kernels: every collective is "send something to each peer, and copy or fold what comes from each".
// `hp_small` (latency): 16-byte lines of {data, flag, data, flag} stored straight into the peer's memory; each half
// of a line proves itself, so there is no fence and no second message. `hp_large` (bandwidth): one FIFO of tiles for
// each pair of warps and ordered pair of ranks, in slots of the receiver's memory, with a flag forth and a credit back.
// exchange_carry.hpp has those that work beside a copy engine.
// Compiled at run time for a GPU with HP_SIZE ranks, HP_ELEM and HP_WIRE element types (DType), HP_OP (ReduceOp, or -1: copy bytes);
// compiled for the host (HP_HOST) with one lane a warp, each warp a thread. docs/GPU.md explains the protocols.
// May be included several times, with other numbers and another HP_VARIANT (a namespace).
#ifdef HP_HOST
#include "exchange_host.hpp"
#else
#include "exchange_device.hpp"
#endif
#include "exchange_elements.hpp"

namespace hp::HP_VARIANT {

constexpr u32 kUnroll = 8;                             // vectors of 16 bytes a lane and batch
constexpr u32 kBatchVectors = kUnroll * kLanes;
constexpr u32 kBatchBytes = kBatchVectors * 16;
constexpr u32 kMaxTakers = 3;                          // for one block that pushes
constexpr u32 kFifoBytes = 16 * kBatchBytes;           // slots * batches is at most 16
constexpr bool kFold = HP_OP >= 0;
constexpr u32 kRanksUnrolled = HP_SIZE <= 4 ? HP_SIZE : 1;
constexpr u32 kSmallBlockBytes = 64 * 1024;            // lines of one block, source and parity
constexpr u32 kAtOnce = HP_SIZE <= 2 ? 4 : HP_SIZE <= 4 ? 2 : 1;  // vectors that a lane folds at a time

HP_DEV char* at(u64 address) { return reinterpret_cast<char*>(address); }
HP_DEV u64 vectors(u64 n) { return (n + kPerVector - 1) / kPerVector; }
// Row of `from` among the sources of `to`.
HP_DEV u32 row(u32 from, u32 to) { return (from + HP_SIZE - to - 1) % HP_SIZE; }

struct Patience {
  u32 spins = 0;
  u64 since = 0;
};

// The first to find something wrong writes the report; all others of this rank see `dead` and leave.
HP_DEV void tell(const HpExchange& x, u32 code, u32 peer, u64 ours, u64 theirs, u64 waited_ns) {
  u32* dead = reinterpret_cast<u32*>(at(x.scratch[x.rank]) + x.off_dead);
  if (!first_to_set(dead)) return;
  HpReport* report = reinterpret_cast<HpReport*>(x.report);
  report->peer = peer;
  report->ours = ours;
  report->theirs = theirs;
  report->waited_ns = waited_ns;
  release(&report->code, code);
}

// Called while waiting: true once there is no point in waiting longer.
HP_DEV bool give_up(const HpExchange& x, Patience& p, u32 peer) {
  breathe();
  if (++p.spins & (kSpinsBetweenLooks - 1)) return false;
  if (relaxed(reinterpret_cast<u32*>(at(x.scratch[x.rank]) + x.off_dead))) return true;
  const u64 now = clock_ns();
  if (!p.since) p.since = now;
  const u64 waited = now - p.since;
  if (!(p.spins & (16 * kSpinsBetweenLooks - 1)) && relaxed(&reinterpret_cast<HpReport*>(x.report)->abort)) {
    tell(x, HP_ABORTED, peer, 0, 0, waited);
    return true;
  }
  if (waited < x.timeout_ns) return false;
  tell(x, HP_TIMEOUT, peer, 0, 0, waited);
  return true;
}

// Fingerprints of the call, to and from each peer, beside the data: lanes 0..n-1 of block 0.
HP_DEV u32 send_head(const HpExchange& x, u32 p) {
  u32 seq = *reinterpret_cast<u32*>(at(x.scratch[x.rank]) + x.off_head_seq + p * 4) + 1;
  if (seq == 0) seq = 2;
  const u64 say = x.say[p];
  store_line(at(x.scratch[p]) + x.off_head + ((seq & 1) * HP_MAX_RANKS + x.rank) * 16, u32(say), u32(say >> 32), seq);
  return seq;
}

HP_DEV void check_head(const HpExchange& x, u32 p, u32 seq) {
  char* mine = at(x.scratch[x.rank]);
  Patience patience;
  const char* line = mine + x.off_head + ((seq & 1) * HP_MAX_RANKS + p) * 16;
  Vec v;
  for (;;) {
    v = load_line(line);
    if (v.y == seq && v.w == seq) break;
    if (give_up(x, patience, p)) return;
  }
  *reinterpret_cast<u32*>(mine + x.off_head_seq + p * 4) = seq;
  const u64 theirs = u64(v.x) | u64(v.z) << 32;
  if (theirs != x.expect[p]) tell(x, HP_DESYNC, p, x.expect[p], theirs, 0);
}

// ---- small ------------------------------------------------------------------------------------------------------

HP_DEV void send_lines(char* a, u32 stride, const Vec& v, u32 seq) {
  store_line(a, v.x, v.y, seq);
  store_line(a + stride, v.z, v.w, seq);
}

HP_DEV bool receive_lines(const HpExchange& x, const char* a, u32 stride, u32 seq, u32 peer, Patience& p, Vec& out) {
  for (;;) {
    const Vec first = load_line(a), second = load_line(a + stride);
    if (first.y == seq && first.w == seq && second.y == seq && second.w == seq) {
      out.x = first.x, out.y = first.z, out.z = second.x, out.w = second.z;
      return true;
    }
    if (give_up(x, p, peer)) return false;
  }
}

// Every block exchanges at least one line with the same block of every peer in every call, also where it has no data.
// So whoever starts call s+2 knows that all peers have started s+1, and are done with the lines of s, whose place the
// lines of s+2 take: two halves by parity are enough. Counters are the block's own and live in device memory, where
// replays of a graph advance them.
HP_DEV void small(const HpExchange& x, const Place& here) {
  const u32 rank = x.rank, tid = here.thread, threads = here.threads, step = here.blocks * threads;
  char* mine = at(x.scratch[rank]);
  u32* counter = reinterpret_cast<u32*>(mine + x.off_small_seq) + here.block;
  u32 seq = *counter + 1;
  if (seq == 0) seq = 2;
  const u64 half = u64(seq & 1) * (HP_SIZE - 1);
  const u32 stride = threads * 16;
  const u64 first = u64(here.block) * threads + tid;
  const bool speaks = here.block == 0 && tid < HP_SIZE && tid != rank && (x.peers >> tid & 1);
  u32 head = 0;
  if (speaks) head = send_head(x, tid);

  for (u32 j = 0; j < x.rounds; ++j) {
    const u64 i = first + u64(j) * step;
    const u32 place = (j * 2 * threads + tid) * 16;
#pragma unroll
    for (u32 d = 1; d < HP_SIZE; ++d) {
      const u32 p = (rank + d) % HP_SIZE;
      const u64 n = x.send_n[p];
      const bool data = i < vectors(n);
      if (!data && (j | tid)) continue;
      Vec v = {};
      if (data) v = load_own(at(x.send[p]), i, n);
      const u64 area = (half + row(rank, p)) * x.max_blocks + here.block;
      send_lines(at(x.scratch[p]) + x.off_small + area * kSmallBlockBytes + place, stride, v, seq);
    }
  }

  Patience patience;
  bool alive = true;
  for (u32 j = 0; alive && j < x.rounds; ++j) {
    const u64 i = first + u64(j) * step;
    const u32 place = (j * 2 * threads + tid) * 16;
    const bool own = i < vectors(x.own_n);
    Vec kept = {};
    if (own) kept = load_own(at(x.own_from), i, x.own_n);
    Fold fold;
#pragma unroll
    for (u32 r = 0; r < HP_SIZE; ++r) {
      if (r == rank) {
        if (kFold && own) fold.add(kept, r == 0);
        continue;
      }
      const u64 n = x.recv_n[r];
      const bool data = i < vectors(n);
      if (!data && (j | tid)) continue;
      Vec v;
      const u64 area = (half + row(r, rank)) * x.max_blocks + here.block;
      if (!receive_lines(x, mine + x.off_small + area * kSmallBlockBytes + place, stride, seq, r, patience, v)) {
        alive = false;
        break;
      }
      if (!data) continue;
      if (kFold)
        fold.add(v, r == 0);
      else
        store_plain(at(x.recv[r]), i, n, v);
    }
    if (alive && own) {
      if (kFold)
        fold.store(at(x.own_to), i, x.own_n);
      else if (x.own_from != x.own_to)
        store_plain(at(x.own_to), i, x.own_n, kept);
    }
  }
  if (speaks) check_head(x, tid, head);
  here.meet();  // all have read the counter
  if (tid == 0) *counter = seq;
}

// ---- large ------------------------------------------------------------------------------------------------------

// Blocks come in teams: one that pushes, then x.takers that take. They are apart because loads that wait behind stores
// to a peer in one multiprocessor slow both; they are neighbours so that any few blocks that run can finish. Each warp
// that takes has FIFOs of its own, one for each source; warp w of the block that pushes serves warp w of its takers.
HP_DEV u32 warps(const Place& here) { return here.threads / kLanes; }
HP_DEV u32 fifo_of(const HpExchange& x, const Place& here, u32 taker) {
  return (here.block / (x.takers + 1) * x.takers + taker) * warps(here) + here.thread / kLanes;
}
HP_DEV u64 tile_start(const HpExchange& x, const Place& here, u32 fifo, u32 k) {
  const u64 fifos = u64(here.blocks / (x.takers + 1)) * x.takers * warps(here);
  return (k * fifos + fifo) * x.batches * kBatchVectors;
}

HP_DEV u32* word(const HpExchange& x, u32 owner, u64 offset, u32 column, u32 fifo) {
  return reinterpret_cast<u32*>(at(x.scratch[owner]) + offset) + column * x.max_fifos + fifo;
}

HP_DEV char* slot(const HpExchange& x, u32 from, u32 to, u32 fifo, u32 count) {
  return at(x.scratch[to]) + x.off_ring + (u64(row(from, to)) * x.max_fifos + fifo) * kFifoBytes +
         count % x.slots * x.batches * kBatchBytes;
}

// One lane looks, all learn. Looking is relaxed, for an acquire costs the whole multiprocessor its first cache.
HP_DEV bool wait_for(const HpExchange& x, u32* counter, u32 least, u32 peer, u32 lane, bool acquires, u32& seen) {
  u32 ok = 1;
  if (lane == 0) {
    Patience patience;
    for (;;) {
      seen = relaxed(counter);
      if (i32(seen - least) >= 0) {
        if (acquires) acquire(counter);
        break;
      }
      if (give_up(x, patience, peer)) {
        ok = 0;
        break;
      }
    }
  }
  return all_learn(ok);
}

// In place, a tile may be overwritten only after this rank has read it to send it: the one that pushes marks, in a word
// of the FIFO, the call (12 bits) and how many tiles it has read (20 bits, all set at the end).
constexpr u32 kAllRead = 0xFFFFF;

HP_DEV bool wait_read(const HpExchange& x, u32 fifo, u32 call, u32 k, u32 lane) {
  u32 ok = 1;
  if (lane == 0) {
    Patience patience;
    const u32* mark = word(x, x.rank, x.off_read, 0, fifo);
    for (;;) {
      const u32 read = relaxed(mark);
      if (read >> 20 == (call & 0xFFF) && (read & kAllRead) > k) break;
      if (give_up(x, patience, x.rank)) {
        ok = 0;
        break;
      }
    }
  }
  return all_learn(ok);
}

HP_DEV void push_tile(const HpExchange& x, u32 d, u64 base, u64 n, u32 f, u32* sent, u32* credit, bool first, u32 lane, bool& alive) {
  const u32 rank = x.rank, p = (rank + d) % HP_SIZE, count = *sent;
  // The first waits until all of an earlier call is taken, whose tiles may have been of another size.
  const u32 least = first ? count : count + 1 - x.slots;
  char* to = slot(x, rank, p, f, count) + lane * 16;
  for (u32 b = 0; b < x.batches; ++b, to += kBatchBytes) {
    const u64 start = base + b * kBatchVectors;
    if (start >= vectors(n)) break;
    Vec v[kUnroll];
    load_tile(v, at(x.send[p]), start, n, lane);
    if (b == 0 && i32(from_first(*credit) - least) < 0) {
      u32 seen = 0;
      alive = wait_for(x, word(x, rank, x.off_credit, p, f), least, p, lane, false, seen);
      if (lane == 0) *credit = seen;
      if (!alive) return;
    }
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u) store_peer(to + u * kLanes * 16, v[u]);
  }
  sync_warp();
  if (lane == 0) {
    release(word(x, p, x.off_flag, rank, f), count + 1);
    *sent = count + 1;
  }
  sync_warp();
}

#ifdef HP_BULK
// As `push`, where all that is sent are whole, aligned batches and nothing is cast: one lane of each warp moves batch
// after batch through its shared memory; while one is on its way to the peer, the next comes in.
HP_DEV bool can_bulk(const HpExchange& x) {
  bool can = kWide == 1 && x.bulk;
  for (u32 p = 0; p < HP_SIZE; ++p)
    if (p != x.rank) can = can && is_aligned(x.send[p]) && x.send_n[p] * kWireBytes % kBatchBytes == 0;
  return can && (kFold || x.own_from == x.own_to);
}

HP_DEV void push_bulk(const HpExchange& x, const Place& here) {
  const u32 rank = x.rank, lane = here.lane, warp = here.thread / kLanes;
  if (lane != 0) return;
  u32* sent = here.shared + warp * 2 * kMaxTakers * HP_SIZE;
  u32* credit = sent + kMaxTakers * HP_SIZE;
  extern __shared__ __align__(128) char bulk[];
  char* buffer = bulk + warp * kBatchBytes;
  u64* barrier = reinterpret_cast<u64*>(bulk + 32 * kBatchBytes) + warp;
  bulk_prepare(barrier);
  u32 call[kMaxTakers], parity = 0;
  for (u32 j = 0; j < x.takers; ++j) {
    const u32 f = fifo_of(x, here, j);
    call[j] = *word(x, rank, x.off_push_calls, 0, f) + 1;
    for (u32 d = 1; d < HP_SIZE; ++d) {
      const u32 p = (rank + d) % HP_SIZE;
      sent[j * HP_SIZE + d] = *word(x, rank, x.off_sent, p, f);
      credit[j * HP_SIZE + d] = relaxed(word(x, rank, x.off_credit, p, f));
    }
  }
  bool alive = true, any = true, pending = false;
  u32 flag_d = 0, flag_j = 0;  // of the batch that is on its way
  const auto finish = [&](bool ends_tile) {  // what is on its way has arrived
    bulk_stored();
    if (ends_tile) {
      const u32 f = fifo_of(x, here, flag_j), count = ++sent[flag_j * HP_SIZE + flag_d];
      release(word(x, (rank + flag_d) % HP_SIZE, x.off_flag, rank, f), count);
    }
  };
  bool pending_ends = false;
  for (u32 k = 0; alive && any; ++k) {
    any = false;
    for (u32 j = 0; alive && j < x.takers; ++j) {
      const u32 f = fifo_of(x, here, j);
      const u64 base = tile_start(x, here, f, k);
      bool some = false;
      for (u32 d = 1; alive && d < HP_SIZE; ++d) {
        const u32 p = (rank + d) % HP_SIZE;
        const u64 n = vectors(x.send_n[p]);
        if (base >= n) continue;
        some = true;
        const u32 index = j * HP_SIZE + d;
        for (u32 b = 0; alive && b < x.batches && base + b * kBatchVectors < n; ++b) {
          if (pending) bulk_read();
          bulk_load(buffer, at(x.send[p]) + (base + b * kBatchVectors) * 16, kBatchBytes, barrier);
          if (pending) finish(pending_ends);
          pending = false;
          const u32 count = sent[index];
          char* to = slot(x, rank, p, f, count) + b * kBatchBytes;
          if (b == 0) {
            const u32 least = k == 0 ? count : count + 1 - x.slots;
            Patience patience;
            while (i32(credit[index] - least) < 0) {
              credit[index] = relaxed(word(x, rank, x.off_credit, p, f));
              if (i32(credit[index] - least) >= 0) break;
              if (give_up(x, patience, p)) {
                alive = false;
                break;
              }
            }
          }
          bulk_loaded(barrier, parity);
          parity ^= 1;
          if (!alive) break;
          bulk_store(to, buffer, kBatchBytes);
          pending = true;
          flag_d = d, flag_j = j;
          pending_ends = b + 1 == x.batches || base + (b + 1) * kBatchVectors >= n;
        }
      }
      if (some) set(word(x, rank, x.off_read, 0, f), call[j] << 20 | (k + 1));
      any = any || some;
    }
  }
  if (pending) finish(pending_ends);
  for (u32 j = 0; j < x.takers; ++j) {
    const u32 f = fifo_of(x, here, j);
    set(word(x, rank, x.off_read, 0, f), call[j] << 20 | kAllRead);
    *word(x, rank, x.off_push_calls, 0, f) = call[j];
    for (u32 d = 1; d < HP_SIZE; ++d) *word(x, rank, x.off_sent, (rank + d) % HP_SIZE, f) = sent[j * HP_SIZE + d];
  }
}
#endif

HP_DEV void push(const HpExchange& x, const Place& here) {
  const u32 rank = x.rank, lane = here.lane, warp = here.thread / kLanes;
  u32* sent = here.shared + warp * 2 * kMaxTakers * HP_SIZE;  // of this warp, by taker and distance
  u32* credit = sent + kMaxTakers * HP_SIZE;
  u32 call[kMaxTakers];
  for (u32 j = 0; j < x.takers; ++j) {
    const u32 f = fifo_of(x, here, j);
    call[j] = *word(x, rank, x.off_push_calls, 0, f) + 1;
    if (lane == 0)
      for (u32 d = 1; d < HP_SIZE; ++d) {
        const u32 p = (rank + d) % HP_SIZE;
        sent[j * HP_SIZE + d] = *word(x, rank, x.off_sent, p, f);
        credit[j * HP_SIZE + d] = relaxed(word(x, rank, x.off_credit, p, f));
      }
  }
  sync_warp();
  bool alive = true, any = true;
  for (u32 k = 0; alive && any; ++k) {
    any = false;
    for (u32 j = 0; alive && j < x.takers; ++j) {
      const u32 f = fifo_of(x, here, j);
      const u64 base = tile_start(x, here, f, k);
      bool some = false;
      if (!kFold && base < vectors(x.own_n)) {
        some = true;
        for (u32 b = 0; x.own_from != x.own_to && b < x.batches; ++b) {
          const u64 start = base + b * kBatchVectors;
          if (start >= vectors(x.own_n)) break;
          Vec v[kUnroll];
          load_tile(v, at(x.own_from), start, x.own_n, lane);
          store_tile(v, at(x.own_to), start, x.own_n, lane);
        }
      }
#pragma unroll 1
      for (u32 d = 1; alive && d < HP_SIZE; ++d) {
        const u64 n = x.send_n[(rank + d) % HP_SIZE];
        if (base >= vectors(n)) continue;
        some = true;
        push_tile(x, d, base, n, f, &sent[j * HP_SIZE + d], &credit[j * HP_SIZE + d], k == 0, lane, alive);
      }
      if (some && lane == 0) set(word(x, rank, x.off_read, 0, f), call[j] << 20 | (k + 1));
      any = any || some;
    }
  }
  if (lane != 0) return;
  for (u32 j = 0; j < x.takers; ++j) {
    const u32 f = fifo_of(x, here, j);
    set(word(x, rank, x.off_read, 0, f), call[j] << 20 | kAllRead);
    *word(x, rank, x.off_push_calls, 0, f) = call[j];
    for (u32 d = 1; d < HP_SIZE; ++d) *word(x, rank, x.off_sent, (rank + d) % HP_SIZE, f) = sent[j * HP_SIZE + d];
  }
}

HP_DEV void fold_batch(const HpExchange& x, u32 f, const u32 (&got)[HP_SIZE], u64 base, u32 batch, u32 lane) {
  const u32 rank = x.rank;
  const u64 n = x.own_n;
  const bool plain = (base + kBatchVectors) * kPerVector <= n && is_aligned(x.own_from | x.own_to);
#pragma unroll
  for (u32 b = 0; b < kUnroll; b += kAtOnce) {
    Vec c[HP_SIZE][kAtOnce];
#pragma unroll
    for (u32 r = 0; r < HP_SIZE; ++r) {
      const char* from = r == rank ? nullptr : slot(x, r, rank, f, got[(r + HP_SIZE - rank) % HP_SIZE]) + batch * kBatchBytes;
#pragma unroll
      for (u32 u = 0; u < kAtOnce; ++u) {
        const u32 v = (b + u) * kLanes + lane;
        if (r != rank)
          c[r][u] = load_slot(from + v * 16);
        else if (plain)
          c[r][u] = load_own_plain(at(x.own_from), base + v);
        else
          c[r][u] = base + v < vectors(n) ? load_own(at(x.own_from), base + v, n) : Vec{};
      }
    }
#pragma unroll
    for (u32 u = 0; u < kAtOnce; ++u) {
      Fold fold;
#pragma unroll
      for (u32 r = 0; r < HP_SIZE; ++r) fold.add(c[r][u], r == 0);
      const u64 i = base + (b + u) * kLanes + lane;
      if (plain)
        fold.store_plain(at(x.own_to), i);
      else if (i < vectors(n))
        fold.store(at(x.own_to), i, n);
    }
  }
}

// The credit is given without a fence: its loads have come home, as their values were used.
HP_DEV void take(const HpExchange& x, const Place& here, u32 taker) {
  const u32 rank = x.rank, lane = here.lane, f = fifo_of(x, here, taker);
  u32 got[HP_SIZE], ignored = 0;
#pragma unroll
  for (u32 d = 1; d < HP_SIZE; ++d) got[d] = *word(x, rank, x.off_got, (rank + d) % HP_SIZE, f);
  const u32 call = *word(x, rank, x.off_take_calls, 0, f) + 1;
  bool alive = true, any = true;
  for (u32 k = 0; alive && any; ++k) {
    const u64 base = tile_start(x, here, f, k);
    any = false;
    if constexpr (kFold) {
      if (base >= vectors(x.own_n)) break;
      any = true;
#pragma unroll
      for (u32 d = 1; d < HP_SIZE; ++d) {
        const u32 r = (rank + d) % HP_SIZE;
        alive = alive && wait_for(x, word(x, rank, x.off_flag, r, f), got[d] + 1, r, lane, true, ignored);
      }
      if (alive && x.in_place) alive = wait_read(x, f, call, k, lane);
      if (!alive) break;
      for (u32 b = 0; b < x.batches && base + b * kBatchVectors < vectors(x.own_n); ++b)
        fold_batch(x, f, got, base + b * kBatchVectors, b, lane);
      sync_warp();
#pragma unroll
      for (u32 d = 1; d < HP_SIZE; ++d) {
        ++got[d];
        if (lane == 0) set(word(x, (rank + d) % HP_SIZE, x.off_credit, rank, f), got[d]);
      }
    } else {
#pragma unroll kRanksUnrolled
      for (u32 d = HP_SIZE - 1; d > 0; --d) {  // in the order in which they send
        const u32 r = (rank + d) % HP_SIZE;
        const u64 n = x.recv_n[r];
        if (!alive || base >= vectors(n)) continue;
        any = true;
        if (!wait_for(x, word(x, rank, x.off_flag, r, f), got[d] + 1, r, lane, true, ignored)) {
          alive = false;
          continue;
        }
        const char* from = slot(x, r, rank, f, got[d]) + lane * 16;
        for (u32 b = 0; b < x.batches && base + b * kBatchVectors < vectors(n); ++b, from += kBatchBytes) {
          Vec v[kUnroll];
#pragma unroll
          for (u32 u = 0; u < kUnroll; ++u) v[u] = load_slot(from + u * kLanes * 16);
          store_tile(v, at(x.recv[r]), base + b * kBatchVectors, n, lane);
        }
        sync_warp();
        ++got[d];
        if (lane == 0) set(word(x, r, x.off_credit, rank, f), got[d]);
      }
    }
  }
  if (lane != 0) return;
  *word(x, rank, x.off_take_calls, 0, f) = call;
#pragma unroll
  for (u32 d = 1; d < HP_SIZE; ++d) *word(x, rank, x.off_got, (rank + d) % HP_SIZE, f) = got[d];
}

HP_DEV void large(const HpExchange& x, const Place& here) {
  const bool speaks = here.block == 0 && here.thread < HP_SIZE && here.thread != x.rank && (x.peers >> here.thread & 1);
  u32 head = 0;
  if (speaks) head = send_head(x, here.thread);
  const u32 part = here.block % (x.takers + 1);
  if (part == 0) {
#ifdef HP_BULK
    if (can_bulk(x))
      push_bulk(x, here);
    else
#endif
      push(x, here);
  } else
    take(x, here, part - 1);
  if (speaks) check_head(x, here.thread, head);
}

}  // namespace hp::HP_VARIANT

#include "exchange_carry.hpp"

#ifndef HP_HOST
extern "C" __global__ void __launch_bounds__(512) hp_small(const __grid_constant__ HpExchange x) {
  hp::HP_VARIANT::small(x, hp::Place::make(nullptr));
}
extern "C" __global__ void __launch_bounds__(1024, 1) hp_large(const __grid_constant__ HpExchange x) {
  __shared__ unsigned counters[32 * 2 * hp::HP_VARIANT::kMaxTakers * HP_SIZE];
  hp::HP_VARIANT::large(x, hp::Place::make(counters));
}
extern "C" __global__ void __launch_bounds__(32) hp_gate(const __grid_constant__ HpExchange x) {
  hp::HP_VARIANT::gate(x, hp::Place::make(nullptr));
}
extern "C" __global__ void __launch_bounds__(512) hp_land(const __grid_constant__ HpExchange x) {
  hp::HP_VARIANT::land(x, hp::Place::make(nullptr));
}
extern "C" __global__ void __launch_bounds__(512) hp_pack(const __grid_constant__ HpExchange x) {
  hp::HP_VARIANT::pack_slots(x, hp::Place::make(nullptr));
}
#endif
