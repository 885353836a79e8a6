// SPDX-License-Identifier: Apache-2.0
// Two processes that measure what the engine is compared with, one command at a time, asleep in between, so that other
// programs can be measured in turn with it. Commands on standard input, all sizes in bytes:
//   limit  SIZE in|out SAMPLES CALLS   all-reduce of shared buffers with nothing around it (float32)
//   ring   SIZE SAMPLES CALLS          hand-written ring on the engine's channels, private buffers (float32)
//   plan   SIZE SAMPLES CALLS          the same ring as a plan in the engine (below 1 KiB: one round), contract check on
//   exchange SIZE SAMPLES CALLS        hand-written all-reduce of SIZE = 8 bytes: a cache line a rank with payload and flag
//   kernel DTYPE SIZE SAMPLES CALLS    bare fold of two operands of SIZE, both processes at once
// The answer is a line: for each sample the seconds a call, of the slower process.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "hccl_py/reduce.hpp"
#include "pair.hpp"
#include "ring.hpp"
#include "team.hpp"

namespace {

using namespace hccl_py;
using namespace hccl_py::perf;

constexpr int kMostSamples = 4096;
constexpr std::size_t kSegmentBytes = 32 * 1024;

// By parity, as on the engine's board: a rank writes line s + 2 only after its peer has entered s + 1, so has read s.
struct Exchange {
  struct alignas(64) Line {
    std::atomic<std::uint64_t> sequence{0};
    float payload[2] = {};
  };
  Line lines[2][2];

  void run(int rank, std::uint64_t sequence, const float* in, float* out) {
    Line &mine = lines[rank][sequence & 1], &theirs = lines[1 - rank][sequence & 1];
    mine.payload[0] = in[0];
    mine.payload[1] = in[1];
    mine.sequence.store(sequence, std::memory_order_release);
    while (theirs.sequence.load(std::memory_order_acquire) != sequence) cpu_relax();
    out[0] = in[0] + theirs.payload[0];
    out[1] = in[1] + theirs.payload[1];
  }
};

struct Shared {
  Meeting meeting;
  Exchange exchange;
  double times_s[2][kMostSamples];
};

double now_s() { return static_cast<double>(monotonic_ns()) * 1e-9; }

// What one process says to the other while they connect: whole messages through a pipe.
class Line {
 public:
  Line(int in, int out) : in_(in), out_(out) {}
  // A closed line ends this process: the other one is gone.
  std::string exchange(const std::string& mine) {
    send(mine);
    return receive();
  }
  void send(const std::string& text) {
    const std::uint32_t size = static_cast<std::uint32_t>(text.size());
    put(&size, sizeof size);
    put(text.data(), text.size());
  }
  std::string receive() {
    std::uint32_t size = 0;
    get(&size, sizeof size);
    std::string text(size, '\0');
    get(text.data(), size);
    return text;
  }

