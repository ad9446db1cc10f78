#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/mapped_pages.h"
#include "base/page_size.h"
#include "host/ipc/daemon.h"
#include "host/queue/queue_objects.h"
#include "host/staging/progress.h"
#include "proto/mlx5/prm.h"

namespace gdx {
namespace {

static_assert(ipc::kQueryBytes == mlx5::prm::kQueryQpOutBytes);
static_assert(sizeof(ipc::ConnectEndpoint::peer) == sizeof(EndpointAddress));

class RemoteQueue final : public QueueObjects, private ProgressService {
 public:
  RemoteQueue(std::shared_ptr<ipc::Daemon> daemon, const ipc::EndpointAnswer& answer,
              RegistrationWay registered_by)
      : daemon_(std::move(daemon)), endpoint_(answer.endpoint) {
    facts_.registered_by = registered_by;
    facts_.qpn = answer.qpn;
    facts_.psn = answer.psn;
    facts_.scratch_lkey = answer.scratch_lkey;
    facts_.pkey = answer.pkey;
    facts_.blueflame_half_bytes = answer.blueflame_half_bytes;
    facts_.data_order = static_cast<DataOrder>(answer.data_order);
  }
  void use(MappedPages doorbell_page, std::uint32_t register_offset) {
    page_ = std::move(doorbell_page);
    facts_.doorbell_page = page_.get();
    facts_.doorbell = reinterpret_cast<std::uint64_t*>(page_.get() + register_offset);
  }
  // Watches the doorbell, which a software HCA sets to 0 when it has seen it.
  void watch() {
    detail::add_service(*this);
    detail::add_served_elsewhere(1);
    watched_ = true;
  }
  // gdxd ends the objects of a client that it has lost, so a failure leaves nothing behind.
  ~RemoteQueue() override {
    if (watched_) detail::add_served_elsewhere(-1);
    if (watched_) detail::remove_service(*this);
    (void)daemon_->call<ipc::Done>(ipc::DestroyEndpoint{endpoint_});
  }

  [[nodiscard]] Result<void> connect(const EndpointAddress& peer) override {
    ipc::ConnectEndpoint request{};
    request.endpoint = endpoint_;
    std::memcpy(request.peer, &peer, sizeof peer);
    GDX_TRY(daemon_->call<ipc::Done>(request));
    return {};
  }
  void retire() override {
    const auto retired = daemon_->call<ipc::Done>(ipc::RetireEndpoint{endpoint_});
    if (!retired) log::debug("an endpoint could not be retired: {}", retired.error().message);
  }
  [[nodiscard]] Result<std::vector<std::uint8_t>> query() const override {
    const auto reply = GDX_TRY(daemon_->call<ipc::QueryAnswer>(ipc::QueryEndpoint{endpoint_}));
    return std::vector<std::uint8_t>(std::begin(reply.answer.output), std::end(reply.answer.output));
  }
  [[nodiscard]] Result<FlightRecord> flight() const override {
    const auto reply = GDX_TRY(daemon_->call<ipc::StatisticsAnswer>(ipc::ReadFlight{endpoint_, 0, 0}));
    const std::string text = GDX_TRY(ipc::read_text(reply));
    return parse_flight(text);
  }

 private:
  [[nodiscard]] bool rings() const {
    const std::size_t halves = facts_.blueflame_half_bytes == 0 ? 1 : 2;
    for (std::size_t half = 0; half < halves; ++half) {
      std::uint64_t& word = facts_.doorbell[half * facts_.blueflame_half_bytes / sizeof(std::uint64_t)];
      if (std::atomic_ref(word).load(std::memory_order_relaxed) != 0) return true;
    }
    return false;
  }
  int progress() override {
    if (!rings()) {
      unseen_since_ns_ = 0;
      return 0;
    }
    const std::uint64_t now_ns = monotonic_ns();
    if (unseen_since_ns_ == 0) unseen_since_ns_ = now_ns;
    if (now_ns - unseen_since_ns_ < ipc::kWakeEveryNs) return 0;
    unseen_since_ns_ = 0;
    daemon_->wake();
    return 0;
  }

