// Methods on DevX objects: memory, events and who may ask for what.
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto/mlx5/prm.h"
#include "tests/open_files.h"
#include "tests/unit/uverbs/device_node.h"

namespace gdx::softhca::uverbs {
namespace devx_methods_test {

namespace prm = mlx5::prm;

class DevxMethods : public DeviceNode {
 protected:
  Request make_umem(std::uint64_t address, std::uint64_t length, std::uint64_t page_sizes = 4096) {
    Request request(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG, nothing_);
    request.handle(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, 0)
        .in(MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR, address)
        .in(MLX5_IB_ATTR_DEVX_UMEM_REG_LEN, length)
        .in(MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP, page_sizes)
        .out(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, 4);
    return request;
  }
  // Makes a completion queue at the arena's start.
  std::uint32_t add_cq() {
    auto umem = make_umem(at(0), kArenaBytes);
    EXPECT_EQ(umem.run(*context_), 0);
    const auto id = umem.answer<std::uint32_t>(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID);
    prm::Mailbox<prm::kCreateCqInBytes> in{};
    prm::set(in, prm::kOpcode, static_cast<std::uint64_t>(prm::Opcode::kCreateCq));
    prm::set(in, prm::cq::kLogSize, 4);
    prm::set(in, prm::cq::kEqn, 16);
    prm::set(in, prm::cq::kUarPage, add_uar());
    prm::set(in, prm::cq::kDbrUmemId, id);
    prm::set(in, prm::cq::kUmemId, id);
    prm::set(in, prm::cq::kUmemOffset, 4096);
    Request request(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE, nothing_);
    request.handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, 0)
        .in(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, in)
        .out(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, 16);
    EXPECT_EQ(request.run(*context_), 0);
    return static_cast<std::uint32_t>(request.written(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE));
  }
  int open_device_events(std::uint32_t flags) {
    auto request = make(MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC);
    request.handle(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE, 0)
        .in(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS, flags);
    if (request.run(*context_) != 0) return -1;
    return static_cast<int>(request.written(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE));
  }
  // Subscribes to events, with a cookie or an eventfd.
  Request make_subscription(int channel, std::uint32_t object, const std::vector<std::uint16_t>& events,
                            int eventfd = -1) {
    Request request(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT, nothing_);
    std::array<std::uint16_t, 17> list{};
    std::ranges::copy(events, list.begin());
    request.handle(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, static_cast<std::uint32_t>(channel))
        .handle(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE, object)
        .in(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, list)
        .resize(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, 2 * events.size());
    if (events.size() <= 4) {  // within the attribute itself
      std::uint64_t inside = 0;
      std::memcpy(&inside, list.data(), sizeof inside);
      request.redirect(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, inside);
    }
    if (eventfd >= 0)
      request.in(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM, static_cast<std::uint32_t>(eventfd));
    else
      request.in(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE, std::uint64_t{0xc00c1e});
    return request;
  }
  Errno subscribe(int channel, std::uint32_t object, const std::vector<std::uint16_t>& events,
                  int eventfd = -1) {
    return make_subscription(channel, object, events, eventfd).run(*context_);
  }
  Errno query_eqn(std::uint32_t vector, std::uint32_t& eqn) {
    auto request = make(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_QUERY_EQN);
    request.in(MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC, vector).out(MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, 4);
    const Errno error = request.run(*context_);
    eqn = request.answer<std::uint32_t>(MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN);
    return error;
  }
};

constexpr std::uint16_t kCompletion = 0;
constexpr std::uint16_t kOverrun = 4;

TEST_F(DevxMethods, event_reaches_its_channel_with_cookie_type_and_number) {
  const std::uint32_t handle = add_cq();
  const int whole = open_device_events(0);
  const int short_one = open_device_events(1);
  EXPECT_EQ(open_device_events(2), -1);
  ASSERT_EQ(subscribe(whole, handle, {kOverrun, kCompletion}), 0);
  ASSERT_EQ(subscribe(short_one, handle, {kOverrun}), 0);
  hca_->cq.on_event();
  hca_->cq.on_overrun();
  struct {
    std::uint64_t cookie = 0xc00c1e;
    std::array<std::uint8_t, 64> entry{};
  } event;
  const std::uint32_t number = number_of(handle);
  for (std::size_t i = 0; i < 4; ++i) event.entry[56 + i] = static_cast<std::uint8_t>(number >> (24 - 8 * i));
  EXPECT_EQ(read_event(whole), bytes_of(event));
  event.entry = {};
  event.entry[1] = 4;
  event.entry[43] = 1;
  for (std::size_t i = 0; i < 4; ++i) event.entry[32 + i] = static_cast<std::uint8_t>(number >> (24 - 8 * i));
  EXPECT_EQ(read_event(whole), bytes_of(event));
  EXPECT_EQ(read_event(short_one), bytes_of(event.cookie));
  EXPECT_EQ(read_event(short_one), "");
}

TEST_F(DevxMethods, eventfd_counts_events_until_its_channel_is_closed) {
  const std::uint32_t handle = add_cq();
  const int channel = open_device_events(0);
  const Descriptor counter(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_EQ(subscribe(channel, handle, {kCompletion}, counter.value()), 0);
  hca_->cq.on_event();
  hca_->cq.on_event();
  hca_->cq.on_overrun();
  std::uint64_t count = 0;
  ASSERT_EQ(read(counter.value(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
  EXPECT_EQ(count, 2u);
  constexpr std::uint64_t kFull = ~std::uint64_t{1};
  ASSERT_EQ(write(counter.value(), &kFull, sizeof kFull), static_cast<ssize_t>(sizeof kFull));
  hca_->cq.on_event();  // must not wait
  const std::size_t files = test::open_files();
  (*channels_.find_channel(channel))->user_closed();
  EXPECT_EQ(test::open_files(), files - 1);
  ASSERT_EQ(read(counter.value(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
  hca_->cq.on_event();
  EXPECT_LT(read(counter.value(), &count, sizeof count), 0);
}

TEST_F(DevxMethods, subscription_that_is_refused_keeps_no_file_and_subscribes_to_nothing) {
  const std::uint32_t handle = add_cq();
  const int channel = open_device_events(0);
  const Descriptor counter(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const Descriptor other(::dup(STDERR_FILENO));
  const std::size_t files = test::open_files();
  const std::uint32_t pd = alloc_pd();
  for (const int fd : {counter.value(), -1}) {
    EXPECT_EQ(subscribe(channel, handle, {kCompletion, 5}, fd), EINVAL) << "of a queue pair";
    EXPECT_EQ(subscribe(channel, handle, {}, fd), EINVAL);
    EXPECT_EQ(subscribe(channel, handle, std::vector<std::uint16_t>(17, kCompletion), fd), EINVAL);
    EXPECT_EQ(subscribe(channel, pd, {kCompletion}, fd), EINVAL);
    EXPECT_EQ(subscribe(channel, 99, {kCompletion}, fd), ENOENT);
    EXPECT_EQ(subscribe(900, handle, {kCompletion}, fd), EBADF);
    auto odd = make_subscription(channel, handle, {kCompletion, kCompletion}, fd);
    EXPECT_EQ(odd.resize(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, 3).run(*context_), EINVAL);
  }
  EXPECT_EQ(subscribe(channel, handle, {kCompletion}, 900), EBADF);
  EXPECT_EQ(subscribe(channel, handle, {kCompletion}, other.value()), EINVAL);
  auto both = make_subscription(channel, handle, {kCompletion}, counter.value());
  EXPECT_EQ(both.in(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE, std::uint64_t{1}).run(*context_), EINVAL);
  EXPECT_EQ(test::open_files(), files);
  hca_->cq.on_event();
  std::uint64_t count = 0;
  EXPECT_LT(read(counter.value(), &count, sizeof count), 0);
  EXPECT_EQ(read_event(channel), "");
  EXPECT_EQ(subscribe(channel, handle, std::vector<std::uint16_t>(16, kCompletion)), 0) << "the most at once";
}

TEST_F(DevxMethods, memory_of_the_program_alone_becomes_a_umem) {
  auto request = make_umem(at(kArenaBytes - 4096), 4096);
  ASSERT_EQ(request.run(*context_), 0);
  const auto handle = static_cast<std::uint32_t>(request.written(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE));
  const auto id = request.answer<std::uint32_t>(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID);
  EXPECT_EQ(id, number_of(handle));
  EXPECT_EQ(context_->umems.resolve(id, 4095, 1), pointer(kArenaBytes - 1));
  EXPECT_EQ(context_->umems.resolve(id, 4095, 2), nullptr);
  EXPECT_EQ(destroy(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_DEREG, handle), 0);
  EXPECT_EQ(context_->umems.resolve(id, 0, 1), nullptr);
  EXPECT_EQ(make_umem(at(kArenaBytes - 4096), 4097).run(*context_), EFAULT);
  EXPECT_EQ(make_umem(at(0), 4096, 4095).run(*context_), EINVAL) << "pages smaller than those of the kernel";
  auto unwritable = make_umem(at(0), 4096);
  EXPECT_EQ(unwritable.redirect(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, kNowhere).run(*context_), EFAULT);
  EXPECT_EQ(context_->umems.resolve(id + 1, 0, 1), nullptr);
  mprotect(arena_.data(), kPageBytes, PROT_READ);
  EXPECT_EQ(make_umem(at(0), 4096).run(*context_), EFAULT);

  const Descriptor buffer(memfd_create("dmabuf", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(buffer.value(), 2 * kPageBytes), 0);
  ASSERT_EQ(pwrite(buffer.value(), "x", 1, kPageBytes), 1);
  const auto of_buffer = [&](std::uint64_t offset, std::uint64_t length, std::uint32_t& made) {
    auto umem = make_umem(offset, length);
    umem.handle(MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD, static_cast<std::uint32_t>(buffer.value()));
    const Errno error = umem.run(*context_);
    made = umem.answer<std::uint32_t>(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID);
    return error;
  };
  std::uint32_t made = 0;
  ASSERT_EQ(of_buffer(kPageBytes, kPageBytes, made), 0);
  EXPECT_EQ(*reinterpret_cast<const char*>(context_->umems.resolve(made, 0, 1)), 'x');
  EXPECT_EQ(of_buffer(kPageBytes, kPageBytes + 1, made), EINVAL);
  EXPECT_EQ(of_buffer(64, 64, made), EINVAL);
}

TEST_F(DevxMethods, object_belongs_to_who_made_it) {
  const std::uint32_t cq = number_of(add_cq());
  const std::uint32_t pd = number_of(alloc_pd());
  EXPECT_TRUE(owns(*context_, devx::Named::kCq, cq));
  EXPECT_TRUE(owns(*context_, devx::Named::kPd, pd));
  EXPECT_FALSE(owns(*context_, devx::Named::kCq, cq + 1));
  for (const devx::Named kind : {devx::Named::kPd, devx::Named::kUar, devx::Named::kRmp})
    EXPECT_FALSE(owns(*context_, kind, cq)) << static_cast<int>(kind);
  std::uint32_t eqn = 0;
  EXPECT_EQ(query_eqn(0, eqn), 0);
  EXPECT_EQ(eqn, 16u);
  EXPECT_EQ(query_eqn(1, eqn), EINVAL);
  context_->devx = false;
  EXPECT_EQ(query_eqn(0, eqn), EPERM);
  EXPECT_EQ(make_umem(at(0), 4096).run(*context_), EPERM);
  EXPECT_EQ(open_device_events(0), -1);
  EXPECT_EQ(subscribe(900, 99, {kCompletion}), EPERM);
}

}  // namespace devx_methods_test
}  // namespace gdx::softhca::uverbs
