// Options of an endpoint arrive at its queue pair, its completion queue and its handle. Each field has a
// value that no other has, and the two ends differ in all of them. Fields that the HCA keeps are read back
// from it; others are read in the commands that it took.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/mlx5_api.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/hca/hca.h"
#include "host/queue/endpoint.h"
#include "host/staging/staging_pool.h"
#include "proto/mlx5/prm.h"
#include "tests/unit/host/own_gdxd.h"

namespace {
using Bytes = std::vector<std::uint8_t>;
struct Command {
  mlx5dv_devx_obj* object;
  Bytes in;
  std::uint32_t number;  // of the object that it made
};
std::vector<Command>& commands() {
  static std::vector<Command> all;
  return all;
}
int refused_step = 0;  // of the transitions from now on; 0: none
// A bit of the order that QUERY_QP shows, as where firmware heeds no force; none: the HCA's own answer.
std::optional<gdx::mlx5::prm::PrmField> shown_order;
// Types of doorbell pages, as they were asked for, and how many are refused first.
struct Pages {
  std::vector<std::uint32_t> asked;
  std::size_t refused;
};
Pages& pages() {
  static Pages all{};
  return all;
}
// The port's GID table as a test has it; empty: the HCA's own.
std::vector<ibv_gid_entry>& gids() {
  static std::vector<ibv_gid_entry> all;
  return all;
}
// Orders what gdxd's thread records before the test reads it: a socket between them is no order to a
// sanitizer.
std::mutex recording;
template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
}  // namespace

// Before those of libibverbs and libmlx5, which they call.
extern "C" {
int _ibv_query_gid_ex(ibv_context* context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry,
                      std::uint32_t flags, std::size_t entry_bytes) {
  if (gids().empty())
    return real<decltype(_ibv_query_gid_ex)>(__func__)(context, port, index, entry, flags, entry_bytes);
  *entry = gids().at(index);
  return 0;
}
mlx5dv_devx_uar* mlx5dv_devx_alloc_uar(ibv_context* context, std::uint32_t type) {
  const std::lock_guard lock(recording);
  pages().asked.push_back(type);
  if (pages().asked.size() > pages().refused)
    return real<decltype(mlx5dv_devx_alloc_uar)>(__func__)(context, type);
  errno = EOPNOTSUPP;
  return nullptr;
}
mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context* context, const void* in, std::size_t in_bytes, void* out,
                                        std::size_t out_bytes) {
  auto* const object =
      real<decltype(mlx5dv_devx_obj_create)>(__func__)(context, in, in_bytes, out, out_bytes);
  const auto* const sent = static_cast<const std::uint8_t*>(in);
  const std::span answer(static_cast<const std::uint8_t*>(out), out_bytes);
  const std::lock_guard lock(recording);
  commands().push_back(
      {object, Bytes(sent, sent + in_bytes), gdx::mlx5::prm::get32(answer, gdx::mlx5::prm::kObjectId)});
  return object;
}
int mlx5dv_devx_obj_modify(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                           std::size_t out_bytes) {
  const auto* const sent = static_cast<const std::uint8_t*>(in);
  const std::lock_guard lock(recording);
  commands().push_back({object, Bytes(sent, sent + in_bytes), 0});
  if (refused_step != 0 && --refused_step == 0) return EINVAL;
  return real<decltype(mlx5dv_devx_obj_modify)>(__func__)(object, in, in_bytes, out, out_bytes);
}
int mlx5dv_devx_obj_query(mlx5dv_devx_obj* object, const void* in, std::size_t in_bytes, void* out,
                          std::size_t out_bytes) {
  const int status = real<decltype(mlx5dv_devx_obj_query)>(__func__)(object, in, in_bytes, out, out_bytes);
  if (shown_order) gdx::mlx5::prm::set({static_cast<std::uint8_t*>(out), out_bytes}, *shown_order, 1);
  return status;
}
}

