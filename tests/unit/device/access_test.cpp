// The states of public endpoints, which kernels cannot call: the compiler judges this.
#include <type_traits>

#include "device/endpoint.h"

namespace gdx::device {
namespace access_test {

template <typename Ep>
concept HasDrain = requires(Ep& ep) {
  ep.drain();
};
template <typename Ep>
concept HasCommit = requires(Ep& ep) {
  ep.commit(1u);
};
template <typename Ep>
concept HasLatch = requires(Ep& ep) {
  ep.latch_status(Status::kQueueError);
};
template <typename Ep>
concept HasBlocks = requires(Ep& ep) {
  ep.take_blocks(1u);
};
template <typename Ep>
concept HasStatus = requires(const Ep& ep) {
  ep.status();
};

template <typename Ep>
constexpr bool kHasInternals = HasDrain<Ep> || HasCommit<Ep> || HasLatch<Ep> || HasBlocks<Ep>;

using Open = impl::OpenEndpoint<Scope::kThread, Placement::kHost>;
using OpenShared = impl::OpenSharedEndpoint<Scope::kThread, Placement::kHost>;

static_assert(HasDrain<Open> && HasCommit<Open> && HasLatch<Open>);
static_assert(HasBlocks<OpenShared>);

static_assert(!kHasInternals<Endpoint<>> && HasStatus<Endpoint<>>);
static_assert(!kHasInternals<SharedEndpoint<>> && HasStatus<SharedEndpoint<>>);

static_assert(!std::is_convertible_v<Endpoint<>&, Open&>);
static_assert(!std::is_convertible_v<SharedEndpoint<>&, OpenShared&>);

}  // namespace access_test
}  // namespace gdx::device