  std::shared_ptr<ipc::Daemon> daemon_;
  std::uint32_t endpoint_;
  MappedPages page_;
  bool watched_ = false;
  std::uint64_t unseen_since_ns_ = 0;  // 0: the newest doorbell has been seen
};

ipc::CreateEndpoint request_of(const EndpointOptions& options, const StagingPools& pools,
                               const QueueMemory& memory) {
  ipc::CreateEndpoint request{};
  request.queue_bytes = memory.host_memory().size();
  request.queue_address = reinterpret_cast<std::uintptr_t>(memory.host_memory().data());
  request.send_queue_blocks = options.send_queue_blocks;
  request.slot_count = options.slot_count;
  request.bounce_slot_count = options.bounce_slot_count;
  if (options.slot_count != 0) request.pool = pools.nic->daemon_number();
  if (options.bounce_slot_count != 0) request.bounce_pool = pools.host->daemon_number();
  request.sharing = static_cast<std::uint8_t>(options.sharing);
  request.doorbell = static_cast<std::uint8_t>(*options.doorbell);
  request.ack_timeout = *options.ack_timeout;
  request.retry_count = *options.retry_count;
  request.rnr_retry = options.rnr_retry;
  request.min_rnr_timer = options.min_rnr_timer;
  request.hop_limit = options.hop_limit;
  request.traffic_class = *options.traffic_class;
  request.service_level = *options.service_level;
  request.pkey = options.pkey.value_or(0);
  request.adaptive_routing = *options.adaptive_routing ? 1 : 0;
  return request;
}

}  // namespace

Result<std::unique_ptr<QueueObjects>> request_queue_objects(const Hca& hca, StagingPools pools,
                                                            const EndpointOptions& options,
                                                            const QueueMemory& memory) {
  if (options.unsafe_push_without_credits) {
    return fail(Status::kUnsupported,
                fmt::format("unsafe_push_without_credits would damage other processes' payload "
                            "in gdxd's pool: set {}=off",
                            ipc::kDaemonVariable));
  }
  if (options.shares_doorbell_page) {
    return fail(
        Status::kUnsupported,
        fmt::format("shares_doorbell_page would show this process a page of gdxd's other clients: set "
                    "{}=off",
                    ipc::kDaemonVariable));
  }
  auto request = request_of(options, pools, memory);
  std::vector<int> files{memory.file()};
  SharedRegion queue_of_gpu{};
  if (const Gpu* const gpu = memory.gpu()) {
    const auto facts = GDX_TRY(read_registration_facts(hca, {PointerKind::kDevice, gpu->ordinal()}));
    const GpuRegion region{memory.base(), memory.registered_bytes(), IBV_ACCESS_LOCAL_WRITE, gpu->ordinal()};
    queue_of_gpu = GDX_TRY(share_gpu_region(hca, region, facts));
    request.queue_in_dmabuf = 1;
    request.dmabuf_offset = queue_of_gpu.offset;
    files.push_back(queue_of_gpu.dmabuf.value());
  }
  const auto& daemon = hca.daemon();
  auto reply = GDX_TRY(daemon->call<ipc::EndpointAnswer>(request, files));
  const ipc::EndpointAnswer& answer = reply.answer;
  const auto way = memory.gpu() != nullptr ? RegistrationWay::kDmabuf : RegistrationWay::kHostPages;
  auto queue = std::make_unique<RemoteQueue>(daemon, answer, way);
  if (reply.files.size() != 1 || answer.register_offset + sizeof(std::uint64_t) > page_bytes())
    return fail(Status::kSystem, "gdxd's answer holds no doorbell register: restart it");
  auto page = GDX_TRY(ipc::map_shared(reply.files.front(), answer.map_offset, page_bytes()));
  queue->use(std::move(page), answer.register_offset);
  if (hca.is_software()) queue->watch();
  return queue;
}

}  // namespace gdx
