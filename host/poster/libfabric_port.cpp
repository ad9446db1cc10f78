#include "host/poster/libfabric_port.h"

#include <fmt/format.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <array>
#include <cstring>
#include <optional>
#include <random>

#include "host/poster/libfabric_info.h"

namespace gdx {
namespace {

using libfabric::error_of;

constexpr std::size_t kReceives = 256;  // messages that may arrive between two polls
constexpr std::size_t kEventsAtOnce = 32;

struct CloseFid {
  void operator()(fid* object) const { fi_close(object); }
};
using Owner = std::unique_ptr<fid, CloseFid>;

struct Receive {
  fi_context2 context;
  alignas(64) std::array<std::byte, kPortMessageBytes> bytes;
};

static_assert(sizeof(fi_context2) <= sizeof(PortContext));

std::uint64_t random_key() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

class LibfabricPort final : public Port {
 public:
  explicit LibfabricPort(libfabric::Negotiated negotiated)
      : info_(std::move(negotiated.info)), traits_(std::move(negotiated.traits)), receives_(kReceives) {}

  Result<void> open(bool insecure);

  const PortTraits& traits() const override { return traits_; }
  const std::vector<std::byte>& address() const override { return address_; }
  Result<void> connect(std::uint32_t rank, std::span<const std::byte> address) override;
  Result<PortRegion> register_memory(std::byte* address, std::uint64_t bytes, bool remote) override;
  void forget_memory(const PortRegion& region) override;
  Result<Posting> write(std::uint32_t rank, PortSource from, PortTarget to, std::uint64_t bytes,
                        std::uint32_t flags, std::uint32_t immediate, PortContext* context) override;
  Result<Posting> read(std::uint32_t rank, PortSource to, PortTarget from, std::uint64_t bytes,
                       PortContext* context) override;
  Result<Posting> send(std::uint32_t rank, PortSource message, PortContext* context) override;
  Result<void> poll(std::vector<PortEvent>& events) override;

 private:
  // Takes `made` by reference, because the call whose result is `error` sets it.
  template <typename Made>
  Result<void> keep(int error, const char* what, Made* const& made) {
    if (error != 0) return tl::unexpected(error_of(what, error, traits_.provider));
    owners_.emplace_back(&made->fid);
    return {};
  }
  Result<void> check(long error, const char* what) const {
    if (error != 0) return tl::unexpected(error_of(what, error, traits_.provider));
    return {};
  }
  Result<Posting> posted(long error, const char* what) const {
    if (error == 0) return Posting::kPosted;
    if (error == -FI_EAGAIN) return Posting::kAgain;
    return tl::unexpected(error_of(what, error, traits_.provider));
  }
  Result<void> post_receives();
  [[nodiscard]] Receive* receive_of(void* context);
  void take(const fi_cq_data_entry& entry, std::vector<PortEvent>& events);
  Result<void> take_error(std::vector<PortEvent>& events);

