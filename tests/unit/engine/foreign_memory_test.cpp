// Payload in memory that the HCA must not touch: it faults. Copies are made as late as permitted, when they
// are waited for. So whatever tells of one too early is seen.
#include "driver-shim/softhca/engine/foreign_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "driver-shim/softhca/engine/completion_queue.h"
#include "tests/unit/engine/node.h"

namespace gdx::softhca::test {
namespace foreign_memory_test {

constexpr std::size_t kBytes = 64 * 1024;

// Pages that fault at `hidden`, and are open at `open`.
struct Hidden {
  Hidden() {
    const int file = memfd_create("hidden", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file, kBytes), 0);
    hidden = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_NONE, MAP_SHARED, file, 0));
    open = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
  }
  ~Hidden() {
    munmap(hidden, kBytes);
    munmap(open, kBytes);
  }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

  std::byte* hidden = nullptr;
  std::byte* open = nullptr;
};

class LateCopies final : public CopyEngine {
 public:
  explicit LateCopies(const Hidden& memory) : memory_(memory) {}
  bool write(std::byte* to, const std::byte* from, std::size_t length_bytes) override {
    under_way_.push_back({to, {from, from + length_bytes}});
    return !gone;
  }
  bool read(std::byte* to, const std::byte* from, std::size_t length_bytes) override {
    make_all();
    std::copy_n(at(from), length_bytes, to);
    return !gone;
  }
  void synchronize() override { make_all(); }
  [[nodiscard]] bool ordered() const override { return in_order; }

  [[nodiscard]] bool idle() const { return under_way_.empty(); }

  // Called before copies that are under way are made.
  std::function<void()> before;
  bool gone = false;
  bool in_order = true;

 private:
  struct Write {
    const std::byte* to;
    std::vector<std::byte> bytes;
  };
  std::byte* at(const std::byte* hidden) const { return memory_.open + (hidden - memory_.hidden); }
  void make_all() {
    if (!under_way_.empty() && before) before();
    for (const Write& write : under_way_) std::copy(write.bytes.begin(), write.bytes.end(), at(write.to));
    under_way_.clear();
  }

  const Hidden& memory_;
  std::vector<Write> under_way_;
};

// Tells of each packet when it is handed over: it may leave at once.
class WatchedWire final : public wire::Wire {
 public:
  WatchedWire(std::unique_ptr<Wire> below, const std::function<void()>& on_packet)
      : below_(std::move(below)), on_packet_(on_packet) {}
  [[nodiscard]] const wire::Address& local() const override { return below_->local(); }
  std::size_t room(const wire::Address& destination) override { return below_->room(destination); }
  std::span<std::byte> begin_packet(const wire::Address& destination) override {
    return below_->begin_packet(destination);
  }
  void commit_packet(const wire::Address& destination, std::size_t length_bytes) override {
    if (on_packet_) on_packet_();
    below_->commit_packet(destination, length_bytes);
  }
  void flush() override { below_->flush(); }
  std::size_t receive(std::size_t max_packets, const Sink& sink) override {
    return below_->receive(max_packets, sink);
  }
  [[nodiscard]] std::uint16_t arrival_port() const override { return below_->arrival_port(); }
  [[nodiscard]] std::size_t socket_bytes() const override { return below_->socket_bytes(); }
  [[nodiscard]] bool socket_was_drained() const override { return below_->socket_was_drained(); }
  [[nodiscard]] int poll_fd() const override { return below_->poll_fd(); }
  bool arm() override { return below_->arm(); }
  [[nodiscard]] const wire::WireCounters& counters() const override { return below_->counters(); }

 private:
  std::unique_ptr<Wire> below_;
  const std::function<void()>& on_packet_;
};

std::unique_ptr<wire::Wire> make_watched(const std::function<void()>& on_packet) {
  auto below = wire::open_udp({});
  EXPECT_TRUE(below) << below.error().message;
  return std::make_unique<WatchedWire>(std::move(*below), on_packet);
}

