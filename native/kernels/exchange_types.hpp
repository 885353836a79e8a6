// SPDX-License-Identifier: Apache-2.0
// What one launch of an exchange kernel is told, and what it reports: shared by the host (C++20) and the kernels
// (compiled at run time for a GPU, at build time for the host). Plain numbers only; addresses are 64-bit integers.
#pragma once

#define HP_MAX_RANKS 8
#define HP_BULK_BYTES (32 * 4096 + 32 * 8)  // shared memory of a block that pushes by bulk copies
#define HP_LAND_SLOTS 4  // landing slots for each source

// Why a kernel gave up.
#define HP_OK 0u
#define HP_TIMEOUT 1u
#define HP_DESYNC 2u
#define HP_ABORTED 3u

// Host memory that the device writes (and of which it reads `abort`): one a group and rank.
struct HpReport {
  unsigned abort;  // set by the host: everything under way ends
  unsigned code;   // HP_*, written last
  unsigned peer;   // whom we waited for
  unsigned spare;
  unsigned long long ours, theirs;  // fingerprints, of HP_DESYNC
  unsigned long long waited_ns;
};

// One launch. Counts are elements (fold) or bytes (copy); peers: a bit for each other rank that takes part.
struct HpExchange {
  unsigned rank, peers;
  unsigned rounds;         // small: vectors a thread
  unsigned batches, slots;  // large: batches of 4 KiB in a tile, tiles in a FIFO
  unsigned takers;          // large: blocks that take for each that pushes
  unsigned in_place;        // the fold writes where it, or the sender, reads
  // Carried by a copy engine: which slot; masks of peers whose copies have ended (in told_slot), whose credit is
  // waited for, to whom a piece must have been sent and from whom it must have come; exchange fingerprints.
  unsigned slot, told_slot, told, credit, land_to, land_from, heads;
  unsigned bulk;  // large: push by bulk copies where they fit (a multiprocessor that has them)
  unsigned long long send[HP_MAX_RANKS], send_n[HP_MAX_RANKS];
  unsigned long long recv[HP_MAX_RANKS], recv_n[HP_MAX_RANKS];  // copy: where it goes; fold: only how much
  unsigned long long own_from, own_to, own_n;
  unsigned long long scratch[HP_MAX_RANKS];  // of each rank, as mapped here
  unsigned long long say[HP_MAX_RANKS], expect[HP_MAX_RANKS];  // fingerprint of the call, to and from each rank
  unsigned long long report, timeout_ns;
  // Layout of the scratch, the same on all ranks (device_group.hpp computes it).
  unsigned long long off_head, off_credit, off_flag, off_small, off_ring;      // written by peers
  unsigned long long off_dead, off_head_seq, off_small_seq, off_sent, off_got;  // counters of this rank
  unsigned long long off_read, off_push_calls, off_take_calls;
  unsigned long long off_land_flag, off_land_credit, off_land;  // written by peers
  unsigned long long off_land_sent, off_land_passed, off_land_got, off_land_done, off_pack, land_bytes;
  unsigned max_fifos, max_blocks;
};
