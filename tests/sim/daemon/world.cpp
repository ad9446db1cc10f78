#include "tests/sim/daemon/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/holes.h"
#include "host/hca/hca.h"

namespace gdx::sim {
namespace {

constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr std::uint64_t kNsPerS = 1'000'000'000;
constexpr std::uint64_t kAnswerPatienceNs = 5 * kNsPerS;
constexpr std::uint64_t kOpenPatienceNs = 30 * kNsPerS;
constexpr double kLooks = 0.05;
constexpr std::uint64_t kSlackNs = kNsPerS;  // of a thread that is due, until its turn
constexpr uid_t kUsers[] = {2001, 2002, 2003};
constexpr pid_t kFirstProcess = 10'000;

// Things of this process that must not grow: open files, and mappings of files without a name.
std::string belongings() {
  const auto files = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                   std::filesystem::directory_iterator());
  std::ifstream maps("/proc/self/maps");
  std::size_t mappings = 0;
  for (std::string line; std::getline(maps, line);)
    mappings += line.find("/memfd:") != std::string::npos ? 1 : 0;
  return fmt::format("{} files, {} mappings", files, mappings);
}

// The first use of the HCA in this process leaves what later ones use again.
const HcaFacts& hca_facts() {
  static const HcaFacts facts = [] {
    refuse_holes(nullptr, 0);  // as does the first of these
    HcaOptions options;
    options.in_this_process = true;
    const Hca hca = Hca::open(options).take();
    const std::string file = fmt::format("/proc/self/fd/{}", hca.context()->cmd_fd);
    return HcaFacts{hca.device_memory_bytes(), std::filesystem::file_size(file)};
  }();
  return facts;
}

Status status_of(std::span<const std::byte> answer) {
  const auto parsed = ipc::parse_message(answer);
  return parsed ? parsed->status : Status::kSystem;
}

std::string names(const std::vector<Status>& statuses) {
  std::vector<std::string> all;
  all.reserve(statuses.size());
  for (const Status status : statuses) all.emplace_back(status_name(status));
  return fmt::format("{}", fmt::join(all, " or "));
}

constexpr std::uint64_t DaemonOutcome::*kCounters[] = {
    &DaemonOutcome::steps,    &DaemonOutcome::answers,      &DaemonOutcome::grants,
    &DaemonOutcome::refusals, &DaemonOutcome::connections,  &DaemonOutcome::turned_away,
    &DaemonOutcome::deaths,   &DaemonOutcome::full_sockets, &DaemonOutcome::dropped,
    &DaemonOutcome::kicked,   &DaemonOutcome::daemons,      &DaemonOutcome::gone,
    &DaemonOutcome::checks};

}  // namespace

void DaemonOutcome::add(const DaemonOutcome& other) {
  for (const auto counter : kCounters) this->*counter += other.*counter;
}

DaemonWorld::DaemonWorld(std::uint64_t seed, Fail on_problem)
    : seed_(seed),
      fail_(on_problem),
      random_(seed),
      path_((std::filesystem::temp_directory_path() / fmt::format("gdxd-sim-{}", ::getpid())).string()),
      stage_(random_.next(), *this) {
  draw();
}

void DaemonWorld::draw() {
  const auto count = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<std::uint32_t>(random_.between(low, high));
  };
  limits_.max_groups = count(2, 4);
  limits_.max_clients = count(3, 12);
  limits_.group = {.max_clients = count(1, 5),
                   .max_endpoints = count(1, 6),
                   .max_regions = count(1, 6),
                   .max_registered_bytes = hca_facts().context_bytes + 4096 * random_.between(10, 80),
                   .max_pools = count(1, 3),
                   .max_nic_pools = count(1, 2),
                   .max_slots = count(4, 8),
                   .max_requests_per_s = random_.chance(0.3) ? count(50, 500) : 20'000};
  limits_.pools_per_hca = limits_.max_groups * limits_.group.max_nic_pools;
  daemons_ = count(1, 3);
  const std::uint32_t clients = count(3, 10);
  for (std::uint32_t i = 0; i < clients; ++i) {
    Client client;
    client.process = kFirstProcess + static_cast<pid_t>(i);
    client.user = random_.chance(0.1) ? 0 : kUsers[random_.between(0, std::size(kUsers) - 1)];
    client.messages = count(5, 60);
    client.lives = count(1, 4);
    if (random_.chance(0.6)) {
      client.flawed = random_.chance(0.5) ? 0.4 : 0;
      client.dies = random_.chance(0.7) ? 0.05 : 0;
      client.patient = random_.chance(0.5) ? 1 : 0.1;
      client.deaf = random_.chance(0.5) ? 0.1 : 0;
      client.is_raw = true;
    }
    clients_.push_back(client);
  }
  clients_left_ = clients;
}

