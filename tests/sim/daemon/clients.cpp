#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "host/bootstrap/local_socket.h"
#include "tests/sim/daemon/world.h"

namespace gdx::sim {
namespace {

constexpr unsigned kMoreThanFit = 9;
constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr std::uint64_t kPatienceNs = 60'000'000'000;
constexpr std::uint64_t kLossNs = 100 * kNsPerMs;  // between gdxd's end and the client's notice of it
constexpr int kSmallBufferBytes = 1;

Status status_of(std::span<const std::byte> answer) {
  ipc::Header header{};
  std::memcpy(&header, answer.data(), sizeof header);
  return static_cast<Status>(header.status);
}

bool is_excused(const Line& line) { return line.is_excused || (line.book != nullptr && line.book->kicked); }

}  // namespace

std::shared_ptr<Line> DaemonWorld::dial(const Client& client) {
  auto line = std::make_shared<Line>();
  line->user = client.user;
  line->process = client.process;
  line->next_files = {};
  dialled_.push_back(line);
  Stage::set_line(line);
  return line;
}

// Nobody listens: gdxd is between two lives.
void DaemonWorld::nobody_listens(const std::shared_ptr<Line>& line, const Error& error) {
  const auto found = std::ranges::find(dialled_, line);
  if (found != dialled_.end()) dialled_.erase(found);
  if (serving_ != nullptr || error.status != Status::kNotFound)
    fail(fmt::format("process {} cannot connect: {}", line->process, error.message));
}

// The client of host/ipc has got `told`.
void DaemonWorld::check_answer(Line& line, Status told, const std::string& reason) {
  if (line.answers.empty() || (told == Status::kDaemonGone && is_excused(line))) {
    if (told != Status::kDaemonGone || !is_excused(line))
      fail(fmt::format("process {}, honest, gets {} for no answer of gdxd: {}", line.process,
                       status_name(told), reason));
    ++outcome_.gone;
    return;
  }
  const Status sent = status_of(line.answers.front());
  line.answers.pop_front();
  if (told != sent)
    fail(fmt::format("process {}, honest, gets {} where gdxd answered {}", line.process, status_name(told),
                     status_name(sent)));
}

void DaemonWorld::ask(ipc::Daemon& daemon, Line& line, Requests& requests, const Request& request) {
  line.next_files = request.facts;
  std::visit(
      [&](const auto& body) {
        using Told = typename AnswerTo<std::remove_cvref_t<decltype(body)>>::Type;
        const auto reply = daemon.call<Told>(body, request.files);
        check_answer(line, reply ? Status::kOk : reply.error().status, reply ? "" : reply.error().message);
        if (reply) requests.granted(body, reply->answer);
      },
      request.body);
}

void DaemonWorld::live_honestly(const Client& client, Requests& requests) {
  const auto line = dial(client);
  const auto connected = ipc::Daemon::connect(path_);
  if (!connected && !line->is_accepted && !is_excused(*line)) {
    nobody_listens(line, connected.error());
    return;
  }
  check_answer(*line, connected ? Status::kOk : connected.error().status,
               connected ? "" : connected.error().message);
  if (!connected) {
    line->client_closed = true;
    return;
  }
  ipc::Daemon& daemon = **connected;
  bool is_told = false;
  const std::uint64_t act = daemon.on_loss([&] { is_told = true; });
  const auto opened = daemon.call<ipc::HcaAnswer>(ipc::OpenHca{{}, -1, 0});
  check_answer(*line, opened ? Status::kOk : opened.error().status, opened ? "" : opened.error().message);
  if (opened) requests.set_gid(opened->answer.gid);
  for (unsigned i = 0; opened && i < client.messages && !daemon.lost(); ++i) {
    if (random_.chance(0.1)) daemon.wake();
    if (random_.chance(0.2)) Stage::sleep(random_.between(1, 100) * kNsPerMs);
    const std::uint64_t lost_ns = line->lost_ns;
    if (lost_ns != 0 && !is_told && stage_.now_ns() - lost_ns > kLossNs)
      fail(fmt::format("process {} is not told that gdxd has ended", line->process));
    ask(daemon, *line, requests, requests.draw(0));
  }
  daemon.forget(act);
  line->client_closed = true;
}

void DaemonWorld::be_honest(const Client& client) {
  for (unsigned life = 0; life < client.lives; ++life) {
    Requests requests(random_);
    live_honestly(client, requests);
    Stage::sleep(random_.between(1, 300) * kNsPerMs);
  }
}

bool DaemonWorld::send(const Descriptor& socket, Line& line, const std::vector<std::byte>& bytes,
                       const std::vector<int>& files, const FilesFacts& facts) {
  line.next_files = facts;
  const auto sent = bootstrap::send_local(socket, bytes, files, stage_.now_ns() + kPatienceNs);
  if (!sent && sent.error().status != Status::kPeerGone)
    fail(fmt::format("process {} cannot send: {}", line.process, sent.error().message));
  return sent.has_value();
}

// Returns whether the connection is still there.
bool DaemonWorld::read_answers(const Descriptor& socket, Line& line, Requests& requests,
                               std::deque<std::optional<Request>>& asked) {
  while (!asked.empty()) {
    const auto received = bootstrap::receive_local(socket, stage_.now_ns() + kPatienceNs);
    if (!received) {
      if (received.error().status != Status::kPeerGone || (line.lost_ns == 0 && !is_excused(line)))
        fail(fmt::format("process {} waits for an answer: {}", line.process, received.error().message));
      return false;
    }
    if (line.answers.empty() || line.answers.front() != received->bytes)
      fail(fmt::format("process {} gets another answer than gdxd sent", line.process));
    line.answers.pop_front();
    const auto request = std::move(asked.front());
    asked.pop_front();
    if (status_of(received->bytes) != Status::kOk) continue;
    if (request) requests.granted(*request, received->bytes);
    const auto answer = ipc::parse_message(received->bytes);
    if (answer->kind == ipc::Kind::kOpenHca) requests.set_gid(ipc::parse_body<ipc::HcaAnswer>(*answer)->gid);
  }
  return true;
}

// Sends one message of the client's kind. Returns whether the connection is still there.
bool DaemonWorld::send_any(const Client& client, const Descriptor& socket, Line& line, Requests& requests,
                           std::deque<std::optional<Request>>& asked) {
  if (random_.chance(0.05)) return send(socket, line, ipc::encode(ipc::Kind::kWake, ipc::Wake{}), {}, {});
  if (random_.chance(client.flawed / 2)) {
    asked.emplace_back();
    return send(socket, line, requests.no_message(), {}, {});
  }
  Request request = requests.draw(client.flawed);
  if (random_.chance(0.02)) {
    const auto process = clients_[random_.between(0, clients_.size() - 1)].process;
    request = {ipc::Kick{static_cast<std::uint32_t>(process)}, {}, {}};
  } else if (random_.chance(0.01)) {
    request = {ipc::Drain{}, {}, {}};
  }
  const auto bytes = std::visit(
      [](const auto& body) { return ipc::encode(std::remove_cvref_t<decltype(body)>::kKind, body); },
      request.body);
  asked.emplace_back(request);
  return send(socket, line, bytes, request.files, request.facts);
}

void DaemonWorld::live_rawly(const Client& client, Requests& requests) {
  const auto line = dial(client);
  const auto socket = bootstrap::connect_local(path_);
  if (!socket) {
    nobody_listens(line, socket.error());
    return;
  }
  setsockopt(socket->value(), SOL_SOCKET, SO_SNDBUF, &kSmallBufferBytes, sizeof kSmallBufferBytes);
  std::deque<std::optional<Request>> asked;
  const auto greet = [&](const auto& body) {
    asked.emplace_back();
    return send(*socket, *line, ipc::encode(std::remove_cvref_t<decltype(body)>::kKind, body), {}, {});
  };
  bool lives = true;
  if (!random_.chance(client.flawed / 4)) lives = greet(ipc::Hello{1, 1, 0, "raw"});
  if (lives && !random_.chance(client.flawed / 4)) lives = greet(ipc::OpenHca{{}, -1, 0});
  // Else gdxd waits with each further answer, because that to kHello has a file.
  if (lives && random_.chance(0.8)) lives = read_answers(*socket, *line, requests, asked);
  // More refusals, which have no files, than its socket has room for.
  for (unsigned i = random_.chance(0.2) ? 0 : kMoreThanFit; lives && i < kMoreThanFit; ++i) {
    asked.emplace_back();
    lives = send(*socket, *line, requests.no_message(), {}, {});
  }
  for (unsigned i = 0; lives && i < client.messages; ++i) {
    if (random_.chance(client.dies)) {
      ++outcome_.deaths;
      lives = false;
      break;
    }
    if (random_.chance(client.deaf)) Stage::sleep(random_.between(500, 12'000) * kNsPerMs);
    lives = send_any(client, *socket, *line, requests, asked);
    if (lives && random_.chance(client.patient)) lives = read_answers(*socket, *line, requests, asked);
  }
  if (lives) read_answers(*socket, *line, requests, asked);
  line->client_closed = true;
}

void DaemonWorld::be_raw(const Client& client) {
  for (unsigned life = 0; life < client.lives; ++life) {
    Requests requests(random_);
    live_rawly(client, requests);
    Stage::sleep(random_.between(1, 300) * kNsPerMs);
  }
}

}  // namespace gdx::sim
