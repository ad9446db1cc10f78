// Objects of one HCA: which specifications make one, at each bound, and what must go before what.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <vector>

#include "tests/unit/engine/node.h"
#include "tests/unit/engine/still_wire.h"

namespace gdx::softhca::test {
namespace objects_test {

constexpr std::uint32_t kUnknown = 0xfffffe;
constexpr std::uint32_t kMost = 1u << 15;  // entries of a queue

class NoCopies final : public CopyEngine {
 public:
  bool write(std::byte*, const std::byte*, std::size_t) override { return true; }
  bool read(std::byte*, const std::byte*, std::size_t) override { return true; }
  void synchronize() override {}
};

template <typename Spec>
struct Change {
  const char* what;
  std::function<void(Spec&)> make;
  Errno expected = EINVAL;
};

class Objects : public testing::Test {
 protected:
  Objects() {
    hca().add_foreign(foreign.data(), foreign.size(), std::make_shared<NoCopies>());
    uar = hca().add_uar({reinterpret_cast<std::byte*>(page.data())}).value();
  }
  Hca& hca() { return *node.hca; }
  std::byte* at(std::size_t offset) { return memory.data() + offset; }
  Be32* record_at(std::size_t offset) { return reinterpret_cast<Be32*>(at(offset)); }
  Be32* foreign_record() { return reinterpret_cast<Be32*>(foreign.data() + 64); }

  CompletionQueueSpec queue_of_completions() {
    CompletionQueueSpec spec;
    spec.ring = at(0);
    spec.doorbell_record = record_at(2048);
    spec.log_entries = 2;
    return spec;
  }
  SharedReceiveQueueSpec shared_queue() {
    SharedReceiveQueueSpec spec;
    spec.pd = node.pd;
    spec.ring = at(0);
    spec.entries = 4;
    spec.stride_bytes = 32;
    spec.doorbell_record = record_at(2048);
    return spec;
  }
  QueuePairSpec queue_pair() {
    QueuePairSpec spec;
    spec.pd = node.pd;
    spec.uar = uar;
    spec.send_cqn = node.send_cqn;
    spec.receive_cqn = node.receive_cqn;
    spec.send_ring = at(0);
    spec.send_blocks = 4;
    spec.receive_ring = at(1024);
    spec.receive_entries = 4;
    spec.receive_stride_bytes = 16;
    spec.doorbell_record = record_at(2048);
    return spec;
  }
  MemoryRegionSpec region() {
    return {.pd = node.pd, .base = at(0), .iova = 0x1000, .length_bytes = 64, .access = kLocalWrite};
  }
  MemoryRegionSpec device_region() {
    MemoryRegionSpec spec = region();
    spec.base = reinterpret_cast<std::byte*>(node.device_memory.data());
    spec.device_memory = true;
    return spec;
  }

  // Applies each change alone to `spec`, and expects that an object is made, or the error.
  template <typename Spec>
  void expect_each(const Spec& spec, const std::vector<Change<Spec>>& changes,
                   const std::function<ErrnoOr<std::uint32_t>(const Spec&)>& create,
                   const std::function<Errno(std::uint32_t)>& destroy) {
    for (const Change<Spec>& change : changes) {
      SCOPED_TRACE(change.what);
      Spec changed = spec;
      change.make(changed);
      const ErrnoOr<std::uint32_t> made = create(changed);
      EXPECT_EQ(made ? 0 : made.error(), change.expected);
      if (made) {
        EXPECT_EQ(destroy(*made), 0);
      }
    }
  }

