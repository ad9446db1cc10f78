#include "tests/sim/tries.h"

#include <algorithm>

namespace gdx::sim {
namespace {

constexpr std::uint64_t kAckTimeoutUnitNs = 4096;
constexpr std::uint64_t kLongestGrownTimeoutNs = 1'000'000'000;

bool late(const Fate& fate) { return fate.repeated || fate.delay_ns > 0; }

}  // namespace

void Tries::on_request(std::uint64_t now_ns, std::int32_t first, std::int32_t end, bool asks,
                       const Fate& fate) {
  waits_until_ns_ = 0;
  sent_end_ = std::max(sent_end_, end);
  requests_.push_back({first, end, asks, now_ns, fate});
  if (late(fate)) newest_late_request_ = std::max(newest_late_request_, end - 1);
}

void Tries::on_answer_sent(std::uint64_t now_ns, const Answer& answer, const Fate& fate) {
  answers_.push_back({answer, now_ns, fate});
  if (late(fate)) newest_late_answer_ = std::max(newest_late_answer_, answer.psn);
}

// An ACK covers its own PSN, a NAK only those before it. A READ or atomic is covered by its data alone.
void Tries::on_answer(std::uint64_t now_ns, std::uint64_t sent_ns, const Answer& answer) {
  if (answer.psn >= sent_end_ || answer.psn < oldest_) return;
  const std::int32_t before = oldest_;
  const std::int32_t end = answer.kind == Answer::Kind::kAck ? answer.psn + 1 : answer.psn;
  while (oldest_ < end && !wants_data(oldest_)) ++oldest_;
  const bool caught_up = oldest_ == end;
  if (caught_up && answer.kind == Answer::Kind::kData) ++oldest_;
  if (oldest_ > before) begin_series(now_ns);
  if (!caught_up) return on_loss(now_ns, sent_ns, true);
  if (answer.kind == Answer::Kind::kSequenceNak) return on_loss(now_ns, sent_ns, false);
  if (answer.kind != Answer::Kind::kRnrNak || waits_until_ns_ != 0) return;
  begin_series(now_ns);
  go_back();
  waits_until_ns_ = now_ns + answer.wait_ns;
}

void Tries::on_time(std::uint64_t now_ns) {
  if (now_ns >= waits_until_ns_) waits_until_ns_ = 0;
}

// The wait begins with the first packet that asks, or with progress.
std::string Tries::on_timeout(std::uint64_t now_ns) {
  const auto asking = std::find_if(requests_.begin(), requests_.end(), [this](const Request& request) {
    return request.asks && request.end > oldest_;
  });
  if (asking == requests_.end()) return "timed out with nothing to wait for";
  const std::uint64_t asked_ns = kAckTimeoutUnitNs << config_.ack_timeout;
  const std::uint64_t grown_ns = std::min(asked_ns << std::min(2u, series_failed_), kLongestGrownTimeoutNs);
  const std::uint64_t began_ns = std::max(asking->sent_ns, series_began_ns_);
  if (now_ns < began_ns + std::max(asked_ns, grown_ns)) return "timed out early";
  reported_.reset();
  fail(now_ns, timeout_explained(now_ns, *asking));
  return "";
}

void Tries::on_loss(std::uint64_t now_ns, std::uint64_t sent_ns, bool data) {
  if (waits_until_ns_ != 0 || reported_ == oldest_) return;
  reported_ = oldest_;
  fail(now_ns, loss_explained(data, sent_ns));
}

// A host that pauses sees it when the pause is over.
std::uint64_t Tries::arrival_ns(const Request& request) const {
  std::uint64_t at_ns = request.sent_ns + delay_ns_ + request.fate.delay_ns;
  for (const Pause& pause : pauses_) {
    if (pause.begin_ns <= at_ns && at_ns < pause.end_ns) at_ns = pause.end_ns;
  }
  return at_ns;
}

// Explains packets that are discarded because they follow a lost one, or precede a late one.
bool Tries::request_explains(const Request& request) const {
  return request.fate.delay_ns > 0 || (request.fate.gone && request.first <= oldest_);
}

bool Tries::answer_explains(const SentAnswer& sent) const {
  const bool useless = sent.answer.kind == Answer::Kind::kAck && sent.answer.psn < oldest_;
  return sent.fate.delay_ns > 0 || (sent.fate.gone && !useless);
}

bool Tries::timeout_explained(std::uint64_t now_ns, const Request& asking) const {
  const auto begin = requests_.data();
  return std::any_of(
             pauses_.begin(), pauses_.end(),
             [&](const Pause& pause) { return pause.begin_ns < now_ns && pause.end_ns > asking.sent_ns; }) ||
         std::any_of(
             begin, &asking + 1,
             [this](const Request& request) { return request.fate.gone || request_explains(request); }) ||
         std::any_of(answers_.begin(), answers_.end(),
                     [this](const SentAnswer& sent) { return answer_explains(sent); });
}

// `sent_ns` is of the report. What it is about may be older than this try, and copies older still.
bool Tries::loss_explained(bool data, std::uint64_t sent_ns) const {
  if (requests_.empty() || sent_ns <= arrival_ns(requests_.front())) return true;
  const bool asked = std::any_of(requests_.begin(), requests_.end(), [&](const Request& request) {
    return request.first <= oldest_ && oldest_ < request.end && !request.fate.gone &&
           arrival_ns(request) < sent_ns;
  });
  return (data ? !asked || newest_late_answer_ > oldest_ : newest_late_request_ > oldest_) ||
         std::any_of(requests_.begin(), requests_.end(),
                     [this](const Request& request) { return request_explains(request); }) ||
         std::any_of(answers_.begin(), answers_.end(),
                     [this](const SentAnswer& sent) { return answer_explains(sent); });
}

void Tries::begin_series(std::uint64_t now_ns) {
  series_began_ns_ = now_ns;
  series_failed_ = 0;
  waits_until_ns_ = 0;
}

void Tries::fail(std::uint64_t now_ns, bool explained) {
  ++failed_;
  ++series_failed_;
  if (!explained) unexplained_ns_.push_back(now_ns);
  go_back();
}

void Tries::go_back() {
  requests_.clear();
  answers_.clear();
}

bool Tries::exhausted(std::uint64_t silent_ns) const {
  const bool explained =
      std::none_of(unexplained_ns_.begin(), unexplained_ns_.end(),
                   [&](std::uint64_t at_ns) { return at_ns >= series_began_ns_ && at_ns < silent_ns; });
  return series_failed_ == config_.retry_count + 1u && explained;
}

std::uint64_t Tries::unexplained(std::uint64_t silent_ns) const {
  return static_cast<std::uint64_t>(std::count_if(unexplained_ns_.begin(), unexplained_ns_.end(),
                                                  [&](std::uint64_t at_ns) { return at_ns < silent_ns; }));
}

std::string Tries::text() const {
  std::string text =
      std::to_string(series_failed_) + " failed tries at PSN " + std::to_string(oldest_) + " after the first";
  for (const std::uint64_t at_ns : unexplained_ns_) {
    if (at_ns >= series_began_ns_) text += ", one without a cause at " + std::to_string(at_ns) + " ns";
  }
  return text;
}

}  // namespace gdx::sim
