// A provider of libfabric that keeps no order, for tests: as the network of EFA, it has reliable messages,
// writes and reads that pass one another, 4 B of immediate data, and no atomics. It lies above tcp: what is
// posted is held, and leaves in an order by chance when the queue is polled. libfabric loads it from
// FI_PROVIDER_PATH.
//
//   UNORDERED_SEED=N          of the order (1)
//   UNORDERED_IMMEDIATE=0     it has no immediate data
//   UNORDERED_RECEIVES=all    it takes each receive; else it has no room for some at first
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/providers/fi_prov.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

namespace {

constexpr char kName[] = "unordered";
constexpr char kBelow[] = "tcp;ofi_rxm";
constexpr std::size_t kMostHeld = 48;  // then callers are told to poll, as by a full queue
constexpr std::size_t kMostBytes = 65536;

std::size_t immediate_bytes() {
  const char* const asked = std::getenv("UNORDERED_IMMEDIATE");
  return asked != nullptr && *asked == '0' ? 0 : 4;
}

bool takes_all_receives() {
  const char* const asked = std::getenv("UNORDERED_RECEIVES");
  return asked != nullptr && std::strcmp(asked, "all") == 0;
}

// An endpoint of the provider below, with the calls that were its own.
struct Endpoint {
  fid_ep* below;
  fi_ops_rma rma;
  fi_ops_msg msg;
  fi_ops_rma own_rma;
  fi_ops_msg own_msg;
  fi_ops fid_calls;
  fi_ops own_fid_calls;
  std::vector<fid_cq*> queues;  // one for both directions, or one for each
  std::vector<std::function<ssize_t()>> held;
};

struct Queue {
  fi_ops_cq calls;
  fi_ops_cq own_calls;
};

struct World {
  std::mutex mutex;
  std::map<fid_ep*, std::unique_ptr<Endpoint>> endpoints;
  std::map<fid_cq*, std::unique_ptr<Queue>> queues;
  std::mt19937_64 random{std::getenv("UNORDERED_SEED") == nullptr
                             ? 1
                             : std::strtoull(std::getenv("UNORDERED_SEED"), nullptr, 10)};
};
World& world() {
  static World instance;
  return instance;
}

ssize_t hold(Endpoint& endpoint, std::function<ssize_t()> post) {
  const std::lock_guard lock(world().mutex);
  if (endpoint.held.size() >= kMostHeld) return -FI_EAGAIN;
  endpoint.held.push_back(std::move(post));
  return 0;
}

Endpoint& of(fid_ep* endpoint) {
  const std::lock_guard lock(world().mutex);
  return *world().endpoints.at(endpoint);
}

// Lets each held posting go or stay by chance, in an order by chance.
void release(Endpoint& endpoint) {
  std::ranges::shuffle(endpoint.held, world().random);
  std::vector<std::function<ssize_t()>> staying;
  for (auto& post : endpoint.held) {
    // A refusal of the provider below may be of the peer; its own polls tell that, so it is tried again.
    if (world().random() % 3 == 0 || post() == -FI_EAGAIN) staying.push_back(std::move(post));
  }
  endpoint.held = std::move(staying);
}

ssize_t read_queue(fid_cq* queue, void* entries, std::size_t count) {
  const std::lock_guard lock(world().mutex);
  for (auto& [below, endpoint] : world().endpoints) {
    if (std::ranges::find(endpoint->queues, queue) != endpoint->queues.end()) release(*endpoint);
  }
  return world().queues.at(queue)->calls.read(queue, entries, count);
}

ssize_t post_rma(fid_ep* ep, const fi_msg_rma* message, std::uint64_t flags, bool writes) {
  Endpoint& endpoint = of(ep);
  if (message->iov_count != 1 || message->rma_iov_count != 1) return -FI_EINVAL;
  if (message->msg_iov->iov_len > kMostBytes) return -FI_EMSGSIZE;
  if ((flags & FI_REMOTE_CQ_DATA) != 0 && message->data >> (8 * immediate_bytes()) != 0) return -FI_EINVAL;
  return hold(endpoint,
              [&endpoint, message = *message, iov = *message->msg_iov, rma = *message->rma_iov,
               desc = message->desc == nullptr ? nullptr : *message->desc, flags, writes]() mutable {
                message.msg_iov = &iov;
                message.rma_iov = &rma;
                message.desc = &desc;
                const std::uint64_t kept = flags & ~FI_MORE;
                return writes ? endpoint.rma.writemsg(endpoint.below, &message, kept)
                              : endpoint.rma.readmsg(endpoint.below, &message, kept);
              });
}

ssize_t writemsg(fid_ep* ep, const fi_msg_rma* message, std::uint64_t flags) {
  return post_rma(ep, message, flags, true);
}
ssize_t readmsg(fid_ep* ep, const fi_msg_rma* message, std::uint64_t flags) {
  return post_rma(ep, message, flags, false);
}

fi_msg_rma rma_message(const iovec& iov, const fi_rma_iov& rma, void** desc, fi_addr_t address,
                       void* context) {
  fi_msg_rma message{};
  message.msg_iov = &iov;
  message.desc = desc;
  message.iov_count = 1;
  message.addr = address;
  message.rma_iov = &rma;
  message.rma_iov_count = 1;
  message.context = context;
  return message;
}

ssize_t write(fid_ep* ep, const void* buffer, std::size_t bytes, void* desc, fi_addr_t address,
              std::uint64_t to, std::uint64_t key, void* context) {
  const iovec iov{const_cast<void*>(buffer), bytes};
  const fi_rma_iov rma{to, bytes, key};
  const fi_msg_rma message = rma_message(iov, rma, &desc, address, context);
  return post_rma(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE, true);
}
ssize_t read(fid_ep* ep, void* buffer, std::size_t bytes, void* desc, fi_addr_t address, std::uint64_t from,
             std::uint64_t key, void* context) {
  const iovec iov{buffer, bytes};
  const fi_rma_iov rma{from, bytes, key};
  const fi_msg_rma message = rma_message(iov, rma, &desc, address, context);
  return post_rma(ep, &message, FI_COMPLETION, false);
}
ssize_t sendmsg(fid_ep* ep, const fi_msg* message, std::uint64_t flags) {
  Endpoint& endpoint = of(ep);
  if (message->iov_count != 1) return -FI_EINVAL;
  return hold(endpoint, [&endpoint, message = *message, iov = *message->msg_iov,
                         desc = message->desc == nullptr ? nullptr : *message->desc, flags]() mutable {
    message.msg_iov = &iov;
    message.desc = &desc;
    return endpoint.msg.sendmsg(endpoint.below, &message, flags & ~FI_MORE);
  });
}
ssize_t send(fid_ep* ep, const void* buffer, std::size_t bytes, void* desc, fi_addr_t address,
             void* context) {
  const iovec iov{const_cast<void*>(buffer), bytes};
  fi_msg message{};
  message.msg_iov = &iov;
  message.desc = &desc;
  message.iov_count = 1;
  message.addr = address;
  message.context = context;
  return sendmsg(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

// Has no room for it every now and then.
ssize_t receive(fid_ep* ep, void* buffer, std::size_t bytes, void* desc, fi_addr_t from, void* context) {
  Endpoint& endpoint = of(ep);
  {
    const std::lock_guard lock(world().mutex);
    if (!takes_all_receives() && world().random() % 4 == 0) return -FI_EAGAIN;
  }
  return endpoint.msg.recv(endpoint.below, buffer, bytes, desc, from, context);
}

int bind_endpoint(fid* object, fid* other, std::uint64_t flags) {
  Endpoint& endpoint = of(reinterpret_cast<fid_ep*>(object));
  const int error = endpoint.fid_calls.bind(object, other, flags);
  if (error != 0 || other->fclass != FI_CLASS_CQ) return error;
  const std::lock_guard lock(world().mutex);
  auto* const bound = reinterpret_cast<fid_cq*>(other);
  endpoint.queues.push_back(bound);
  auto& queue = world().queues[bound];
  // A queue that is gone may have lain at this address.
  if (queue != nullptr && bound->ops == &queue->own_calls) return 0;
  queue = std::make_unique<Queue>();
  queue->calls = *bound->ops;
  queue->own_calls = queue->calls;
  queue->own_calls.read = read_queue;
  bound->ops = &queue->own_calls;
  return 0;
}

int close_endpoint(fid* object) {
  std::unique_ptr<Endpoint> endpoint;
  {
    const std::lock_guard lock(world().mutex);
    const auto found = world().endpoints.find(reinterpret_cast<fid_ep*>(object));
    endpoint = std::move(found->second);
    world().endpoints.erase(found);
  }
  return endpoint->fid_calls.close(object);
}

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

Info below(const fi_info* info) {
  Info copy(info == nullptr ? fi_allocinfo() : fi_dupinfo(info));
  std::free(copy->fabric_attr->prov_name);
  copy->fabric_attr->prov_name = strdup(kBelow);
  return copy;
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** made, void* context);

// Tables of calls of the provider below, which are the same for all its fabrics and domains.
fi_ops_fabric fabric_calls, own_fabric_calls;
fi_ops_domain domain_calls, own_domain_calls;

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** made, void* context) {
  const int error = fabric_calls.domain(fabric, below(info).get(), made, context);
  if (error != 0) return error;
  if ((*made)->ops != &own_domain_calls) domain_calls = *(*made)->ops;
  own_domain_calls = domain_calls;
  own_domain_calls.endpoint = open_endpoint;
  (*made)->ops = &own_domain_calls;
  return 0;
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** made, void* context) {
  const int error = domain_calls.endpoint(domain, below(info).get(), made, context);
  if (error != 0) return error;
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->below = *made;
  endpoint->rma = endpoint->own_rma = *(*made)->rma;
  endpoint->msg = endpoint->own_msg = *(*made)->msg;
  endpoint->fid_calls = endpoint->own_fid_calls = *(*made)->fid.ops;
  endpoint->own_rma.writemsg = writemsg;
  endpoint->own_rma.readmsg = readmsg;
  endpoint->own_rma.write = write;
  endpoint->own_rma.read = read;
  endpoint->own_msg.send = send;
  endpoint->own_msg.recv = receive;
  endpoint->own_msg.sendmsg = sendmsg;
  endpoint->own_fid_calls.bind = bind_endpoint;
  endpoint->own_fid_calls.close = close_endpoint;
  (*made)->rma = &endpoint->own_rma;
  (*made)->msg = &endpoint->own_msg;
  (*made)->fid.ops = &endpoint->own_fid_calls;
  const std::lock_guard lock(world().mutex);
  world().endpoints[*made] = std::move(endpoint);
  return 0;
}

int open_fabric(fi_fabric_attr* attributes, fid_fabric** made, void* context) {
  fi_fabric_attr copy = *attributes;
  char name[] = "tcp;ofi_rxm";
  copy.prov_name = name;
  const int error = fi_fabric(&copy, made, context);
  if (error != 0) return error;
  if ((*made)->ops != &own_fabric_calls) fabric_calls = *(*made)->ops;
  own_fabric_calls = fabric_calls;
  own_fabric_calls.domain = open_domain;
  (*made)->ops = &own_fabric_calls;
  return 0;
}

int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints, fi_info** found) {
  if (hints != nullptr) {
    const std::uint64_t orders = (hints->tx_attr == nullptr ? 0 : hints->tx_attr->msg_order) |
                                 (hints->rx_attr == nullptr ? 0 : hints->rx_attr->msg_order);
    if ((hints->caps & (FI_ATOMIC | FI_HMEM)) != 0 || orders != 0) return -FI_ENODATA;
  }
  const int error = fi_getinfo(version, node, service, flags, below(hints).get(), found);
  if (error != 0) return error;
  for (fi_info* info = *found; info != nullptr; info = info->next) {
    std::free(info->fabric_attr->prov_name);
    info->fabric_attr->prov_name = nullptr;  // libfabric writes this provider's
    info->tx_attr->msg_order = info->rx_attr->msg_order = 0;
    info->caps &= ~FI_ATOMIC;
    info->domain_attr->cq_data_size = immediate_bytes();
    info->ep_attr->max_msg_size = kMostBytes;
    info->ep_attr->max_order_raw_size = info->ep_attr->max_order_war_size =
        info->ep_attr->max_order_waw_size = 0;
  }
  return 0;
}

void clean_up() {}

fi_provider& provider() {
  static fi_provider instance{};
  instance.version = FI_VERSION(1, 0);
  instance.fi_version = FI_VERSION(1, 17);
  instance.name = kName;
  instance.getinfo = get_info;
  instance.fabric = open_fabric;
  instance.cleanup = clean_up;
  return instance;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini() { return &provider(); }