namespace gdx {
namespace {

namespace prm = mlx5::prm;

struct Named {
  const char* name;
  prm::PrmField field;
};
#define FIELD(name) \
  { #name, prm::qp::name }

// A connected endpoint as the HCA has it.
class Wired {
 public:
  explicit Wired(std::uint32_t qpn) {
    const std::lock_guard lock(recording);
    for (const Command& command : commands()) {
      if (opcode_of(command) == prm::Opcode::kCreateQp && command.number == qpn) create_ = &command;
    }
    if (create_ == nullptr) return;
    for (const Command& command : commands()) {
      if (opcode_of(command) == prm::Opcode::kCreateCq && command.number == cqn()) create_cq_ = &command;
      if (command.object == create_->object) by_opcode_[opcode_of(command)] = &command;
    }
    prm::Mailbox<prm::kQueryQpOutBytes> in{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kQueryQp));
    prm::set(in, prm::kObjectId, qpn);
    answered_ = mlx5dv_devx_obj_query(create_->object, in.data(), in.size(), out_.data(), out_.size()) == 0;
  }
  [[nodiscard]] bool is_whole() const {
    return answered_ && create_cq_ != nullptr && by_opcode_.contains(prm::Opcode::kRst2Init) &&
           by_opcode_.contains(prm::Opcode::kInit2Rtr) && by_opcode_.contains(prm::Opcode::kRtr2Rts);
  }
  [[nodiscard]] std::uint32_t cqn() const { return prm::get32(create_->in, prm::qp::kSendCqn); }
  [[nodiscard]] const Bytes& create() const { return create_->in; }
  [[nodiscard]] const Bytes& create_cq() const { return create_cq_->in; }
  [[nodiscard]] const Bytes& sent(prm::Opcode opcode) const { return by_opcode_.at(opcode)->in; }
  [[nodiscard]] std::span<const std::uint8_t> answer() const { return out_; }

 private:
  static prm::Opcode opcode_of(const Command& command) {
    return static_cast<prm::Opcode>(prm::get32(command.in, prm::kOpcode));
  }
  const Command* create_ = nullptr;
  const Command* create_cq_ = nullptr;
  std::map<prm::Opcode, const Command*> by_opcode_;
  prm::Mailbox<prm::kQueryQpOutBytes> out_{};
  bool answered_ = false;
};

void expect_fields(const char* of, std::span<const std::uint8_t> bytes,
                   const std::vector<std::pair<Named, std::uint64_t>>& expected) {
  for (const auto& [named, value] : expected) {
    EXPECT_EQ(prm::get(bytes, named.field), value) << of << ": " << named.name;
  }
}

// One end: its options, and the smaller of its HCA's MTU and the one that its peer says.
struct End {
  EndpointOptions options;
  std::uint32_t mtu_said;
};

// No two fields of one end are equal, and no field is at both ends or as by default.
End first_end() {
  return {{.send_queue_blocks = 32,
           .slot_count = 1,
           .bounce_slot_count = 4,
           .timeout_ns = 61'000'000'001,
           .probe_after_ns = 750'000'011,
           .ack_timeout = 11,
           .retry_count = 6,
           .rnr_retry = 5,
           .min_rnr_timer = 13,
           .hop_limit = 61,
           .traffic_class = 0x6b,
           .service_level = 3,
           .doorbell = DoorbellKind::kBlueFlame,
           .adaptive_routing = true},
          4096};
}
End second_end() {
  return {{.send_queue_blocks = 256,
           .slot_count = 16,
           .bounce_slot_count = 2,
           .timeout_ns = 62'000'000'003,
           .probe_after_ns = 850'000'017,
           .ack_timeout = 12,
           .retry_count = 4,
           .rnr_retry = 2,
           .min_rnr_timer = 27,
           .hop_limit = 200,
           .traffic_class = 0xd4,
           .service_level = 6,
           .doorbell = DoorbellKind::kPlain},
          512};
}

class EndpointWiring : public ::testing::Test {
 protected:
  void TearDown() override { gids().clear(); }