class Foreign : public testing::Test {
 protected:
  void SetUp() override {
    a.connect(b);
    b.connect(a);
    for (Node* const node : {&a, &b}) {
      node->hca->add_foreign(memory.hidden, kBytes, copies);
      MemoryRegionSpec spec;
      spec.pd = node->pd;
      spec.base = memory.hidden;
      spec.iova = address(0);
      spec.length_bytes = kBytes;
      spec.access = Node::kAllAccess;
      keys.push_back(node->hca->register_memory(spec).value());
    }
  }
  [[nodiscard]] std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uintptr_t>(memory.hidden) + offset;
  }
  [[nodiscard]] Local of_a(std::size_t offset, std::uint32_t length_bytes) const {
    return {address(offset), length_bytes, keys[0]};
  }
  [[nodiscard]] Remote of_b(std::size_t offset) const { return {address(offset), keys[1]}; }
  void expect_success() {
    const auto polled = await_send(a, b);
    ASSERT_TRUE(polled);
    EXPECT_EQ(polled->opcode, mlx5::CqeOpcode::kRequester) << mlx5::syndrome_name(polled->syndrome);
  }
  [[nodiscard]] std::uint64_t word_of_b(std::size_t offset) const {
    std::uint64_t word = 0;
    std::memcpy(&word, b.memory.data() + offset, sizeof word);
    return word;
  }

  Hidden memory;
  std::shared_ptr<LateCopies> copies = std::make_shared<LateCopies>(memory);
  std::vector<std::uint32_t> keys;
  std::function<void()> on_packet_of_b;
  Node a;
  Node b{make_watched(on_packet_of_b)};
};

TEST_F(Foreign, written_payload_comes_from_and_lands_in_memory_that_nobody_touches) {
  constexpr std::uint32_t kHalf = kBytes / 2;
  for (std::size_t i = 0; i < kHalf; ++i) memory.open[i] = static_cast<std::byte>(i * 7 + i / 251);
  a.post_write(of_a(0, kHalf - 3), of_b(kHalf));
  a.ring();
  expect_success();
  EXPECT_TRUE(std::equal(memory.open, memory.open + kHalf - 3, memory.open + kHalf));
  EXPECT_EQ(memory.open[2 * kHalf - 3], std::byte{0});
}

