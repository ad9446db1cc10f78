#include "tests/ranks/bus.h"

#include <utility>

namespace gdx::ranks {
namespace {

constexpr std::uint64_t kCqeBytes = 64;

}  // namespace

void Bus::write(pcie::NodeId from, pcie::NodeId to, std::uint64_t bytes, pcie::Purpose purpose, Done done) {
  fabric_.write(from, to, 0, bytes, purpose, [done = std::move(done)](pcie::TimePs /*now*/) {
    if (done) done();
  });
}

void Bus::read(pcie::NodeId from, std::uint64_t bytes, pcie::Purpose purpose, Done done) {
  fabric_.read(pcie::kNicNode, from, 0, bytes, purpose,
               [done = std::move(done)](pcie::TimePs /*now*/) { done(); });
}

// By the GPU, from host memory.
void Bus::load(std::uint64_t bytes, pcie::Purpose purpose, Done done) {
  events_.at(events_.now() + pcie::from_ns(config_.platform.gpu_issue_ns),
             [this, bytes, purpose, done = std::move(done)](pcie::TimePs /*now*/) {
               fabric_.read(pcie::kGpuNode, pcie::kHostNode, 0, bytes, purpose,
                            [done](pcie::TimePs /*at*/) { done(); });
             });
}

void Bus::nic_completes(Done done) {
  if (queue_node() == pcie::kGpuNode)
    return write(pcie::kNicNode, pcie::kGpuNode, kCqeBytes, pcie::Purpose::kCqe, std::move(done));
  write(pcie::kNicNode, pcie::kHostNode, kCqeBytes, pcie::Purpose::kCqe,
        [this, done = std::move(done)]() mutable { load(kCqeBytes, pcie::Purpose::kCqe, std::move(done)); });
}

void Bus::nic_works(Done done) {
  events_.at(events_.now() + pcie::from_ns(config_.nic_ns),
             [done = std::move(done)](pcie::TimePs /*now*/) { done(); });
}

}  // namespace gdx::ranks