 private:
  void put(const void* data, std::size_t bytes) {
    if (write(out_, data, bytes) != static_cast<ssize_t>(bytes)) std::exit(1);
  }
  void get(void* data, std::size_t bytes) {
    for (char* p = static_cast<char*>(data); bytes > 0;) {
      const ssize_t n = read(in_, p, bytes);
      if (n <= 0) std::exit(0);
      p += n;
      bytes -= static_cast<std::size_t>(n);
    }
  }
  int in_, out_;
};

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* p = reinterpret_cast<const std::byte*>(text.data());
  return {p, p + text.size()};
}
std::string text_of(const std::vector<std::byte>& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

class Rank {
 public:
  Rank(int rank, Line line, Shared& shared, SharedBuffers buffers) : rank_(rank), line_(line), shared_(shared), buffers_(buffers) {
    connect_ring();
    connect_group();
  }

  // Takes the samples of a command into the shared table. False if it is none.
  bool measure(const std::string& command, int& samples) {
    std::istringstream words(command);
    std::string what, word;
    std::size_t bytes = 0;
    int calls = 0;
    words >> what;
    if (what == "limit" || what == "kernel") words >> word;
    if (what == "limit") {  // SIZE comes first there
      bytes = std::stoul(word);
      words >> word;
    } else {
      words >> bytes;
    }
    words >> samples >> calls;
    if (!words || bytes == 0 || bytes > kLargest || samples < 1 || samples > kMostSamples || calls < 1) return false;
    if (what == "limit") return measure_limit(bytes, word == "in", samples, calls);
    if (what == "ring") return sample(samples, calls, [&] { ring_->all_reduce(input(), output(), bytes, kSegmentBytes); });
    if (what == "exchange") {
      const auto* in = reinterpret_cast<const float*>(input());
      auto* out = reinterpret_cast<float*>(output());
      return bytes == 8 && sample(samples, calls, [&] { shared_.exchange.run(rank_, ++exchanges_, in, out); });
    }
    if (what == "plan") return measure_plan(bytes, samples, calls);
    if (what == "kernel") return measure_kernel(word, bytes, samples, calls);
    return false;
  }

 private:
  template <class Call>
  bool sample(int samples, int calls, Call&& call) {
    call();
    for (int i = 0; i < samples; ++i) {
      shared_.meeting.wait(rank_);
      if (calls > 1) call();  // into step
      const double begin_s = now_s();
      for (int k = 0; k < calls; ++k) call();
      shared_.times_s[rank_][i] = (now_s() - begin_s) / calls;
    }
    shared_.meeting.wait(rank_);
    return true;
  }

  bool measure_limit(std::size_t bytes, bool in_place, int samples, int calls) {
    const auto run = [&](bool stream) { limit_all_reduce(buffers_, shared_.meeting, rank_, bytes, in_place, stream); };
    const auto best_of_3 = [&](bool stream) {
      double best_s = 1e9;
      run(stream);
      for (int i = 0; i < 3; ++i) {
        const double begin_s = now_s();
        run(stream);
        best_s = std::min(best_s, now_s() - begin_s);
      }
      return best_s;
    };
    // Which stores are faster is a matter of size and machine; rank 0 tries both and decides.
    const bool stream = best_of_3(true) < best_of_3(false);
    const bool agreed = rank_ == 0 ? (line_.send(stream ? "1" : "0"), stream) : line_.receive() == "1";
    return sample(samples, calls, [&] { run(agreed); });
  }

  bool measure_plan(std::size_t bytes, int samples, int calls) {
    Call call;
    call.collective = Collective::all_reduce;
    call.dtype = DType::float32;
    call.input = input();
    call.output = output();
    call.count = bytes / sizeof(float);
    return sample(samples, calls, [&] { testing::run_now(*group_, call); });
  }

  bool measure_kernel(const std::string& name, std::size_t bytes, int samples, int calls) {
    for (int d = 0; d < kNumDTypes; ++d) {
      const DType dtype = static_cast<DType>(d);
      if (name != name_of(dtype)) continue;
      const FoldFn fold = fold_kernel(ReduceOp::sum, dtype, best_isa());
      const FoldSource sources[2] = {{buffers_.input[0], true}, {buffers_.input[1], true}};
      return sample(samples, calls, [&] { fold(output(), sources, 2, bytes / size_of(dtype), 1); });
    }
    return false;
  }

  const std::byte* input() { return private_memory(input_); }
  std::byte* output() { return private_memory(output_); }
  static std::byte* private_memory(std::byte*& memory) {
    if (memory == nullptr) {
      memory = static_cast<std::byte*>(std::aligned_alloc(4096, kLargest));
      std::memset(memory, 0, kLargest);
    }
    return memory;
  }

  void connect_ring() {
    const ShmDoor door;
    bell_ = std::make_unique<BellSocket>();
    std::vector<std::string> doors(2), bells(2);
    doors[rank_] = door.name();
    bells[rank_] = bell_->name();
    doors[1 - rank_] = line_.exchange(door.name());
    bells[1 - rank_] = line_.exchange(bell_->name());
    ring_ = std::make_unique<Ring>(door, *bell_, doors, bells, rank_, ShmOptions{});
  }

  void connect_group() {
    GroupOptions options;
    options.usable_cpus = static_cast<std::uint32_t>(sysconf(_SC_NPROCESSORS_ONLN));
    options.use_tcp = false;
    group_ = std::make_shared<Group>(static_cast<std::uint32_t>(rank_), 2, options, nullptr);
    std::vector<std::vector<std::byte>> all(2);
    all[rank_] = group_->address();
    all[1 - rank_] = bytes_of(line_.exchange(text_of(all[rank_])));
    all[rank_] = group_->join(all, 30);
    all[1 - rank_] = bytes_of(line_.exchange(text_of(all[rank_])));
    group_->connect(all, 30);
    const std::uint32_t r = static_cast<std::uint32_t>(rank_);
    const auto load = [&](testing::Writer plan) {
      plan.header.num_channels = 1;
      return group_->load_program(plan.bytes());
    };
    const std::uint32_t small = load(testing::direct_all_reduce(2, r, true));
    const std::uint32_t large = load(testing::ring_all_reduce(2, r));
    group_->set_table(Collective::all_reduce, 0, false, {1024, ~std::uint64_t{0}}, {small, large});
  }

  int rank_;
  Line line_;
  Shared& shared_;
  SharedBuffers buffers_;
  std::byte *input_ = nullptr, *output_ = nullptr;
  std::uint64_t exchanges_ = 0;
  std::unique_ptr<BellSocket> bell_;
  std::unique_ptr<Ring> ring_;
  std::shared_ptr<Group> group_;
};

}  // namespace

int main() {
  int down[2], up[2];
  if (pipe(down) != 0 || pipe(up) != 0) return 1;
  auto* shared = new (shared_memory(sizeof(Shared))) Shared;
  const SharedBuffers buffers = SharedBuffers::make();
  const pid_t child = fork();
  if (child == 0) {
    close(down[1]);
    close(up[0]);
    Line line(down[0], up[1]);
    Rank rank(1, line, *shared, buffers);
    for (int samples = 0;;) rank.measure(line.receive(), samples);
  }
  close(down[0]);
  close(up[1]);
  Line line(up[0], down[1]);
  Rank rank(0, line, *shared, buffers);
  std::cout << "ready" << std::endl;
  for (std::string command; std::getline(std::cin, command);) {
    int samples = 0;
    line.send(command);
    if (!rank.measure(command, samples)) {
      std::cout << "error: not understood: " << command << std::endl;
      continue;
    }
    for (int i = 0; i < samples; ++i) std::cout << (i ? " " : "") << std::max(shared->times_s[0][i], shared->times_s[1][i]);
    std::cout << std::endl;
  }
  close(down[1]);
  waitpid(child, nullptr, 0);
  return 0;
}