TEST_F(Foreign, signal_in_host_memory_waits_for_the_payload_before_it) {
  memory.open[0] = std::byte{1};
  a.memory[0] = std::byte{1};
  int early = 0;
  copies->before = [&] { early += word_of_b(4096) != 0 ? 1 : 0; };
  // Packets of one size travel, and arrive, together: within one step nothing else waits for copies.
  a.post_write(of_a(0, 8), of_b(16'384), false);
  a.post_write(a.local(0, 8), b.remote(4096));
  a.ring();
  expect_success();
  EXPECT_EQ(word_of_b(4096), 1u);
  EXPECT_EQ(memory.open[16'384], std::byte{1});
  EXPECT_EQ(early, 0) << "the signal was there while its payload was under way";
}

TEST_F(Foreign, acknowledgement_waits_for_the_payload_that_it_acknowledges) {
  int packets = 0;
  int early = 0;
  on_packet_of_b = [&] {
    ++packets;
    early += copies->idle() ? 0 : 1;
  };
  a.post_write(a.local(0, 12), of_b(16'384));
  a.ring();
  expect_success();
  EXPECT_GT(packets, 0);
  EXPECT_EQ(early, 0) << "it would leave at once where the wire's batch is full";
}

TEST_F(Foreign, atomic_in_host_memory_waits_for_the_payload_before_it) {
  int early = 0;
  copies->before = [&] { early += word_of_b(4096) != 0 ? 1 : 0; };
  a.post_write(of_a(0, 12), of_b(16'384), false);  // as long as an atomic, on the wire
  a.post_fetch_add(a.local(64, 8), b.remote(4096), 1);
  a.ring();
  ASSERT_TRUE(drive(a, b, [&] { return word_of_b(4096) == 1; }));
  EXPECT_EQ(early, 0);
}

// An offender trusts the completion of a READ into a GPU that does not order writes.
TEST_F(Foreign, completion_may_be_there_before_the_bytes_of_a_read_where_nothing_orders_them) {
  copies->in_order = false;
  std::fill_n(b.memory.begin(), 16, std::byte{9});
  a.post_read(of_a(0, 16), b.remote(0));
  a.ring();
  expect_success();
  EXPECT_EQ(memory.open[15], std::byte{0});
  a.hca->progress();
  EXPECT_EQ(memory.open[15], std::byte{9});
}

TEST_F(Foreign, completion_waits_for_the_bytes_that_a_read_brought) {
  int early = 0;
  copies->before = [&] { early += a.poll_send() ? 1 : 0; };
  b.memory[0] = std::byte{42};
  a.post_read(of_a(0, 16), b.remote(0));
  a.ring();
  expect_success();
  EXPECT_EQ(memory.open[0], std::byte{42});
  EXPECT_EQ(early, 0) << "the CQE was there while the bytes were under way";
}

TEST_F(Foreign, atomics_on_it_change_it_and_return_the_original) {
  const std::uint64_t start = 40;
  std::memcpy(memory.open + 128, &start, sizeof start);
  a.post_fetch_add(of_a(64, 8), of_b(128), 2);
  a.ring();
  expect_success();
  std::array<std::uint64_t, 2> words{};
  std::memcpy(&words[0], memory.open + 64, sizeof(std::uint64_t));
  std::memcpy(&words[1], memory.open + 128, sizeof(std::uint64_t));
  EXPECT_THAT(words, testing::ElementsAre(40u, 42u));
}

TEST_F(Foreign, memory_that_is_gone_fails_the_access) {
  copies->gone = true;
  a.post_write(of_a(0, 8), b.remote(0));
  a.ring();
  const auto polled = await_send(a, b);
  ASSERT_TRUE(polled);
  EXPECT_EQ(polled->syndrome, mlx5::Syndrome::kLocalProtection);
}

TEST_F(Foreign, receive_queue_in_it_is_refused) {
  SharedReceiveQueueSpec spec;
  spec.pd = a.pd;
  spec.ring = memory.hidden;
  spec.entries = 16;
  spec.stride_bytes = 64;
  spec.doorbell_record = reinterpret_cast<Be32*>(memory.hidden + 8192);
  const auto created = a.hca->create_srq(spec);
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error(), EOPNOTSUPP);
}

// Records the calls of a store to its engine, in order.
class Recorder final : public CopyEngine {
 public:
  Recorder(std::vector<std::string>& log, const char* name) : log_(log), name_(name) {}
  bool write(std::byte*, const std::byte*, std::size_t length_bytes) override {
    log_.push_back(name_ + std::string(" write ") + std::to_string(length_bytes));
    return true;
  }
  bool read(std::byte*, const std::byte*, std::size_t) override { return true; }
  void synchronize() override { log_.push_back(name_ + std::string(" synchronize")); }

 private:
  std::vector<std::string>& log_;
  const char* name_;
};

TEST(ForeignMemory, stores_keep_their_order_across_memories) {
  std::vector<std::string> log;
  alignas(64) std::array<std::byte, 192> bytes{};
  const std::array<std::byte, 64> from{};
  ForeignMemory foreign;
  foreign.add(bytes.data(), 64, std::make_shared<Recorder>(log, "x"));
  foreign.add(bytes.data() + 64, 64, std::make_shared<Recorder>(log, "y"));
  ASSERT_TRUE(foreign.store(bytes.data(), from.data(), 64));       // a CQE: its last word for itself
  ASSERT_TRUE(foreign.store(bytes.data(), from.data(), 8));        // behind it without a wait
  ASSERT_TRUE(foreign.store(bytes.data() + 64, from.data(), 8));   // another GPU's
  ASSERT_TRUE(foreign.store(bytes.data() + 128, from.data(), 8));  // this process's
  EXPECT_THAT(log, testing::ElementsAre("x write 56", "x write 8", "x write 8", "x synchronize", "y write 8",
                                        "y synchronize"));
}

TEST(ForeignMemory, completion_queue_is_disarmed_when_made_and_tells_of_nothing_before_it_is_there) {
  std::vector<std::string> log;
  alignas(64) std::array<std::byte, 256> bytes{};
  const std::array<std::byte, 8> payload{};
  ForeignMemory foreign;
  foreign.add(bytes.data(), 64, std::make_shared<Recorder>(log, "x"));
  foreign.add(bytes.data() + 64, 64, std::make_shared<Recorder>(log, "y"));
  for (const std::size_t ring : {64u, 128u}) {  // in foreign memory, and in this process's
    CompletionQueueSpec spec;
    spec.ring = bytes.data() + ring;
    spec.doorbell_record = reinterpret_cast<Be32*>(bytes.data());
    CompletionQueue cq(spec, &foreign);
    EXPECT_THAT(log, testing::ElementsAre("x write 4", "x synchronize"));
    ASSERT_TRUE(foreign.store(bytes.data() + 32, payload.data(), payload.size()));
    log.clear();
    EXPECT_TRUE(cq.write({}));
    if (ring == 64) {
      EXPECT_THAT(log, testing::ElementsAre("x synchronize", "y write 56", "y write 8"));
    } else {
      EXPECT_THAT(log, testing::ElementsAre("x synchronize"));
    }
    foreign.synchronize();
    log.clear();
  }
}

TEST(ForeignMemory, range_added_twice_goes_with_the_last) {
  std::vector<std::string> log;
  std::array<std::byte, 64> bytes{};
  ForeignMemory foreign;
  EXPECT_TRUE(foreign.empty());
  const auto copies = std::make_shared<Recorder>(log, "x");
  foreign.add(bytes.data(), 64, copies);
  foreign.add(bytes.data(), 64, copies);
  foreign.remove(bytes.data(), 64);
  EXPECT_EQ(foreign.find(bytes.data() + 63), copies.get());
  EXPECT_EQ(foreign.find(bytes.data() + 64), nullptr);
  foreign.remove(bytes.data(), 64);
  EXPECT_TRUE(foreign.empty());
}

}  // namespace foreign_memory_test
}  // namespace gdx::softhca::test
