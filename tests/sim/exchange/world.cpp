#include "tests/sim/exchange/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

namespace gdx::sim {
namespace {

constexpr std::uint64_t kBoundNs = 10'000'000'000;
constexpr std::uint64_t kSlackNs = 1'000'000'000;  // others run while a rank whose bound has passed waits
constexpr std::uint64_t kMostLateNs = 2'000'000'000;
constexpr int kSteps = 3;

// Returns whether the text has the number of a rank, in words such as "rank 2" or "ranks 1 and 2".
bool names(const std::string& text, std::uint32_t rank) {
  const std::string number = std::to_string(rank);
  for (std::size_t at = text.find(number); at != std::string::npos; at = text.find(number, at + 1)) {
    const std::size_t end = at + number.size();
    const bool whole = end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0;
    const std::string before = text.substr(0, at);
    if (whole && (before.ends_with("rank ") || before.ends_with("ranks ") || before.ends_with(", ") ||
                  before.ends_with(" and ")))
      return true;
  }
  return false;
}

}  // namespace

void ExchangeOutcome::add(const ExchangeOutcome& other) {
  losses += other.losses;
  named += other.named;
  told += other.told;
  whole += other.whole;
  if (other.sent.frames == 0) return;
  sent = other.sent;
  received = other.received;
}

ExchangeWorld::ExchangeWorld(std::uint64_t seed, std::uint32_t ranks)
    : random_(seed), size_(ranks), network_(random_.next(), ranks), courses_(ranks) {
  const std::uint64_t late_ns = kMostLateNs >> random_.between(0, 12);
  for (std::uint32_t rank = 0; rank < size_; ++rank)
    network_.start(rank, random_.between(0, late_ns), [this, rank] { be_rank(rank); });
  if (random_.chance(0.1)) return;
  loss_ = random_.chance(0.5) ? Loss::kDeath : Loss::kSilence;
  lost_ = random_.chance(0.1) ? 0 : static_cast<std::uint32_t>(random_.between(1, size_ - 1));
  // Rank 0 makes a hundred calls for each rank at most.
  const double most = lost_ == 0 ? std::log(100.0 * size_) : std::log(60.0);
  const double share = static_cast<double>(random_.between(0, 1000)) / 1000;
  network_.lose(lost_, loss_, static_cast<std::uint64_t>(std::exp(most * share)) - 1);
}

Result<void> ExchangeWorld::take_part(std::uint32_t rank, Course& course) {
  std::uint64_t begun_ns = network_.now_ns();
  const auto end_step = [&](bool done) {
    course.longest_ns =
        std::max(course.longest_ns, network_.now_ns() - std::exchange(begun_ns, network_.now_ns()));
    course.steps += done ? 1 : 0;
  };
  auto world =
      World::join({.rank = rank, .size = size_, .root = "unix:gdx-exchange", .timeout_ns = kBoundNs});
  end_step(world.has_value());
  if (!world) return tl::unexpected(world.error());
  const auto words = world->allgather_value(rank * 3, kBoundNs);
  end_step(words.has_value());
  if (!words) return tl::unexpected(words.error());
  for (std::uint32_t other = 0; other < size_; ++other) {
    if ((*words)[other] != other * 3) return fail(Status::kSystem, fmt::format("a wrong word of {}", other));
  }
  auto met = world->barrier(kBoundNs);
  end_step(met.has_value());
  return met;
}

void ExchangeWorld::be_rank(std::uint32_t rank) {
  Course& course = courses_[rank];
  if (auto done = take_part(rank, course); !done) course.error = done.error();
}

std::string ExchangeWorld::problem_of(std::uint32_t rank) const {
  const Course& course = courses_[rank];
  const bool lost = network_.is_lost(lost_) && loss_ != Loss::kNone;
  if (!network_.has_ended(rank)) return "does not end";
  if (lost && rank == lost_) return {};
  if (course.longest_ns > kBoundNs + kSlackNs)
    return fmt::format("takes {} ns for a call", course.longest_ns);
  if (!course.error) return course.steps == kSteps ? "" : "is not through";
  const auto& [status, text] = *course.error;
  if (!lost) return "has an error though nobody is lost: " + text;
  if (rank == 0) return names(text, lost_) ? "" : "does not name who is lost: " + text;
  const auto& of_root = courses_[0].error;
  const bool told = of_root && text == "rank 0 ended the job: " + of_root->message;
  if (told || status == Status::kTimeout || (status == Status::kPeerGone && names(text, 0))) return {};
  return "has an error of its own: " + text;
}

std::string ExchangeWorld::problem() const {
  for (std::uint32_t rank = 0; rank < size_; ++rank) {
    const std::string why = problem_of(rank);
    if (!why.empty()) return fmt::format("rank {} {}", rank, why);
    const bool is_through = !courses_[0].error && (loss_ == Loss::kNone || lost_ != 0);
    if (is_through && courses_[rank].error && rank != lost_)
      return fmt::format("rank 0 is through, and rank {} has an error: {}", rank,
                         courses_[rank].error->message);
  }
  return {};
}

ExchangeOutcome ExchangeWorld::run() {
  network_.run();
  ExchangeOutcome outcome;
  outcome.problem = problem();
  const std::string prefix = courses_[0].error ? "rank 0 ended the job: " + courses_[0].error->message : " ";
  const auto is_told = [&](const Course& course) { return course.error && course.error->message == prefix; };
  outcome.told = static_cast<std::uint64_t>(std::ranges::count_if(courses_, is_told));
  outcome.whole = std::ranges::all_of(courses_, [](const Course& course) { return !course.error; }) ? 1 : 0;
  outcome.losses = loss_ != Loss::kNone && network_.is_lost(lost_) && outcome.whole == 0 ? 1 : 0;
  outcome.named = lost_ != 0 && courses_[0].error ? 1 : 0;
  if (outcome.losses == 0) outcome.sent = network_.sent_by_root();
  if (outcome.losses == 0) outcome.received = network_.received_by_root();
  return outcome;
}

}  // namespace gdx::sim
