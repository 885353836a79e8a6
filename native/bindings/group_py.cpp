// SPDX-License-Identifier: Apache-2.0
// Group, Hub and Work for Python. Buffers come as addresses; the caller keeps them alive.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "call_py.hpp"
#include "gil.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/failure.hpp"
#include "hccl_py/group.hpp"
#include "hccl_py/segments.hpp"

namespace nb = nanobind;

namespace hccl_py {
namespace {

using Bytes = std::vector<std::byte>;
using Counts = std::vector<std::uint64_t>;

Bytes to_bytes(const nb::bytes& in) {
  const auto* p = static_cast<const std::byte*>(in.data());
  return {p, p + in.size()};
}

std::vector<Bytes> to_bytes_list(const std::vector<nb::bytes>& in) {
  std::vector<Bytes> out;
  for (const nb::bytes& one : in) out.push_back(to_bytes(one));
  return out;
}

nb::bytes from_bytes(const Bytes& in) { return nb::bytes(in.data(), in.size()); }

// What a group keeps may be dropped by the progress thread, and that one may be waited for with the GIL held: it must not
// want the GIL. nanobind hands on its own reference to the Python object where a type cannot say who shares it.
static_assert(nb::detail::has_shared_from_this_v<Hub> && nb::detail::has_shared_from_this_v<Group>);

// Called now and then by whoever waits: lets Ctrl-C through. The error then stays set for throw_if_failed.
bool interrupted() {
  const WithGil acquire;
  return PyErr_CheckSignals() != 0;
}

// A started op and its group. The buffers are kept by the Python side until done() or wait() say so.
class Work {
 public:
  Work(std::shared_ptr<Group> group, std::shared_ptr<Op> op) : group_(std::move(group)), op_(std::move(op)) {}
  bool done() { return group_->test(*op_); }
  bool failed() const { return op_->state.load() == Op::State::failed; }
  // Throws what went wrong; false if `timeout_s` passed first.
  bool wait(std::optional<double> timeout_s) {
    bool over = true;
    if (op_->pending()) {
      const WithoutGil release;
      over = group_->wait(*op_, timeout_s.value_or(-1));
    }
    if (over || PyErr_Occurred() != nullptr) throw_if_failed(*op_, group_->rank());
    return over;
  }
  int source() const { return op_->source; }
  std::uint64_t tag() const { return op_->got_tag; }
  std::uint64_t num_bytes() const { return op_->got_bytes; }
  // 0 while it is under way, or after it failed.
  double ended_s() const { return op_->state.load(std::memory_order_acquire) == Op::State::done ? static_cast<double>(op_->ended_ns) * 1e-9 : 0.0; }
  std::uint64_t sequence() const { return op_->sequence; }

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Op> op_;
};

std::optional<Work> start(const std::shared_ptr<Group>& group, int collective, int op, int dtype, std::uint32_t root,
                          std::uintptr_t input, std::uintptr_t output, std::uint64_t count,
                          const std::optional<std::pair<Counts, Counts>>& counts) {
  auto work = std::make_shared<Op>();
  work->timed = true;
  work->call = make_call(collective, op, dtype, root, input, output, count);
  if (counts) {
    const auto& [in, out] = *counts;
    if ((!in.empty() && in.size() != group->world()) || (!out.empty() && out.size() != group->world()))
      throw ConfigError("uneven blocks need one count per rank");
    work->counts = in;
    work->counts.insert(work->counts.end(), out.begin(), out.end());
    if (!in.empty()) work->call.input_counts = work->counts.data();
    if (!out.empty()) work->call.output_counts = work->counts.data() + in.size();
  }
  if (!group->prepare(*work)) return std::nullopt;
  {
    const WithoutGil release;
    group->start(work);
  }
  return Work(group, std::move(work));
}

Work start_message(const std::shared_ptr<Group>& group, bool send, std::uintptr_t memory, std::uint64_t bytes, int peer, std::uint64_t tag,
                   std::uint64_t wild = 0, bool shorter = false) {
  auto work = std::make_shared<Op>();
  work->timed = true;
  work->kind = send ? Op::Kind::send : Op::Kind::recv;
  work->memory = reinterpret_cast<std::byte*>(memory);
  work->bytes = bytes;
  work->peer = peer;
  work->tag = tag;
  work->wild = wild;
  work->shorter = shorter;
  group->prepare(*work);
  {
    const WithoutGil release;
    group->start(work);
  }
  return Work(group, std::move(work));
}

std::shared_ptr<Group> make_group(std::uint32_t rank, std::uint32_t world, std::shared_ptr<Hub> hub, bool use_shm, bool use_tcp,
                                  const std::string& host_id, std::uint32_t usable_cpus, int spins, std::size_t segment_bytes,
                                  double timeout_s, bool strict, std::uint32_t shm_ring_bytes, std::uint32_t shm_slot_bytes,
                                  const std::string& tcp_interfaces, std::pair<std::uint16_t, std::uint16_t> tcp_port_range,
                                  int tcp_connections, const std::string& tcp_family, std::uint64_t shm_shared_from_bytes,
                                  std::uint64_t shm_private_from_bytes, const std::string& tcp_congestion) {
  GroupOptions options;
  options.use_shm = use_shm;
  options.use_tcp = use_tcp;
  options.host_id = host_id;
  options.usable_cpus = usable_cpus;
  options.spins = spins;
  options.segment_bytes = segment_bytes;
  options.timeout_s = timeout_s;
  options.strict = strict;
  options.interrupted = interrupted;
  options.shm.ring_bytes = shm_ring_bytes;
  options.shm.slot_bytes = shm_slot_bytes;
  options.shm.shared_from_bytes = shm_shared_from_bytes;
  options.shm.private_from_bytes = shm_private_from_bytes;
  options.tcp.interfaces = tcp_interfaces;
  options.tcp.first_port = tcp_port_range.first;
  options.tcp.last_port = tcp_port_range.second;
  options.tcp.connections = tcp_connections;
  options.tcp.family = parse_family(tcp_family);
  options.tcp.congestion = tcp_congestion;
  return std::make_shared<Group>(rank, world, std::move(options), std::move(hub));
}

// New memory that the ranks of this host can reach; it lives as long as the array.
nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> allocate(Group& group, std::size_t bytes) {
  auto* segment = new std::shared_ptr<Segment>(Segment::allocate(bytes));
  const nb::capsule owner(segment, [](void* p) noexcept { delete static_cast<std::shared_ptr<Segment>*>(p); });
  group.share(*segment);
  return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>((*segment)->data(), {bytes}, owner);
}

std::shared_ptr<Segment> adopt(Group& group, std::uintptr_t memory, std::size_t bytes) {
  std::shared_ptr<Segment> segment = Segment::adopt(reinterpret_cast<std::byte*>(memory), bytes);
  group.share(segment);
  return segment;
}

}  // namespace

void bind_group(nb::module_& m) {
  nb::class_<Segment>(m, "Segment", "Memory that was made shared; dropping it makes it private again.");

  nb::class_<Hub>(m, "Hub", "Where the ranks of one process meet: the reference transport `loopback`.")
      .def(nb::new_([](std::uint32_t world, std::uint32_t slot_bytes, std::uint32_t channels) {
             return std::make_shared<Hub>(world, slot_bytes, channels + 1);
           }),
           nb::arg("world"), nb::arg("slot_bytes") = 4096, nb::arg("channels") = 2);

  nb::class_<Work>(m, "Work", "An operation that was started.")
      .def("done", &Work::done, "True once it is over, well or not.")
      .def("failed", &Work::failed)
      .def("wait", &Work::wait, nb::arg("timeout_s") = nb::none(), "Waits; raises what went wrong; False if the time passed first.")
      .def_prop_ro("source", &Work::source, "The rank that sent, of a receive that is done.")
      .def_prop_ro("tag", &Work::tag, "The tag of the message, of a receive that is done.")
      .def_prop_ro("num_bytes", &Work::num_bytes, "How long the message is, of a receive that is done.")
      .def_prop_ro("ended_s", &Work::ended_s, "When it was done, on the clock of time.perf_counter(); 0: not yet, or failed.")
      .def_prop_ro("sequence", &Work::sequence);

  nb::class_<Group> group(m, "Group", "One rank's membership in a group.");
  bind_calls(m, group);
  group.def(nb::new_(&make_group), nb::arg("rank"), nb::arg("world"), nb::kw_only(), nb::arg("hub") = nb::none(),
           nb::arg("use_shm") = true, nb::arg("use_tcp") = true, nb::arg("host_id") = "", nb::arg("usable_cpus") = 1,
           nb::arg("spins") = -1, nb::arg("segment_bytes") = 65536, nb::arg("timeout_s") = 600.0, nb::arg("strict") = false,
           nb::arg("shm_ring_bytes") = 524288, nb::arg("shm_slot_bytes") = 65536, nb::arg("tcp_interfaces") = "",
           nb::arg("tcp_port_range") = std::pair<std::uint16_t, std::uint16_t>(0, 0), nb::arg("tcp_connections") = 2,
           nb::arg("tcp_family") = "auto", nb::arg("shm_shared_from_bytes") = 8192, nb::arg("shm_private_from_bytes") = 32768,
           nb::arg("tcp_congestion") = "")
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("world", &Group::world)
      .def_prop_ro("local_ranks", &Group::local_ranks, "The ranks that share memory with this one, itself included.")
      .def_prop_ro("warning", &Group::warning, "What the user should know of the connections; usually empty.")
      .def_prop_ro("channels", &Group::channels, "Parallel channels to each peer that plans may use.")
      .def_prop_ro("slot_bytes", &Group::slot_bytes, "How large a payload may be to go by the board of this host.")
      .def_prop_ro("timeout_s", &Group::timeout_s)
      .def("pace", &Group::pace, nb::arg("peer"), nb::arg("channel"), nb::arg("most_Bps"),
           "Sends to a peer by one channel of plans at most so fast (0: no limit); False where the transport cannot.")
      .def("trace",
           [](const Group& g) {
             std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t>> rows;
             for (const auto& [peer, connection, t] : g.trace())
               rows.emplace_back(peer, connection, t.acked_bytes, t.busy_us, t.peer_full_us, t.self_full_us, t.resent_bytes, t.rate_Bps, t.min_rtt_us);
             return rows;
           },
           "Of each TCP connection (peer, connection, acked bytes, busy us, us the peer had no room, us our buffer was full, "
           "resent bytes, latest bytes/s, least round trip us), as the kernel counted them so far.")
      .def("transport_to", &Group::transport_to, nb::arg("peer"))
      .def("address", [](const Group& g) { return from_bytes(g.address()); })
      .def("join",
           [](Group& g, const std::vector<nb::bytes>& addresses, double timeout_s) {
             const std::vector<Bytes> all = to_bytes_list(addresses);
             Bytes report;
             {
               const WithoutGil release;
               report = g.join(all, timeout_s);
             }
             return from_bytes(report);
           },
           nb::arg("addresses"), nb::arg("timeout_s"), "Shares memory with this host's ranks; returns the report for connect().")
      .def("connect",
           [](Group& g, const std::vector<nb::bytes>& reports, double timeout_s) {
             const std::vector<Bytes> all = to_bytes_list(reports);
             try {
               const WithoutGil release;
               g.connect(all, timeout_s);
             } catch (const HcclError&) {
               if (PyErr_Occurred() != nullptr) throw nb::python_error();  // a signal: its error goes first
               throw;
             }
           },
           nb::arg("reports"), nb::arg("timeout_s"))
      .def("load_program", [](Group& g, const nb::bytes& program) { return g.load_program(to_bytes(program)); }, nb::arg("program"))
      .def("set_table",
           [](Group& g, int collective, std::uint32_t root, bool uneven, std::vector<std::uint64_t> upto, const std::vector<std::uint32_t>& programs) {
             g.set_table(static_cast<Collective>(collective), root, uneven, std::move(upto), programs);
           },
           nb::arg("collective"), nb::arg("root"), nb::arg("uneven"), nb::arg("upto_bytes"), nb::arg("programs"))
      .def("start", &start, nb::arg("collective"), nb::arg("op"), nb::arg("dtype"), nb::arg("root"), nb::arg("input"),
           nb::arg("output"), nb::arg("count"), nb::arg("counts") = nb::none(), "Starts one; None if it has no plan table yet.")
      .def("start_send", [](const std::shared_ptr<Group>& g, std::uintptr_t memory, std::uint64_t bytes, int dst, std::uint64_t tag) {
             return start_message(g, true, memory, bytes, dst, tag);
           }, nb::arg("memory"), nb::arg("num_bytes"), nb::arg("dst"), nb::arg("tag"))
      .def("start_recv", [](const std::shared_ptr<Group>& g, std::uintptr_t memory, std::uint64_t bytes, int src, std::uint64_t tag,
                            std::uint64_t wild, bool shorter) { return start_message(g, false, memory, bytes, src, tag, wild, shorter); },
           nb::arg("memory"), nb::arg("num_bytes"), nb::arg("src"), nb::arg("tag"), nb::arg("wild") = 0, nb::arg("shorter") = false)
      .def("allocate", &allocate, nb::arg("num_bytes"), nb::sig("def allocate(self, num_bytes: int) -> object"),
           "New bytes that the ranks of this host can reach; they live as long as the array.")
      .def("adopt", &adopt, nb::arg("memory"), nb::arg("num_bytes"), "Makes ordinary memory reachable in the same way, until the segment is dropped.")
      .def_prop_ro("no_pulls", &Group::no_pulls, "Why the private memory of this host's ranks cannot be read; empty if it can.")
      .def_prop_ro("traffic", [](const Group& g) { return std::tuple(g.traffic().read, g.traffic().written, g.traffic().staged); },
                   "(bytes read, bytes written, of these into rings or staging) by this rank in its last large collective.")
      .def("post_site", &Group::post_site, nb::arg("sequence"), nb::arg("text"))
      .def("peer_site", [](const Group& g, std::uint32_t peer, std::uint64_t sequence, double timeout_s) {
             const WithoutGil release;
             return g.peer_site(peer, sequence, timeout_s);
           }, nb::arg("peer"), nb::arg("sequence"), nb::arg("timeout_s"))
      .def("abort", &Group::abort, nb::arg("why"), nb::call_guard<WithoutGil>())
      .def("close", &Group::close, nb::call_guard<WithoutGil>());
}

}  // namespace hccl_py