  libfabric::Info info_;
  PortTraits traits_;
  std::vector<Receive> receives_;
  std::vector<Receive*> idle_receives_;  // to be posted
  void* receive_region_ = nullptr;
  std::vector<std::byte> address_;
  std::vector<fi_addr_t> peers_;
  bool insecure_ = false;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* av_ = nullptr;
  fid_cq* cq_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  // Closed from the newest to the oldest, because an object must be closed before those that it is part of.
  struct Owners : std::vector<Owner> {
    ~Owners() {
      while (!empty()) pop_back();
    }
  } owners_;
};

Result<void> LibfabricPort::open(bool insecure) {
  insecure_ = insecure;
  GDX_TRY(keep(libfabric::library().fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric", fabric_));
  GDX_TRY(keep(fi_domain(fabric_, info_.get(), &domain_, nullptr), "fi_domain", domain_));
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  GDX_TRY(keep(fi_av_open(domain_, &av, &av_, nullptr), "fi_av_open", av_));
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_DATA;
  cq.size = info_->tx_attr->size + info_->rx_attr->size + kReceives;
  GDX_TRY(keep(fi_cq_open(domain_, &cq, &cq_, nullptr), "fi_cq_open", cq_));
  GDX_TRY(keep(fi_endpoint(domain_, info_.get(), &endpoint_, nullptr), "fi_endpoint", endpoint_));
#if FI_VERSION_GE(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), FI_VERSION(1, 18))
  // Keeps the provider from CUDA's calls, which could wait for the kernel that waits for this poster.
  // Providers that make none do not know the option.
  bool cuda_calls = false;
  (void)fi_setopt(&endpoint_->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &cuda_calls,
                  sizeof cuda_calls);
#endif
  GDX_TRY(check(fi_ep_bind(endpoint_, &av_->fid, 0), "fi_ep_bind of the address vector"));
  GDX_TRY(check(fi_ep_bind(endpoint_, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind of the queue"));
  GDX_TRY(check(fi_enable(endpoint_), "fi_enable"));
  std::size_t bytes = 0;
  (void)fi_getname(&endpoint_->fid, nullptr, &bytes);
  address_.resize(bytes);
  GDX_TRY(check(fi_getname(&endpoint_->fid, address_.data(), &bytes), "fi_getname"));
  address_.resize(bytes);
  const PortRegion region = GDX_TRY(register_memory(reinterpret_cast<std::byte*>(receives_.data()),
                                                    receives_.size() * sizeof(Receive), false));
  receive_region_ = region.local;
  for (Receive& receive : receives_) idle_receives_.push_back(&receive);
  return post_receives();
}

Result<void> LibfabricPort::connect(std::uint32_t rank, std::span<const std::byte> address) {
  if (traits_.software && !insecure_ && !libfabric::is_loopback(info_->addr_format, address)) {
    return fail(
        Status::kUnsupported,
        fmt::format(
            "provider {} authenticates nobody, and rank {} is on another host: set GDX_INSECURE=1 on a "
            "network that you trust",
            traits_.provider, rank));
  }
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const int inserted = fi_av_insert(av_, address.data(), 1, &peer, 0, nullptr);
  if (inserted != 1) {
    return tl::unexpected(error_of(fmt::format("fi_av_insert of rank {}", rank),
                                   inserted < 0 ? inserted : FI_EINVAL, traits_.provider));
  }
  if (peers_.size() <= rank) peers_.resize(rank + 1, FI_ADDR_UNSPEC);
  peers_[rank] = peer;
  return {};
}

Result<PortRegion> LibfabricPort::register_memory(std::byte* address, std::uint64_t bytes, bool remote) {
  const int mode = info_->domain_attr->mr_mode;
  const bool local = (mode & FI_MR_LOCAL) != 0;
  if (!remote && !local) return PortRegion{};
  const std::uint64_t access =
      FI_SEND | FI_RECV | FI_WRITE | FI_READ | (remote ? FI_REMOTE_READ | FI_REMOTE_WRITE : 0);
  fid_mr* region = nullptr;
  const std::uint64_t key = (mode & FI_MR_PROV_KEY) != 0 ? 0 : random_key();
  GDX_TRY(keep(fi_mr_reg(domain_, address, bytes, access, 0, key, 0, &region, nullptr), "fi_mr_reg", region));
  if ((mode & FI_MR_ENDPOINT) != 0) {
    GDX_TRY(check(fi_mr_bind(region, &endpoint_->fid, 0), "fi_mr_bind"));
    GDX_TRY(check(fi_mr_enable(region), "fi_mr_enable"));
  }
  const bool virtual_address = (mode & FI_MR_VIRT_ADDR) != 0;
  return PortRegion{&region->fid, local ? fi_mr_desc(region) : nullptr,
                    virtual_address ? reinterpret_cast<std::uint64_t>(address) : 0, fi_mr_key(region)};
}

void LibfabricPort::forget_memory(const PortRegion& region) {
  std::erase_if(owners_, [&](const Owner& owner) { return owner.get() == region.object; });
}

Result<Posting> LibfabricPort::write(std::uint32_t rank, PortSource from, PortTarget to, std::uint64_t bytes,
                                     std::uint32_t flags, std::uint32_t immediate, PortContext* context) {
  const iovec piece{from.address, bytes};
  const fi_rma_iov target{to.address, bytes, to.key};
  fi_msg_rma message{};
  message.msg_iov = &piece;
  message.desc = &from.region;
  message.iov_count = 1;
  message.addr = peers_[rank];
  message.rma_iov = &target;
  message.rma_iov_count = 1;
  message.context = context;
  message.data = immediate;
  const std::uint64_t more = (flags & kPortMore) != 0 ? FI_MORE : 0;
  const std::uint64_t data = (flags & kPortImmediate) != 0 ? FI_REMOTE_CQ_DATA : 0;
  const std::uint64_t delivery = (flags & kPortSourceFree) != 0 ? 0 : FI_DELIVERY_COMPLETE;
  return posted(fi_writemsg(endpoint_, &message, FI_COMPLETION | delivery | more | data), "fi_writemsg");
}

Result<Posting> LibfabricPort::read(std::uint32_t rank, PortSource to, PortTarget from, std::uint64_t bytes,
                                    PortContext* context) {
  return posted(
      fi_read(endpoint_, to.address, bytes, to.region, peers_[rank], from.address, from.key, context),
      "fi_read");
}

Result<Posting> LibfabricPort::send(std::uint32_t rank, PortSource message, PortContext* context) {
  const iovec piece{message.address, kPortMessageBytes};
  fi_msg sent{};
  sent.msg_iov = &piece;
  sent.desc = &message.region;
  sent.iov_count = 1;
  sent.addr = peers_[rank];
  sent.context = context;
  // Not at delivery: who must know that a message was applied waits for the agent's answer. shm sends
  // messages inline only so.
  return posted(fi_sendmsg(endpoint_, &sent, FI_COMPLETION), "fi_sendmsg");
}

// Leaves those for the next poll for which the provider has no room now.
Result<void> LibfabricPort::post_receives() {
  while (!idle_receives_.empty()) {
    Receive& receive = *idle_receives_.back();
    const auto posting = GDX_TRY(posted(fi_recv(endpoint_, receive.bytes.data(), receive.bytes.size(),
                                                receive_region_, FI_ADDR_UNSPEC, &receive.context),
                                        "fi_recv"));
    if (posting == Posting::kAgain) return {};
    idle_receives_.pop_back();
  }
  return {};
}

// Returns the receive that the context of a completion belongs to, or null. The address decides, because
// providers set the flags of completions, above all of failed ones, in different ways.
Receive* LibfabricPort::receive_of(void* context) {
  const auto first = reinterpret_cast<std::uintptr_t>(receives_.data());
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(context) - first;
  return offset < receives_.size() * sizeof(Receive) ? &receives_[offset / sizeof(Receive)] : nullptr;
}

void LibfabricPort::take(const fi_cq_data_entry& entry, std::vector<PortEvent>& events) {
  PortEvent& event = events.emplace_back();
  if (Receive* const receive = receive_of(entry.op_context); receive != nullptr) {
    idle_receives_.push_back(receive);
    if (entry.len == receive->bytes.size()) {
      event.kind = PortEvent::Kind::kMessage;
      event.message = receive->bytes;
    } else {
      events.pop_back();  // of a stranger: the agents' messages have one length
    }
    return;
  }
  if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
    event.kind = PortEvent::Kind::kImmediate;
    event.immediate = static_cast<std::uint32_t>(entry.data);
    return;
  }
  event.context = static_cast<PortContext*>(entry.op_context);
}

Result<void> LibfabricPort::take_error(std::vector<PortEvent>& events) {
  fi_cq_err_entry entry{};
  const ssize_t read = fi_cq_readerr(cq_, &entry, 0);
  if (read == -FI_EAGAIN) return {};
  if (read < 0) return tl::unexpected(error_of("fi_cq_readerr", read, traits_.provider));
  std::array<char, 128> words{};
  const char* const said = fi_cq_strerror(cq_, entry.prov_errno, entry.err_data, words.data(), words.size());
  PortEvent event;
  event.kind = PortEvent::Kind::kFailed;
  event.error = {libfabric::status_of(entry.err),
                 fmt::format("{} (provider {}: {}, error {})", libfabric::library().strerror(entry.err),
                             traits_.provider, said == nullptr ? "no words" : said, entry.prov_errno)};
  if (Receive* const receive = receive_of(entry.op_context); receive != nullptr) {
    // A message that was too long or cut leaves its buffer free.
    if (entry.err != FI_ECANCELED) idle_receives_.push_back(receive);
    return {};
  }
  event.context = static_cast<PortContext*>(entry.op_context);
  events.push_back(std::move(event));
  return {};
}

Result<void> LibfabricPort::poll(std::vector<PortEvent>& events) {
  GDX_TRY(post_receives());
  std::array<fi_cq_data_entry, kEventsAtOnce> entries{};
  const ssize_t read = fi_cq_read(cq_, entries.data(), entries.size());
  if (read == -FI_EAGAIN) return {};
  if (read == -FI_EAVAIL) return take_error(events);
  if (read < 0) return tl::unexpected(error_of("fi_cq_read", read, traits_.provider));
  for (ssize_t i = 0; i < read; ++i) take(entries[static_cast<std::size_t>(i)], events);
  return {};
}

}  // namespace

Result<std::unique_ptr<Port>> open_libfabric_port(const LibfabricOptions& options) {
  auto port = std::make_unique<LibfabricPort>(GDX_TRY(libfabric::negotiate(options)));
  GDX_TRY(port->open(options.insecure));
  return port;
}

}  // namespace gdx
