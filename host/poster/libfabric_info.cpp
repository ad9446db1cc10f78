#include "host/poster/libfabric_info.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace gdx::libfabric {
namespace {

// Providers whose peers a NIC connects. Any other one moves bytes by processors.
constexpr std::array<std::string_view, 7> kNics{"verbs", "efa", "cxi", "opx", "psm2", "psm3", "usnic"};
constexpr std::string_view kWithinHost = "shm";
constexpr const char* kLoopback = "127.0.0.1";

bool has_part(std::string_view provider, std::string_view part) {
  while (!provider.empty()) {
    const std::size_t end = std::min(provider.find(';'), provider.size());
    if (provider.substr(0, end) == part) return true;
    provider.remove_prefix(std::min(end + 1, provider.size()));
  }
  return false;
}

bool is_software(std::string_view provider) {
  return !has_part(provider, kWithinHost) &&
         std::ranges::none_of(kNics, [&](std::string_view nic) { return has_part(provider, nic); });
}

enum class Orders { kAsk, kLeave };

Info hints_for(const LibfabricOptions& options, Orders orders, std::uint64_t more_caps) {
  Info hints(library().dupinfo(nullptr));
  hints->caps = FI_MSG | FI_RMA | more_caps;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  hints->fabric_attr->prov_name = strdup(options.provider.c_str());
  if (!options.domain.empty()) hints->domain_attr->name = strdup(options.domain.c_str());
  if (orders == Orders::kAsk) {
    hints->tx_attr->msg_order = FI_ORDER_SAW | FI_ORDER_SAS | FI_ORDER_RAW;
    hints->rx_attr->msg_order = hints->tx_attr->msg_order;
  }
  return hints;
}

int ask(const Info& hints, const char* node, Info& answer) {
  fi_info* found = nullptr;
  const int error =
      library().getinfo(kApi, node, nullptr, node == nullptr ? 0 : FI_SOURCE, hints.get(), &found);
  answer.reset(found);
  return error;
}

PortTraits traits_of(const fi_info& info, const LibfabricOptions& options, const char* node) {
  PortTraits traits;
  traits.provider = info.fabric_attr->prov_name;
  traits.version = fmt::format("{}.{}, API {}.{}", FI_MAJOR(info.fabric_attr->prov_version),
                               FI_MINOR(info.fabric_attr->prov_version), FI_MAJOR(kApi), FI_MINOR(kApi));
  const std::uint64_t order = info.tx_attr->msg_order & info.rx_attr->msg_order;
  traits.message_after_write = (order & FI_ORDER_SAW) != 0;
  traits.messages_in_order = (order & FI_ORDER_SAS) != 0;
  traits.read_after_write = (order & (FI_ORDER_RAW | FI_ORDER_RMA_RAW)) != 0 &&
                            info.ep_attr->max_order_raw_size >= info.ep_attr->max_msg_size;
  traits.random_keys = (info.domain_attr->mr_mode & FI_MR_PROV_KEY) == 0 &&
                       info.domain_attr->mr_key_size >= sizeof(std::uint64_t);
  traits.offsets = (info.domain_attr->mr_mode & FI_MR_VIRT_ADDR) == 0;
  traits.within_host = has_part(traits.provider, kWithinHost);
  // Not where connections may be made anew, as by ofi_rxm after a peer has refused a write: what an ended one
  // has lost is told to nobody, and messages behind it arrive.
  traits.early_writes = traits.within_host;
  traits.software = is_software(traits.provider);
  traits.immediate_bytes = static_cast<std::uint32_t>(info.domain_attr->cq_data_size);
  traits.most_bytes = info.ep_attr->max_msg_size;
  Info other;
  LibfabricOptions same = options;
  same.provider = traits.provider;
  traits.atomics = ask(hints_for(same, Orders::kLeave, FI_ATOMIC), node, other) == 0;
  traits.gpu_memory = ask(hints_for(same, Orders::kLeave, FI_HMEM), node, other) == 0;
  return traits;
}

std::string address_text(std::uint32_t format, const void* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (format == FI_SOCKADDR_IN)
    inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  if (format == FI_SOCKADDR_IN6)
    inet_ntop(AF_INET6, &static_cast<const sockaddr_in6*>(address)->sin6_addr, text.data(), text.size());
  return text.data();
}

LibfabricNic nic_of(const fi_info& info) {
  LibfabricNic nic;
  if (info.domain_attr != nullptr && info.domain_attr->name != nullptr) nic.domain = info.domain_attr->name;
  if (info.src_addr != nullptr) nic.address = address_text(info.addr_format, info.src_addr);
  if (info.nic == nullptr) return nic;
  if (info.nic->bus_attr != nullptr && info.nic->bus_attr->bus_type == FI_BUS_PCI) {
    const fi_pci_attr& pci = info.nic->bus_attr->attr.pci;
    nic.pci =
        fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain_id, pci.bus_id, pci.device_id, pci.function_id);
  }
  if (info.nic->link_attr != nullptr) nic.bits_per_s = info.nic->link_attr->speed;
  return nic;
}

}  // namespace

