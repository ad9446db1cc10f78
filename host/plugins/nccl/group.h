// Ranks of one collective communicator in NCCL's sense, and one-sided transfers between them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/result.h"
#include "host/bootstrap/world.h"
#include "host/messaging/keeper.h"
#include "host/messaging/meeting.h"
#include "host/messaging/one_sided.h"
#include "host/plugins/nccl/abi.h"

namespace gdx::nccl {

// Registered memory of a group, or nothing where a call needs none.
using Window = messaging::SharedMemory;

// Threads: any. Contexts of NCCL share one group's order, which is stronger than NCCL asks.
class Group final : public messaging::Kept {
 public:
  struct Request {
    Group* group;
    messaging::OneSidedRequest one;
    bool open;  // else it has ended, and nothing may end it again
  };

  // Returns once all ranks have called it. `inviting`: this rank's own; `root`: that of rank 0. Errors: those
  // of World::join, read_invitation, open_libfabric_port, OneSided::open and OneSided::connect.
  [[nodiscard]] static Result<std::unique_ptr<Group>> connect(std::shared_ptr<messaging::Keeper> keeper,
                                                              const messaging::Door& door,
                                                              messaging::Inviting inviting,
                                                              const messaging::Invitation& root,
                                                              std::uint32_t rank, std::uint32_t ranks);
  // Closes without waiting. The keeper has the group until all ranks have closed theirs, because they may
  // still need this rank's answers, and none may take it for dead.
  static void close(std::unique_ptr<Group> group);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Returns once all ranks have called it. Memory with which a window begins at every rank has that window,
  // unless a registration in it has ended. Errors, at all ranks where one has them: kUnsupported for memory
  // of a GPU; kInvalidArgument; the port's; those of World::allgather.
  [[nodiscard]] Result<Window*> register_memory(void* data, std::size_t bytes, int type);
  void forget_memory(Window* window);

  // Calls of the same names of OneSided, with its errors.
  [[nodiscard]] Result<Request*> put(std::uint32_t rank, const messaging::MemoryPart& from,
                                     const messaging::MemoryPart& to, std::uint64_t bytes,
                                     const std::optional<messaging::WordSignal>& signal, bool more);
  [[nodiscard]] Result<Request*> get(std::uint32_t rank, const messaging::MemoryPart& from,
                                     const messaging::MemoryPart& to, std::uint64_t bytes);
  [[nodiscard]] Result<Request*> flush(std::uint32_t rank);
  // Makes progress, and returns whether the request is complete, which ends it. Errors: its own, by which it
  // has ended; kInvalidArgument where it had ended before.
  [[nodiscard]] Result<bool> test(Request* request);
  // Errors: the first failure towards any rank; kPeerGone once a rank has ended.
  [[nodiscard]] Result<void> progress();
  // Returns whether progress() would fail.
  [[nodiscard]] bool has_failed();
  // Tells `error` once for all requests, and returns its outcome.
  [[nodiscard]] Outcome told(const Error& error);

  void take_turn() override;
  void give_up(const char* why) override;
  [[nodiscard]] bool is_over() const override { return is_over_; }

 private:
  struct Part;
  Group(std::shared_ptr<messaging::Keeper> keeper, World world,
        std::unique_ptr<messaging::OneSided> one_sided);
  // Returns whether all ranks have the memory in one window already, which then serves for both. Else gives
  // `added` the parts of all.
  [[nodiscard]] Result<bool> share(const Part& own, Window* added);
  void step(std::uint64_t now_ns);
  void look(std::uint64_t now_ns);
  [[nodiscard]] Result<Request*> posted(Result<messaging::OneSidedRequest> one, bool more);

  std::shared_ptr<messaging::Keeper> keeper_;  // null once it owns this
  std::mutex world_mutex_;                     // taken before the other
  World world_;
  bool is_closing_ = false;
  bool is_over_ = false;
  std::mutex mutex_;  // of what follows
  std::unique_ptr<messaging::OneSided> one_sided_;
  std::uint64_t shared_ = 0;  // windows, by all ranks alike
  std::optional<Error> losing_;
  messaging::Grace grace_;  // since then
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> free_;
  bool told_ = false;
};

}  // namespace gdx::nccl