  void open(std::uint8_t gid_index) {
    auto opened = Hca::open({.gid_index = gid_index});
    ASSERT_TRUE(opened) << opened.error().message;
    hca_ = std::make_unique<Hca>(std::move(*opened));
    ASSERT_EQ(hca_->path_mtu_bytes(), 2048u)
        << "CMake sets GDX_SOFTHCA_MTU: neither end's may be the largest";
    auto nic = StagingPool::create(*hca_, {.slot_bytes = 2048, .minimum_slots = 2});
    ASSERT_TRUE(nic) << nic.error().message;
    nic_ = std::make_unique<StagingPool>(std::move(*nic));
    StagingOptions in_host = StagingOptions::in_host_memory();
    in_host.minimum_slots = 3;
    auto host = StagingPool::create(*hca_, in_host);
    ASSERT_TRUE(host) << host.error().message;
    host_ = std::make_unique<StagingPool>(std::move(*host));
  }
  Result<Endpoint> create(const EndpointOptions& options) {
    return Endpoint::create(*hca_, {nic_.get(), host_.get()}, options);
  }

  void connect(Endpoint& endpoint, const Endpoint& peer, std::uint32_t mtu_said) {
    EndpointAddress address = peer.address();
    EXPECT_EQ(address.mtu_bytes, hca_->path_mtu_bytes());
    address.mtu_bytes = static_cast<std::uint16_t>(mtu_said);
    const auto connected = endpoint.connect(address);
    ASSERT_TRUE(connected) << connected.error().message;
  }

  void expect_wired(const Endpoint& endpoint, const Endpoint& peer, const EndpointOptions& o,
                    std::uint32_t mtu_bytes) {
    const EndpointAddress own = endpoint.address();
    const EndpointAddress other = peer.address();
    const Wired wired(own.qpn);
    ASSERT_TRUE(wired.is_whole());
    EXPECT_EQ(own.data_order, o.adaptive_routing ? DataOrder::kAny : DataOrder::kKept);
    EXPECT_EQ(endpoint.handle().signal_fence,
              other.data_order == DataOrder::kAny ? mlx5::kFenceStrongOrdering : 0)
        << "placement is the peer's";
    const std::uint32_t mtu_code = static_cast<std::uint32_t>(std::bit_width(mtu_bytes)) - 8;
    expect_fields("QUERY_QP", wired.answer(),
                  {{FIELD(kState), prm::qp::kRts},
                   {FIELD(kOrderingForce), 1},
                   {FIELD(kMtu), mtu_code},
                   {FIELD(kRemoteQpn), other.qpn},
                   {FIELD(kNextReceivePsn), other.psn},
                   {FIELD(kNextSendPsn), own.psn},
                   {FIELD(kRemoteWrite), 1},
                   {FIELD(kRemoteRead), 1},
                   {FIELD(kRemoteAtomic), 1},
                   {FIELD(kLogSraMax), 4},
                   {FIELD(kLogRraMax), 4},
                   {FIELD(kLogMaxMessage), 30},
                   {FIELD(kCounterSet), hca_->counter_set()},
                   {FIELD(kPathPort), hca_->port()}});
    // Not of QUERY_QP, since the software HCA tells its peer's address there, whatever GID was said.
    EXPECT_EQ(
        std::memcmp(wired.sent(prm::Opcode::kInit2Rtr).data() + prm::qp::kPathRemoteGidByte, other.gid, 16),
        0);
    expect_fields("INIT2RTR_QP", wired.sent(prm::Opcode::kInit2Rtr),
                  {{FIELD(kPathSourceGidIndex), hca_->gid_index()},
                   {FIELD(kPathPort), hca_->port()},
                   {FIELD(kOrderingForce), 1},
                   {FIELD(kLagPortAffinity), 0}});
    EXPECT_GE(prm::get32(wired.sent(prm::Opcode::kInit2Rtr), prm::qp::kPathUdpSourcePort), 0xc000u);
    expect_created(wired, endpoint.handle(), o);
    expect_options(wired, endpoint.handle(), o);
  }