Result<Negotiated> negotiate(const LibfabricOptions& options) {
  GDX_TRY(load_library());
  const bool bound = !options.address.empty();
  const char* const node = bound                                                ? options.address.c_str()
                           : is_software(options.provider) && !options.insecure ? kLoopback
                                                                                : nullptr;
  Info info;
  int error = ask(hints_for(options, Orders::kAsk, 0), node, info);
  if (error != 0) error = ask(hints_for(options, Orders::kLeave, 0), node, info);
  if (error == -FI_ENODATA) {
    return fail(
        Status::kNotFound,
        fmt::format("libfabric has no provider '{}' with reliable datagrams, remote memory access and "
                    "completion at delivery{}: fi_info -t FI_EP_RDM lists what is here",
                    options.provider, node == nullptr ? "" : fmt::format(" at {}", node)));
  }
  if (error != 0) return tl::unexpected(error_of("fi_getinfo", error, options.provider));
  Negotiated negotiated{std::move(info), {}};
  negotiated.traits = traits_of(*negotiated.info, options, node);
  const fi_info& own = *negotiated.info;
  const std::span source(static_cast<const std::byte*>(own.src_addr), own.src_addrlen);
  if (bound && negotiated.traits.software && !options.insecure && !is_loopback(own.addr_format, source)) {
    return fail(
        Status::kUnsupported,
        fmt::format(
            "provider {} authenticates nobody, and {} is reached from other hosts: set GDX_INSECURE=1 "
            "on a network that you trust, or use a loopback address",
            negotiated.traits.provider, options.address));
  }
  return negotiated;
}

Status status_of(int error) {
  switch (error) {
    case FI_ECONNREFUSED:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ENOTCONN:
    case FI_EHOSTUNREACH:
    case FI_EHOSTDOWN:
    case FI_ENETUNREACH:
    case FI_ESHUTDOWN:
    case FI_ETIMEDOUT:
    case FI_EIO: return Status::kPeerUnreachable;
    case FI_EACCES:
    case FI_EPERM:
    case FI_EKEYREJECTED: return Status::kRemoteAccess;
    case FI_EINVAL:
    case FI_EMSGSIZE:
    case FI_ETOOSMALL:
    case FI_ETRUNC: return Status::kRemoteInvalid;
    case FI_ECANCELED: return Status::kFlushed;
    case FI_ENOMEM: return Status::kNoMemory;
    default: return Status::kRemoteOperation;
  }
}

Error error_of(std::string_view what, long error, std::string_view provider) {
  const int number = static_cast<int>(std::labs(error));
  return {status_of(number), fmt::format("{}: {} (provider {})", what, library().strerror(number), provider)};
}

bool is_loopback(std::uint32_t format, std::span<const std::byte> address) {
  constexpr std::uint32_t kLoopbackNetwork = 127;
  if (format == FI_SOCKADDR_IN && address.size() >= sizeof(sockaddr_in)) {
    sockaddr_in v4{};
    std::memcpy(&v4, address.data(), sizeof v4);
    return ntohl(v4.sin_addr.s_addr) >> 24 == kLoopbackNetwork;
  }
  if (format == FI_SOCKADDR_IN6 && address.size() >= sizeof(sockaddr_in6)) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, address.data(), sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) != 0;
  }
  return false;
}

}  // namespace gdx::libfabric

namespace gdx {

Result<PortTraits> libfabric_traits(const LibfabricOptions& options) {
  auto negotiated = GDX_TRY(libfabric::negotiate(options));
  return std::move(negotiated.traits);
}

Result<std::vector<LibfabricNic>> libfabric_nics(const LibfabricOptions& options) {
  const auto negotiated = GDX_TRY(libfabric::negotiate(options));
  std::vector<LibfabricNic> nics;
  std::vector<LibfabricNic> inside;  // of loopback
  for (const fi_info* info = negotiated.info.get(); info != nullptr; info = info->next) {
    const LibfabricNic nic = libfabric::nic_of(*info);
    const std::span source(static_cast<const std::byte*>(info->src_addr), info->src_addrlen);
    auto& list = libfabric::is_loopback(info->addr_format, source) ? inside : nics;
    if (std::ranges::find(list, nic.domain, &LibfabricNic::domain) == list.end()) list.push_back(nic);
  }
  return nics.empty() ? inside : nics;
}

Result<std::vector<std::string>> libfabric_providers() {
  GDX_TRY(libfabric::load_library());
  libfabric::Info hints(libfabric::library().dupinfo(nullptr));
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  fi_info* found = nullptr;
  const int error = libfabric::library().getinfo(libfabric::kApi, nullptr, nullptr, 0, hints.get(), &found);
  const libfabric::Info all(found);
  if (error != 0 && error != -FI_ENODATA)
    return tl::unexpected(libfabric::error_of("fi_getinfo", error, "any"));
  std::vector<std::string> names;
  for (const fi_info* info = found; info != nullptr; info = info->next) {
    const std::string name = info->fabric_attr->prov_name;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace gdx
