// librdmacm, loaded when a port by verbs is first opened, so that a machine without it has all other ways.
#pragma once

#include <rdma/rdma_cma.h>

#include <memory>
#include <string_view>

#include "base/result.h"

namespace gdx::verbs {

struct Library {
  decltype(&rdma_create_event_channel) create_event_channel;
  decltype(&rdma_destroy_event_channel) destroy_event_channel;
  decltype(&rdma_get_cm_event) get_cm_event;
  decltype(&rdma_ack_cm_event) ack_cm_event;
  decltype(&rdma_event_str) event_str;
  decltype(&rdma_create_id) create_id;
  decltype(&rdma_destroy_id) destroy_id;
  decltype(&rdma_bind_addr) bind_addr;
  decltype(&rdma_listen) listen;
  decltype(&rdma_resolve_addr) resolve_addr;
  decltype(&rdma_resolve_route) resolve_route;
  decltype(&rdma_connect) connect;
  decltype(&rdma_accept) accept;
  decltype(&rdma_reject) reject;
  decltype(&rdma_disconnect) disconnect;
  decltype(&rdma_create_qp) create_qp;
  decltype(&rdma_destroy_qp) destroy_qp;
  decltype(&rdma_set_option) set_option;
};

// Loads the library once in a process. Errors: kUnsupported, with what to install. Threads: any.
[[nodiscard]] Result<const Library*> load_library();
// Returns what load_library() has loaded.
[[nodiscard]] const Library& library();

struct DestroyChannel {
  void operator()(rdma_event_channel* channel) const { library().destroy_event_channel(channel); }
};
using Channel = std::unique_ptr<rdma_event_channel, DestroyChannel>;

struct DestroyId {
  void operator()(rdma_cm_id* id) const { library().destroy_id(id); }
};
using Id = std::unique_ptr<rdma_cm_id, DestroyId>;

// Frees objects of libibverbs.
struct Free {
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
  void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
};
using Domain = std::unique_ptr<ibv_pd, Free>;
using Region = std::unique_ptr<ibv_mr, Free>;
using Completions = std::unique_ptr<ibv_cq, Free>;

// Returns "WHAT: WORDS" of a call that failed with `number` as errno. Errors' status: by its meaning.
[[nodiscard]] Error error_of(std::string_view what, int number);

}  // namespace gdx::verbs