  static void expect_options(const Wired& wired, const EndpointHandle& handle, const EndpointOptions& o) {
    expect_fields("QUERY_QP", wired.answer(),
                  {{FIELD(kMinRnrNak), o.min_rnr_timer},
                   {FIELD(kPathAckTimeout), *o.ack_timeout},
                   {FIELD(kRetryCount), *o.retry_count},
                   {FIELD(kRnrRetry), o.rnr_retry}});
    expect_fields("INIT2RTR_QP", wired.sent(prm::Opcode::kInit2Rtr),
                  {{FIELD(kPathHopLimit), o.hop_limit},
                   {FIELD(kPathTrafficClass), *o.traffic_class},
                   {FIELD(kPathDscp), std::uint64_t{*o.traffic_class} >> 2},
                   {FIELD(kPathEthernetPriority), *o.service_level},
                   {FIELD(kOrderingLow), o.adaptive_routing.value_or(false)}});
    EXPECT_EQ(prm::get(wired.create(), prm::qp::kLogSqSize), std::uint64_t{handle.log_send_queue});
    expect_handle(handle, o);
  }

  void expect_created(const Wired& wired, const EndpointHandle& handle, const EndpointOptions& o) const {
    const auto log_blocks = static_cast<std::uint64_t>(std::countr_zero(o.send_queue_blocks));
    const auto offset = [&](const void* of) {
      return static_cast<std::uint64_t>(static_cast<const std::byte*>(of) -
                                        reinterpret_cast<const std::byte*>(handle.send_queue));
    };
    expect_fields("CREATE_QP", wired.create(),
                  {{FIELD(kPd), hca_->pdn()},
                   {FIELD(kReceiveCqn), wired.cqn()},
                   {FIELD(kLogSqSize), log_blocks},
                   {FIELD(kUmemOffset), 0},
                   {FIELD(kDbrAddress), offset(handle.send_record - 1)}});  // the receive half comes first
    EXPECT_EQ(prm::get(wired.create_cq(), prm::cq::kEqn), hca_->eqn());
    EXPECT_EQ(prm::get(wired.create_cq(), prm::cq::kLogSize), log_blocks);
    EXPECT_EQ(prm::get(wired.create_cq(), prm::cq::kUmemOffset), offset(handle.completion_queue));
    EXPECT_EQ(prm::get(wired.create_cq(), prm::cq::kUarPage), prm::get(wired.create(), prm::qp::kUarPage));
    EXPECT_EQ(prm::get(wired.create_cq(), prm::cq::kUmemId), prm::get(wired.create(), prm::qp::kUmemId));
    EXPECT_NE(prm::get(wired.create_cq(), prm::cq::kDbrAddress),
              prm::get(wired.create(), prm::qp::kDbrAddress));
  }