ucred DaemonWorld::accepted() {
  if (dialled_.empty()) fail("gdxd accepts a connection that nobody made");
  accepting_ = dialled_.front();
  dialled_.pop_front();
  accepting_->is_accepted = true;
  const auto admitted = ledger_->admit(accepting_->user, accepting_->process);
  accepting_->book = admitted ? *admitted : nullptr;
  accepting_->refusal = admitted ? Status::kOk : admitted.error().status;
  return {accepting_->process, accepting_->user, 0};
}

std::shared_ptr<Line> DaemonWorld::connection_begins() {
  auto line = std::move(accepting_);
  if (line->book == nullptr) fail(fmt::format("process {} is admitted beyond its limits", line->process));
  line->begun_ns = stage_.now_ns();
  lines_.push_back(line);
  ++outcome_.connections;
  ++changes_;
  return line;
}

// gdxd tells a client why it has no place, before it waits for the next.
void DaemonWorld::refuses(std::span<const std::byte> answer) {
  if (!accepting_) return;
  const Status told = status_of(answer);
  if (told != accepting_->refusal || told == Status::kOk)
    fail(fmt::format("process {} is refused with {} instead of {}", accepting_->process, status_name(told),
                     status_name(accepting_->refusal)));
  accepting_->answers.emplace_back(answer.begin(), answer.end());
  accepting_->is_excused = true;
  accepting_.reset();
  ++outcome_.turned_away;
}

void DaemonWorld::accept_ends() {
  if (accepting_) fail(fmt::format("process {} is turned away without a word", accepting_->process));
}

void DaemonWorld::received(Line& line) {
  if (line.current) fail(fmt::format("process {} gets no answer to one of its messages", line.process));
  line.current = std::move(line.sent.front());
  line.sent.pop_front();
  line.is_booked = false;
  line.received_ns = stage_.now_ns();
  if (ledger_->expect(*line.book, line.current->bytes, line.current->files).empty()) line.current.reset();
}

void DaemonWorld::answers(Line& line, std::span<const std::byte> answer) {
  if (!line.current) fail(fmt::format("process {} gets an answer to no message", line.process));
  if (line.is_booked) {
    ++outcome_.full_sockets;
    return;
  }
  const std::span<const std::byte> message = line.current->bytes;
  const Status told = status_of(answer);
  const auto expected = ledger_->expect(*line.book, message, line.current->files);
  const auto kind = ipc::parse_message(message);
  if (std::ranges::find(expected, told) == expected.end()) {
    fail(fmt::format(
        "process {} of user {}, request of kind {}: gdxd answers {} instead of {}: {}", line.process,
        line.user, kind ? static_cast<int>(kind->kind) : 0, status_name(told), names(expected),
        told == Status::kOk ? "" : ipc::decode_refusal(ipc::parse_message(answer).take()).message));
  }
  ++outcome_.answers;
  ++(told == Status::kOk ? outcome_.grants : outcome_.refusals);
  if (told == Status::kOk) {
    const std::string problem = ledger_->book(*line.book, message, answer);
    if (!problem.empty()) fail(fmt::format("process {}: {}", line.process, problem));
  }
  line.is_booked = true;
  line.stuck_ns = stage_.now_ns();
  line.answer.assign(answer.begin(), answer.end());
  ++changes_;
}

void DaemonWorld::answer_left(Line& line) {
  line.answers.push_back(std::move(line.answer));
  line.current.reset();
  line.stuck_ns = 0;
}

void DaemonWorld::shuts_down(Line& line) {
  const auto message =
      line.current ? ipc::parse_message(line.current->bytes) : Result<ipc::Parsed>(tl::unexpected(Error{}));
  const bool kicks_itself = message && message->kind == ipc::Kind::kKick && !line.is_booked;
  if (!kicks_itself && line.lost_ns == 0) session_ends(line);
}

void DaemonWorld::session_ends(Line& line) {
  const std::uint64_t now_ns = stage_.now_ns();
  ClientBook& book = *line.book;
  const bool is_unread = !line.is_booked && !line.answers.empty();
  const bool is_stuck = (line.stuck_ns != 0 && now_ns - line.stuck_ns >= kAnswerPatienceNs) ||
                        (is_unread && now_ns - line.received_ns >= kAnswerPatienceNs);
  const bool is_late = book.state != ClientBook::State::kOpen && now_ns - line.begun_ns >= kOpenPatienceNs;
  line.is_excused = line.is_excused || book.kicked || is_stuck || is_late;
  if (!line.is_excused && !line.client_closed)
    fail(fmt::format("gdxd drops process {} without a cause", line.process));
  outcome_.dropped += is_stuck || is_late ? 1 : 0;
  outcome_.kicked += book.kicked ? 1 : 0;
  line.lost_ns = now_ns;
  ledger_->end(book);
  ++changes_;
  is_end_ = true;
}