  alignas(64) std::array<std::byte, 4096> memory{};
  alignas(64) std::array<std::byte, 4096> foreign{};
  std::vector<std::uint64_t> page = std::vector<std::uint64_t>(512);
  Node node{std::make_unique<StillWire>()};
  std::uint32_t uar = 0;
};

TEST_F(Objects, completion_queues) {
  using Spec = CompletionQueueSpec;
  expect_each<Spec>(
      queue_of_completions(),
      {{"nothing", [](Spec&) {}, 0},
       {"no ring", [](Spec& it) { it.ring = nullptr; }},
       {"ring at 4", [](Spec& it) { it.ring += 4; }},
       {"ring at 8", [](Spec& it) { it.ring += 8; }, 0},
       {"no record", [](Spec& it) { it.doorbell_record = nullptr; }},
       {"record at 2", [this](Spec& it) { it.doorbell_record = record_at(2); }},
       {"entries of 32", [](Spec& it) { it.entry_bytes = 32; }},
       {"entries of 96", [](Spec& it) { it.entry_bytes = 96; }},
       {"entries of 128", [](Spec& it) { it.entry_bytes = 128; }, 0},
       {"2^22 entries", [](Spec& it) { it.log_entries = 22; }, 0},
       {"2^23 entries", [](Spec& it) { it.log_entries = 23; }},
       {"its page", [this](Spec& it) { it.uar = uar; }, 0},
       {"no page", [](Spec& it) { it.uar = kUnknown; }}},
      [this](const Spec& it) { return hca().create_cq(it); },
      [this](std::uint32_t number) { return hca().destroy_cq(number); });

  const std::uint32_t cqn = hca().create_cq(queue_of_completions()).value();
  EXPECT_EQ(hca().resize_cq(cqn, nullptr, 3), EINVAL);
  EXPECT_EQ(hca().resize_cq(cqn, at(4), 3), EINVAL);
  EXPECT_EQ(hca().resize_cq(cqn, at(512), 23), EINVAL);
  EXPECT_EQ(hca().resize_cq(kUnknown, at(512), 3), EINVAL);
  EXPECT_EQ(hca().resize_cq(cqn, at(512), 22), 0);
  EXPECT_EQ(hca().destroy_cq(cqn), 0);
  EXPECT_EQ(hca().destroy_cq(cqn), EINVAL);
}

TEST_F(Objects, shared_receive_queues) {
  using Spec = SharedReceiveQueueSpec;
  expect_each<Spec>(
      shared_queue(),
      {{"nothing", [](Spec&) {}, 0},
       {"no domain", [](Spec& it) { it.pd = kUnknown; }},
       {"no record", [](Spec& it) { it.doorbell_record = nullptr; }},
       {"no ring", [](Spec& it) { it.ring = nullptr; }},
       {"no room behind the next segment", [](Spec& it) { it.stride_bytes = 16; }},
       {"stride of 40", [](Spec& it) { it.stride_bytes = 40; }},
       {"no entries", [](Spec& it) { it.entries = 0; }},
       {"3 entries", [](Spec& it) { it.entries = 3; }},
       {"most entries", [](Spec& it) { it.entries = kMost; }, 0},
       {"more entries", [](Spec& it) { it.entries = 2 * kMost; }},
       {"foreign ring", [this](Spec& it) { it.ring = foreign.data(); }, EOPNOTSUPP},
       {"foreign record", [this](Spec& it) { it.doorbell_record = foreign_record(); }, EOPNOTSUPP}},
      [this](const Spec& it) { return hca().create_srq(it); },
      [this](std::uint32_t number) { return hca().destroy_srq(number); });
}

TEST_F(Objects, queue_pairs) {
  using Spec = QueuePairSpec;
  const std::uint32_t srqn = hca().create_srq(shared_queue()).value();
  const auto shares = [srqn](Spec& it) {
    it.srqn = srqn;
    it.receive_ring = nullptr;
    it.receive_entries = 3;
  };
  expect_each<Spec>(
      queue_pair(),
      {{"nothing", [](Spec&) {}, 0},
       {"no domain", [](Spec& it) { it.pd = kUnknown; }},
       {"no page", [](Spec& it) { it.uar = kUnknown; }},
       {"no queue for sends", [](Spec& it) { it.send_cqn = kUnknown; }},
       {"no queue for receives", [](Spec& it) { it.receive_cqn = kUnknown; }},
       {"no record", [](Spec& it) { it.doorbell_record = nullptr; }},
       {"shared receives that are not there", [](Spec& it) { it.srqn = kUnknown; }},
       {"shared receives", shares, 0},
       {"no ring of sends", [](Spec& it) { it.send_ring = nullptr; }},
       {"no sends", [](Spec& it) { it.send_ring = nullptr, it.send_blocks = 0; }, 0},
       {"3 blocks", [](Spec& it) { it.send_blocks = 3; }},
       {"most blocks", [](Spec& it) { it.send_blocks = kMost; }, 0},
       {"more blocks", [](Spec& it) { it.send_blocks = 2 * kMost; }},
       {"no ring of receives", [](Spec& it) { it.receive_ring = nullptr; }},
       {"no receives", [](Spec& it) { it.receive_ring = nullptr, it.receive_entries = 0; }, 0},
       {"3 receives", [](Spec& it) { it.receive_entries = 3; }},
       {"most receives", [](Spec& it) { it.receive_entries = kMost; }, 0},
       {"more receives", [](Spec& it) { it.receive_entries = 2 * kMost; }},
       {"stride of 0", [](Spec& it) { it.receive_stride_bytes = 0; }},
       {"stride of 24", [](Spec& it) { it.receive_stride_bytes = 24; }},
       {"foreign receives", [this](Spec& it) { it.receive_ring = foreign.data(); }, EOPNOTSUPP},
       {"foreign record", [this](Spec& it) { it.doorbell_record = foreign_record(); }, EOPNOTSUPP},
       {"foreign record without receives",
        [this](Spec& it) { it.doorbell_record = foreign_record(), it.receive_entries = 0; }, 0},
       {"foreign ring of sends", [this](Spec& it) { it.send_ring = foreign.data(); }, 0}},
      [this](const Spec& it) { return hca().create_qp(it); },
      [this](std::uint32_t number) { return hca().destroy_qp(number); });
}

TEST_F(Objects, memory_regions) {
  using Spec = MemoryRegionSpec;
  const auto create = [this](const Spec& it) { return hca().register_memory(it); };
  const auto destroy = [this](std::uint32_t key) { return hca().deregister_memory(key); };
  const auto umr = [](Spec& it) { it.umr = UmrKey{}, it.base = nullptr, it.length_bytes = 0; };
  const std::vector<IndirectPiece> pieces{{node.mkey, node.local(0, 1).address}};
  expect_each<Spec>(region(),
                    {{"nothing", [](Spec&) {}, 0},
                     {"no domain", [](Spec& it) { it.pd = kUnknown; }},
                     {"no base", [](Spec& it) { it.base = nullptr; }},
                     {"no base, on demand", [](Spec& it) { it.base = nullptr, it.access |= kOnDemand; }, 0},
                     {"base and pieces", [&](Spec& it) { it.pieces = pieces; }},
                     {"pieces", [&](Spec& it) { it.pieces = pieces, it.base = nullptr; }, 0},
                     {"pieces, on demand",
                      [&](Spec& it) { it.pieces = pieces, it.base = nullptr, it.access |= kOnDemand; }},
                     {"no length", [](Spec& it) { it.length_bytes = 0; }},
                     {"end at 2^64", [](Spec& it) { it.iova = ~std::uint64_t{0} - 63; }},
                     {"end before 2^64", [](Spec& it) { it.iova = ~std::uint64_t{0} - 64; }, 0},
                     {"device memory elsewhere", [](Spec& it) { it.device_memory = true; }},
                     {"for UMR", umr, 0},
                     {"for UMR without a domain", [&](Spec& it) { umr(it), it.pd = kUnknown; }},
                     {"for UMR with a base", [&](Spec& it) { umr(it), it.base = at(0); }},
                     {"for UMR with pieces", [&](Spec& it) { umr(it), it.pieces = pieces; }}},
                    create, destroy);
  constexpr std::size_t kAll = Node::kDeviceMemoryBytes;
  expect_each<Spec>(device_region(),
                    {{"nothing", [](Spec&) {}, 0},
                     {"no length", [](Spec& it) { it.length_bytes = 0; }, 0},
                     {"all", [](Spec& it) { it.length_bytes = kAll; }, 0},
                     {"more", [](Spec& it) { it.length_bytes = kAll + 1; }},
                     {"the end", [](Spec& it) { it.base += kAll - 64; }, 0},
                     {"beyond the end", [](Spec& it) { it.base += kAll - 63; }},
                     {"behind it", [](Spec& it) { it.base += kAll, it.length_bytes = 0; }, 0},
                     {"far behind it", [](Spec& it) { it.base += kAll + 1, it.length_bytes = 0; }},
                     {"before it", [](Spec& it) { it.base -= 1, it.length_bytes = 1; }}},
                    create, destroy);
  EXPECT_EQ(hca().deregister_memory(kUnknown), EINVAL);
}

TEST_F(Objects, region_is_replaced_by_one_of_its_kind_or_not_at_all) {
  const std::uint32_t key = hca().register_memory(region()).value();
  const std::uint32_t device = hca().register_memory(device_region()).value();
  MemoryRegionSpec for_umr{.pd = node.pd, .umr = UmrKey{}};
  const std::uint32_t umr = hca().register_memory(for_umr).value();
  MemoryRegionSpec paged = region();
  paged.access |= kOnDemand;
  MemoryRegionSpec of_nobody = paged;
  of_nobody.pd = kUnknown;
  const std::pair<std::uint32_t, MemoryRegionSpec> refused[] = {{key ^ 0x100, paged},   {device, paged},
                                                                {key, device_region()}, {umr, paged},
                                                                {key, for_umr},         {key, of_nobody}};
  const auto prefetch = [&] { return hca().prefetch(node.pd, key, 0x1000, 64, Prefetch::kCheck); };
  for (const auto& [mkey, spec] : refused) {
    EXPECT_EQ(hca().replace_memory(mkey, spec), EINVAL);
    EXPECT_EQ(prefetch(), ENOENT) << "its pages are always there";
  }
  EXPECT_EQ(hca().replace_memory(key, paged), 0);
  EXPECT_EQ(prefetch(), 0);
}

TEST_F(Objects, domain_outlives_each_kind_of_object_in_it_and_a_shared_queue_its_queue_pairs) {
  const std::uint32_t pd = hca().alloc_pd().value();
  const auto expect_busy = [&](Errno expected) { EXPECT_EQ(hca().dealloc_pd(pd), expected); };
  MemoryRegionSpec of_region = region();
  of_region.pd = pd;
  const std::uint32_t key = hca().register_memory(of_region).value();
  expect_busy(EBUSY);
  EXPECT_EQ(hca().deregister_memory(key), 0);
  SharedReceiveQueueSpec of_queue = shared_queue();
  of_queue.pd = pd;
  const std::uint32_t srqn = hca().create_srq(of_queue).value();
  expect_busy(EBUSY);
  QueuePairSpec of_pair = queue_pair();
  of_pair.srqn = srqn;
  const std::uint32_t qpn = hca().create_qp(of_pair).value();
  EXPECT_EQ(hca().destroy_srq(srqn), EBUSY);
  EXPECT_EQ(hca().destroy_qp(qpn), 0);
  EXPECT_EQ(hca().destroy_srq(srqn), 0);
  of_pair = queue_pair();
  of_pair.pd = pd;
  const std::uint32_t own = hca().create_qp(of_pair).value();
  expect_busy(EBUSY);
  EXPECT_EQ(hca().destroy_qp(own), 0);
  expect_busy(0);
  expect_busy(EINVAL);
}

TEST_F(Objects, unknown_queue_pair_has_no_attributes_no_flight_and_no_end) {
  EXPECT_EQ(hca().modify_qp(kUnknown, kQpState, {}), EINVAL);
  EXPECT_EQ(hca().query_qp(kUnknown).error(), EINVAL);
  EXPECT_EQ(hca().read_flight(kUnknown).error(), EINVAL);
  EXPECT_EQ(hca().destroy_qp(kUnknown), EINVAL);
}

// No doorbell tells of a receive posted in ERROR, so the change of state must list the queue pair.
TEST_F(Objects, receives_posted_after_a_change_to_error_are_flushed_by_the_steps) {
  ASSERT_EQ(node.modify_to_error(), 0);
  EXPECT_FALSE(node.poll_receive());
  for (int i = 0; i < 3; ++i) {
    node.post_receive(node.local(0, 64));
    hca().progress();
    const std::optional<Polled> flushed = node.poll_receive();
    ASSERT_TRUE(flushed);
    EXPECT_EQ(flushed->syndrome, mlx5::Syndrome::kFlushed);
  }
  EXPECT_EQ(hca().failed_queue_pairs(), 0u) << "the program wanted that";
}

}  // namespace objects_test
}  // namespace gdx::softhca::test