  static void expect_handle(const EndpointHandle& handle, const EndpointOptions& o) {
    EXPECT_EQ(1u << handle.log_send_queue, o.send_queue_blocks);
    EXPECT_EQ(1u << handle.log_completion_queue, o.send_queue_blocks);
    EXPECT_EQ(handle.timeout_ns, *o.timeout_ns);
    EXPECT_EQ(handle.probe_after_ns, o.probe_after_ns);
    EXPECT_EQ(handle.blueflame_half_bytes, o.doorbell == DoorbellKind::kBlueFlame ? 256u : 0u);
    EXPECT_EQ(handle.placement, o.placement.value_or(Placement::kHost));
    EXPECT_EQ(handle.sharing, o.sharing);
    EXPECT_EQ(handle.staging.slot_bytes, 2048u);
    EXPECT_EQ(handle.bounce.slot_bytes, kDefaultBounceSlotBytes);
    const std::uint32_t minimum = std::min(2u, o.slot_count);
    const std::uint32_t bounce_minimum = std::min(3u, o.bounce_slot_count);
    EXPECT_EQ(handle.staging.minimum_slots, minimum);
    EXPECT_EQ(handle.bounce.minimum_slots, bounce_minimum);
    ASSERT_NE(handle.staging.grants, nullptr);
    ASSERT_NE(handle.bounce.grants, nullptr);
    EXPECT_EQ(granted_of(*handle.staging.grants), minimum);
    EXPECT_EQ(granted_of(*handle.bounce.grants), bounce_minimum);
    EXPECT_NE(handle.staging.base, handle.bounce.base);
    EXPECT_NE(handle.staging.lkey, handle.bounce.lkey);
    EXPECT_NE(handle.staging.requests, handle.bounce.requests);
    EXPECT_NE(handle.staging.held, handle.bounce.held);
    EXPECT_NE(handle.staging.granted_slots, handle.bounce.granted_slots);
    EXPECT_NE(handle.staging.returned_slots, handle.bounce.returned_slots);
  }

