// The states of public endpoints, which kernels cannot call: the compiler judges this.
#include <type_traits>

#include "device/endpoint.h"
#include "device/peer.h"

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
concept HasNic = requires(Ep& ep) {
  ep.nic();
};
template <typename Ep>
concept HasFail = requires(Ep& ep) {
  ep.fail(Status::kRemoteAccess);
};
template <typename Ep>
concept HasStatus = requires(const Ep& ep) {
  ep.status();
};

template <typename Ep>
constexpr bool kHasInternals =
    HasDrain<Ep> || HasCommit<Ep> || HasLatch<Ep> || HasBlocks<Ep> || HasNic<Ep> || HasFail<Ep>;

using Open = impl::OpenEndpoint<Scope::kThread, Placement::kHost>;
using OpenShared = impl::OpenSharedEndpoint<Scope::kThread, Placement::kHost>;
using OpenPeer = impl::OpenPeer<Scope::kThread, Endpoint<>>;

static_assert(HasDrain<Open> && HasCommit<Open> && HasLatch<Open>);
static_assert(HasBlocks<OpenShared>);
static_assert(HasNic<OpenPeer> && HasFail<OpenPeer>);

static_assert(!kHasInternals<Endpoint<>> && HasStatus<Endpoint<>>);
static_assert(!kHasInternals<SharedEndpoint<>> && HasStatus<SharedEndpoint<>>);
static_assert(!kHasInternals<PeerEndpoint<>> && HasStatus<PeerEndpoint<>>);

static_assert(!std::is_convertible_v<Endpoint<>&, Open&>);
static_assert(!std::is_convertible_v<SharedEndpoint<>&, OpenShared&>);
static_assert(!std::is_convertible_v<PeerEndpoint<>&, OpenPeer&>);

}  // namespace access_test
}  // namespace gdx::device