void DaemonWorld::connection_ends(Line& line) {
  if (line.lost_ns == 0) session_ends(line);
  line.book->has_place = false;
  ++changes_;
  is_end_ = true;
}

void DaemonWorld::joined(Line& line) {
  ledger_->forget(*line.book);
  line.book = nullptr;
  std::erase_if(lines_, [&](const auto& one) { return one.get() == &line; });
}

void DaemonWorld::sent(Line& line, std::span<const std::byte> message) {
  line.sent.push_back({{message.begin(), message.end()}, line.next_files});
}

void DaemonWorld::be_daemon() {
  for (unsigned life = 0; life < daemons_ && clients_left_ != 0; ++life) {
    ledger_.emplace(limits_, hca_facts());
    auto server = daemon::Server::listen({.path = path_, .limits = limits_}).take();
    ++outcome_.daemons;
    server_ = serving_ = server.get();
    if (!server->run()) fail("gdxd cannot go on");
    serving_ = nullptr;
    if (server_ != nullptr && (!ledger_->draining() || ledger_->open_clients() != 0))
      fail("gdxd ends though nobody has told it to, or before its last client");
    server_ = nullptr;
    for (const auto& line : lines_) line->is_excused = true;
    server.reset();
    if (!lines_.empty()) fail("gdxd leaves a connection behind");
    for (const auto& line : dialled_) line->is_excused = true;
    dialled_.clear();
    Stage::sleep(random_.between(1, 500) * kNsPerMs);
  }
}

void DaemonWorld::direct() {
  unsigned ends = daemons_ - 1;
  while (clients_left_ != 0 || serving_ != nullptr) {
    Stage::sleep(random_.between(20, 400) * kNsPerMs);
    if (server_ == nullptr || (clients_left_ != 0 && (ends == 0 || !random_.chance(0.1)))) continue;
    if (clients_left_ != 0) --ends;
    std::exchange(server_, nullptr)->stop();
  }
}

void DaemonWorld::check_patience() {
  const std::uint64_t now_ns = stage_.now_ns();
  for (const auto& line : lines_) {
    if (line->lost_ns != 0) continue;
    const std::uint64_t stuck_ns = line->stuck_ns == 0 ? 0 : now_ns - line->stuck_ns;
    const bool is_open = line->book->state == ClientBook::State::kOpen;
    if (stuck_ns > kAnswerPatienceNs + kSlackNs)
      fail(fmt::format("gdxd keeps process {}, which reads no answers", line->process));
    if (!is_open && now_ns - line->begun_ns > kOpenPatienceNs + kAnswerPatienceNs + kSlackNs)
      fail(fmt::format("gdxd keeps process {}, which opens no HCA", line->process));
  }
}

void DaemonWorld::check() {
  check_patience();
  if (serving_ == nullptr || std::exchange(seen_, changes_) == changes_) return;
  // The software HCA writes a hundred files for each look.
  if (!std::exchange(is_end_, false) && !random_.chance(kLooks)) return;
  ++outcome_.checks;
  const auto told = Ledger::figures_in(serving_->statistics(0));
  const auto owed = ledger_->figures();
  if (told == owed) return;
  fail(fmt::format("gdxd's statistics differ from what its clients have; it tells:\n  {}\nowed:\n  {}",
                   fmt::join(told, "\n  "), fmt::join(owed, "\n  ")));
}

DaemonOutcome DaemonWorld::run() {
  hca_facts();
  const std::string before = belongings();
  stage_.start(Role::kDaemon, [this] { be_daemon(); });
  stage_.start(Role::kClient, [this] { direct(); });
  for (const Client& client : clients_) {
    stage_.start(Role::kClient, [this, &client] {
      client.is_raw ? be_raw(client) : be_honest(client);
      --clients_left_;
    });
  }
  const std::string problem = stage_.run([this] { check(); });
  if (!problem.empty()) fail(problem);
  const std::string after = belongings();
  if (after != before) fail(fmt::format("after all have ended there are {}; there were {}", after, before));
  outcome_.steps = stage_.steps();
  return outcome_;
}

}  // namespace gdx::sim
