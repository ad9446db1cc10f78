#include "host/bootstrap/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "host/bootstrap/admission.h"
#include "host/bootstrap/caller.h"
#include "host/bootstrap/connection.h"
#include "host/bootstrap/meeting_place.h"
#include "host/bootstrap/rendezvous.h"

namespace gdx {

using bootstrap::Connection;
using bootstrap::Frame;
using bootstrap::FrameType;

struct World::Impl {
  Caller caller;
  WorldOptions options;
  // Rank 0: by rank, its own place empty. Others: rank 0 alone.
  std::vector<Connection> members;
  std::vector<std::optional<Frame>> contributions;  // rank 0: those that came for the next collective
  // Rank 0, until the first collective proves that the members are the ranks.
  std::optional<bootstrap::Reception> reception;
  std::string latecomer;         // the last who came when its place was taken, for messages
  std::uint64_t bound_ns = 0;    // bound of the collective in progress
  std::uint32_t sequence = 1;    // number of the collective in progress or, between two, of the next
  bool has_contributed = false;  // to a barrier that poll_barrier() goes on with
  std::optional<std::pair<std::uint32_t, Error>> gave_up;  // rank 0: a rank that has ended its world, and why
  std::optional<Error> broken;

  // Ends the world: sends the error to the other ranks, and keeps it for later calls.
  tl::unexpected<Error> break_up(Error error);
  tl::unexpected<Error> break_up(std::uint32_t rank, const Error& error);

