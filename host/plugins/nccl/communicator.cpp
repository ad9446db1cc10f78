#include "host/plugins/nccl/communicator.h"

#include <fmt/format.h>

#include <algorithm>

#include "host/plugins/nccl/device.h"
#include "host/plugins/nccl/log.h"

namespace gdx::nccl {
namespace {

Result<void> check(const Memory* memory, const void* data, std::size_t bytes) {
  if (bytes == 0) return {};
  if (memory == nullptr) return fail(Status::kInvalidArgument, "a message without registered memory");
  const auto begin = reinterpret_cast<std::uintptr_t>(memory->address);
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  if (at >= begin && bytes <= memory->bytes && at - begin <= memory->bytes - bytes) return {};
  return fail(Status::kInvalidArgument,
              fmt::format("a message of {} B at {:#x} is not within its registered memory, {} B at {:#x}",
                          bytes, at, memory->bytes, begin));
}

}  // namespace

Communicator::Communicator(std::unique_ptr<messaging::Peer> peer, Direction direction)
    : direction_(direction), peer_(std::move(peer)) {
  const PortTraits& traits = peer_->traits();
  info(fmt::format("peer {}: {} by {}, {}; host memory; signals {}", peer_->name(),
                   direction == Direction::kSend ? "sends" : "receives", traits.provider, way_of(traits),
                   words_of(peer_->order())));
}

Result<Memory*> Communicator::register_memory(void* data, std::size_t bytes, int type) {
  if (type != kHostMemory) return fail(Status::kUnsupported, refusal_of_memory(type));
  if (data == nullptr || bytes == 0)
    return fail(Status::kInvalidArgument, fmt::format("{} B of memory at {}", bytes, fmt::ptr(data)));
  auto memory = std::make_unique<Memory>(Memory{static_cast<std::byte*>(data), bytes, {}});
  memory->region = GDX_TRY(peer_->register_memory(memory->address, bytes, direction_ == Direction::kReceive));
  const std::lock_guard lock(mutex_);
  return memories_.emplace_back(std::move(memory)).get();
}

void Communicator::forget_memory(Memory* memory) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find(memories_, memory, [](const std::unique_ptr<Memory>& one) { return one.get(); });
  if (found == memories_.end()) return;
  peer_->forget_memory((*found)->region, {(*found)->address, (*found)->bytes});
  memories_.erase(found);
}

Result<Request*> Communicator::send(void* data, std::size_t bytes, int tag, const Memory* memory) {
  GDX_TRY(check(memory, data, bytes));
  const PortSource from{static_cast<std::byte*>(data), memory == nullptr ? nullptr : memory->region.local};
  const auto number = peer_->send(tag, bytes, from);
  if (!number && number.error().status == Status::kBusy) return nullptr;
  if (!number) return tl::unexpected(number.error());
  return new_request(*number, bytes);
}

Result<Request*> Communicator::receive(std::span<void* const> data, std::span<const std::size_t> bytes,
                                       std::span<const int> tags, std::span<void* const> memories) {
  std::array<messaging::Part, messaging::kMostParts> parts{};
  if (data.size() > parts.size())
    return fail(Status::kInvalidArgument,
                fmt::format("{} receives in a group: at most {}", data.size(), parts.size()));
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto* const memory = static_cast<const Memory*>(memories[i]);
    GDX_TRY(check(memory, data[i], bytes[i]));
    parts[i].bytes = bytes[i];
    parts[i].tag = tags[i];
    if (bytes[i] == 0) continue;
    parts[i].address =
        memory->region.base + static_cast<std::uint64_t>(static_cast<std::byte*>(data[i]) - memory->address);
    parts[i].key = memory->region.key;
  }
  const auto group = peer_->receive(std::span(parts).first(data.size()));
  if (!group && group.error().status == Status::kBusy) return nullptr;
  if (!group) return tl::unexpected(group.error());
  return new_request(*group, 0);
}

Result<bool> Communicator::test(Request* request, int* bytes) {
  if (!request->open) return fail(Status::kInvalidArgument, "test of a request that has ended");
  if (request->direction == Direction::kSend) {
    auto sent = peer_->sent(request->number);
    if (sent && !*sent) return false;
    if (bytes != nullptr) *bytes = static_cast<int>(request->bytes);
    end(request);
    return sent;
  }
  const auto received = peer_->received(request->number);
  if (received && !*received) return false;
  end(request);
  if (!received) return tl::unexpected(received.error());
  for (std::uint32_t i = 0; bytes != nullptr && i < (*received)->parts; ++i)
    bytes[i] = static_cast<int>((*received)->bytes[i]);
  return true;
}

Outcome Communicator::told(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!told_) warn(error.message);
  told_ = true;
  return outcome_of(error.status);
}

Request* Communicator::new_request(std::uint64_t number, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) free_.push_back(requests_.emplace_back(std::make_unique<Request>()).get());
  Request* const request = free_.back();
  free_.pop_back();
  *request = {this, direction_, number, bytes, true};
  return request;
}

void Communicator::end(Request* request) {
  const std::lock_guard lock(mutex_);
  request->open = false;
  free_.push_back(request);
}

}  // namespace gdx::nccl