  std::unique_ptr<Hca> hca_;
  std::unique_ptr<StagingPool> nic_;
  std::unique_ptr<StagingPool> host_;
};

TEST_F(EndpointWiring, options_arrive_at_both_ends_queue_pairs) {
  for (const auto gid_index : {std::uint8_t{1}, std::uint8_t{0}}) {
    host_.reset();
    nic_.reset();
    ASSERT_NO_FATAL_FAILURE(open(gid_index));
    for (const Sharing sharing : {Sharing::kExclusive, Sharing::kShared}) {
      End first = first_end();
      End second = second_end();
      first.options.sharing = second.options.sharing = sharing;
      if (sharing == Sharing::kShared) first.options.send_queue_blocks = 128;
      auto a = create(first.options);
      auto b = create(second.options);
      ASSERT_TRUE(a && b) << (a ? b : a).error().message;
      // As if the other end's HCA had another MTU: each end takes the smaller.
      ASSERT_NO_FATAL_FAILURE(connect(*a, *b, first.mtu_said));
      ASSERT_NO_FATAL_FAILURE(connect(*b, *a, second.mtu_said));
      expect_wired(*a, *b, first.options, 2048);
      expect_wired(*b, *a, second.options, 512);
    }
  }
}

// CMake runs it once for each order that the HCA may keep, and where it drops the force by which it would.
TEST_F(EndpointWiring, signals_are_fenced_unless_the_peer_is_certain_to_keep_order) {
  const char* const set = std::getenv("GDX_SOFTHCA_DATA_ORDER");
  const bool kept = set == nullptr || set != std::string_view("any");
  ASSERT_NO_FATAL_FAILURE(open(1));
  auto a = create({});
  auto b = create({});
  ASSERT_TRUE(a && b);
  EXPECT_EQ(b->address().data_order, kept ? DataOrder::kKept : DataOrder::kAny);
  ASSERT_NO_FATAL_FAILURE(connect(*a, *b, 2048));
  const bool shown = std::getenv("GDX_SOFTHCA_FAULT") == nullptr;
  EXPECT_EQ(a->handle().signal_fence, kept && shown ? 0u : +mlx5::kFenceStrongOrdering);
  EXPECT_EQ(a->state().handle.signal_fence, a->handle().signal_fence) << "the copy that kernels read";
}

TEST_F(EndpointWiring, an_order_that_is_not_kept_although_forced_is_refused) {
  ASSERT_NO_FATAL_FAILURE(open(1));
  for (const prm::PrmField bit : {prm::qp::kOrderingLow, prm::qp::kOrderingHigh}) {
    auto a = create({});
    auto b = create({.adaptive_routing = true});
    ASSERT_TRUE(a && b);
    shown_order = bit;
    const auto kept = a->connect(b->address());
    const auto any = b->connect(a->address());
    shown_order.reset();
    ASSERT_FALSE(kept);
    EXPECT_EQ(kept.error().status, Status::kUnsupported);
    EXPECT_THAT(kept.error().message, testing::HasSubstr("set GDX_ADAPTIVE_ROUTING=1 at all ranks"));
    EXPECT_TRUE(any) << "it was permitted";
  }
}

// gdxd makes the queue pairs of what the message of a client tells.
TEST_F(EndpointWiring, options_arrive_through_gdxd) {
  const test::OwnGdxd gdxd;
  const auto wire = [this](std::uint8_t gid_index, Sharing sharing) {
    ASSERT_NO_FATAL_FAILURE(open(gid_index));
    End first = first_end();
    End second = second_end();
    first.options.sharing = second.options.sharing = sharing;
    if (sharing == Sharing::kShared) first.options.send_queue_blocks = 128;
    auto a = create(first.options);
    auto b = create(second.options);
    ASSERT_TRUE(a && b) << (a ? b : a).error().message;
    ASSERT_NO_FATAL_FAILURE(connect(*a, *b, 2048));
    ASSERT_NO_FATAL_FAILURE(connect(*b, *a, 2048));
    const Wired of_a(a->address().qpn);
    const Wired of_b(b->address().qpn);
    ASSERT_TRUE(of_a.is_whole() && of_b.is_whole());
    expect_options(of_a, a->handle(), first.options);
    expect_options(of_b, b->handle(), second.options);
    expect_fields("INIT2RTR_QP", of_a.sent(prm::Opcode::kInit2Rtr),
                  {{FIELD(kPathSourceGidIndex), gid_index}});
  };
  for (const auto& [gid_index, sharing] :
       {std::pair{std::uint8_t{1}, Sharing::kExclusive}, {std::uint8_t{0}, Sharing::kShared}}) {
    wire(gid_index, sharing);
    host_.reset();
    nic_.reset();
    hca_.reset();
  }
}

// Kinds of addresses in rising order, of which the first two serve no peer. Of two alike the first is taken.
TEST_F(EndpointWiring, address_of_the_kind_that_most_peers_have_is_taken_wherever_it_stands) {
  constexpr std::size_t kUseless = 2;
  const std::pair<ibv_gid_type, const char*> kinds[] = {{IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1"},
                                                        {IBV_GID_TYPE_ROCE_V2, "::"},
                                                        {IBV_GID_TYPE_ROCE_V2, "fe80::1"},
                                                        {IBV_GID_TYPE_ROCE_V2, "2001:db8::1"},
                                                        {IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1"}};
  const auto entry = [&](std::size_t kind) {
    ibv_gid_entry made{};
    made.gid_type = kinds[kind].first;
    EXPECT_EQ(inet_pton(AF_INET6, kinds[kind].second, made.gid.raw), 1);
    return made;
  };
  for (std::size_t first = 0; first < std::size(kinds); ++first) {
    for (std::size_t second = 0; second < std::size(kinds); ++second) {
      SCOPED_TRACE(std::to_string(first) + " before " + std::to_string(second));
      gids() = {entry(first), entry(second)};
      const auto opened = Hca::open();
      ASSERT_EQ(opened.has_value(), std::max(first, second) >= kUseless);
      if (!opened) {
        for (const Error& error : {opened.error(), Hca::open({.gid_index = 0}).error()})
          EXPECT_THAT(error.message, testing::EndsWith("no RoCE v2 address: give its network interface an IP "
                                                       "address"));
        continue;
      }
      const std::size_t taken = second > first ? 1 : 0;
      EXPECT_EQ(opened->gid_index(), taken);
      EXPECT_EQ(std::memcmp(opened->gid().raw, gids()[taken].gid.raw, sizeof(ibv_gid)), 0);
    }
  }
}

// The options that a variable may set, each with a value of its own.
TEST_F(EndpointWiring, variables_arrive_at_the_queue_pair) {
  ASSERT_NO_FATAL_FAILURE(open(1));
  const std::pair<const char*, const char*> variables[] = {
      {kCallTimeoutVariable, "63"},   {kAckTimeoutVariable, "10"},  {kRetryCountVariable, "3"},
      {kTrafficClassVariable, "106"}, {kServiceLevelVariable, "5"}, {kDoorbellVariable, "blueflame"},
      {kAdaptiveRoutingVariable, "1"}};
  EndpointOptions expected = first_end().options;
  expected.timeout_ns.reset();
  expected.ack_timeout.reset();
  expected.retry_count.reset();
  expected.traffic_class.reset();
  expected.service_level.reset();
  expected.doorbell.reset();
  expected.adaptive_routing.reset();
  for (const auto& [name, value] : variables) setenv(name, value, 1);
  auto endpoint = create(expected);
  for (const auto& variable : variables) unsetenv(variable.first);
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  ASSERT_NO_FATAL_FAILURE(connect(*endpoint, *endpoint, 256));
  expected.timeout_ns = 63'000'000'000;
  expected.ack_timeout = 10;
  expected.retry_count = 3;
  expected.traffic_class = 106;
  expected.service_level = 5;
  expected.doorbell = DoorbellKind::kBlueFlame;
  expected.adaptive_routing = true;
  expect_wired(*endpoint, *endpoint, expected, 256);
}

TEST_F(EndpointWiring, endpoint_whose_connection_failed_halfway_cannot_be_connected) {
  ASSERT_NO_FATAL_FAILURE(open(0));
  for (const int step : {1, 2, 3}) {
    SCOPED_TRACE(step);
    auto endpoint = create({});
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    refused_step = step;
    const auto refused = endpoint->connect(endpoint->address());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, Status::kSystem);
    const auto again = endpoint->connect(endpoint->address());
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().status, Status::kQueueError);
    EXPECT_NE(again.error().message.find("make another"), std::string::npos);
  }
}

// A dedicated page, which libmlx5 before rdma-core 45 refuses, a BlueFlame register rung by 8 B, the page of
// all.
TEST_F(EndpointWiring, register_is_the_endpoints_own_while_there_is_one) {
  ASSERT_NO_FATAL_FAILURE(open(1));
  constexpr std::uint32_t kDedicated = 1u << 31;
  constexpr std::uint32_t kBlueFlame = MLX5DV_UAR_ALLOC_TYPE_BF;
  constexpr std::uint32_t kShared = MLX5DV_UAR_ALLOC_TYPE_NC;
  const auto asked_for = [&](DoorbellKind kind, std::size_t refused) {
    pages() = {{}, refused};
    const auto endpoint = create({.doorbell = kind});
    pages().refused = 0;
    if (endpoint) {
      EXPECT_EQ(endpoint->handle().blueflame_half_bytes,
                kind == DoorbellKind::kBlueFlame && refused == 0 ? 256u : 0u);
    }
    return pages().asked;
  };
  using testing::ElementsAre;
  EXPECT_THAT(asked_for(DoorbellKind::kPlain, 1), ElementsAre(kDedicated, kBlueFlame));
  EXPECT_THAT(asked_for(DoorbellKind::kPlain, 2), ElementsAre(kDedicated, kBlueFlame, kShared));
  EXPECT_THAT(asked_for(DoorbellKind::kPlain, 3), ElementsAre(kDedicated, kBlueFlame, kShared));
  EXPECT_THAT(asked_for(DoorbellKind::kBlueFlame, 0), ElementsAre(kBlueFlame));
  EXPECT_THAT(asked_for(DoorbellKind::kBlueFlame, 3),
              ElementsAre(kBlueFlame, kDedicated, kBlueFlame, kShared));
}

}  // namespace
}  // namespace gdx