  Result<void> read_member(std::uint32_t rank);
  Result<void> end_for_who_gave_up(std::vector<std::uint32_t> absent);
  void refuse_latecomers();
  [[nodiscard]] std::string place(std::uint32_t rank) const;
  [[nodiscard]] std::string bound_text() const;
  [[nodiscard]] std::string absent_text(const std::vector<std::uint32_t>& absent) const;
  Result<std::vector<std::byte>> collect(std::span<const std::byte> mine, std::uint64_t deadline_ns);
  Result<std::vector<std::byte>> contribute(std::span<const std::byte> mine, std::uint64_t deadline_ns);
  Result<std::optional<std::vector<std::byte>>> receive_gathered(std::size_t bytes);
  Result<bool> poll_collect();
  Result<bool> poll_contribute();
  Result<void> wait_for_contributions(std::size_t bytes, std::uint64_t deadline_ns);
  Result<void> send_to_members(std::vector<std::byte> frame, std::uint64_t deadline_ns);
};

namespace {

constexpr double kNsPerSecond = 1e9;
constexpr std::uint64_t kAnswerNs = 1'000'000'000;  // for sockets to take the few bytes that end a barrier

// A rank that has ended closes its connection, and is told as gone at once.
constexpr char kLives[] = ", and its connection stands: it is slow, or stopped";

Result<void> check_options(const WorldOptions& options) {
  if (options.size == 0 || options.size > bootstrap::kMaxRanks) {
    return fail(Status::kInvalidArgument,
                fmt::format("{} ranks are impossible: use 1 to {}", options.size, bootstrap::kMaxRanks));
  }
  if (options.rank >= options.size) {
    return fail(Status::kInvalidArgument,
                fmt::format("rank {} is impossible: with {} ranks it goes from 0 to {}", options.rank,
                            options.size, options.size - 1));
  }
  if (options.size == 1 || options.tell_root) return {};
  return bootstrap::check_root(options.root);
}

}  // namespace

tl::unexpected<Error> World::Impl::break_up(Error error) {
  bootstrap::announce_failure(members, {error.status, options.rank, error.message});
  broken = error;
  return tl::unexpected(std::move(error));
}

tl::unexpected<Error> World::Impl::break_up(std::uint32_t rank, const Error& error) {
  return break_up(Error{error.status, fmt::format("rank {} {}", rank, error.message)});
}

// Reads the frames of rank `rank`, and detects its end.
Result<void> World::Impl::read_member(std::uint32_t rank) {
  if (gave_up && gave_up->first == rank) return {};
  const bool waits = contributions[rank].has_value();
  auto frame =
      members[rank].receive(waits ? bootstrap::FrameSet{FrameType::kFailed}
                                  : bootstrap::FrameSet{FrameType::kContribution, FrameType::kFailed});
  if (!frame) return break_up(rank, frame.error());
  if (!*frame) return {};
  if ((*frame)->type == FrameType::kFailed) {
    const auto failure = bootstrap::decode_failure(**frame);
    if (!gave_up) gave_up = {rank, Error{failure.status, failure.reason}};
    return {};
  }
  if ((*frame)->rank != rank || (*frame)->sequence != sequence) {
    return break_up(rank, {Status::kInvalidArgument,
                           fmt::format("contributed as rank {} to collective {}, rank 0 is at {}",
                                       (*frame)->rank, (*frame)->sequence, sequence)});
  }
  contributions[rank] = std::move(**frame);
  return {};
}

// Answers ranks whose place a stranger holds.
void World::Impl::refuse_latecomers() {
  if (!reception) return;
  auto arrivals = reception->receive();
  if (!arrivals) {
    log::warn("bootstrap: refuses no more latecomers: {}", arrivals.error().message);
    return reception.reset();
  }
  for (auto& arrival : *arrivals) {
    const std::uint32_t rank = arrival.hello.rank;
    const std::string who = arrival.connection.peer();
    const bool taken = rank > 0 && rank < options.size;
    if (latecomer.empty())
      log::warn("bootstrap: refused {}, which came as rank {} when all ranks were there", who, rank);
    latecomer = fmt::format(" ({} came as rank {} later)", who, rank);
    bootstrap::refuse_latecomer(
        arrival, taken
                     ? fmt::format("{} took the place of rank {} before {}: start every rank once, and keep "
                                   "others away from {}",
                                   place(rank), rank, who, options.root)
                     : fmt::format("{} came as rank {} of {}", who, rank, options.size));
  }
}

std::string World::Impl::bound_text() const {
  return fmt::format("{:.3f} s", static_cast<double>(bound_ns) / kNsPerSecond);
}

std::string World::Impl::place(std::uint32_t rank) const { return members[rank].peer(); }

// Returns text that names absent ranks, with the place of the first. That may be no rank at all.
std::string World::Impl::absent_text(const std::vector<std::uint32_t>& absent) const {
  return fmt::format("{}{} at {}", bootstrap::rank_list(absent), absent.size() > 1 ? ", the first" : "",
                     place(absent.front()));
}

// `absent`: ranks that the others wait for.
Result<void> World::Impl::end_for_who_gave_up(std::vector<std::uint32_t> absent) {
  const auto& [rank, why] = *gave_up;
  std::erase(absent, rank);
  if (absent.empty())
    return break_up(Error{why.status, fmt::format("rank {} gave up: {}", rank, why.message)});
  return break_up(Error{why.status, fmt::format("{} did not come to collective {} before rank {} gave up: {}",
                                                absent_text(absent), sequence, rank, why.message)});
}

Result<void> World::Impl::wait_for_contributions(std::size_t bytes, std::uint64_t deadline_ns) {
  for (;;) {
    std::vector<std::uint32_t> absent;
    std::vector<pollfd> set;
    for (std::uint32_t rank = 1; rank < options.size; ++rank) {
      if (auto read = read_member(rank); !read) return read;
      if (!contributions[rank]) absent.push_back(rank);
      set.push_back({members[rank].socket().value(), POLLIN, 0});
      if (contributions[rank] && contributions[rank]->payload.size() != bytes) {
        return break_up(rank,
                        {Status::kInvalidArgument,
                         fmt::format("contributed {} bytes where rank 0 contributed {}: all ranks must give "
                                     "the same number",
                                     contributions[rank]->payload.size(), bytes)});
      }
    }
    if (gave_up) return end_for_who_gave_up(absent);
    if (absent.empty()) return {};
    if (reception) reception->add_to(set);
    const std::uint64_t next_ns = reception ? reception->next_deadline_ns() : deadline_ns;
    const bool ready = bootstrap::wait_until(set, std::min(deadline_ns, next_ns));
    refuse_latecomers();
    if (!ready && monotonic_ns() >= deadline_ns) {
      return break_up(Error{Status::kTimeout,
                            fmt::format("{} did not come to collective {} within {}{}{}", absent_text(absent),
                                        sequence, bound_text(), kLives, latecomer)});
    }
  }
}

Result<void> World::Impl::send_to_members(std::vector<std::byte> frame, std::uint64_t deadline_ns) {
  const auto shared = std::make_shared<const std::vector<std::byte>>(std::move(frame));
  for (std::uint32_t rank = 1; rank < options.size; ++rank) members[rank].queue(shared);
  for (;;) {
    std::vector<pollfd> set;
    std::vector<std::uint32_t> absent;
    for (std::uint32_t rank = 1; rank < options.size; ++rank) {
      if (auto sent = members[rank].flush(); !sent) return break_up(rank, sent.error());
      if (!members[rank].has_unsent()) continue;
      set.push_back({members[rank].socket().value(), POLLOUT, 0});
      absent.push_back(rank);
    }
    if (set.empty()) return {};
    if (!bootstrap::wait_until(set, deadline_ns)) {
      return break_up(
          Error{Status::kTimeout, fmt::format("{} did not take the result of collective {} within {}{}",
                                              absent_text(absent), sequence, bound_text(), kLives)});
    }
  }
}

Result<std::vector<std::byte>> World::Impl::collect(std::span<const std::byte> mine,
                                                    std::uint64_t deadline_ns) {
  GDX_TRY(wait_for_contributions(mine.size(), deadline_ns));
  std::vector<std::byte> gathered(mine.begin(), mine.end());
  gathered.reserve(mine.size() * options.size);
  for (std::uint32_t rank = 1; rank < options.size; ++rank) {
    const auto& payload = contributions[rank]->payload;
    gathered.insert(gathered.end(), payload.begin(), payload.end());
    contributions[rank].reset();
  }
  GDX_TRY(send_to_members(bootstrap::encode_frame(FrameType::kGathered, 0, sequence, gathered), deadline_ns));
  ++sequence;
  reception.reset();
  return gathered;
}

Result<std::vector<std::byte>> World::Impl::contribute(std::span<const std::byte> mine,
                                                       std::uint64_t deadline_ns) {
  Connection& root = members.front();
  root.queue(bootstrap::encode_frame(FrameType::kContribution, options.rank, sequence, mine));
  for (;;) {
    auto gathered = GDX_TRY(receive_gathered(mine.size()));
    if (gathered) return std::move(*gathered);
    pollfd ready{root.socket().value(), root.events(), 0};
    if (!bootstrap::wait_until(std::span(&ready, 1), deadline_ns)) {
      return break_up(Error{
          Status::kTimeout,
          fmt::format("collective {} did not end within {}: rank 0, or a rank that it waits for, has not "
                      "come; see which rank is stuck",
                      sequence, bound_text())});
    }
  }
}

// Sends what is queued, and takes rank 0's answer once it is here.
Result<std::optional<std::vector<std::byte>>> World::Impl::receive_gathered(std::size_t bytes) {
  Connection& root = members.front();
  // Receives after a failed flush too, because rank 0 sends its reason before it closes.
  const auto sent = root.flush();
  auto frame = root.receive({FrameType::kGathered, FrameType::kFailed});
  if (!frame) return break_up(0, frame.error());
  if (*frame && (*frame)->type == FrameType::kFailed)
    return break_up(bootstrap::received_failure(bootstrap::decode_failure(**frame)));
  if (*frame && ((*frame)->sequence != sequence || (*frame)->payload.size() != bytes * options.size)) {
    return break_up(
        0, {Status::kInvalidArgument,
            fmt::format("answered collective {} with {} bytes, where {} with {} were due", (*frame)->sequence,
                        (*frame)->payload.size(), sequence, bytes * options.size)});
  }
  if (*frame) {
    ++sequence;
    return std::optional(std::move((*frame)->payload));
  }
  if (!sent) return break_up(0, sent.error());
  return std::optional<std::vector<std::byte>>();
}

Result<bool> World::Impl::poll_collect() {
  bool all = true;
  for (std::uint32_t rank = 1; rank < options.size; ++rank) {
    if (auto read = read_member(rank); !read) return tl::unexpected(read.error());
    all = all && contributions[rank].has_value();
  }
  if (gave_up) {
    auto ended = end_for_who_gave_up({});
    return tl::unexpected(ended.error());
  }
  if (!all) return false;
  bound_ns = kAnswerNs;
  GDX_TRY(collect({}, monotonic_ns() + kAnswerNs));
  return true;
}

Result<bool> World::Impl::poll_contribute() {
  if (!has_contributed)
    members.front().queue(bootstrap::encode_frame(FrameType::kContribution, options.rank, sequence, {}));
  has_contributed = true;
  const auto gathered = GDX_TRY(receive_gathered(0));
  has_contributed = !gathered;
  return gathered.has_value();
}

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

std::uint32_t World::rank() const { return impl_->options.rank; }
std::uint32_t World::size() const { return impl_->options.size; }
const WorldOptions& World::options() const { return impl_->options; }

std::string World::address() const {
  if (size() == 1 || bootstrap::is_local(options().root)) return "127.0.0.1";
  const auto& members = impl_->members;
  const auto chosen = std::ranges::find_if(
      members, [](const Connection& member) { return member && !bootstrap::is_loopback(member.socket()); });
  const Connection& member = chosen == members.end() ? members.back() : *chosen;
  const auto own = bootstrap::parse_host_port(bootstrap::own_text(member.socket()));
  return own ? own->host : std::string();
}

Result<World> World::join(const WorldOptions& options, Descriptor listener) {
  const TraceSpan span("World::join");
  GDX_TRY(check_options(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (options.size > 1) {
    const std::uint64_t deadline_ns = monotonic_ns() + options.timeout_ns;
    if (!listener) listener = GDX_TRY(bootstrap::settle_root(impl->options, deadline_ns));
    const WorldOptions& settled = impl->options;
    const auto admission =
        GDX_TRY(bootstrap::choose_admission(settled.root, settled.secret, settled.secret_readers));
    impl->options.secret = admission.secret;
    log::info("bootstrap: rank {} of {} meets the others at {}; they recognise each other {}", options.rank,
              options.size, settled.root, admission.text);
    if (options.rank == 0) {
      auto gathered = GDX_TRY(bootstrap::gather_members(impl->options, std::move(listener), deadline_ns));
      impl->members = std::move(gathered.members);
      impl->reception = std::move(gathered.reception);
    } else {
      impl->members = GDX_TRY(bootstrap::join_root(impl->options, deadline_ns));
    }
    impl->contributions.resize(options.size);
  }
  return World(std::move(impl));
}

World World::of(const WorldOptions& options, std::vector<Connection> members) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->members = std::move(members);
  impl->contributions.resize(options.size);
  return World(std::move(impl));
}

Result<std::vector<std::byte>> World::allgather(std::span<const std::byte> mine, std::uint64_t timeout_ns) {
  const TraceSpan span("World::allgather");
  const auto turn = GDX_TRY(impl_->caller.begin());
  if (impl_->broken) return tl::unexpected(*impl_->broken);
  if (mine.size() > bootstrap::kMaxContributionBytes || mine.size() * size() > bootstrap::kMaxGatheredBytes) {
    return fail(
        Status::kInvalidLength,
        fmt::format("{} bytes of each of {} ranks are too many to gather: at most {} each and {} in all",
                    mine.size(), size(), bootstrap::kMaxContributionBytes, bootstrap::kMaxGatheredBytes));
  }
  if (size() == 1) return std::vector<std::byte>(mine.begin(), mine.end());
  impl_->bound_ns = timeout_ns;
  const std::uint64_t deadline_ns = monotonic_ns() + timeout_ns;
  return rank() == 0 ? impl_->collect(mine, deadline_ns) : impl_->contribute(mine, deadline_ns);
}

Result<void> World::barrier(std::uint64_t timeout_ns) {
  GDX_TRY(allgather({}, timeout_ns));
  return {};
}

Result<bool> World::poll_barrier() {
  const auto turn = GDX_TRY(impl_->caller.begin());
  if (impl_->broken) return tl::unexpected(*impl_->broken);
  if (size() == 1) return true;
  return rank() == 0 ? impl_->poll_collect() : impl_->poll_contribute();
}

Result<void> World::poll_peers() {
  const auto turn = GDX_TRY(impl_->caller.begin());
  if (impl_->broken) return tl::unexpected(*impl_->broken);
  if (size() == 1) return {};
  if (rank() == 0) {
    for (std::uint32_t rank = 1; rank < size(); ++rank) {
      if (auto read = impl_->read_member(rank); !read) return read;
    }
    return impl_->gave_up ? impl_->end_for_who_gave_up({}) : Result<void>{};
  }
  auto frame = impl_->members.front().receive({FrameType::kFailed});
  if (!frame) return impl_->break_up(0, frame.error());
  if (!*frame) return {};
  return impl_->break_up(bootstrap::received_failure(bootstrap::decode_failure(**frame)));
}

}  // namespace gdx
