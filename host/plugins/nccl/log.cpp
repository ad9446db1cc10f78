#include "host/plugins/nccl/log.h"

#include <atomic>

#include "base/log.h"

namespace gdx::nccl {
namespace {

std::atomic<Logger> logger_in_use{nullptr};

void write(LogLevel level, unsigned long flags, const std::string& line) {
  const Logger logger = logger_in_use.load();
  if (logger != nullptr) return logger(level, flags, __FILE__, __LINE__, "NET/gdx: %s", line.c_str());
  if (level == LogLevel::kWarn) return log::warn("nccl: {}", line);
  log::info("nccl: {}", line);
}

}  // namespace

void set_logger(Logger logger) {
  if (logger != nullptr) logger_in_use = logger;
}

void info(const std::string& line) { write(LogLevel::kInfo, kLogInit | kLogNet, line); }
void warn(const std::string& line) { write(LogLevel::kWarn, kLogAll, line); }

Outcome outcome_of(Status status) {
  switch (status) {
    case Status::kOk: return Outcome::kSuccess;
    case Status::kFlushed:  // a peer's end, by the provider's words
    case Status::kPeerGone:
    case Status::kPeerUnreachable:
    case Status::kPeerNotReady:
    case Status::kRemoteAccess:
    case Status::kRemoteInvalid:
    case Status::kRemoteOperation:
    case Status::kVersionMismatch: return Outcome::kRemoteError;
    case Status::kInvalidArgument: return Outcome::kInvalidArgument;
    case Status::kInvalidLength:
    case Status::kUnsupported: return Outcome::kInvalidUsage;
    default: return Outcome::kSystemError;
  }
}

Outcome told(const Error& error) {
  warn(error.message);
  return outcome_of(error.status);
}

}  // namespace gdx::nccl
