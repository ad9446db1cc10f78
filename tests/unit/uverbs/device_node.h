// An open of the device node above a real engine, whose packets return to it. Notes all that handlers give
// the engine.
#pragma once

#include <gtest/gtest.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/fuzz/verbs_request.h"
#include "tests/fuzz/verbs_surroundings.h"
#include "tests/hca_text.h"

namespace gdx::softhca::uverbs {

class NotingEngine final : public Engine {
 public:
  struct Fetched {
    std::uint32_t pd, mkey;
    std::uint64_t address, length_bytes;
    Prefetch what;
    bool operator==(const Fetched&) const = default;
  };
  struct Resized {
    std::uint32_t cqn;
    std::byte* ring;
    std::uint32_t log_entries;
    bool operator==(const Resized&) const = default;
  };
  using Engine::Engine;

  ErrnoOr<std::uint32_t> register_memory(const MemoryRegionSpec& spec) override {
    region = spec;
    return Engine::register_memory(spec);
  }
  Errno replace_memory(std::uint32_t mkey, const MemoryRegionSpec& spec) override {
    region = spec;
    return Engine::replace_memory(mkey, spec);
  }
  Errno prefetch(std::uint32_t pd, std::uint32_t mkey, std::uint64_t address, std::uint64_t length_bytes,
                 Prefetch what) override {
    fetched.push_back({pd, mkey, address, length_bytes, what});
    return fetch_error;
  }
  ErrnoOr<std::uint32_t> create_cq(const CompletionQueueSpec& spec) override {
    cq = spec;
    const ErrnoOr<std::uint32_t> made = Engine::create_cq(spec);
    if (made) ++cqs;
    return made;
  }
  Errno destroy_cq(std::uint32_t cqn) override {
    const Errno error = Engine::destroy_cq(cqn);
    if (error == 0) --cqs;
    return error;
  }
  Errno resize_cq(std::uint32_t cqn, std::byte* ring, std::uint32_t log_entries) override {
    resized = {cqn, ring, log_entries};
    return Engine::resize_cq(cqn, ring, log_entries);
  }
  ErrnoOr<std::uint32_t> create_srq(const SharedReceiveQueueSpec& spec) override {
    srq = spec;
    return Engine::create_srq(spec);
  }
  ErrnoOr<std::uint32_t> create_qp(const QueuePairSpec& spec) override {
    qp = spec;
    return Engine::create_qp(spec);
  }

  MemoryRegionSpec region;
  CompletionQueueSpec cq;
  SharedReceiveQueueSpec srq;
  QueuePairSpec qp;
  std::vector<Fetched> fetched;
  Errno fetch_error = 0;
  Resized resized{};
  int cqs = 0;  // that live
};

template <typename T>
std::string bytes_of(const T& value) {
  return hex(std::as_bytes(std::span(&value, 1)));
}

class DeviceNode : public testing::Test {
 protected:
  static constexpr std::size_t kDeviceMemoryBytes = 16 * 1024;
  static constexpr std::uint64_t kNowhere = 0x10;

  explicit DeviceNode(HcaConfig config = {}) : device_memory_(*DevicePages::create(kDeviceMemoryBytes)) {
    config.device_memory_bytes = kDeviceMemoryBytes;
    hca_ = std::make_unique<NotingEngine>(config, std::make_unique<EchoWire>(), device_memory_.memory(),
                                          [this] { return ++random_; });
    context_ = std::make_unique<Context>(*hca_, *PageFile::create(device_memory_), channels_);
  }
  void SetUp() override { open(MLX5_IB_ALLOC_UCTX_DEVX); }

  void open(std::uint32_t flags) {
    mlx5_ib_alloc_ucontext_req_v2 asked{};
    asked.flags = flags;
    auto request = make(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
    ASSERT_EQ(request.in(UVERBS_ATTR_UHW_IN, asked).run(*context_), 0);
  }
  Request make(std::uint16_t object, std::uint16_t method) { return {object, method, nothing_}; }
  template <typename Core>
  Request command(std::uint64_t number, const Core& core, std::size_t response_bytes) {
    Request request(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, nothing_);
    request.in(UVERBS_ATTR_WRITE_CMD, number).in(UVERBS_ATTR_CORE_IN, core);
    if (response_bytes != 0) request.out(UVERBS_ATTR_CORE_OUT, response_bytes);
    return request;
  }
  // Runs a command of one answer.
  template <typename Response = std::uint32_t, typename Core>
  Response answer(std::uint64_t number, const Core& core) {
    Request request = command(number, core, sizeof(Response));
    EXPECT_EQ(request.run(*context_), 0);
    return request.answer<Response>(UVERBS_ATTR_CORE_OUT);
  }
  template <typename Core>
  Errno error_of(std::uint64_t number, const Core& core, std::size_t response_bytes = 256) {
    return command(number, core, response_bytes).run(*context_);
  }
  std::uint32_t alloc_pd() { return answer(IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd{}); }
  // Returns the number of a new doorbell page.
  std::uint32_t add_uar() {
    auto request = make(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC);
    request.handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, 0)
        .in(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, std::uint64_t{MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC})
        .out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, 4);
    EXPECT_EQ(request.run(*context_), 0);
    return request.answer<std::uint32_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID);
  }
  std::uint32_t number_of(std::uint32_t handle) const { return context_->objects.look(handle)->number; }
  Errno destroy(std::uint16_t object, std::uint16_t method, std::uint32_t handle) {
    const auto id = static_cast<std::uint16_t>(object & (1u << UVERBS_ID_NS_SHIFT));
    return make(object, method).handle(id, handle).run(*context_);
  }
  int open_events() {
    auto request = make(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC);
    EXPECT_EQ(request.handle(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, 0).run(*context_), 0);
    return static_cast<int>(request.written(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE));
  }
  int open_completions() {
    return static_cast<int>(answer(IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, ib_uverbs_create_comp_channel{}));
  }
  // Reads an event of a channel; empty: none is there.
  static std::string read_event(int fd) {
    std::array<std::uint8_t, 128> event{};
    const ssize_t length = recv(fd, event.data(), event.size(), MSG_DONTWAIT);
    return hex(std::as_bytes(std::span(event)).first(length < 0 ? 0 : static_cast<std::size_t>(length)));
  }
  static std::string async_event(std::uint64_t element, std::uint32_t type) {
    ib_uverbs_async_event_desc event{};
    event.element = element;
    event.event_type = type;
    return bytes_of(event);
  }
  std::uint64_t at(std::size_t offset) { return reinterpret_cast<std::uintptr_t>(arena_.data()) + offset; }
  std::byte* pointer(std::size_t offset) { return reinterpret_cast<std::byte*>(at(offset)); }
  std::size_t objects() const {
    std::size_t count = 0;
    context_->objects.visit([&count](const Object&) { ++count; });
    return count;
  }

  Input nothing_{nullptr, 0};
  std::uint32_t random_ = 0x1000;
  Arena arena_;
  DevicePages device_memory_;
  Channels channels_;
  std::unique_ptr<NotingEngine> hca_;
  std::unique_ptr<Context> context_;
};

}  // namespace gdx::softhca::uverbs
