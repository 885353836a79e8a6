// SPDX-License-Identifier: Apache-2.0
#include "call_py.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "array.hpp"
#include "gil.hpp"
#include "hccl_py/error.hpp"
#include "hccl_py/failure.hpp"

namespace nb = nanobind;

namespace hccl_py {

void throw_if_failed(const Op& op, std::uint32_t rank) {
  if (op.state.load(std::memory_order_acquire) == Op::State::done) [[likely]] return;
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  if (op.state.load() == Op::State::failed) raise_failure(op, rank);
}

Call make_call(int collective, int op, int dtype, std::uint32_t root, std::uintptr_t input, std::uintptr_t output, std::uint64_t count) {
  if (collective < 0 || collective >= kNumCollectives || op < 0 || op >= kNumReduceOps || dtype < 0 || dtype >= kNumDTypes)
    throw ConfigError("unknown collective, reduction operator or element type");
  Call call;
  call.collective = static_cast<Collective>(collective);
  call.op = static_cast<ReduceOp>(op);
  call.dtype = static_cast<DType>(dtype);
  call.root = root;
  call.input = reinterpret_cast<const std::byte*>(input);
  call.output = reinterpret_cast<std::byte*>(output);
  call.count = count;
  return call;
}

namespace {

// Enumerations are subclasses of int, which nanobind's own conversion takes a detour for.
int number(nb::handle object) {
  const long value = PyLong_AsLong(object.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return static_cast<int>(value);
}

// The same on the short way: false leaves it to the long one to say what is wrong.
bool read(nb::handle object, int& value) {
  const long found = PyLong_AsLong(object.ptr());
  if (found == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  value = static_cast<int>(found);
  return found == value;
}

// Sees an op in the queue end; the buffers are the caller's, so it must.
void run_queued(Group& group, const std::shared_ptr<Op>& op) {
  group.start(op);
  while (!group.wait(*op, -1)) group.abort("it was interrupted");
}

// Runs a prepared op; the GIL is let go only if that may take longer.
void run_op(Group& group, Op& op) {
  const Group::Begun begun = group.begin_now(op);
  if (begun == Group::Begun::over) return throw_if_failed(op, group.rank());
  {
    const WithoutGil release;
    if (begun == Group::Begun::under_way) {
      group.end_now(op);
    } else {
      const auto queued = std::make_shared<Op>();
      queued->copy_request(op);
      run_queued(group, queued);
      op.sequence = queued->sequence;
      op.source = queued->source;
      op.got_tag = queued->got_tag;
      op.got_bytes = queued->got_bytes;
      if (queued->state.load() == Op::State::failed)
        op.fail(*queued->failure);
      else
        op.finish();
    }
  }
  throw_if_failed(op, group.rank());
}

// Blocking; false if the group has no plan table for the call yet.
bool run_call(Group& group, const Call& call) {
  Op op;
  op.call = call;
  if (!group.prepare(op)) return false;
  run_op(group, op);
  return true;
}

bool run(Group& group, nb::handle collective, nb::handle op, nb::handle dtype, std::uint32_t root, std::uintptr_t input,
         std::uintptr_t output, std::uint64_t count) {
  return run_call(group, make_call(number(collective), number(op), number(dtype), root, input, output, count));
}

// What is plain enough for the short way: a known element type, contiguous, in host memory.
bool look_plain(nb::handle object, Array& array) {
  return look_at(object, array) && array.dtype >= 0 && array.contiguous && array.on_host;
}

// The short way for plain arrays: false wherever something takes a second look; nothing has happened then. A buffer that
// this rank has no part in (blocks: 0) is not looked at.
bool run_arrays(Group& group, int collective, nb::handle op, nb::handle root, nb::handle input, nb::handle output, std::uint32_t input_blocks,
                std::uint32_t output_blocks) {
  int operation = 0, owner = 0;
  if (!read(op, operation) || !read(root, owner) || owner < 0) return false;
  Array in, out;
  if (input_blocks != 0 && !look_plain(input, in)) return false;
  if (input_blocks == 0 && output_blocks == 0) in.dtype = static_cast<int>(DType::uint8);
  if (output_blocks != 0) {
    if (output.is(input))
      out = in;
    else if (!look_plain(output, out))
      return false;
    if (out.readonly || (input_blocks != 0 && out.dtype != in.dtype)) return false;
  }
  const std::uint64_t count = input_blocks != 0 ? in.count / input_blocks : output_blocks != 0 ? out.count / output_blocks : 0;
  if (in.count != count * input_blocks || out.count != count * output_blocks) return false;
  return run_call(group, make_call(collective, operation, input_blocks != 0 || output_blocks == 0 ? in.dtype : out.dtype,
                                   static_cast<std::uint32_t>(owner), reinterpret_cast<std::uintptr_t>(in.data),
                                   reinterpret_cast<std::uintptr_t>(out.data), count));
}

// Fills in a message; false where something takes a second look.
bool message(Op& op, Op::Kind kind, nb::handle data, nb::handle peer, nb::handle tag) {
  Array array;
  if (!look_plain(data, array) || (kind == Op::Kind::recv && array.readonly)) return false;
  op.tag = PyLong_AsUnsignedLongLong(tag.ptr());
  if (op.tag == ~std::uint64_t{0} && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  op.kind = kind;
  op.memory = static_cast<std::byte*>(array.data);
  op.bytes = array.count * size_of(static_cast<DType>(array.dtype));
  return read(peer, op.peer);
}

bool send_array(Group& group, nb::handle data, nb::handle dst, nb::handle tag) {
  Op op;
  if (!message(op, Op::Kind::send, data, dst, tag)) return false;
  group.prepare(op);
  run_op(group, op);
  return true;
}

// The source; -1: take the long way.
int recv_array(Group& group, nb::handle data, nb::handle src, nb::handle tag) {
  Op op;
  if (!message(op, Op::Kind::recv, data, src, tag)) return -1;
  group.prepare(op);
  run_op(group, op);
  return op.source;
}

// As recv_array, but a shorter message will do, and of the tag the bits of `wild` may be anything: source, tag and bytes.
std::optional<std::tuple<int, std::uint64_t, std::uint64_t>> recv_some(Group& group, nb::handle data, nb::handle src, nb::handle tag,
                                                                       std::uint64_t wild) {
  Op op;
  if (!message(op, Op::Kind::recv, data, src, tag)) return std::nullopt;
  op.shorter = true;
  op.wild = wild;
  group.prepare(op);
  run_op(group, op);
  return std::tuple(op.source, op.got_tag, op.got_bytes);
}

// Both at once, so that ranks may exchange in a circle. The source; -1: take the long way.
int exchange_arrays(Group& group, nb::handle send_data, nb::handle dst, nb::handle recv_data, nb::handle src, nb::handle tag) {
  Op send, recv;
  if (!message(send, Op::Kind::send, send_data, dst, tag) || !message(recv, Op::Kind::recv, recv_data, src, tag)) return -1;
  group.prepare(send);
  group.prepare(recv);
  const Group::Begun begun = group.begin_messages({&send, &recv});
  if (begun == Group::Begun::busy) return -1;
  if (begun == Group::Begun::under_way) {
    const WithoutGil release;
    group.end_messages();
  }
  throw_if_failed(send, group.rank());
  throw_if_failed(recv, group.rank());
  return recv.source;
}

// A call on given buffers that can be made again and again.
class Prepared {
 public:
  Prepared(std::shared_ptr<Group> group, std::shared_ptr<Op> op, nb::object keep, nb::object explain)
      : group_(std::move(group)), op_(std::move(op)), keep_(std::move(keep)), explain_(std::move(explain)) {}

  void run() {
    renew();
    check([&] { run_op(*group_, *op_); });
  }
  void start() {
    renew();
    started_ = true;
    const WithoutGil release;
    group_->start(op_);
  }
  bool done() { return !started_ || group_->test(*op_); }
  bool wait(std::optional<double> timeout_s) {
    if (!started_) return true;
    bool over = true;
    if (op_->pending()) {
      const WithoutGil release;
      over = group_->wait(*op_, timeout_s.value_or(-1));
    }
    if (!over && PyErr_Occurred() == nullptr) return false;
    started_ = op_->pending();
    check([&] { throw_if_failed(*op_, group_->rank()); });
    return true;
  }
  ~Prepared() {
    if (!op_->pending() || !started_) return;
    keep_.release();  // it may still be read and written: rather a leak than that
  }

 private:
  void renew() {
    if (started_) throw ConfigError("this prepared call was started: wait() for it before the next one");
    group_->check_usable();
    op_->state.store(Op::State::pending, std::memory_order_relaxed);
  }
  // DesyncError gets the call sites, where somebody can give them.
  template <class Step>
  void check(Step&& step) {
    try {
      step();
    } catch (const DesyncError& error) {
      if (explain_.is_none()) throw;
      nb::object made = nb::module_::import_("hccl_py.core.errors").attr("DesyncError")(
          error.what(), nb::arg("ours") = error.ours(), nb::arg("theirs") = error.theirs(), nb::arg("peer") = error.peer());
      made = explain_(made);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
      throw nb::python_error();
    }
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<Op> op_;
  nb::object keep_, explain_;
  bool started_ = false;
};

std::unique_ptr<Prepared> prepare(const std::shared_ptr<Group>& group, int collective, nb::handle op, int dtype, std::uint32_t root,
                                  std::uintptr_t input, std::uintptr_t output, std::uint64_t count, nb::object keep, nb::object explain) {
  auto ready = std::make_shared<Op>();
  ready->call = make_call(collective, number(op), dtype, root, input, output, count);
  if (!group->prepare(*ready)) return nullptr;
  group->settle(*ready);
  return std::make_unique<Prepared>(group, std::move(ready), std::move(keep), std::move(explain));
}

}  // namespace

void bind_calls(nb::module_& m, nb::class_<Group>& group) {
  nb::class_<Prepared>(m, "Prepared", "A collective on given buffers, ready to be run again and again. It keeps the buffers alive.")
      .def("run", &Prepared::run, "Runs it; returns when this rank's part is done. Raises what the plain call raises.")
      .def("start", &Prepared::start, "Starts it and returns at once; the buffers must be left alone until wait() or done().")
      .def("wait", &Prepared::wait, nb::arg("timeout_s") = nb::none(),
           "Waits for what start() began; raises what went wrong; False if the time passed first.")
      .def("done", &Prepared::done, "True if nothing that start() began is under way. Well or not: wait() tells.");
  group
      .def("run", &run, nb::arg("collective"), nb::arg("op"), nb::arg("dtype"), nb::arg("root"), nb::arg("input"),
           nb::arg("output"), nb::arg("count"),
           nb::sig("def run(self, collective: int, op: int, dtype: int, root: int, input: int, output: int, count: int) -> bool"),
           "Runs a collective; False if it has no plan table yet.")
      .def("run_arrays", &run_arrays, nb::arg("collective"), nb::arg("op"), nb::arg("root"), nb::arg("input").none(), nb::arg("output").none(),
           nb::arg("input_blocks"), nb::arg("output_blocks"),
           nb::sig("def run_arrays(self, collective: int, op: int, root: int, input: object | None, output: object | None, input_blocks: int, "
                   "output_blocks: int) -> bool"),
           "Runs a collective on plain arrays (0 blocks: this rank has none there); False: take the long way.")
      .def("send_array", &send_array, nb::arg("data").none(), nb::arg("dst"), nb::arg("tag"),
           nb::sig("def send_array(self, data: object, dst: int, tag: int) -> bool"), "Sends a plain array; False: take the long way.")
      .def("recv_array", &recv_array, nb::arg("data").none(), nb::arg("src"), nb::arg("tag"),
           nb::sig("def recv_array(self, data: object, src: int, tag: int) -> int"),
           "Receives into a plain array; returns the source, or -1: take the long way.")
      .def("recv_some", &recv_some, nb::arg("data").none(), nb::arg("src"), nb::arg("tag"), nb::arg("wild"),
           nb::sig("def recv_some(self, data: object, src: int, tag: int, wild: int) -> tuple[int, int, int] | None"),
           "Receives at most a plain array full, from a tag of which the bits of `wild` may be anything; source, tag and bytes, or None: "
           "take the long way.")
      .def("exchange_arrays", &exchange_arrays, nb::arg("send_data").none(), nb::arg("dst"), nb::arg("recv_data").none(), nb::arg("src"),
           nb::arg("tag"),
           nb::sig("def exchange_arrays(self, send_data: object, dst: int, recv_data: object, src: int, tag: int) -> int"),
           "Sends one plain array and receives another; returns the source, or -1: take the long way.")
      .def("prepare", &prepare, nb::arg("collective"), nb::arg("op"), nb::arg("dtype"), nb::arg("root"), nb::arg("input"), nb::arg("output"),
           nb::arg("count"), nb::arg("keep").none(), nb::arg("explain").none(),
           nb::sig("def prepare(self, collective: int, op: int, dtype: int, root: int, input: int, output: int, count: int, keep: object, "
                   "explain: object) -> Prepared | None"),
           "A call to be run again and again; None if it has no plan table yet. `explain` may replace a DesyncError.");
}

}  // namespace hccl_py
